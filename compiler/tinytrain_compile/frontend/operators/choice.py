"""Operators that choose between numbers, or elements by size or index: comparisons, masks, Max, TopK, OneHot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, of_one
from tinytrain_compile.frontend.graph.entries import Entry, Order
from tinytrain_compile.frontend.graph.operands import axis_index, broadcasted, integers, required_input, with_dim
from tinytrain_compile.frontend.operators.elementwise import INTEGER, larger
from tinytrain_compile.frontend.operators.loss import one_hot_label, pick
from tinytrain_compile.frontend.operators.slicing import slice_axis, without
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.integers import CastAttrs
from tinytrain_compile.ops.selection import CumSumAttrs, TakeAlongAttrs, TopAttrs

# ---- between numbers -------------------------------------------------------------------------------------------------

_LARGEST = float(np.finfo(np.float32).max)


_OF_MANY = {"Max": "Maximum", "Min": "Minimum", "Sum": "Add", "Mean": "Add"}


def _of_many(ctx: ImportContext, node: OnnxNode) -> None:
    """Import op(op(a, b), c) ... of all operands."""
    op = _OF_MANY[node.op]
    (value, *rest), shape, order = broadcasted(ctx, node, [ctx.entry(name) for name in node.inputs])
    for other in rest:
        if "int32" in (value.dtype, other.dtype) and op in ("Maximum", "Minimum"):
            value = larger(ctx, node, (value, other), op == "Minimum")
        else:
            value = ctx.emit(node, op if value.dtype == "float32" else INTEGER.get(op, op), (value, other))
    if node.op == "Mean" and len(node.inputs) > 1:
        share = ctx.number(node, "share", 1.0 / len(node.inputs))
        value = ctx.emit(node, "Mul", (value, share), suffix="mean")
    ctx.define_value(node.output(0), value, shape, order)


def _compare(ctx: ImportContext, node: OnnxNode) -> None:
    operands, shape, order = broadcasted(ctx, node, [ctx.entry(name) for name in node.inputs])
    if node.op.startswith("Less"):
        operands.reverse()
    op = node.op.replace("Less", "Greater")
    ctx.define_value(node.output(0), ctx.emit(node, op, operands), shape, order)


def _is_nan(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Import IsNaN: only NaN differs from itself. PyTorch's kl_div asks that of its targets."""
    equal = ctx.mapped(node, x, "Equal", (x.computed,), suffix="equal")
    return ctx.mapped(node, equal, "Not")


def _where(ctx: ImportContext, node: OnnxNode) -> None:
    condition, *chosen = (ctx.entry(name) for name in node.inputs)
    operands, shape, order = broadcasted(ctx, node, [condition, *map(_finite, chosen)])
    ctx.define_value(node.output(0), ctx.emit(node, "Where", operands), shape, order)


def _finite(entry: Entry) -> Entry:
    """Return a constant with the largest finite numbers for infinite ones, which masks in front of a softmax hold."""
    if not entry.is_constant or entry.data.dtype.kind != "f" or np.isfinite(entry.data).all():
        return entry
    return replace(entry, array=np.clip(entry.data, -_LARGEST, _LARGEST))


def _thresholded(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    least = ctx.number(node, "alpha", node.number("alpha", 1.0))
    above = ctx.mapped(node, x, "Greater", (least,), suffix="above")
    return ctx.mapped(node, above, "Where", (x.computed, ctx.number(node, "zero", 0.0)))


_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "And", "Or", "Xor")


# ---- between elements, and running sums ------------------------------------------------------------------------------


def _last(rank: int, axis: int) -> Order:
    """Return an order with this ONNX axis at the end."""
    return (*(i for i in range(rank) if i != axis), axis)


def _single(array: np.ndarray, what: str) -> int:
    values = integers(array)
    if len(values) != 1:
        raise ValueError(f"{what} must be a single number, its shape is {array.shape}")
    return values[0]


