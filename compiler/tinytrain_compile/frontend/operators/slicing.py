"""Operators that join, cut, pad, repeat or sum a tensor along its axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry, Order, ir_shape, plain
from tinytrain_compile.frontend.graph.handler import Handler
from tinytrain_compile.frontend.graph.operands import (
    axis_index,
    axis_indices,
    broadcast,
    common_order,
    integer_setting,
    integers,
    ir_axes,
    number,
    required_input,
    spread,
    transposed,
)
from tinytrain_compile.frontend.operators.loss import pick
from tinytrain_compile.frontend.operators.pieces import piece_of
from tinytrain_compile.frontend.operators.shape import without
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.embedding import GatherAttrs
from tinytrain_compile.ops.selection import CumSumAttrs
from tinytrain_compile.ops.shape import ConcatAttrs, EmbedAttrs, ExpandAttrs, ReduceAttrs, SliceAttrs


def reduce_entry(
    ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...], mean: bool, suffix: str = ""
) -> Entry:
    """Sum or mean over ONNX axes, which stay as 1."""
    assert x.value is not None
    if x.dtype == "int32" and not mean:
        return _sum_of_integers(ctx, node, x, axes)
    count = math.prod(x.shape[axis] for axis in axes)
    attrs = ReduceAttrs(ir_axes(x.order, axes), 1.0 / count if mean else 1.0)
    y = ctx.emit(node, "Reduce", (x.value,), attrs, suffix)
    shape = tuple(1 if axis in axes else dim for axis, dim in enumerate(x.shape))
    return Entry(shape, y, x.order)


def _sum_of_integers(ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]) -> Entry:
    """Sum integers up axis by axis, as the last of running sums."""
    for axis in axes:
        assert x.value is not None
        sums = replace(x, value=ctx.emit(node, "CumSum", (x.value,), CumSumAttrs(x.order.index(axis)), "sums"))
        starts = tuple(dim - 1 if i == axis else 0 for i, dim in enumerate(x.shape))
        shape = tuple(1 if i == axis else dim for i, dim in enumerate(x.shape))
        x = slice_entry(ctx, node, sums, starts, (1,) * x.rank, shape, "sum")
    return x


def _reduce(ctx: ImportContext, node: OnnxNode) -> None:
    ctx.define(node.output(0), reduce_over(ctx, node, ctx.entry(node.input(0)), node.op == "ReduceMean"))


def reduce_over(ctx: ImportContext, node: OnnxNode, x: Entry, mean: bool) -> Entry:
    """Sum or mean over the axes that the node names, which it keeps as 1 or leaves out."""
    axes = axis_indices(integer_setting(ctx, node, 1, "axes") or (), x.rank)
    if not axes and node.integer("noop_with_empty_axes", 0):
        return x
    axes = axes or tuple(range(x.rank))
    y = reduce_entry(ctx, node, x, axes, mean)
    return y if node.integer("keepdims", 1) else without(ctx, node, y, frozenset(axes))


def _concat(ctx: ImportContext, node: OnnxNode) -> None:
    entries = tuple(ctx.entry(name) for name in node.inputs)
    if len({entry.rank for entry in entries}) != 1:
        raise ValueError(f"inputs of shapes {[entry.shape for entry in entries]}")
    rank = entries[0].rank
    axis = axis_index(node.integer("axis", 0), rank)
    order = common_order(entries, rank)
    values = [ctx.value(node, entry, order) for entry in entries]
    y = ctx.emit(node, "Concat", values, ConcatAttrs(order.index(axis)))
    shape = (*entries[0].shape[:axis], sum(e.shape[axis] for e in entries), *entries[0].shape[axis + 1 :])
    ctx.define_value(node.output(0), y, shape, order)


def _split(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    axis = axis_index(node.integer("axis", 0), x.rank)
    sizes = integer_setting(ctx, node, 1, "split") or _equal_parts(node, x.shape[axis])
    if len(sizes) != len(node.outputs) or sum(sizes) != x.shape[axis] or min(sizes) < 1:
        raise ValueError(f"parts {sizes} of an axis of {x.shape[axis]} for {len(node.outputs)} outputs")
    start = 0
    for index, (output, size) in enumerate(zip(node.outputs, sizes, strict=True)):
        if output:
            starts = tuple(start if i == axis else 0 for i in range(x.rank))
            shape = tuple(size if i == axis else dim for i, dim in enumerate(x.shape))
            ctx.define(output, slice_entry(ctx, node, x, starts, (1,) * x.rank, shape, f"part{index}"))
        start += size


def _equal_parts(node: OnnxNode, size: int) -> tuple[int, ...]:
    """Parts of one size, the last one smaller if it does not come out even (opset 18)."""
    count = node.integer("num_outputs", len(node.outputs))
    part = -(-size // count) if count > 0 else 0
    return (*[part] * (count - 1), size - part * (count - 1))


def slice_entry(
    ctx: ImportContext,
    node: OnnxNode,
    x: Entry,
    starts: tuple[int, ...],
    steps: tuple[int, ...],
    shape: tuple[int, ...],
    suffix: str = "",
) -> Entry:
    """Regularly spaced elements, everything given per ONNX axis; the entry itself if that is all of it."""
    if shape == x.shape and min(steps, default=1) > 0:
        return x
    assert x.value is not None
    attrs = SliceAttrs(spread(x.order, starts, 0), spread(x.order, steps, 1), spread(x.order, shape, 1))
    piece = piece_of(ctx, node, x.value, attrs)
    return Entry(shape, piece or ctx.emit(node, "Slice", (x.value,), attrs, suffix), x.order)


def _slice(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    begin, end = (integers(required_input(ctx, node, i, what)) for i, what in ((1, "starts"), (2, "ends")))
    given = integer_setting(ctx, node, 3, "axes")
    axes = axis_indices(given if given is not None else tuple(range(len(begin))), x.rank)
    step = integer_setting(ctx, node, 4, "steps") or (1,) * len(axes)
    if not len(begin) == len(end) == len(axes) == len(step) or 0 in step:
        raise ValueError(f"starts {begin}, ends {end}, axes {axes}, steps {step}")
    starts, steps, shape = [0] * x.rank, [1] * x.rank, list(x.shape)
    for axis, first, last, stride in zip(axes, begin, end, step, strict=True):
        taken = range(x.shape[axis])[first:last:stride]
        starts[axis], steps[axis], shape[axis] = taken.start, taken.step, len(taken)
    if min(shape, default=1) < 1:
        raise ValueError(f"starts {begin}, ends {end} leave nothing of shape {x.shape}")
    ctx.define(node.output(0), slice_entry(ctx, node, x, tuple(starts), tuple(steps), tuple(shape)))


def _pad(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    pads = integers(required_input(ctx, node, 1, "pads"))
    given = integer_setting(ctx, node, 3, "axes")
    axes = tuple(range(x.rank)) if given is None else axis_indices(given, x.rank)
    if len(pads) != 2 * len(axes):
        raise ValueError(f"pads {pads} for axes {axes}")
    before, after = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    mode = node.text("mode", "constant")
    if mode == "constant":
        y = _pad_constant(ctx, node, x, before, after)
    elif mode in ("edge", "reflect", "wrap"):
        y = _cropped(ctx, node, x, before, after)
        for axis in range(x.rank):
            y = _pad_axis(ctx, node, y, axis, (max(before[axis], 0), max(after[axis], 0)), mode)
    else:
        raise Unsupported("mode", f"{mode} is no known mode", "constant, edge, reflect or wrap")
    ctx.define(node.output(0), y)


def _cropped(ctx: ImportContext, node: OnnxNode, x: Entry, before: list[int], after: list[int]) -> Entry:
    """Negative pads cut elements off."""
    starts = tuple(max(-pad, 0) for pad in before)
    shape = tuple(d + min(b, 0) + min(a, 0) for d, b, a in zip(x.shape, before, after, strict=True))
    if min(shape, default=1) < 1:
        raise ValueError(f"pads {before} and {after} leave nothing of shape {x.shape}")
    return slice_entry(ctx, node, x, starts, (1,) * x.rank, shape, "crop")


def _pad_constant(ctx: ImportContext, node: OnnxNode, x: Entry, before: list[int], after: list[int]) -> Entry:
    value = number(ctx, node, 2, "constant_value", 0.0)
    x = _cropped(ctx, node, x, before, after)
    starts = tuple(max(pad, 0) for pad in before)
    shape = tuple(s + d + max(a, 0) for s, d, a in zip(starts, x.shape, after, strict=True))
    if shape == x.shape:
        return x
    assert x.value is not None
    attrs = EmbedAttrs(spread(x.order, starts, 0), (1,) * len(x.order), ir_shape(shape, x.order), value)
    return Entry(shape, ctx.emit(node, "Embed", (x.value,), attrs), x.order)


def _pad_axis(ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, pads: tuple[int, int], mode: str) -> Entry:
    """Copies of the tensor's own elements before and after it along one axis."""
    size, (before, after) = x.shape[axis], pads
    if not before and not after:
        return x
    limit = {"edge": max(pads), "reflect": size - 1, "wrap": size}[mode]
    if max(pads) > limit:
        raise Unsupported("pads", f"{mode} padding by {max(pads)} on an axis of {size}", f"pads of at most {limit}")
    first = {"edge": 0, "reflect": before, "wrap": size - before}[mode]
    last = {"edge": size - 1, "reflect": size - 2, "wrap": 0}[mode]
    assert x.value is not None
    pieces = [x.value]
    if before:
        pieces.insert(0, _strip(ctx, node, x, axis, first, before, mode))
    if after:
        pieces.append(_strip(ctx, node, x, axis, last, after, mode))
    y = ctx.emit(node, "Concat", pieces, ConcatAttrs(x.order.index(axis)))
    return Entry(tuple(d + before + after if i == axis else d for i, d in enumerate(x.shape)), y, x.order)


