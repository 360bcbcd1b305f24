"""Operators that join, cut, pad, repeat or resize a tensor along its axes, and the steps that other importers need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, of_one
from tinytrain_compile.frontend.graph.entries import Entry, Order, ir_shape, plain, significant, without_axes
from tinytrain_compile.frontend.graph.operands import (
    axis_index,
    axis_indices,
    broadcast,
    common_order,
    constant_input,
    integer_setting,
    integers,
    number,
    required_input,
    spread,
    transposed,
    with_dim,
)
from tinytrain_compile.frontend.operators.loss import pick
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.embedding import GatherAttrs
from tinytrain_compile.ops.resize import COORDINATES, MODES, ROUNDINGS, ResizeAttrs, tables, taps, weights_at_most
from tinytrain_compile.ops.shape import ConcatAttrs, EmbedAttrs, ExpandAttrs, SliceAttrs


def piece_of(ctx: ImportContext, node: OnnxNode, value: Value, attrs: SliceAttrs) -> Value | None:
    """Return what the slice takes, in its shape, if a Concat has joined it as one piece that lies in one run.

    Else None.
    """
    start = _run_start(value.shape, attrs)
    maker = ctx.maker(value)
    while maker is not None and maker.op == "Reshape":
        maker = ctx.maker(maker.inputs[0])
    if start is None or maker is None or not isinstance(maker.attrs, ConcatAttrs):
        return None
    if math.prod(maker.outputs[0].shape[: maker.attrs.axis]) != 1:
        return None
    for piece in maker.inputs:
        if start == 0 and piece.elements == math.prod(attrs.sizes):
            return ctx.reshape(node, piece, attrs.sizes)
        start -= piece.elements
    return None


def _run_start(shape: tuple[int, ...], attrs: SliceAttrs) -> int | None:
    """Return where the elements begin, if they are neighbours that lie in order; else None."""
    start, whole = 0, True
    for axis in reversed(range(len(shape))):
        size = attrs.sizes[axis]
        if size != 1 and (attrs.steps[axis] != 1 or not whole):
            return None
        start += attrs.starts[axis] * math.prod(shape[axis + 1 :])
        whole = whole and size == shape[axis]
    return start


def slice_entry(
    ctx: ImportContext,
    node: OnnxNode,
    x: Entry,
    starts: tuple[int, ...],
    steps: tuple[int, ...],
    shape: tuple[int, ...],
    suffix: str = "",
) -> Entry:
    """Return regularly spaced elements, everything given per ONNX axis; the entry itself if that is all of it."""
    if shape == x.shape and min(steps, default=1) > 0:
        return x
    attrs = SliceAttrs(spread(x.order, starts, 0), spread(x.order, steps, 1), spread(x.order, shape, 1))
    piece = piece_of(ctx, node, x.computed, attrs)
    return Entry(shape, piece or ctx.emit(node, "Slice", (x.computed,), attrs, suffix), x.order)


def slice_axis(
    ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, start: int, count: int, step: int = 1, suffix: str = ""
) -> Entry:
    """Return `count` elements of one ONNX axis from `start` on, `step` apart."""
    starts, steps = with_dim((0,) * x.rank, axis, start), with_dim((1,) * x.rank, axis, step)
    return slice_entry(ctx, node, x, starts, steps, with_dim(x.shape, axis, count), suffix)


def repeated(ctx: ImportContext, node: OnnxNode, x: Entry, counts: tuple[int, ...], inner: bool) -> Entry:
    """Repeat every element `counts` times per ONNX axis: side by side (inner), or the whole axis again and again."""
    parts: list[int] = []
    wanted: list[int] = []
    for size, count in zip(x.computed.shape, spread(x.order, counts, 1), strict=True):
        parts += [size, 1] if inner else [1, size]
        wanted += [size, count] if inner else [count, size]
    shape = tuple(dim * count for dim, count in zip(x.shape, counts, strict=True))
    if shape == x.shape:
        return x
    kept = [i for i, size in enumerate(wanted) if size > 1 or i == 0]  # no units, but for the first axis: the samples'
    split, whole = (tuple(sizes[i] for i in kept) for sizes in (parts, wanted))
    y = ctx.emit(node, "Expand", (ctx.reshape(node, x.computed, split),), ExpandAttrs(whole), "repeat")
    return Entry(shape, ctx.reshape(node, y, ir_shape(shape, x.order)), x.order)


def without(ctx: ImportContext, node: OnnxNode, x: Entry, axes: frozenset[int]) -> Entry:
    """Return the entry without some ONNX axes of size 1.

    Where a free reshape gives ONNX's order it is taken at once, so that a final softmax or sigmoid is the last node.
    """
    shape = tuple(dim for axis, dim in enumerate(x.shape) if axis not in axes)
    order = without_axes(x.order, axes)
    if significant(shape, order) != significant(shape, plain(len(shape))):
        return replace(x, shape=shape, order=order)
    return Entry(shape, ctx.reshape(node, x.computed, shape), plain(len(shape)))


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


def _slice(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
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
    return slice_entry(ctx, node, x, tuple(starts), tuple(steps), tuple(shape))


def _pad(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
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
        raise Refused("mode", f"{mode} is no known mode", "constant, edge, reflect or wrap")
    return y


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
        raise Refused("pads", f"{mode} padding by {max(pads)} on an axis of {size}", f"pads of at most {limit}")
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


def _expand(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    shape = broadcast(x.shape, integers(required_input(ctx, node, 1, "shape")))
    order: Order = common_order((x,), len(shape))
    value = ctx.operand(node, x, order, len(shape))
    y = ctx.emit(node, "Expand", (value,), ExpandAttrs(ir_shape(shape, order))) if shape != x.shape else value
    return Entry(shape, y, order)


def _tile(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    counts = integers(required_input(ctx, node, 1, "repeats"))
    if len(counts) != x.rank or min(counts, default=1) < 1:
        raise ValueError(f"repeats {counts} of shape {x.shape}")
    return repeated(ctx, node, x, counts, False)


def _looked_up(ctx: ImportContext, node: OnnxNode, x: Entry, chosen: Entry, axis: int) -> Entry:
    """Return slices of an axis by an index tensor, whose axes take its place; a constant table is trained."""
    size, rest = x.shape[axis], tuple(i for i in range(x.rank) if i != axis)
    if chosen.is_constant:
        given = np.array([axis_index(int(i), size) for i in chosen.data.reshape(-1)], np.int32)
        index = ctx.constant(given.reshape(chosen.shape), f"{node.name}.indices", node)
    else:
        index = ctx.value(node, chosen)
        if index.dtype != "int32":
            raise Refused("indices", "they are computed from numbers", "an integer input, or constants")
    rows = transposed(x, (axis, *rest))
    w = ctx.weight(rows, node, 0) if rows.is_constant else ctx.value(node, rows)
    y = ctx.emit(node, "Gather", (w, index), GatherAttrs(w.shape[0]))
    places = chosen.rank
    back = (*range(places, places + axis), *range(places), *range(places + axis, places + len(rest)))
    return transposed(Entry((*chosen.shape, *(x.shape[i] for i in rest)), y, plain(places + len(rest))), back)


def _gather(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Import one constant index as a slice (x[:, 0]), others as rows of the operand with this axis first.

    With the labels of a loss what they pick.
    """
    if node.input(1) in ctx.labels:
        return pick(ctx, node, x)
    chosen = ctx.entry(node.input(1))
    axis = axis_index(node.integer("axis", 0), x.rank)
    if not chosen.is_constant or chosen.elements != 1 or chosen.rank > 1:
        return _looked_up(ctx, node, x, chosen, axis)
    start = axis_index(int(chosen.data.reshape(-1)[0]), x.shape[axis])
    y = slice_axis(ctx, node, x, axis, start, 1)
    return without(ctx, node, y, frozenset((axis,))) if chosen.rank == 0 else y


