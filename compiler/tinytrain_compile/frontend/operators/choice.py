"""Operators that choose between numbers: comparisons, masks, Max and Min, and reductions other than sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import Entry, Order
from tinytrain_compile.frontend.graph.handler import Handler
from tinytrain_compile.frontend.graph.operands import (
    axis_index,
    axis_indices,
    broadcast,
    common_order,
    integer_setting,
    ir_axes,
)
from tinytrain_compile.frontend.operators.elementwise import INTEGER, in_type, larger
from tinytrain_compile.frontend.operators.shape import without
from tinytrain_compile.frontend.operators.slicing import reduce_entry
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.choice import ReduceMaxAttrs

_LARGEST = float(np.finfo(np.float32).max)


def _together(ctx: ImportContext, node: OnnxNode, names: Sequence[str]) -> tuple[list[Entry], tuple[int, ...], Order]:
    """Entries of operands that broadcast, their common shape, and the order in which the operator works."""
    entries = [ctx.entry(name) for name in names]
    shape = broadcast(*(entry.shape for entry in entries))
    return entries, shape, common_order(tuple(entries), len(shape))


def _chained(ctx: ImportContext, node: OnnxNode, op: str) -> tuple[Value, tuple[int, ...], Order]:
    """op(op(a, b), c) ... of all operands."""
    entries, shape, order = _together(ctx, node, node.inputs)
    value, *rest = (ctx.operand(node, entry, order, len(shape)) for entry in entries)
    for other in rest:
        if "int32" in (value.dtype, other.dtype) and op in ("Maximum", "Minimum"):
            value = larger(ctx, node, (value, other), op == "Minimum")
        else:
            value = ctx.emit(node, op if value.dtype == "float32" else INTEGER.get(op, op), (value, other))
    return value, shape, order


_OF_MANY = {"Max": "Maximum", "Min": "Minimum", "Sum": "Add", "Mean": "Add"}


def _of_many(ctx: ImportContext, node: OnnxNode) -> None:
    value, shape, order = _chained(ctx, node, _OF_MANY[node.op])
    if node.op == "Mean" and len(node.inputs) > 1:
        share = ctx.number(node, "share", 1.0 / len(node.inputs))
        value = ctx.emit(node, "Mul", (value, share), suffix="mean")
    ctx.define_value(node.output(0), value, shape, order)


def _compare(ctx: ImportContext, node: OnnxNode) -> None:
    entries, shape, order = _together(ctx, node, node.inputs)
    operands = [ctx.operand(node, entry, order, len(shape)) for entry in entries]
    if node.op.startswith("Less"):
        operands.reverse()
    op = node.op.replace("Less", "Greater")
    ctx.define_value(node.output(0), ctx.emit(node, op, operands), shape, order)


def _not(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    assert x.value is not None
    ctx.define(node.output(0), replace(x, value=ctx.emit(node, "Not", (x.value,))))


def _is_nan(ctx: ImportContext, node: OnnxNode) -> None:
    """Only NaN differs from itself. PyTorch's kl_div asks that of its targets."""
    x = ctx.entry(node.input(0))
    assert x.value is not None
    equal = ctx.emit(node, "Equal", (x.value, x.value), suffix="equal")
    ctx.define(node.output(0), replace(x, value=ctx.emit(node, "Not", (equal,))))


def _where(ctx: ImportContext, node: OnnxNode) -> None:
    entries, shape, order = _together(ctx, node, node.inputs)
    condition = ctx.operand(node, entries[0], order, len(shape))
    chosen = [ctx.operand(node, _finite(entry), order, len(shape)) for entry in entries[1:]]
    ctx.define_value(node.output(0), ctx.emit(node, "Where", (condition, *chosen)), shape, order)


def _finite(entry: Entry) -> Entry:
    """A constant with the largest finite numbers for infinite ones, which masks in front of a softmax hold."""
    if not entry.is_constant or entry.data.dtype.kind != "f" or np.isfinite(entry.data).all():
        return entry
    return replace(entry, array=np.clip(entry.data, -_LARGEST, _LARGEST))


