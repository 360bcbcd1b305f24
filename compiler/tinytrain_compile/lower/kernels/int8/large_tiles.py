"""Integer sums in tiles of four by four, for cores with many registers and no products in pairs (tt_dot_4x4).

The image, with its border, is in scratch as int16; the other operand is read as it lies in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import s_tir, te, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IterVar

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.large_tiles import LargeTile, dot_maps, dot_rows, dot_runs, dot_turned
from tinytrain_compile.lower.intrinsics.tensor import ARRAY
from tinytrain_compile.lower.kernels.base import Finish, Load, MapShape, Schedule, i32, reduce_axes, total
from tinytrain_compile.lower.kernels.int8.dsp.product import PackedOperand
from tinytrain_compile.lower.schedules import HINT
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv_form import CorrelationTiles, geometry
from tinytrain_compile.ops.int8.tiles import DenseTiles
from tinytrain_compile.ops.names import operand

SIDE = 4
"""Sums along each side of a tile."""
EXACT_TERMS = 514
"""TT_EXACT_TERMS of tt_large_tiles.h: longer sums are made of several, each exact as a float32."""
LONG_SUM = 96
"""Products from which on code for every end of a tile's sums is not worth its size: a loop takes a fiftieth more."""


# ---- weight gradients ------------------------------------------------------------------------------------------------


def map_strip(node: Node, tiles: CorrelationTiles, columns: int) -> int:
    """Return how many maps of the image are in scratch at a time; 0 if there are no whole tiles.

    columns: of taps, times channels of the image.
    """
    (_, _, width, outputs), scratch_bytes = operand(node, "g").shape, op_def(node.op).scratch(node)
    map_bytes = 2 * tiles.batch * tiles.phases * tiles.image_rows * width
    strips = [s for s in range(SIDE, columns + 1, SIDE) if columns % s == 0 and s * map_bytes <= scratch_bytes]
    return max(strips, default=0) if outputs % SIDE == columns % SIDE == 0 else 0


