"""mse and bce of int8 outputs in integers: one term per element into an int64 sum, or one difference as an error."""

from __future__ import annotations

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    call_int,
    i32,
    kernel,
    placeholder,
    plain,
    reduce_axes,
    select,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.operands import error_output, tables
from tinytrain_compile.lower.schedules import scalars
from tinytrain_compile.ops.int8.targets import SIGMOID_BITS, TargetAttrs, TargetErrorAttrs, TargetLossAttrs


def _operands(node: Node, first: int) -> list[te.Tensor]:
    """(outputs, targets[, table]), the former two as vectors."""
    count = node.inputs[first].elements
    pair = [placeholder(v, name, (count,)) for v, name in zip(node.inputs[first:], ("y", "target"), strict=False)]
    return pair + tables(node, first + 2, ("table",) if len(node.inputs) > first + 2 else ())


def _difference(operands: list[te.Tensor], i: Expr, attrs: TargetAttrs) -> Expr:
    y, target = operands[:2]
    value = i32(y[i]) - i32(attrs.zero)
    if len(operands) > 2:
        entry = operands[2][_magnitude(value)]
        value = select(value < 0, i32(1 << SIGMOID_BITS) - entry, entry)
    else:
        value = value * i32(1 << attrs.bits)
    return call_int("tt_difference", value, target[i], i32(attrs.target[0]), i32(attrs.target[1]), i32(attrs.limit))


def _magnitude(value: Expr) -> Expr:
    return select(value < 0, i32(0) - value, value)


@kernel("QMeanSquaredError", "QSigmoidCrossEntropy")
def target_loss(node: Node, _context: KernelContext) -> KernelSpec:
    """The sum of exact terms; its float32 is put together from bits."""
    attrs = node.attrs
    assert isinstance(attrs, TargetLossAttrs)
    operands = _operands(node, 0)
    (k,) = reduce_axes(node.inputs[0].elements)
    if node.op == "QMeanSquaredError":
        term = call_int("tt_square", _difference(operands, k, attrs), dtype="int64")
    else:
        y, target, table = operands
        distance = i32(y[k]) - i32(attrs.zero)
        rest = (i32(attrs.distance[0]), i32(attrs.distance[1]), i32(attrs.loss_bits))
        entry = table[_magnitude(distance)]
        term = call_int("tt_sigmoid_loss", distance, entry, target[k], *rest).astype("int64")
    acc = te.compute((1,), lambda _: total(term, [k]), "acc")
    to = (i32(attrs.total[0]), i32(attrs.total[1]))
    out = te.compute((1,), lambda i: call_int("tt_wide_float", acc[i], *to, dtype="float32"), "out")
    return KernelSpec(operands, [out], scalars("acc"))


@kernel("QMeanSquaredErrorGrad", "QSigmoidCrossEntropyGrad")
def target_error(node: Node, _context: KernelContext) -> KernelSpec:
    """One difference per element, with the exponent of the error."""
    attrs = node.attrs
    assert isinstance(attrs, TargetErrorAttrs)
    peak, p_out = tables(node, 0, ("peak", "p_out"))
    operands = _operands(node, 2)

    def element(i: Expr) -> Expr:
        value = call_int("tt_shift", _difference(operands, i, attrs), i32(-attrs.bits) - p_out[0])
        return error_output(value, peak)

    out = te.compute((node.inputs[2].elements,), element, "out")
    return KernelSpec([peak, p_out, *operands], [out, None], plain)