def _thresholded(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    assert x.value is not None
    above = ctx.emit(node, "Greater", (x.value, ctx.number(node, "alpha", node.number("alpha", 1.0))), suffix="above")
    y = ctx.emit(node, "Where", (above, x.value, ctx.number(node, "zero", 0.0)))
    ctx.define(node.output(0), replace(x, value=y))


def _reduced(ctx: ImportContext, node: OnnxNode) -> tuple[Entry, tuple[int, ...]] | None:
    """The operand and the axes of a reduction; None where there is nothing to reduce, and the output is defined."""
    x = ctx.entry(node.input(0))
    axes = axis_indices(integer_setting(ctx, node, 1, "axes") or (), x.rank)
    if not axes and node.integer("noop_with_empty_axes", 0):
        return None
    return x, axes or tuple(range(x.rank))


def _kept(ctx: ImportContext, node: OnnxNode, y: Entry, axes: tuple[int, ...]) -> None:
    ctx.define(node.output(0), y if node.integer("keepdims", 1) else without(ctx, node, y, frozenset(axes)))


def extreme(
    ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...], smallest: bool = False, suffix: str = ""
) -> Entry:
    """The largest (or smallest) element over ONNX axes, which stay as 1."""
    assert x.value is not None
    y = ctx.emit(node, "ReduceMax", (x.value,), ReduceMaxAttrs(ir_axes(x.order, axes), smallest), suffix)
    return Entry(tuple(1 if axis in axes else dim for axis, dim in enumerate(x.shape)), y, x.order)


def _reduce_extreme(ctx: ImportContext, node: OnnxNode) -> None:
    found = _reduced(ctx, node)
    if found is None:
        ctx.define(node.output(0), ctx.entry(node.input(0)))
        return
    x, axes = found
    if x.dtype == "uint8":
        y = extreme(ctx, node, in_type(ctx, node, x, "float32"), axes, node.op == "ReduceMin", "number")
        _kept(ctx, node, in_type(ctx, node, y, "uint8"), axes)
        return
    _kept(ctx, node, extreme(ctx, node, x, axes, node.op == "ReduceMin"), axes)


def _applied(ctx: ImportContext, node: OnnxNode, x: Entry, op: str, suffix: str, *others: Value) -> Entry:
    """An element-wise operator on an entry."""
    assert x.value is not None
    return replace(x, value=ctx.emit(node, op, (x.value, *others), suffix=suffix))


def _squares(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    assert x.value is not None
    return _applied(ctx, node, x, "Mul", "square", x.value)


def _norm(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...], p: int) -> Entry:
    """The sum of magnitudes (p = 1), or the root of the sum of squares (p = 2)."""
    if p == 1:
        return reduce_entry(ctx, node, _applied(ctx, node, x, "Abs", "abs"), axes, False)
    total = reduce_entry(ctx, node, _squares(ctx, node, x), axes, False, "sum")
    return _applied(ctx, node, total, "Norm", "")


def _reduce_other(ctx: ImportContext, node: OnnxNode) -> None:
    found = _reduced(ctx, node)
    # with axes given as [] and noop_with_empty_axes the functions are applied element by element
    x, axes = found or (ctx.entry(node.input(0)), ())
    if node.op in ("ReduceL1", "ReduceL2"):
        y = _norm(ctx, node, x, axes, int(node.op[-1]))
    elif node.op == "ReduceSumSquare":
        y = reduce_entry(ctx, node, _squares(ctx, node, x), axes, False)
    elif node.op == "ReduceLogSum":
        y = _applied(ctx, node, reduce_entry(ctx, node, x, axes, False, "sum"), "Log", "")
    else:
        top = extreme(ctx, node, x, axes, suffix="top")
        assert top.value is not None
        power = _applied(ctx, node, _applied(ctx, node, x, "Sub", "below", top.value), "Exp", "exp")
        total = reduce_entry(ctx, node, power, axes, False, "sum")
        y = _applied(ctx, node, _applied(ctx, node, total, "Log", "log"), "Add", "", top.value)
    _kept(ctx, node, y, axes)


def _lp_normalization(ctx: ImportContext, node: OnnxNode) -> None:
    """x over its norm, which counts as 1e-12 at least, as frameworks have it."""
    x = ctx.entry(node.input(0))
    norm = _norm(ctx, node, x, (axis_index(node.integer("axis", -1), x.rank),), node.integer("p", 2))
    assert norm.value is not None
    least = ctx.emit(node, "Clip", (norm.value,), ClipAttrs(low=1e-12), suffix="least")
    ctx.define(node.output(0), _applied(ctx, node, x, "Div", "", least))


_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "And", "Or", "Xor")

HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(_OF_MANY, _of_many),
    **dict.fromkeys(_COMPARISONS, _compare),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), _reduce_extreme),
    **dict.fromkeys(_REDUCTIONS, _reduce_other),
    "IsNaN": _is_nan,
    "Not": _not,
    "Where": _where,
    "ThresholdedRelu": _thresholded,
    "LpNormalization": _lp_normalization,
}
