"""Movement of data: every kernel is one loop nest over its output; axes that move together share a loop."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import s_tir, te, tirx
from tvm.ir import Expr, Var

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import KernelSpec, both, f32, kernel, plain, reduce_axes, tensor, total
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.elementwise import broadcast, pointwise
from tinytrain_compile.lower.kernels.row_blocks import NoRowsError, RowBlockSpec, row_kernel
from tinytrain_compile.lower.schedules import HINT, best_tile, tile_reduction
from tinytrain_compile.ops.elementwise import LIGHT
from tinytrain_compile.ops.input_lines import BYTE_ZERO
from tinytrain_compile.ops.names import attrs_of, operand, operands, position, result
from tinytrain_compile.ops.shape import (
    ConcatAttrs,
    EmbedAttrs,
    ExpandAttrs,
    ReduceAttrs,
    SliceAttrs,
    TransposeAttrs,
)

SUM_TILE, LANE_TILE = 4, 16
"""Sums that a reduction computes at once: it reads neighbours in memory together, and additions need not wait."""


def axis_groups(shape: Sequence[int], axes: Sequence[int]) -> list[tuple[int, bool]]:
    """Return `shape` as (extent, whether in `axes`) pairs, neighbours of one kind merged, unit axes dropped."""
    groups: list[tuple[int, bool]] = []
    for axis, extent in enumerate(shape):
        inside = axis in axes
        if extent == 1:
            continue
        if groups and groups[-1][1] == inside:
            groups[-1] = (groups[-1][0] * extent, inside)
        else:
            groups.append((extent, inside))
    return groups


@kernel("Transpose")
def transpose(node: Node, _context: KernelContext) -> KernelSpec:
    """Copy in output order; axes that stay neighbours are one loop."""
    attrs = attrs_of(node, TransposeAttrs)
    source = operand(node, "x").shape
    runs: list[list[int]] = []
    for axis in attrs.perm:
        if runs and axis == runs[-1][-1] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    order = sorted(range(len(runs)), key=lambda i: runs[i][0])
    extents = [math.prod(source[axis] for axis in run) for run in runs] or [1]
    x = tensor(node, "x", [extents[i] for i in order] or [1])

    def element(*index: Expr) -> Expr:
        return x[tuple(index[i] for i in order)] if order else x[0]

    return KernelSpec([x], [te.compute(tuple(extents), element, "out")], plain)


@kernel("InputLines")
def input_lines(node: Node, _context: KernelContext) -> KernelSpec:
    """Copy the image; bytes become int8."""
    x = tensor(node, "x", (operand(node, "x").elements,))
    return KernelSpec([x], [te.compute(x.shape, lambda i: _pixel(x[i]), "out")], plain)


def _pixel(x: Expr) -> Expr:
    return (x.astype("int32") - BYTE_ZERO).astype("int8") if x.dtype == "uint8" else x


@row_kernel("InputLines")
def lines(node: Node, _context: KernelContext, count: Var) -> RowBlockSpec:
    """Copy rows that the caller has."""
    image = operand(node, "x")
    x = te.placeholder((count, image.elements // image.shape[1]), image.dtype, "x")
    spec = KernelSpec([x], [te.compute(x.shape, lambda i, j: _pixel(x[i, j]), "out")], plain)
    in_place = image.dtype == "uint8"  # the requested rows are already in place, as bytes
    return RowBlockSpec(spec, count, (position(node, "x"),), image.shape[1], in_place=in_place)


@kernel("Concat")
def concat(node: Node, _context: KernelContext) -> KernelSpec:
    """Copy, per outer index, one contiguous run after the other.

    The loops are written out: TVM's time to cut one loop over all inputs grows with the cube of their number.
    """
    attrs = attrs_of(node, ConcatAttrs)
    shape = result(node, "y").shape
    outer = math.prod(shape[: attrs.axis])
    widths = [math.prod(value.shape[attrs.axis :]) for value in node.inputs]
    parts = [tensor(node, name, (outer, width)) for name, width in zip(operands(node), widths, strict=True)]

    def copies(sources: Sequence[tirx.Buffer], targets: Sequence[tirx.Buffer]) -> tirx.Stmt:
        row, runs, start = Var("row", "int32"), list[tirx.Stmt](), 0
        for source, width in zip(sources, widths, strict=True):
            column = Var("column", "int32")
            store = tirx.BufferStore(targets[0], source[row, column], [row, start + column])
            runs.append(tirx.For(column, 0, width, tirx.ForKind.SERIAL, store))
            start += width
        return tirx.For(row, 0, outer, tirx.ForKind.SERIAL, tirx.stmt_seq(*runs))

    dtype = node.outputs[0].dtype
    buffers = [tirx.decl_buffer(part.shape, dtype, part.op.name) for part in parts]
    whole = tirx.decl_buffer((outer, sum(widths)), dtype, "y")
    out = te.extern([whole.shape], parts, copies, "out", in_buffers=buffers, out_buffers=[whole], dtype=dtype)
    return KernelSpec(parts, [out], plain)


def _cut_loops(sch: s_tir.Schedule) -> None:
    for loop in sch.get_loops(sch.get_sblock("out")):
        sch.annotate(loop, HINT, 1)


def _merge_places(
    starts: Sequence[int], steps: Sequence[int], sizes: Sequence[int], shape: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """Return (start, step, size, dim) per loop: a full axis joins the one before it if that one has step 1."""
    merged: list[tuple[int, int, int, int]] = []
    for start, step, size, dim in zip(starts, steps, sizes, shape, strict=True):
        full = start == 0 and size == dim and (step == 1 or dim == 1)
        unit_step = 1 if size == 1 else step
        if merged and full and merged[-1][1] == 1:
            before = merged[-1]
            merged[-1] = (before[0] * dim, 1, before[2] * dim, before[3] * dim)
        else:
            merged.append((start, unit_step, size, dim))
    return merged or [(0, 1, 1, 1)]


@kernel("Slice")
def slice_(node: Node, _context: KernelContext) -> KernelSpec:
    """Copy from regularly spaced places."""
    attrs = attrs_of(node, SliceAttrs)
    places = _merge_places(attrs.starts, attrs.steps, attrs.sizes, operand(node, "x").shape)
    x = tensor(node, "x", [dim for *_, dim in places])

    def element(*index: Expr) -> Expr:
        return x[tuple(start + i * step for i, (start, step, *_) in zip(index, places, strict=True))]

    return KernelSpec([x], [te.compute(tuple(size for _, _, size, _ in places), element, "out")], plain)


@row_kernel("Slice")
def slice_rows(node: Node, _context: KernelContext, count: Var) -> RowBlockSpec:
    """Copy from regularly spaced places of these rows."""
    attrs, shape = attrs_of(node, SliceAttrs), operand(node, "x").shape
    if len(shape) != 4 or attrs.sizes[1] != shape[1] or (shape[1] > 1 and attrs.steps[1] != 1):
        raise NoRowsError(f"{node.name}: some rows, or another order of them")
    (*_, across, first), (*_, step, apart) = attrs.starts, attrs.steps
    x = te.placeholder((count, *shape[2:]), operand(node, "x").dtype, "x")
    sizes = (count, *attrs.sizes[2:])
    out = te.compute(sizes, lambda y, i, c: x[y, across + i * step, first + c * apart], "out")
    return RowBlockSpec(KernelSpec([x], [out], plain), count, (position(node, "x"),), shape[1])


@kernel("PushRows")
def push_rows(node: Node, _context: KernelContext) -> KernelSpec:
    """Move the rows of the ring towards its start, and copy the new ones behind them."""
    new, size = operand(node, "x").elements, operand(node, "ring").elements
    ring, x = (tensor(node, name, (operand(node, name).elements,)) for name in ("ring", "x"))

    def moves(sources: Sequence[tirx.Buffer], targets: Sequence[tirx.Buffer]) -> tirx.Stmt:
        old, rows = sources
        runs = list[tirx.Stmt]()
        for source, count, first, skipped in ((old, size - new, 0, new), (rows, new, size - new, 0)):
            i = Var("i", "int32")
            store = tirx.BufferStore(targets[0], source[(skipped + i,)], [first + i])
            runs.append(tirx.For(i, 0, count, tirx.ForKind.SERIAL, store))
        return tirx.stmt_seq(*runs)

    dtype = node.outputs[0].dtype
    buffers = [tirx.decl_buffer(part.shape, dtype, part.op.name) for part in (ring, x)]
    whole = tirx.decl_buffer((size,), dtype, "out")
    out = te.extern([whole.shape], [ring, x], moves, "out", in_buffers=buffers, out_buffers=[whole], dtype=dtype)
    return KernelSpec([ring, x], [out], plain)


@kernel("Embed")
def embed(node: Node, _context: KernelContext) -> KernelSpec:
    """Copy to regularly spaced places, the constant elsewhere; with steps of 1 the loops are cut at the borders."""
    attrs = attrs_of(node, EmbedAttrs)
    places = _merge_places(attrs.starts, attrs.steps, operand(node, "x").shape, attrs.shape)
    x = tensor(node, "x", [size for _, _, size, _ in places])
    fill = tirx.const(attrs.value, operand(node, "x").dtype)

    def element(*index: Expr) -> Expr:
        source: list[Expr] = []
        tests: list[Expr] = []
        for i, place in zip(index, places, strict=True):
            at, more = _place_of(i, place)
            source.append(at)
            tests += more
        inside = both(tests)
        value = x[tuple(source)]
        return value if inside is None else tirx.if_then_else(inside, value, fill)

    out = te.compute(tuple(dim for *_, dim in places), element, "out")
    regular = all(step == 1 for _, step, _, _ in places)
    return KernelSpec([x], [out], _cut_loops if regular else plain)


def _place_of(i: Expr, place: tuple[int, int, int, int]) -> tuple[Expr, list[Expr]]:
    """Return the index of the input's element for output index i of an axis, and the tests that there is one."""
    start, step, size, dim = place
    low = min(start, start + (size - 1) * step)
    stride = abs(step)
    offset = i - low
    tests: list[Expr] = []
    if low > 0:
        tests.append(offset >= 0)
    if low + (size - 1) * stride < dim - 1:
        tests.append(offset <= (size - 1) * stride)
    if stride > 1:
        tests.append(tirx.EQ(tirx.indexmod(offset, stride), 0))
        offset = tirx.indexdiv(offset, stride)
    return (offset if step > 0 else size - 1 - offset), tests


