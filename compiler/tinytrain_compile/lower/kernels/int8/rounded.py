"""Updates of int8 weights by a float32 gradient, from where it is stored or from the register of its sum."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Attrs, Node
from tinytrain_compile.lower.kernels.base import (
    Finish,
    KernelSpec,
    Load,
    address,
    call_int,
    channel_rows,
    flat_tensor,
    kernel,
    plain,
    tensor,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.update import UPDATES, Results, as_it_is
from tinytrain_compile.lower.kernels.int8.conv import FRACTION_BITS, SCALE, moved_weight, step
from tinytrain_compile.lower.kernels.int8.update_fine import moved_fine
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.names import Named, operands


def _rounded(g: Expr) -> Expr:
    return call_int("tt_rounded", g)


def _summed(_op: str, _attrs: Attrs, inputs: Named[te.Tensor], g: Load, _end: Finish) -> Results:
    """The running sum plus the gradient."""
    total = inputs["sum"]
    return [te.compute(total.shape, lambda *i: call_int("tt_add", total[i], _rounded(g(*i))), "out")]


def _channel(inputs: Named[te.Tensor], index: tuple[Expr, ...]) -> Expr:
    """The output channel of a weight; its first index may count rows of several for each channel."""
    rows, channels = int(inputs["w"].shape[0]), int(inputs["multiplier"].shape[0])
    return index[0] if rows == channels else tirx.indexdiv(index[0], rows // channels)


def _place(w: te.Tensor, index: tuple[Expr, ...]) -> Expr:
    """Of a weight in its tensor, as it lies."""
    flat: Any = 0
    for position, extent in zip(index, w.shape, strict=True):
        flat = flat * extent + position
    return flat


def _updated(_op: str, attrs: Any, inputs: Named[te.Tensor], g: Load, _end: Finish) -> Results:
    """The step of a weight, with noise."""
    w, scale, (noise, salt) = inputs["w"], [inputs[name] for name in SCALE], (inputs["noise"], inputs["salt"])

    def weight(*i: Expr) -> Expr:
        size = step(scale, _channel(inputs, i), FRACTION_BITS)
        return moved_weight(w[i], _rounded(g(*i)), size, noise, salt, _place(w, i), attrs.limit)

    return [te.compute(w.shape, weight, "out")]


def _updated_fine(_op: str, attrs: Any, inputs: Named[te.Tensor], g: Load, _end: Finish) -> Results:
    """The step of a weight with fractions; the helper writes the fraction."""
    w, scale, fraction = inputs["w"], [inputs[name] for name in SCALE], inputs["fraction"]

    def weight(*i: Expr) -> Expr:
        size = step(scale, _channel(inputs, i), FRACTION_BITS)
        return moved_fine(w[i], address(fraction, *i), _rounded(g(*i)), size, attrs.limit)

    return [te.compute(w.shape, weight, "out"), None]


UPDATES.update(QRoundedSum=_summed, QRoundedUpdate=_updated, QRoundedUpdateFine=_updated_fine)


@kernel("QRoundedSum", "QRoundedUpdate", "QRoundedUpdateFine")
def rounded_update(node: Node, _context: KernelContext) -> KernelSpec:
    """All of it from a gradient that is stored, row by row of an output channel."""
    rows, whole = channel_rows(node.outputs[0]), {"g", *op_def(node.op).outputs}

    def given(name: str) -> te.Tensor:
        return tensor(node, name, rows) if name in whole else flat_tensor(node, name)

    inputs = Named(node.op, [*operands(node)], [given(name) for name in operands(node)])
    g = inputs["g"]
    results = UPDATES[node.op](node.op, node.attrs, inputs, lambda *i: g[i], as_it_is)
    return KernelSpec([*inputs.values()], results, plain)


@kernel("QRoundGradient")
def round_gradient(node: Node, _context: KernelContext) -> KernelSpec:
    """Element by element."""
    g = flat_tensor(node, "g")
    return KernelSpec([g], [te.compute(g.shape, lambda i: _rounded(g[i]), "out")], plain)
