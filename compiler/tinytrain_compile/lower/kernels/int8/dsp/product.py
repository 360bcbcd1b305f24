"""Integer products: operands widened to int16 in scratch, then summed in pairs (SMLAD if the core has it).

If few rows meet the right operand, it is read unwidened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import s_tir, te, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV

from tinytrain_compile.lower.intrinsics import tensor as instructions
from tinytrain_compile.lower.kernels.base import (
    Finish,
    Index,
    Load,
    Schedule,
    guarded,
    i32,
    left_over,
    reduce_axes,
    row_of_tile,
    sum_of_row,
    tiles_of,
    total,
)
from tinytrain_compile.lower.kernels.context import CodeStyle
from tinytrain_compile.lower.schedules import HINT, keep_results, keep_tables
from tinytrain_compile.ops.int8.tiles import COLUMN, DOT_TERMS, PackedTiles

TILE_PITCH = 4094
"""Most channels of the output if a helper finishes the sums of a tile: the largest offset of an instruction."""


@dataclass(frozen=True)
class PackedOperand:
    """One operand: element (row, k) as an int8 expression, and the offset added when it becomes int16.

    pitch: elements from a row to the next, if a row's elements are neighbours in memory; 0: they are not. columns: rows
    and columns are exchanged (a matrix (k, row)). peel: its load has conditions to be split off. ready: the table, in
    the form of its stage, of a right operand that is stored widened.
    """

    load: Load
    offset: int = 0
    pitch: int = 0
    columns: bool = False
    peel: bool = False
    ready: te.Tensor | None = None

    def element(self, row: Expr, k: Expr) -> Expr:
        """Return the widened element."""
        wide = self.load(row, k).astype("int16")
        return wide + tirx.const(self.offset, "int16") if self.offset else wide


def packed_product(
    extents: tuple[Index, int, int],
    left: PackedOperand,
    right: PackedOperand,
    finish: Finish,
    tiles: PackedTiles,
    style: CodeStyle,
    tables: Sequence[te.Tensor] = (),
    channel_axis: int = 1,
    end: str | None = None,
) -> tuple[te.Tensor, Schedule]:
    """Return out[m,n] = finish(sum_k left(m,k) right(n,k), m, n); tables: operands that finish reads per channel, m or
    n.

    end: the intrinsic that finishes all sums of a 2x2 tile, if there is one for `finish`.
    """
    m, n, k = extents
    (ti, tj), steps = tiles.tile, tiles.depth // DOT_TERMS
    a = _stage(left, (m, k), ti, tiles, "left")
    b = right.ready if tiles.ready else None if tiles.direct else _stage(right, (n, k), tj, tiles, "right")
    step, odd, half = axes = reduce_axes(steps, 2, 2)

    def term(i: Expr, j: Expr, p: Expr, q: Expr) -> Expr:
        other = right.load(j * tj + q, step * DOT_TERMS + odd + half * 2) if b is None else b[j, step, q, odd, half]
        return total(i32(a[i, step, p, odd, half]) * i32(other), axes)

    acc = te.compute((tiles_of(m, ti), tiles_of(n, tj), ti, tj), term, "acc")

    def element(i: Expr, j: Expr) -> Expr:
        def of_tiles(tile: Expr, place: Expr) -> Expr:
            return sum_of_row(lambda other, q: acc[tile, other, place, q], j, n, tj)

        return finish(sum_of_row(of_tiles, i, m, ti), i, j)

    out = te.compute((m, n), element, "out")

    whole = end is not None and bool(tiles.ends) and not style.small and left_over(m, ti) == 0 and n <= TILE_PITCH

    def schedule(sch: s_tir.Schedule) -> None:
        incomplete = tuple(style.ragged_tiles and left_over(*sizes) > 0 for sizes in ((m, ti), (n, tj)))
        _loops(sch, tiles, tables, channel_axis, incomplete, whole)
        if tiles.direct:
            _direct_sums(sch, tiles, right)
        else:
            _sums(sch, tiles, style.pair_steps)
        if tiles.widens_right:
            _widen(sch, "right", right, tiles.depth == k)
        _widen(sch, "left", left, tiles.depth == k)
        if whole and end:
            *_, column, row = sch.get_loops(sch.get_sblock("out"))
            sch.reorder(row, column)
            sch.tensorize(row, end)

    return out, schedule


def _stage(operand: PackedOperand, extents: tuple[Index, int], tile: int, tiles: PackedTiles, name: str) -> te.Tensor:
    """Return an operand as blocks of DOT_TERMS elements of each row of a tile, even ones before odd ones (see
    tt_widen4)."""
    rows, k = extents

    def element(i: Expr, step: Expr, p: Expr, odd: Expr, half: Expr) -> Expr:
        position = step * DOT_TERMS + odd + half * 2
        value = operand.element(row_of_tile(i, p, rows, tile), position)
        return value if tiles.depth == k else guarded(position < k, value)

    return te.compute((tiles_of(rows, tile), tiles.depth // DOT_TERMS, tile, 2, 2), element, name)


def _loops(
    sch: s_tir.Schedule,
    tiles: PackedTiles,
    tables: Sequence[te.Tensor],
    channel_axis: int,
    incomplete: tuple[bool, ...],
    whole: bool,
) -> None:
    """Order the loops: strip of one operand, tile of the other, tile of the strip; operands are widened where their
    loop starts.

    incomplete: whether the last tile of an axis (left, right) is not whole, and is split off. whole: one helper
    finishes all sums of a tile.
    """
    out = sch.get_sblock("out")
    loops = list(sch.get_loops(out))
    kept, moved = tiles.strip_axis, 1 - tiles.strip_axis
    strip, inside, kept_tile = sch.split(loops[kept], [None, tiles.strip // tiles.tile[kept], tiles.tile[kept]])
    outer, moved_tile = sch.split(loops[moved], [None, tiles.tile[moved]])
    inner = [moved_tile, kept_tile] if kept == 0 else [kept_tile, moved_tile]  # a column's factors are read once
    sch.reorder(strip, outer, inside, *inner)
    one = tiles.strip == tiles.tile[kept]
    for axis, loop in ((kept, strip if one else inside), (moved, outer)):
        if incomplete[axis]:
            sch.annotate(loop, HINT, 1)
    acc = sch.get_sblock("acc")
    sch.set_scope(acc, 0, "local")
    sch.compute_at(acc, inside, preserve_unit_loops=True)
    names = ("left", "right")
    if tiles.widens_right:
        sch.compute_at(sch.get_sblock(names[moved]), outer, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock(names[kept]), strip, preserve_unit_loops=True)
    if not whole:
        for loop in inner:
            sch.unroll(loop)
        keep_results(sch, inside, 3)
    if tiles.ends:
        for table in tables:
            _in_scratch(sch, str(table.op.name), strip)
    else:
        keep_tables(sch, tables, *((outer, 2) if channel_axis == moved else (inside, 3)))


def _in_scratch(sch: s_tir.Schedule, name: str, strip: LoopRV) -> None:
    """Put a table's entries for the channels of a strip into scratch with them."""
    block = sch.get_sblock(name)
    sch.compute_at(block, strip, preserve_unit_loops=True)
    sch.unroll(sch.get_loops(block)[-1])


