"""Integer kernels of parameters that several layers share."""

from __future__ import annotations

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, call_int, channel_rows, i32, kernel, plain, tensor, tensors
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.ops.int8.shared_parameter import GradientAddAttrs
from tinytrain_compile.ops.names import result


@kernel("QSharedBias")
def qshared_bias(node: Node, _context: KernelContext) -> KernelSpec:
    """One number per channel."""
    bias, multiplier, shift = tensors(node, "bias", "multiplier", "shift")
    out = te.compute(
        bias.shape, lambda c: call_int("tt_requantise", bias[c], multiplier[c], shift[c].astype("int32")), "out"
    )
    return KernelSpec([bias, multiplier, shift], [out], plain)


@kernel("QGradientAdd")
def qgradient_add(node: Node, _context: KernelContext) -> KernelSpec:
    """Both terms at the common exponent, which is the second result."""
    attrs = node.attrs
    assert isinstance(attrs, GradientAddAttrs)
    channels, row = channel_rows(result(node, "total"))
    a, b = (tensor(node, name, (channels, row)) for name in ("a", "b"))
    p_a, p_b = tensors(node, "p_a", "p_b")
    factors = tensors(node, "multiplier_a", "shift_a", "multiplier_b", "shift_b")

    def exponent() -> Expr:
        return tirx.max(p_a[0] + i32(attrs.lifted), p_b[0]) - i32(attrs.lift)

    def term(sums: Expr, multiplier: Expr, shift: Expr, p: Expr) -> Expr:
        return call_int("tt_scaled", sums, multiplier, shift.astype("int32") + p - exponent() - i32(31))

    def element(o: Expr, i: Expr) -> Expr:
        first = term(a[o, i], factors[0][o], factors[1][o], p_a[0])
        return call_int("tt_add", first, term(b[o, i], factors[2][o], factors[3][o], p_b[0]))

    total = te.compute((channels, row), element, "total")
    common = te.compute((1,), lambda _i: exponent(), "exponent")
    return KernelSpec([a, b, p_a, p_b, *factors], [total, common], plain)
