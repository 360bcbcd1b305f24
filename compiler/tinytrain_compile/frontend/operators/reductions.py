"""Reductions over axes: sums, means, largest elements, norms, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, of_one
from tinytrain_compile.frontend.graph.entries import Entry
from tinytrain_compile.frontend.graph.operands import axis_index, ir_axes, reduced_axes, reduced_shape
from tinytrain_compile.frontend.operators.elementwise import in_type
from tinytrain_compile.frontend.operators.slicing import slice_axis, without
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.choice import ReduceMaxAttrs
from tinytrain_compile.ops.selection import CumSumAttrs
from tinytrain_compile.ops.shape import ReduceAttrs


def reduce_entry(
    ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...], mean: bool, suffix: str = ""
) -> Entry:
    """Sum or mean over ONNX axes, which stay as 1."""
    if x.dtype == "int32" and not mean:
        return _sum_of_integers(ctx, node, x, axes)
    count = math.prod(x.shape[axis] for axis in axes)
    attrs = ReduceAttrs(ir_axes(x.order, axes), 1.0 / count if mean else 1.0)
    y = ctx.emit(node, "Reduce", (x.computed,), attrs, suffix)
    return Entry(reduced_shape(x.shape, axes), y, x.order)


def _sum_of_integers(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    """Sum integers up axis by axis, as the last of running sums."""
    for axis in axes:
        sums = replace(x, value=ctx.emit(node, "CumSum", (x.computed,), CumSumAttrs(x.order.index(axis)), "sums"))
        x = slice_axis(ctx, node, sums, axis, x.shape[axis] - 1, 1, suffix="sum")
    return x


_Reduction = Callable[[ImportContext, OnnxNode, Entry, tuple[int, ...]], Entry]
"""Reduces an entry over ONNX axes, which stay as 1."""


def _reduce(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    axes = reduced_axes(ctx, node)
    if not axes and node.integer("noop_with_empty_axes", 0) and node.op in _OF_ONE_THE_SAME:
        return x  # other functions are then applied to each element
    y = _REDUCTIONS[node.op](ctx, node, x, axes)
    return y if node.integer("keepdims", 1) else without(ctx, node, y, frozenset(axes))


def _largest(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...], suffix: str = "") -> Entry:
    attrs = ReduceMaxAttrs(ir_axes(x.order, axes), node.op == "ReduceMin")
    y = ctx.emit(node, "ReduceMax", (x.computed,), attrs, suffix)
    return Entry(reduced_shape(x.shape, axes), y, x.order)


def _extreme(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    if x.dtype != "uint8":
        return _largest(ctx, node, x, axes)
    return in_type(ctx, node, _largest(ctx, node, in_type(ctx, node, x, "float32"), axes, "number"), "uint8")


def _squares(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    return ctx.mapped(node, x, "Mul", (x.computed,), suffix="square")


def _sum_of_magnitudes(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    return reduce_entry(ctx, node, ctx.mapped(node, x, "Abs", suffix="abs"), axes, False)


def _length(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    """Emit the root of the sum of squares."""
    return ctx.mapped(node, reduce_entry(ctx, node, _squares(ctx, node, x), axes, False, "sum"), "Norm")


def _log_of_exponentials(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    """Emit log(sum(exp(x))), with the largest element taken out first: no exponential overflows."""
    top = _largest(ctx, node, x, axes, "top")
    below = ctx.mapped(node, x, "Sub", (top.computed,), suffix="below")
    total = reduce_entry(ctx, node, ctx.mapped(node, below, "Exp", suffix="exp"), axes, False, "sum")
    return ctx.mapped(node, ctx.mapped(node, total, "Log", suffix="log"), "Add", (top.computed,))


def _lp_normalization(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Emit x over its norm, which counts as 1e-12 at least, as frameworks have it."""
    norm = _sum_of_magnitudes if node.integer("p", 2) == 1 else _length
    found = norm(ctx, node, x, (axis_index(node.integer("axis", -1), x.rank),))
    least = ctx.mapped(node, found, "Clip", attrs=ClipAttrs(low=1e-12), suffix="least")
    return ctx.mapped(node, x, "Div", (least.computed,))


_OF_ONE_THE_SAME = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
"""Reductions that leave single elements as they are."""
_REDUCTIONS: Mapping[str, _Reduction] = {
    "ReduceSum": lambda ctx, node, x, axes: reduce_entry(ctx, node, x, axes, False),
    "ReduceMean": lambda ctx, node, x, axes: reduce_entry(ctx, node, x, axes, True),
    "ReduceMax": _extreme,
    "ReduceMin": _extreme,
    "ReduceL1": _sum_of_magnitudes,
    "ReduceL2": _length,
    "ReduceSumSquare": lambda ctx, node, x, axes: reduce_entry(ctx, node, _squares(ctx, node, x), axes, False),
    "ReduceLogSum": lambda ctx, node, x, axes: ctx.mapped(node, reduce_entry(ctx, node, x, axes, False, "sum"), "Log"),
    "ReduceLogSumExp": _log_of_exponentials,
}

HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(_REDUCTIONS, of_one(_reduce)),
    "LpNormalization": of_one(_lp_normalization),
}
