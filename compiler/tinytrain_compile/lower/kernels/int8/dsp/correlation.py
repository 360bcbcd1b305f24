"""Weight gradients of dense convolutions: sums over a map of the error times the image under a tap, in pairs."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, te, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV

from tinytrain_compile.lower.intrinsics import tensor as instructions
from tinytrain_compile.lower.kernels.base import (
    Finish,
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
from tinytrain_compile.ops.int8.conv_form import CorrelationTiles
from tinytrain_compile.ops.int8.tiles import DOT_TERMS


def correlation(
    shape: tuple[int, int, int, int],
    width: int,
    error: te.Tensor,
    image: Load,
    finish: Finish,
    tiles: CorrelationTiles,
    style: CodeStyle,
    tables: Sequence[te.Tensor] = (),
) -> tuple[te.Tensor, Schedule]:
    """Return out[o,r,run,c] = finish(sum over n, y, x of error[n, y * width + x, o] image(n, run, c, tap row r, y, x),
    o, r, run, c).

    shape: (output channels, rows of taps, runs of columns, columns in each: see CorrelationTiles). error: int8 (n,
    pixels, channels). image(n, run, c, phase, row of it, x): int16, 0 outside of the image. tables: operands that
    finish reads per output channel.
    """
    outputs, taps, runs, columns = shape
    each = tiles_of(columns, tiles.tile[1])
    (ti, tj), across = tiles.tile, tiles.pitch // DOT_TERMS
    div, mod = tirx.indexdiv, tirx.indexmod

    def of_error(i: Expr, b: Expr, step: Expr, p: Expr, odd: Expr, half: Expr) -> Expr:
        lane = odd + half * 2
        channel = row_of_tile(i, p, outputs, ti)
        if tiles.pitch == width:
            return error[b, step * DOT_TERMS + lane, channel].astype("int16")
        row, column = div(step, across), mod(step, across) * DOT_TERMS + lane
        return guarded(column < width, error[b, row * width + column, channel].astype("int16"))

    peeled = style.ragged_tiles and (runs > 1 or tiles.strip_axis == 0)

    def of_image(run: Expr, j: Expr, b: Expr, phase: Expr, step: Expr, q: Expr, odd: Expr, half: Expr) -> Expr:
        column = row_of_tile(j, q, columns, tj, peeled)
        return image(b, run, column, phase, div(step, across), mod(step, across) * DOT_TERMS + odd + half * 2)

    left = te.compute((tiles_of(outputs, ti), tiles.batch, tiles.blocks, ti, 2, 2), of_error, "left")
    steps = tiles.image_rows * across
    right = te.compute((runs, each, tiles.batch, tiles.phases, steps, tj, 2, 2), of_image, "right")
    b, step, odd, half = axes = reduce_axes(tiles.batch, tiles.blocks, 2, 2)

    def term(i: Expr, r: Expr, run: Expr, j: Expr, p: Expr, q: Expr) -> Expr:
        first = tiles.first(r) * across if taps > 1 else 0
        phase = tiles.phase(r) if taps > 1 else 0
        place = (b, phase, first + step, q, odd, half)
        return total(i32(left[i, b, step, p, odd, half]) * i32(right[(run, j, *place)]), axes)

    acc = te.compute((tiles_of(outputs, ti), taps, runs, each, ti, tj), term, "acc")

    def element(o: Expr, r: Expr, run: Expr, c: Expr) -> Expr:
        def of_tiles(tile: Expr, place: Expr) -> Expr:
            return sum_of_row(lambda other, q: acc[tile, r, run, other, place, q], c, columns, tj)

        return finish(sum_of_row(of_tiles, o, outputs, ti), o, r, run, c)

    out = te.compute(shape, element, "out")
    incomplete = tuple(style.ragged_tiles and left_over(*sizes) > 0 for sizes in ((outputs, ti), (columns, tj)))
    return out, lambda sch: _schedule(sch, tiles, width, int(error.shape[2]), incomplete, peeled, tables)


def _schedule(
    sch: s_tir.Schedule,
    tiles: CorrelationTiles,
    width: int,
    channels: int,
    incomplete: tuple[bool, ...],
    peeled: bool,
    tables: Sequence[te.Tensor],
) -> None:
    """Order the loops as in packed_product.

    incomplete: if the last tile (of output channels, of columns) is not whole and has code of its own; peeled: it also
    is widened by such code.
    """
    acc = sch.get_sblock("acc")
    o, tap, run, column = sch.get_loops(sch.get_sblock("out"))
    error, *own = sch.split(o, [None, tiles.tile[0]])
    pair, *other = sch.split(column, [None, tiles.tile[1]])
    loops, left, right, last = _strips(sch, tiles, error, run, pair)
    sch.reorder(*loops, tap, *own, *other)
    if incomplete[0] and tiles.strip_axis == 1:  # else it is the innermost loop, whose tests cost little
        sch.annotate(error, HINT, 1)
    if incomplete[1]:
        sch.annotate(last, HINT, 1)
    sch.set_scope(acc, 0, "local")
    sch.compute_at(acc, tap, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("left"), left, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("right"), right, preserve_unit_loops=True)
    for loop in (*own, *other):
        sch.unroll(loop)
    keep_results(sch, tap, 5)
    outer = loops[-1] if tiles.strip_axis == 0 else error
    keep_tables(sch, tables, outer, 1 + loops.index(outer))
    _sums(sch, tiles)
    _widen_error(sch, tiles, width, channels)
    tile, _, _, step, row, *lanes = sch.get_loops(sch.get_sblock("right"))[-7:]
    if incomplete[1] and peeled and tiles.strip_axis == 1:
        sch.annotate(tile, HINT, 1)
    line, block = sch.split(step, [None, tiles.pitch // DOT_TERMS])
    sch.reorder(line, block, *lanes, row)
    for loop in (*lanes, row):
        sch.unroll(loop)


def _strips(
    sch: s_tir.Schedule, tiles: CorrelationTiles, error: LoopRV, run: LoopRV, pair: LoopRV
) -> tuple[list[LoopRV], LoopRV, LoopRV, LoopRV]:
    """Cut a loop into strips; return (loops in order, loops where error and image are widened, that over columns)."""
    each, count = int(sch.get(pair).extent), tiles.strip // tiles.tile[tiles.strip_axis]
    if tiles.strip_axis == 0:
        strip, inside = sch.split(error, [None, count])
        return [strip, run, pair, inside], strip, pair, pair
    if count < each:
        strip, inside = sch.split(pair, [None, count])
        return [run, strip, error, inside], error, strip, inside if count > 1 else strip
    strip, inside = sch.split(run, [None, count // each])
    return [strip, error, inside, pair], error, strip, pair


def _sums(sch: s_tir.Schedule, tiles: CorrelationTiles) -> None:
    """Compute all four sums of a square tile in one call, others in a few calls per turn."""
    acc = sch.get_sblock("acc")
    rows, columns, batch, step, *lanes = sch.get_loops(acc)[-6:]
    square = tiles.tile == (2, 2)
    if square:
        inner = [rows, columns, step, *lanes] if tiles.blocks > 1 else [step, rows, columns, *lanes]
        sch.reorder(batch, *inner)
    else:
        first, few = sch.split(step, [None, max(u for u in (1, 2, 3, 4) if tiles.blocks % u == 0)])
        sch.reorder(batch, first, few, rows, columns, *lanes)
        for loop in (few, rows, columns):
            sch.unroll(loop)
    start = sch.decompose_reduction(acc, batch)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    if square:
        sch.tensorize(rows, instructions.dot_2x2(tiles.blocks))
    else:
        sch.tensorize(lanes[0], instructions.dot4_spread())


def _widen_error(sch: s_tir.Schedule, tiles: CorrelationTiles, width: int, channels: int) -> None:
    step, row, *lanes = sch.get_loops(sch.get_sblock("left"))[-4:]
    whole, given = tiles.pitch == width, (0, channels, True)
    if whole and tiles.tile[0] == 2 and tiles.blocks > 1:
        sch.tensorize(step, instructions.widen_two(*given, tiles.blocks))
    elif whole:
        sch.reorder(row, step, *lanes)
        sch.tensorize(lanes[0], instructions.widen4(*given))
    else:
        line, block = sch.split(step, [None, tiles.pitch // DOT_TERMS])
        sch.reorder(line, row, block, *lanes)
        for loop in lanes:
            sch.unroll(loop)
        sch.annotate(block, HINT, 1)