def _cumsum(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    axis = axis_index(_single(required_input(ctx, node, 1, "axis"), "axis"), x.rank)
    attrs = CumSumAttrs(x.order.index(axis), bool(node.integer("exclusive", 0)), bool(node.integer("reverse", 0)))
    return replace(x, value=ctx.emit(node, "CumSum", (x.computed,), attrs))


def _ordered(
    ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, count: int, smallest: bool = False
) -> tuple[Value, Value, Order]:
    """Return the operand with an axis at the end, and that order; its largest elements are on that axis."""
    order = _last(x.rank, axis)
    value = ctx.value(node, x, order)
    if not 0 < count <= x.shape[axis]:
        raise ValueError(f"{count} elements of an axis of {x.shape[axis]}")
    return value, ctx.emit(node, "TopIndices", (value,), TopAttrs(count, smallest), "places"), order


def _top_k(ctx: ImportContext, node: OnnxNode) -> None:
    """Select the largest or smallest elements.

    They keep their gradient; which ones they are is a choice without one.
    """
    x, count = ctx.entry(node.input(0)), _single(required_input(ctx, node, 1, "k"), "k")
    axis = axis_index(node.integer("axis", -1), x.rank)
    value, places, order = _ordered(ctx, node, x, axis, count, not node.integer("largest", 1))
    shape = with_dim(x.shape, axis, count)
    if ctx.links.is_used(node.output(0)):
        taken = ctx.emit(node, "TakeAlong", (value, places), TakeAlongAttrs(x.shape[axis]))
        ctx.define_value(node.output(0), taken, shape, order)
    ctx.define_value(node.output(1), places, shape, order)


def _arg(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    axis = axis_index(node.integer("axis", 0), x.rank)
    last, end = bool(node.integer("select_last_index", 0)), x.shape[axis] - 1
    if last:  # the first from the end
        x = slice_axis(ctx, node, x, axis, end, end + 1, -1, "backwards")
    _, places, order = _ordered(ctx, node, x, axis, 1, node.op == "ArgMin")
    if last:
        places = ctx.emit(
            node,
            "IntegerSub",
            (ctx.constant(np.asarray(end, np.int32), f"{node.name}.end", node), places),
            suffix="last",
        )
    y = Entry(with_dim(x.shape, axis, 1), places, order)
    return y if node.integer("keepdims", 1) else without(ctx, node, y, frozenset((axis,)))


def _hot(ctx: ImportContext, node: OnnxNode, index: Value, depth: int, values: np.ndarray) -> Value:
    """Return vectors with the second value at the place that an index names, else the first; indices have a last 1."""
    places = ctx.constant(np.arange(depth, dtype=np.int32), f"{node.name}.places", node)
    here = ctx.emit(node, "Equal", (index, places), suffix="here")
    low, high = (
        ctx.constant(value.reshape(()), f"{node.name}.{name}", node)
        for name, value in zip(("off", "on"), values.reshape(-1), strict=True)
    )
    return ctx.emit(node, "Where", (here, high, low))


def _hardmax(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    axis = axis_index(node.integer("axis", -1), x.rank)
    _, places, order = _ordered(ctx, node, x, axis, 1)
    return Entry(x.shape, _hot(ctx, node, places, x.shape[axis], np.asarray([0, 1], np.float32)), order)


def _one_hot(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Return indices as vectors; negative ones count from the end, and those outside are nowhere."""
    if node.input(0) in ctx.labels:
        return one_hot_label(ctx, node, x.shape)
    values = required_input(ctx, node, 2, "values")
    depth = int(required_input(ctx, node, 1, "depth").reshape(-1)[0])
    axis = axis_index(node.integer("axis", -1), x.rank + 1)
    shape = (*x.shape[:axis], depth, *x.shape[axis:])
    ctx.check_size(node, shape)
    index = ctx.reshape(node, ctx.value(node, x), (*x.shape, 1))
    if index.dtype == "float32":
        index = ctx.emit(node, "Cast", (index,), CastAttrs("int32"), "whole")
    zero, size = (
        ctx.constant(np.asarray(n, np.int32), f"{node.name}.{w}", node) for n, w in ((0, "zero"), (depth, "depth"))
    )
    wrapped = ctx.emit(node, "IntegerAdd", (index, size), suffix="wrapped")
    below = ctx.emit(node, "Greater", (zero, index), suffix="below")
    index = ctx.emit(node, "Where", (below, wrapped, index), suffix="index")
    order = (*(i if i < axis else i + 1 for i in range(x.rank)), axis)
    return Entry(shape, _hot(ctx, node, index, depth, values), order)


def _others(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _gather_elements(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Take an element of an axis for each index; with the labels of a loss, those that it picks."""
    if node.input(1) in ctx.labels:
        return pick(ctx, node, x)
    chosen = ctx.entry(node.input(1))
    axis = axis_index(node.integer("axis", 0), x.rank)
    size, order = x.shape[axis], _last(x.rank, axis)
    if _others(x.shape, axis) != _others(chosen.shape, axis):
        what = f"indices of shape {list(chosen.shape)} choose from a part of {list(x.shape)}"
        raise Refused("indices", what, "indices for all of the other axes")
    if chosen.is_constant:
        places = [axis_index(int(i), size) for i in chosen.data.reshape(-1)]
        chosen = replace(chosen, array=np.array(places, np.int32).reshape(chosen.shape))
    operands = (ctx.value(node, x, order), ctx.value(node, chosen, order))
    return Entry(chosen.shape, ctx.emit(node, "TakeAlong", operands, TakeAlongAttrs(size)), order)


def _trilu(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Keep one triangle of the last two axes; the other one becomes zeros."""
    if x.rank < 2:
        raise ValueError(f"a triangle of shape {x.shape}")
    k = _single(required_input(ctx, node, 1, "k"), "k") if node.input(1) else 0
    rows, columns = x.shape[-2:]
    places = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    kept = Entry((rows, columns), array=places >= k if node.integer("upper", 1) else places <= k)
    zero = ctx.constant(np.zeros((), x.dtype if x.dtype != "uint8" else np.bool_), f"{node.name}.zero", node)
    condition = ctx.operand(node, kept, x.order, x.rank)
    return replace(x, value=ctx.emit(node, "Where", (condition, x.computed, zero)))


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(_OF_MANY, _of_many),
    **dict.fromkeys(_COMPARISONS, _compare),
    "IsNaN": of_one(_is_nan),
    "Where": _where,
    "ThresholdedRelu": of_one(_thresholded),
    "ArgMax": of_one(_arg),
    "ArgMin": of_one(_arg),
    "CumSum": of_one(_cumsum),
    "GatherElements": of_one(_gather_elements),
    "Hardmax": of_one(_hardmax),
    "OneHot": of_one(_one_hot),
    "TopK": _top_k,
    "Trilu": of_one(_trilu),
}