def _sums(sch: s_tir.Schedule, tiles: PackedTiles, most_steps: int) -> None:
    acc = sch.get_sblock("acc")
    rows, columns, step, *lanes = sch.get_loops(acc)[-5:]
    square, steps = tiles.tile == (2, 2), tiles.depth // DOT_TERMS
    if square and steps > 1:
        start = sch.decompose_reduction(acc, rows)
    else:
        first, few = sch.split(step, [None, max(u for u in range(1, most_steps + 1) if steps % u == 0)])
        sch.reorder(first, few, rows, columns, *lanes)
        for loop in () if square else (few, rows, columns):
            sch.unroll(loop)
        start = sch.decompose_reduction(acc, first)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    if square:
        sch.tensorize(rows, instructions.dot_2x2(steps))
    else:
        sch.tensorize(lanes[0], instructions.dot4_spread())


def _direct_sums(sch: s_tir.Schedule, tiles: PackedTiles, right: PackedOperand) -> None:
    acc = sch.get_sblock("acc")
    rows, columns, step, _, _ = sch.get_loops(acc)[-5:]
    if tiles.tile == COLUMN:
        sch.reorder(columns, rows)
        rows, columns = columns, rows
    start = sch.decompose_reduction(acc, rows)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    place = {(2, 2): rows, (1, 1): step}.get(tiles.tile, columns)
    blocks = tiles.depth // DOT_TERMS
    if right.columns:
        sch.tensorize(place, instructions.dot_columns(blocks, right.pitch))
    else:
        sch.tensorize(place, instructions.dot_direct(tiles.tile, blocks, right.pitch))


def _widen(sch: s_tir.Schedule, name: str, operand: PackedOperand, whole: bool) -> None:
    step, row, *lanes = sch.get_loops(sch.get_sblock(name))[-4:]
    steps, two = int(sch.get(step).extent), int(sch.get(row).extent) == 2
    given = (operand.offset, operand.pitch, operand.columns)
    if whole and operand.pitch and two and steps > 1:
        sch.tensorize(step, instructions.widen_two(*given, steps))
        return
    sch.reorder(row, step, *lanes)
    if whole and operand.pitch:
        sch.tensorize(lanes[0], instructions.widen4(*given))
    else:
        for lane in lanes:
            sch.unroll(lane)
    if operand.peel or not whole:
        sch.annotate(step, HINT, 1)