def _gather_nd(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Import constant indices: rows of the operand whose leading axes are one."""
    places = required_input(ctx, node, 1, "indices")
    if node.integer("batch_dims", 0):
        raise Refused("batch_dims", "places differ from sample to sample", "batch_dims 0")
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
    return Entry((*flat.shape, *rest), y, plain(len(flat.shape) + len(rest)))


# ---- Resize ----------------------------------------------------------------------------------------------------------


MAX_WEIGHTS = 1 << 24
"""Limit of the resize table of one axis, in numbers: 64 MB of flash, and as much memory of numpy."""


def _resize(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    given = node.integers("axes")
    axes = tuple(range(x.rank)) if given is None else axis_indices(given, x.rank)
    y = x
    for axis, size, scale in zip(axes, *_extents(ctx, node, x, axes), strict=True):
        if size != x.shape[axis] or scale != 1.0:
            y = _along(ctx, node, y, axis, _attrs(node, x.shape[axis], size, scale))
    return y


def _extents(
    ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return new extents and the scales that places are mapped by, per axis."""
    scales, sizes = constant_input(ctx, node, 2, "scales"), constant_input(ctx, node, 3, "sizes")
    old = tuple(x.shape[axis] for axis in axes)
    if sizes is not None and sizes.size:
        new = integers(sizes)
        factors = tuple(size / dim for size, dim in zip(new, old, strict=True))
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy in ("not_larger", "not_smaller"):
            one = (min if policy == "not_larger" else max)(factors)
            new, factors = tuple(math.floor(dim * one + 0.5) for dim in old), (one,) * len(old)
    elif scales is not None and scales.size:
        factors = tuple(float(scale) for scale in scales.reshape(-1).tolist())
        new = tuple(math.floor(dim * scale) for dim, scale in zip(old, factors, strict=True))
    else:
        raise ValueError("neither scales nor sizes are given")
    if min(new) < 1 or not all(0 < factor < math.inf for factor in factors):
        raise ValueError(f"{list(old)} to {list(new)}")
    return new, factors


def _attrs(node: OnnxNode, size_in: int, size_out: int, scale: float) -> ResizeAttrs:
    words = {
        "mode": (node.text("mode", "nearest"), MODES),
        "coordinate_transformation_mode": (node.text("coordinate_transformation_mode", "half_pixel"), COORDINATES),
        "nearest_mode": (node.text("nearest_mode", "round_prefer_floor"), ROUNDINGS),
    }
    for name, (word, known) in words.items():
        if word not in known:
            raise Refused(name, f"{word} has no operator", ", ".join(known))
    mode, coordinates, rounding = (word for word, _ in words.values())
    cubic, outside = node.number("cubic_coeff_a", -0.75), bool(node.integer("exclude_outside", 0))
    if outside and mode == "nearest":  # a place past the end has no other neighbour: weights would be 0 / 0
        raise Refused("exclude_outside", "a nearest element is the only one of its sum", "exclude_outside = 0")
    filtered = bool(node.integer("antialias", 0)) and mode != "nearest"
    return ResizeAttrs(0, size_in, size_out, scale, mode, coordinates, rounding, cubic, outside, filtered)


def _along(ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, attrs: ResizeAttrs) -> Entry:
    """Return the entry with an ONNX axis resized: by moving elements where every new one is an old one."""
    shape = with_dim(x.shape, axis, attrs.size_out)
    ctx.check_size(node, shape)
    if weights_at_most(attrs) > MAX_WEIGHTS:
        what = f"its table of {weights_at_most(attrs):,} weights is too large"
        raise CompileError("E0217", f"node {node.name} ({node.op})", what, "use smaller shapes")
    begins, factors = taps(attrs)
    if (factors.max(axis=1) == 1.0).all() and (np.count_nonzero(factors, axis=1) == 1).all():
        moved = _moved(ctx, node, x, axis, begins + factors.argmax(axis=1))
        if moved is not None:
            return moved
    first, weights = (ctx.constant(table, f"{node.name}.axis{axis}", node) for table in tables(attrs))
    here = replace(attrs, axis=x.order.index(axis))
    y = ctx.emit(node, "Resize", (x.computed, first, weights), here)
    return Entry(shape, y, x.order)


def _moved(ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, chosen: np.ndarray) -> Entry | None:
    """Return the chosen elements of an axis: each equally often, or at equal distances; None for another choice."""
    size = x.shape[axis]
    times = len(chosen) // size
    if times and np.array_equal(chosen, np.repeat(np.arange(size), times)):
        return repeated(ctx, node, x, with_dim((1,) * x.rank, axis, times), True)
    steps = np.unique(np.diff(chosen)) if len(chosen) > 1 else np.ones(1, np.int64)
    if len(steps) != 1 or steps[0] < 1:
        return None
    return slice_axis(ctx, node, x, axis, int(chosen[0]), len(chosen), int(steps[0]))


HANDLERS: Mapping[str, Handler] = {
    "Resize": of_one(_resize),
    "Concat": _concat,
    "Split": _split,
    "Slice": of_one(_slice),
    "Pad": of_one(_pad),
    "Expand": of_one(_expand),
    "Tile": of_one(_tile),
    "Gather": of_one(_gather),
    "GatherND": of_one(_gather_nd),
}
