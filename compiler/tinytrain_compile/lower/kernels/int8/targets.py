"""mse and bce of int8 outputs in integers: one term per element into an int64 sum, or one difference as an error."""

from __future__ import annotations

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    call_int,
    flat_tensor,
    i32,
    kernel,
    plain,
    reduce_axes,
    select,
    tensors,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.operands import error_output
from tinytrain_compile.lower.schedules import scalars
from tinytrain_compile.ops.int8.targets import SIGMOID_BITS, TargetAttrs, TargetErrorAttrs, TargetLossAttrs
from tinytrain_compile.ops.names import attrs_of, operand


def _operands(node: Node) -> list[te.Tensor]:
    """Return (outputs, targets[, table])"""
    pair = [flat_tensor(node, "y"), flat_tensor(node, "target")]
    return pair + tensors(node, "table?")


def _difference(inputs: list[te.Tensor], i: Expr, attrs: TargetAttrs) -> Expr:
    y, target, *table = inputs
    value = i32(y[i]) - i32(attrs.zero)
    if table:
        entry = table[0][_magnitude(value)]
        value = select(value < 0, i32(1 << SIGMOID_BITS) - entry, entry)
    else:
        value = value * i32(1 << attrs.bits)
    return call_int("tt_difference", value, target[i], i32(attrs.target[0]), i32(attrs.target[1]), i32(attrs.limit))


def _magnitude(value: Expr) -> Expr:
    return select(value < 0, i32(0) - value, value)


@kernel("QMeanSquaredError", "QSigmoidCrossEntropy")
def target_loss(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute the sum of exact terms; its float32 is assembled from bits."""
    attrs = attrs_of(node, TargetLossAttrs)
    inputs = _operands(node)
    (k,) = reduce_axes(operand(node, "y").elements)
    if node.op == "QMeanSquaredError":
        term = call_int("tt_square", _difference(inputs, k, attrs), dtype="int64")
    else:
        y, target, table = inputs
        distance = i32(y[k]) - i32(attrs.zero)
        rest = (i32(attrs.distance[0]), i32(attrs.distance[1]), i32(attrs.loss_bits))
        entry = table[_magnitude(distance)]
        term = call_int("tt_sigmoid_loss", distance, entry, target[k], *rest).astype("int64")
    acc = te.compute((1,), lambda _: total(term, [k]), "acc")
    to = (i32(attrs.total[0]), i32(attrs.total[1]))
    out = te.compute((1,), lambda i: call_int("tt_wide_float", acc[i], *to, dtype="float32"), "out")
    return KernelSpec(inputs, [out], scalars("acc"))


@kernel("QMeanSquaredErrorGrad", "QSigmoidCrossEntropyGrad")
def target_error(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one difference per element, with the exponent of the error."""
    attrs = attrs_of(node, TargetErrorAttrs)
    peak, p_out = tensors(node, "peak", "p_out")
    inputs = _operands(node)

    def element(i: Expr) -> Expr:
        value = call_int("tt_shift", _difference(inputs, i, attrs), i32(-attrs.bits) - p_out[0])
        return error_output(value, peak)

    out = te.compute((operand(node, "y").elements,), element, "out")
    return KernelSpec([peak, p_out, *inputs], [out, None], plain)
