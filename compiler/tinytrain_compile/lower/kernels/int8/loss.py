"""Cross entropy of int8 logits in integers: two sums per group of classes, then an error per class, or the loss."""

from __future__ import annotations

import math

from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    call_int,
    flat_tensor,
    guarded,
    i32,
    kernel,
    plain,
    reduce_axes,
    select,
    tensor,
    tensors,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.loss import Labels, label_counts
from tinytrain_compile.lower.kernels.int8.operands import error_output
from tinytrain_compile.lower.schedules import scalars
from tinytrain_compile.ops.int8.loss import QLossAttrs, QLossErrorAttrs, SoftmaxSumAttrs
from tinytrain_compile.ops.int8.weighted_loss import LabelWeightAttrs
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.names import attrs_of, operand, operands


def _view(node: Node, attrs: NllAttrs) -> tuple[Labels, te.Tensor, te.Tensor, te.Tensor]:
    """Return (labels, logits, largest, sum) as (outer, [classes,] inner)"""
    view = Labels(node, attrs, operand(node, "logits").shape)
    groups = (view.outer, view.inner)
    x = tensor(node, "logits", (view.outer, view.classes, view.inner))
    return view, x, tensor(node, "largest", groups), tensor(node, "sum", groups)


def _exponential(table: te.Tensor, largest: Expr, logit: Expr) -> Expr:
    return table[i32(largest) - i32(logit)]


@kernel("QSoftmaxSum")
def softmax_sum(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute the maximum, then the sum of table entries."""
    attrs = attrs_of(node, SoftmaxSumAttrs)
    shape = operand(node, "logits").shape
    classes = shape[attrs.axis]
    groups = (math.prod(shape[: attrs.axis]), math.prod(shape[attrs.axis + 1 :]))
    x = tensor(node, "logits", (groups[0], classes, groups[1]))
    table = tensor(node, "table")
    (k,), (j,) = reduce_axes(classes, prefix="k"), reduce_axes(classes, prefix="j")
    largest = te.compute(groups, lambda o, i: te.max(x[o, k, i], [k]), "largest")
    summed = te.compute(groups, lambda o, i: total(_exponential(table, largest[o, i], x[o, j, i]), [j]), "sum")
    return KernelSpec([x, table], [largest, summed], plain)


@kernel("QSoftmaxLoss", "QWeightedSoftmaxLoss")
def softmax_loss(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute and add fixed-point terms; a float32 is assembled from the bits of the sum."""
    attrs = attrs_of(node, QLossAttrs)
    view, x, largest, summed = _view(node, attrs)
    a, b = reduce_axes(view.outer, view.inner)

    def term(label: Expr) -> Expr:
        distance = i32(largest[a, b]) - i32(x[a, label, b])
        rest = (i32(attrs.distance[0]), i32(attrs.distance[1]), i32(attrs.loss_bits))
        value = call_int("tt_cross_entropy", summed[a, b], i32(attrs.bits), distance, *rest)
        return call_int("tt_product", weights[0][a, b], value, dtype="int64") if weights else value

    weights = _weights(node, view)
    acc = te.compute((1,), lambda _: total(view.weighted(a, b, term), [a, b]), "acc")
    to = (i32(attrs.total[0]), i32(attrs.total[1]))

    def finished(i: Expr) -> Expr:
        if weights:
            return call_int("tt_quotient_float", acc[i], weights[1][0], *to, dtype="float32")
        return call_int("tt_scaled_float", acc[i], *to, dtype="float32")

    out = te.compute((1,), finished, "out")
    return KernelSpec([x, *view.inputs, largest, summed, *weights], [out], scalars("acc"))


def _weights(node: Node, view: Labels) -> list[te.Tensor]:
    """Return (weight of each label, divisor), if labels have weights."""
    if "weight" not in operands(node):
        return []
    return [tensor(node, "weight", (view.outer, view.inner)), tensor(node, "divisor")]


@kernel("QLabelWeight")
def label_weight(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute the weight of each label; then their sum, or 1 if that is 0."""
    attrs = attrs_of(node, LabelWeightAttrs)
    count, classes = operand(node, "labels").elements, operand(node, "weights").elements
    labels, table, ignored = flat_tensor(node, "labels"), tensor(node, "weights"), attrs.ignore_index

    def weight(i: Expr) -> Expr:
        return guarded(label_counts(labels[i], classes, ignored), table[labels[i]])

    out = te.compute((count,), weight, "weight")
    if attrs.divisor:
        return KernelSpec([labels, table], [out, te.compute((1,), lambda _: i32(attrs.divisor), "divisor")], plain)
    (k,) = reduce_axes(count)
    acc = te.compute((1,), lambda _: total(out[k], [k]), "acc")
    divisor = te.compute((1,), lambda i: select(tirx.EQ(acc[i], i32(0)), i32(1), acc[i]), "divisor")
    return KernelSpec([labels, table], [out, divisor], scalars("acc"))


@kernel("QSoftmaxError", "QWeightedSoftmaxError")
def softmax_error(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one division per group; every class is then scaled like any requantised sum."""
    attrs = attrs_of(node, QLossErrorAttrs)
    peak, p_out = tensors(node, "peak", "p_out")
    view, x, largest, summed = _view(node, attrs)
    table = tensor(node, "table")
    groups = (view.outer, view.inner)
    weights = _weights(node, view)

    def factor(o: Expr, i: Expr) -> Expr:
        inverse = call_int("tt_ratio", i32(1 << attrs.bits), summed[o, i])
        if not weights:
            return inverse
        return call_int("tt_high_multiply", inverse, call_int("tt_ratio", weights[0][o, i], weights[1][0]))

    inverse = te.compute(groups, factor, "inverse")
    shift = (2 if weights else 1) - attrs.bits

    def element(o: Expr, c: Expr, i: Expr) -> Expr:
        above = _exponential(table, largest[o, i], x[o, c, i])
        above = above - select(view.hits(o, c, i), summed[o, i], i32(0))
        value = call_int("tt_requantise", above, inverse[o, i], i32(shift) - p_out[0])
        return error_output(view.weighted(o, i, lambda _label: value), peak)

    out = te.compute((view.outer, view.classes, view.inner), element, "out")

    def schedule(sch: s_tir.Schedule) -> None:
        o, c, i = sch.get_loops(sch.get_sblock("out"))
        sch.reorder(o, i, c)
        block = sch.get_sblock("inverse")
        sch.compute_at(block, i, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")

    inputs = [peak, p_out, x, *view.inputs, largest, summed, table, *weights]
    return KernelSpec(inputs, [out, None], schedule)
