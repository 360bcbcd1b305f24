"""Reductions over axes: sums, means, largest elements, norms, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import Handler, ImportContext
from tinytrain_compile.frontend.graph.entries import Entry
from tinytrain_compile.frontend.graph.operands import axis_index, axis_indices, integer_setting, ir_axes, reduced_shape
from tinytrain_compile.frontend.operators.elementwise import in_type
from tinytrain_compile.frontend.operators.moves import reduce_entry, without
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.choice import ReduceMaxAttrs

_Reduction = Callable[[ImportContext, OnnxNode, Entry, tuple[int, ...]], Entry]
"""Reduces an entry over ONNX axes, which stay as 1."""


def _reduce(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    axes = axis_indices(integer_setting(ctx, node, 1, "axes") or (), x.rank)
    nothing = not axes and bool(node.integer("noop_with_empty_axes", 0))
    if nothing and node.op in _OF_ONE_THE_SAME:
        ctx.define(node.output(0), x)
        return
    axes = axes if nothing else axes or tuple(range(x.rank))  # other functions are then applied to each element
    y = _REDUCTIONS[node.op](ctx, node, x, axes)
    ctx.define(node.output(0), y if node.integer("keepdims", 1) else without(ctx, node, y, frozenset(axes)))


def _sum(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    return reduce_entry(ctx, node, x, axes, node.op == "ReduceMean")


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


def _sum_of_squares(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    return reduce_entry(ctx, node, _squares(ctx, node, x), axes, False)


def _length(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    """Emit the root of the sum of squares."""
    return ctx.mapped(node, reduce_entry(ctx, node, _squares(ctx, node, x), axes, False, "sum"), "Norm")


def _log_of_sum(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    return ctx.mapped(node, reduce_entry(ctx, node, x, axes, False, "sum"), "Log")


def _log_of_exponentials(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    """Emit log(sum(exp(x))), with the largest element taken out first: no exponential overflows."""
    top = _largest(ctx, node, x, axes, "top")
    below = ctx.mapped(node, x, "Sub", (top.computed,), suffix="below")
    total = reduce_entry(ctx, node, ctx.mapped(node, below, "Exp", suffix="exp"), axes, False, "sum")
    return ctx.mapped(node, ctx.mapped(node, total, "Log", suffix="log"), "Add", (top.computed,))


def _lp_normalization(ctx: ImportContext, node: OnnxNode) -> None:
    """Emit x over its norm, which counts as 1e-12 at least, as frameworks have it."""
    x = ctx.entry(node.input(0))
    norm = _sum_of_magnitudes if node.integer("p", 2) == 1 else _length
    found = norm(ctx, node, x, (axis_index(node.integer("axis", -1), x.rank),))
    least = ctx.mapped(node, found, "Clip", attrs=ClipAttrs(low=1e-12), suffix="least")
    ctx.define(node.output(0), ctx.mapped(node, x, "Div", (least.computed,)))


_OF_ONE_THE_SAME = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
"""Reductions that leave single elements as they are."""
_REDUCTIONS: Mapping[str, _Reduction] = {
    "ReduceSum": _sum,
    "ReduceMean": _sum,
    "ReduceMax": _extreme,
    "ReduceMin": _extreme,
    "ReduceL1": _sum_of_magnitudes,
    "ReduceL2": _length,
    "ReduceSumSquare": _sum_of_squares,
    "ReduceLogSum": _log_of_sum,
    "ReduceLogSumExp": _log_of_exponentials,
}

HANDLERS: Mapping[str, Handler] = {**dict.fromkeys(_REDUCTIONS, _reduce), "LpNormalization": _lp_normalization}