@kernel("Expand")
def expand(node: Node, context: KernelContext) -> KernelSpec:
    """Broadcast, times a constant."""
    attrs = attrs_of(node, ExpandAttrs)
    scale = attrs.scale
    return broadcast(node, lambda x: x if scale == 1.0 else x * f32(scale), context, LIGHT)


@kernel("Reduce")
def reduce(node: Node, context: KernelContext) -> KernelSpec:
    """Compute a few neighbouring sums at a time, in registers; with nothing to sum, one multiplication per element."""
    attrs = attrs_of(node, ReduceAttrs)
    scale = attrs.scale
    groups = axis_groups(operand(node, "x").shape, attrs.axes)
    summed = [extent for extent, inside in groups if inside]
    if not summed:
        return pointwise(node, lambda x: x if scale == 1.0 else x * f32(scale), context, LIGHT)
    kept = [extent for extent, inside in groups if not inside] or [1]
    x = tensor(node, "x", [extent for extent, _ in groups])
    axes = reduce_axes(*summed)

    def term(*index: Expr) -> Expr:
        rest, inner = iter(index), iter(axes)
        return total(x[tuple(next(inner) if inside else next(rest) for _, inside in groups)], axes)

    acc = te.compute(tuple(kept), term, "acc")
    out = te.compute(tuple(kept), lambda *i: acc[i] if scale == 1.0 else acc[i] * f32(scale), "out")
    last = len(kept) - 1
    if context.uses_float_vectors and not groups[-1][1] and kept[-1] >= LANES:
        wide = {last: min(LANE_TILE, -(-kept[-1] // LANES) * LANES)}
        return KernelSpec([x], [out], lambda sch: tile_reduction(sch, wide, lanes=last))
    tiles = {last: best_tile(kept[-1], SUM_TILE)}
    return KernelSpec([x], [out], lambda sch: tile_reduction(sch, tiles))