def _strip(ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, start: int, count: int, mode: str) -> Value:
    """`count` elements from `start`: one repeated (edge), backwards (reflect) or forwards (wrap)."""
    taken = 1 if mode == "edge" else count
    starts = tuple(start if i == axis else 0 for i in range(x.rank))
    steps = tuple(-1 if i == axis and mode == "reflect" else 1 for i in range(x.rank))
    shape = tuple(taken if i == axis else dim for i, dim in enumerate(x.shape))
    piece = slice_entry(ctx, node, x, starts, steps, shape, "strip")
    assert piece.value is not None
    if taken == count:
        return piece.value
    whole = tuple(count if i == axis else dim for i, dim in enumerate(x.shape))
    return ctx.emit(node, "Expand", (piece.value,), ExpandAttrs(ir_shape(whole, x.order)), "repeat")


def _expand(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    shape = broadcast(x.shape, integers(required_input(ctx, node, 1, "shape")))
    order: Order = common_order((x,), len(shape))
    value = ctx.operand(node, x, order, len(shape))
    y = ctx.emit(node, "Expand", (value,), ExpandAttrs(ir_shape(shape, order))) if shape != x.shape else value
    ctx.define_value(node.output(0), y, shape, order)


def repeated(ctx: ImportContext, node: OnnxNode, x: Entry, counts: tuple[int, ...], inner: bool) -> Entry:
    """Every element `counts` times per ONNX axis: one behind the other (inner), or the whole axis again and again."""
    assert x.value is not None
    parts: list[int] = []
    wanted: list[int] = []
    for size, count in zip(x.value.shape, spread(x.order, counts, 1), strict=True):
        parts += [size, 1] if inner else [1, size]
        wanted += [size, count] if inner else [count, size]
    shape = tuple(dim * count for dim, count in zip(x.shape, counts, strict=True))
    if shape == x.shape:
        return x
    split, whole = (tuple(sizes) for sizes in _without_units(parts, wanted))
    y = ctx.emit(node, "Expand", (ctx.reshape(node, x.value, split),), ExpandAttrs(whole), "repeat")
    return Entry(shape, ctx.reshape(node, y, ir_shape(shape, x.order)), x.order)


def _without_units(parts: list[int], wanted: list[int]) -> tuple[list[int], list[int]]:
    """Both lists without the places where both are 1, but for the first axis: that of the samples."""
    kept = [i for i, size in enumerate(wanted) if size > 1 or i == 0]
    return [parts[i] for i in kept], [wanted[i] for i in kept]


def _tile(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    counts = integers(required_input(ctx, node, 1, "repeats"))
    if len(counts) != x.rank or min(counts, default=1) < 1:
        raise ValueError(f"repeats {counts} of shape {x.shape}")
    ctx.define(node.output(0), repeated(ctx, node, x, counts, False))


def _looked_up(ctx: ImportContext, node: OnnxNode, x: Entry, chosen: Entry, axis: int) -> Entry:
    """Slices of an axis by an index tensor, whose axes take its place; a constant table is trained."""
    size, rest = x.shape[axis], tuple(i for i in range(x.rank) if i != axis)
    if chosen.is_constant:
        given = np.array([axis_index(int(i), size) for i in chosen.data.reshape(-1)], np.int32)
        index = ctx.constant(given.reshape(chosen.shape), f"{node.name}.indices", node)
    else:
        index = ctx.value(node, chosen)
        if index.dtype != "int32":
            raise Unsupported("indices", "they are computed from numbers", "an integer input, or constants")
    rows = transposed(x, (axis, *rest))
    w = ctx.weight(rows, node, 0) if rows.is_constant else ctx.value(node, rows)
    y = ctx.emit(node, "Gather", (w, index), GatherAttrs(w.shape[0]))
    places = chosen.rank
    back = (*range(places, places + axis), *range(places), *range(places + axis, places + len(rest)))
    return transposed(Entry((*chosen.shape, *(x.shape[i] for i in rest)), y, plain(places + len(rest))), back)


def _gather(ctx: ImportContext, node: OnnxNode) -> None:
    """With one constant index a slice (how exporters write x[:, 0]), else rows of the operand with this axis first.

    With the labels of a loss what they pick.
    """
    if node.input(1) in ctx.labels:
        pick(ctx, node)
        return
    x, chosen = ctx.entry(node.input(0)), ctx.entry(node.input(1))
    axis = axis_index(node.integer("axis", 0), x.rank)
    if not chosen.is_constant or chosen.elements != 1 or chosen.rank > 1:
        ctx.define(node.output(0), _looked_up(ctx, node, x, chosen, axis))
        return
    index = chosen.data
    start = axis_index(int(index.reshape(-1)[0]), x.shape[axis])
    starts = tuple(start if i == axis else 0 for i in range(x.rank))
    y = slice_entry(ctx, node, x, starts, (1,) * x.rank, tuple(1 if i == axis else d for i, d in enumerate(x.shape)))
    if index.ndim == 0:
        y = without(ctx, node, y, frozenset((axis,)))
    ctx.define(node.output(0), y)


def _gather_nd(ctx: ImportContext, node: OnnxNode) -> None:
    """With constant indices: rows of the operand whose leading axes are one."""
    x, places = ctx.entry(node.input(0)), required_input(ctx, node, 1, "indices")
    if node.integer("batch_dims", 0):
        raise Unsupported("batch_dims", "places differ from sample to sample", "batch_dims 0")
    depth = places.shape[-1] if places.ndim else 0
    if not 1 <= depth <= x.rank:
        raise ValueError(f"indices of shape {places.shape} into {x.shape}")
    sizes = np.array(x.shape[:depth])
    if (places < -sizes).any() or (places >= sizes).any():
        raise ValueError(f"indices outside {x.shape}")
    wrapped = np.moveaxis(np.where(places < 0, places + sizes, places), -1, 0)
    flat = np.asarray(np.ravel_multi_index(tuple(wrapped), x.shape[:depth]), np.int32)
    rest = x.shape[depth:]
    rows = ctx.reshape(node, ctx.value(node, x), (int(sizes.prod()), *rest))
    index = ctx.constant(flat, f"{node.name}.indices", node)
    y = ctx.emit(node, "Gather", (rows, index), GatherAttrs(rows.shape[0]))
    ctx.define_value(node.output(0), y, (*flat.shape, *rest))


HANDLERS: Mapping[str, Handler] = {
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "Gather": _gather,
    "GatherND": _gather_nd,
}
