"""Steps that several importers are made of: sums, slices, repetitions and dropped axes of an entry."""

from __future__ import annotations

import math
from dataclasses import replace

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import Entry, ir_shape, plain, significant, without_axes
from tinytrain_compile.frontend.graph.operands import ir_axes, reduced_shape, spread, with_dim
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.selection import CumSumAttrs
from tinytrain_compile.ops.shape import ConcatAttrs, ExpandAttrs, ReduceAttrs, SliceAttrs


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
    split, whole = (tuple(sizes) for sizes in _without_units(parts, wanted))
    y = ctx.emit(node, "Expand", (ctx.reshape(node, x.computed, split),), ExpandAttrs(whole), "repeat")
    return Entry(shape, ctx.reshape(node, y, ir_shape(shape, x.order)), x.order)


def _without_units(parts: list[int], wanted: list[int]) -> tuple[list[int], list[int]]:
    """Return both lists without the places where both are 1, but for the first axis: that of the samples."""
    kept = [i for i, size in enumerate(wanted) if size > 1 or i == 0]
    return [parts[i] for i in kept], [wanted[i] for i in kept]


def without(ctx: ImportContext, node: OnnxNode, x: Entry, axes: frozenset[int]) -> Entry:
    """Return the entry without some ONNX axes of size 1.

    Where a free reshape gives ONNX's order it is taken at once, so that a final softmax or sigmoid is the last node.
    """
    shape = tuple(dim for axis, dim in enumerate(x.shape) if axis not in axes)
    order = without_axes(x.order, axes)
    if significant(shape, order) != significant(shape, plain(len(shape))):
        return replace(x, shape=shape, order=order)
    return Entry(shape, ctx.reshape(node, x.computed, shape), plain(len(shape)))
