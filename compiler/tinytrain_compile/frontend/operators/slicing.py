"""Operators that join, cut, pad or repeat a tensor along its axes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry, Order, ir_shape, plain
from tinytrain_compile.frontend.graph.operands import (
    axis_index,
    axis_indices,
    broadcast,
    common_order,
    integer_setting,
    integers,
    number,
    required_input,
    spread,
    transposed,
    with_dim,
)
from tinytrain_compile.frontend.operators.loss import pick
from tinytrain_compile.frontend.operators.moves import repeated, slice_axis, slice_entry, without
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.embedding import GatherAttrs
from tinytrain_compile.ops.shape import ConcatAttrs, EmbedAttrs, ExpandAttrs


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
            ctx.define(output, slice_axis(ctx, node, x, axis, start, size, suffix=f"part{index}"))
        start += size


def _equal_parts(node: OnnxNode, size: int) -> tuple[int, ...]:
    """Return parts of one size, the last one smaller if it does not come out even (opset 18)."""
    count = node.integer("num_outputs", len(node.outputs))
    part = -(-size // count) if count > 0 else 0
    return (*[part] * (count - 1), size - part * (count - 1))


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
    """Cut off what negative pads leave out."""
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
    attrs = EmbedAttrs(spread(x.order, starts, 0), (1,) * len(x.order), ir_shape(shape, x.order), value)
    return Entry(shape, ctx.emit(node, "Embed", (x.computed,), attrs), x.order)


def _pad_axis(ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, pads: tuple[int, int], mode: str) -> Entry:
    """Return copies of the tensor's own elements before and after it along one axis."""
    size, (before, after) = x.shape[axis], pads
    if not before and not after:
        return x
    limit = {"edge": max(pads), "reflect": size - 1, "wrap": size}[mode]
    if max(pads) > limit:
        raise Unsupported("pads", f"{mode} padding by {max(pads)} on an axis of {size}", f"pads of at most {limit}")
    first = {"edge": 0, "reflect": before, "wrap": size - before}[mode]
    last = {"edge": size - 1, "reflect": size - 2, "wrap": 0}[mode]
    pieces = [x.computed]
    if before:
        pieces.insert(0, _strip(ctx, node, x, axis, first, before, mode))
    if after:
        pieces.append(_strip(ctx, node, x, axis, last, after, mode))
    y = ctx.emit(node, "Concat", pieces, ConcatAttrs(x.order.index(axis)))
    return Entry(with_dim(x.shape, axis, size + before + after), y, x.order)


def _strip(ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, start: int, count: int, mode: str) -> Value:
    """Return `count` elements from `start`: one repeated (edge), backwards (reflect) or forwards (wrap)."""
    taken = 1 if mode == "edge" else count
    piece = slice_axis(ctx, node, x, axis, start, taken, -1 if mode == "reflect" else 1, "strip")
    if taken == count:
        return piece.computed
    whole = ir_shape(with_dim(x.shape, axis, count), x.order)
    return ctx.emit(node, "Expand", (piece.computed,), ExpandAttrs(whole), "repeat")


def _expand(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    shape = broadcast(x.shape, integers(required_input(ctx, node, 1, "shape")))
    order: Order = common_order((x,), len(shape))
    value = ctx.operand(node, x, order, len(shape))
    y = ctx.emit(node, "Expand", (value,), ExpandAttrs(ir_shape(shape, order))) if shape != x.shape else value
    ctx.define_value(node.output(0), y, shape, order)


def _tile(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    counts = integers(required_input(ctx, node, 1, "repeats"))
    if len(counts) != x.rank or min(counts, default=1) < 1:
        raise ValueError(f"repeats {counts} of shape {x.shape}")
    ctx.define(node.output(0), repeated(ctx, node, x, counts, False))


def _looked_up(ctx: ImportContext, node: OnnxNode, x: Entry, chosen: Entry, axis: int) -> Entry:
    """Return slices of an axis by an index tensor, whose axes take its place; a constant table is trained."""
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
    """Import one constant index as a slice (x[:, 0]), others as rows of the operand with this axis first.

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
    y = slice_axis(ctx, node, x, axis, start, 1)
    if index.ndim == 0:
        y = without(ctx, node, y, frozenset((axis,)))
    ctx.define(node.output(0), y)


def _gather_nd(ctx: ImportContext, node: OnnxNode) -> None:
    """Import constant indices: rows of the operand whose leading axes are one."""
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
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "Gather": _gather,
    "GatherND": _gather_nd,
}