def correlate(
    shape: tuple[int, int, int],
    error: te.Tensor,
    image: Load,
    finish: Finish,
    tiles: CorrelationTiles,
    strip: int,
    border: tuple[int, int],
    tables: Sequence[te.Tensor] = (),
) -> tuple[te.Tensor, Schedule]:
    """Return what `correlation` does. error: int8 (n, rows, columns, outputs).

    strip: see map_strip; border: the first row of the image that is not 0, and the end of these.
    """
    (outputs, taps, columns), (batch, high, wide, _) = shape, (int(extent) for extent in error.shape)
    div, mod = tirx.indexdiv, tirx.indexmod

    def of_image(b: Expr, phase: Expr, line: Expr, j: Expr, x: Expr) -> Expr:
        return image(b, j, phase, line, x)

    right = te.compute((batch, tiles.phases, tiles.image_rows, columns, wide), of_image, "right")
    (b,), ((y, x), axes) = reduce_axes(batch, prefix="b"), _axes(high, wide)

    def term(i: Expr, r: Expr, j: Expr, q: Expr, p: Expr) -> Expr:
        place = (b, tiles.phase(r), tiles.first(r) + y) if taps > 1 else (b, 0, y)
        return total(i32(right[(*place, j * SIDE + q, x)]) * i32(error[b, y, x, i * SIDE + p]), [b, *axes])

    acc = te.compute((outputs // SIDE, taps, columns // SIDE, SIDE, SIDE), term, "acc")
    out = te.compute(
        shape, lambda o, r, j: finish(acc[div(o, SIDE), r, div(j, SIDE), mod(j, SIDE), mod(o, SIDE)], o, r, j), "out"
    )
    whole = tiles.phases == batch == tiles.strides[0] == 1
    low, most = border if whole else (0, high)
    pitch, row = strip * wide, wide * outputs
    sums = LargeTile(low, most, high, 1, wide, pitch, wide, wide, row, row, 1, outputs)
    return out, lambda sch: _schedule_maps(sch, strip, dot_maps(sums), tables)


def _schedule_maps(sch: s_tir.Schedule, strip: int, sums: str, tables: Sequence[te.Tensor]) -> None:
    out, acc, right = (sch.get_sblock(name) for name in ("out", "acc", "right"))
    o, tap, j = sch.get_loops(out)
    outer, output = sch.split(o, [None, SIDE])
    strips, inside, column = sch.split(j, [None, strip // SIDE, SIDE])
    sch.reorder(strips, outer, inside, tap, output, column)
    sch.unroll(column)
    sch.set_scope(acc, 0, ARRAY)
    sch.compute_at(acc, tap, preserve_unit_loops=True)
    sch.compute_at(right, strips, preserve_unit_loops=True)
    _keep(sch, tables, outer)
    column, output, batch, *rest = sch.get_loops(acc)[7:]
    sch.reorder(batch, column, output, *rest)
    _start(sch, acc, batch)
    sch.tensorize(column, sums)


def _axes(*extents: int) -> tuple[list[Any], list[IterVar]]:
    """Return reduction axes, 0 for those of one turn, which TVM drops; and those that are left."""
    left = [reduce_axes(extent, prefix=f"k{place}_")[0] for place, extent in enumerate(extents) if extent > 1]
    own = iter(left)
    return [next(own) if extent > 1 else 0 for extent in extents], left


def _keep(sch: s_tir.Schedule, tables: Sequence[te.Tensor], outer: LoopRV) -> None:
    """Compute the numbers of a tile's four channels in a turn of `outer`; numbers of all channels once."""
    for table in tables:
        block = sch.get_sblock(str(table.op.name))
        one = int(table.shape[0]) == 1
        sch.set_scope(block, 0, "local" if one else ARRAY)
        if not one:
            sch.compute_at(block, outer, preserve_unit_loops=True)
        if len(table.shape) > 1:
            sch.unroll(sch.get_loops(block)[-1])


def _sum_tiles(sch: s_tir.Schedule, loops: tuple[LoopRV, LoopRV, LoopRV], depth: int, sums: str, terms: int) -> None:
    """Compute the sums of a tile, from rows in scratch.

    loops: in a turn of the first one the rows are copied, in a turn of the second the sums are computed; the last one,
    over their ends, is unrolled unless the sums take so long that its turns do not matter. depth: of their own loop.
    """
    (strips, tile, end), acc = loops, sch.get_sblock("acc")
    if terms < LONG_SUM:
        sch.unroll(end)
    sch.set_scope(acc, 0, ARRAY)
    sch.compute_at(acc, tile, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("rows"), strips, preserve_unit_loops=True)
    first = sch.get_loops(acc)[depth]
    _start(sch, acc, first)
    sch.tensorize(first, sums)


def _start(sch: s_tir.Schedule, acc: SBlockRV, loop: LoopRV) -> None:
    """Set the sums to 0 before this loop."""
    for inner in sch.get_loops(sch.decompose_reduction(acc, loop))[-2:]:
        sch.unroll(inner)


# ---- convolutions and their data gradients ---------------------------------------------------------------------------


def row_strip(node: Node, shape: MapShape, tiles: DenseTiles, stride: int) -> int:
    """Return how many rows of the output have their input rows in scratch at a time; 0 if there are no whole tiles."""
    _, height, width, channels = shape
    plain = tiles.phases == (1, 1) and not tiles.ready and geometry(node).split is None
    if not plain or not isinstance(height, int) or width % SIDE or channels % SIDE:
        return 0
    most = op_def(node.op).scratch(node) // (2 * tiles.pitch)
    strips = [s for s in range(1, height + 1) if height % s == 0 and (s - 1) * stride + tiles.taps <= most]
    return max(strips, default=0)


def _row_sums(
    shape: MapShape, apart: int, terms: tuple[int, int], rows: int, inside: tuple[int, int] | None, turned: bool
) -> str:
    """Name the intrinsic of convolve's sums. apart: elements between pixels; inside: None if all rows are read."""
    (low, high), (across, run), (_, _, width, channels) = inside or (0, rows), terms, shape
    pitch, weights = (width - 1) * apart + across * run, rows * across * run
    if turned:
        own = (-across * channels, -channels, 1, rows * across * channels)
        return dot_turned(LargeTile(low, high, rows, across, run, pitch, run, apart, *own))
    return dot_runs(LargeTile(low, high, rows, 1, run, pitch, run, apart, run, run, weights, 1))


def convolve(
    shape: MapShape,
    pitches: tuple[int, int],
    element: Load,
    weight: Load,
    terms: tuple[int, int],
    inside: tuple[int, int],
    finish: Finish,
    tiles: DenseTiles,
    strip: int,
    tables: Sequence[te.Tensor] = (),
    turned: bool = False,
) -> tuple[te.Tensor, Schedule]:
    """Return what `row_conv` does. weight(o, r, t, k): int8, of a row of taps, a tap and an element.

    terms: numbers of taps and of elements; inside: the first row of the image that is not 0, and the end of these;
    strip: see row_strip; turned: the weight is that of a data gradient.
    """
    whole = strip == shape[1] and shape[0] == 1
    sums = _row_sums(shape, pitches[1], terms, tiles.taps, inside if whole else None, turned)
    n, height, width, channels = shape
    div, mod = tirx.indexdiv, tirx.indexmod
    rows = te.compute((n, tiles.rows, (width - 1) * pitches[1] + math.prod(terms)), element, "rows")
    (r, t, k), axes = _axes(tiles.taps, *terms)

    def term(b: Expr, y: Expr, x: Expr, o: Expr, i: Expr, j: Expr) -> Expr:
        place = i * pitches[1] + t * terms[1] + k
        pixel = rows[b, y * pitches[0] + r, x * (SIDE * pitches[1]) + place]
        return total(i32(pixel) * i32(weight(o * SIDE + j, r, t, k)), axes)

    acc = te.compute((n, height, width // SIDE, channels // SIDE, SIDE, SIDE), term, "acc")
    out = te.compute(
        shape,
        lambda b, y, x, o: finish(acc[b, y, div(x, SIDE), div(o, SIDE), mod(x, SIDE), mod(o, SIDE)], b, y, x, o),
        "out",
    )

    return out, lambda sch: _schedule_rows(sch, strip, sums, tables, tiles.taps * math.prod(terms))


def _schedule_rows(sch: s_tir.Schedule, strip: int, sums: str, tables: Sequence[te.Tensor], terms: int) -> None:
    batch, line, column, channel = sch.get_loops(sch.get_sblock("out"))
    strips, row = sch.split(line, [None, strip])
    across, pixel = sch.split(column, [None, SIDE])
    outer, one = sch.split(channel, [None, SIDE])
    sch.reorder(batch, strips, outer, row, across, one, pixel)
    _sum_tiles(sch, (strips, across, pixel), 9, sums, terms)
    _keep(sch, tables, outer)
    sch.annotate(sch.get_loops(sch.get_sblock("rows"))[-1], HINT, 1)


# ---- 1x1 convolutions and their gradients ----------------------------------------------------------------------------


def product(
    node: Node,
    extents: tuple[int, int, int],
    left: PackedOperand,
    right: PackedOperand,
    finish: Finish,
    tables: Sequence[te.Tensor],
    channel_axis: int = 1,
) -> tuple[te.Tensor, Schedule] | None:
    """Return what `packed_product` does, with only the operand without output channels in scratch.

    None if there are no whole tiles, or if the other operand cannot be read as it lies.
    """
    m, n, k = extents
    turned = channel_axis == 0
    (wide, rows), (other, channels) = ((right, n), (left, m)) if turned else ((left, m), (right, n))
    most = op_def(node.op).scratch(node) // (2 * k)
    strips = [strip for strip in range(SIDE, rows + 1, SIDE) if rows % strip == 0 and strip <= most]
    as_it_lies = other.pitch and not other.offset and not other.peel and other.ready is None
    if not strips or not as_it_lies or channels % SIDE or k == 1:
        return None
    copied = te.compute((rows, k), wide.element, "rows")
    parts = next(d for d in range(1, k + 1) if k % d == 0 and k // d <= EXACT_TERMS)
    (part, step), axes = _axes(parts, k // parts)

    def term(x: Expr, o: Expr, i: Expr, j: Expr) -> Expr:
        at = part * (k // parts) + step
        return total(i32(copied[x * SIDE + i, at]) * i32(other.load(o * SIDE + j, at)), axes)

    acc = te.compute((rows // SIDE, channels // SIDE, SIDE, SIDE), term, "acc")
    div, mod = tirx.indexdiv, tirx.indexmod

    def element(first: Expr, second: Expr) -> Expr:
        x, o = (second, first) if turned else (first, second)
        return finish(acc[div(x, SIDE), div(o, SIDE), mod(x, SIDE), mod(o, SIDE)], first, second)

    def schedule(sch: s_tir.Schedule) -> None:
        row, channel = sch.get_loops(sch.get_sblock("out"))[:: -1 if turned else 1]
        strip, inside, pixel = sch.split(row, [None, max(strips) // SIDE, SIDE])
        outer, one = sch.split(channel, [None, SIDE])
        sch.reorder(strip, outer, inside, one, pixel)
        sums = dot_rows(parts, k // parts, other.pitch, other.columns)
        _sum_tiles(sch, (strip, inside, pixel), 5, sums, k)
        _keep(sch, tables, outer)

    return te.compute((m, n), element, "out"), schedule
