"""Dense convolutions and their data gradients: the elements under the taps of a few output pixels are copied once.

Neighbouring pixels share most of it. A strided data gradient is computed phase by phase: interleaved images, each a
convolution with stride 1 and the taps that reach it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Finish,
    Index,
    Load,
    MapShape,
    Schedule,
    both,
    guard,
    reduce_axes,
    total,
)
from tinytrain_compile.lower.schedules import best_tile, four_at_a_time, tile_reduction
from tinytrain_compile.ops.conv_form import Patch, Reach


@dataclass(frozen=True)
class PatchForm:
    """Output shape, register tile (pixels, channels), and form of the loops.

    copies: the elements under the taps of a tile's pixels are copied to scratch first. peel: the weight is in two
    parts. runs: a row of taps reads neighbours in memory from the weight too. apart: every phase has code of its own.
    lanes: a tile's channels are vectors. turn: see tile_reduction.
    """

    shape: MapShape
    tile: tuple[int, int]
    copies: bool
    peel: bool
    runs: bool = True
    apart: bool = False
    lanes: bool = False
    turn: int = 1


def patch_conv(
    patch: Patch,
    form: PatchForm,
    element: Load,
    weight: Load,
    finish: Finish,
    widen: Callable[[Expr], Expr] = lambda x: x,
    schedule: Callable[[s_tir.Schedule, int], None] | None = None,
    row_exists: Callable[[Expr], Expr] | None = None,
) -> tuple[te.Tensor, Schedule]:
    """Compute out[n,y,x,o] = finish(sum over taps and channels of widen(element) * weight(o, tap row, tap column,
    channel)).

    element(n, row, column, channel): element of the image. schedule(sch, pixels of a tile): replaces _schedule.
    row_exists(row): replaces the test whether the row is within patch.rows.
    """
    rows, columns, channels = patch.rows, patch.columns, patch.channels
    count, height, width, out_c = form.shape[0], _height(patch, form), patch.width, form.shape[3]
    across = min(best_tile(width, form.tile[0]), form.tile[0])
    cols = _copied(patch, (count, height), across, element, row_exists) if form.copies else None
    r, s, a = reduce_axes(rows.taps, columns.taps, channels)

    def read(b: Expr, y: Expr, p: Expr, q: Expr, x: Expr) -> Expr:
        row, column = rows.place(1, 0, p, r), columns.place(across, x % across, q, s)
        if cols is not None:
            return cols[b, y, x // across, row, column, a]
        return element(b, rows.source(1, y, row), columns.source(across, x // across * across, column), a)

    def term(b: Expr, y: Expr, p: Expr, q: Expr, x: Expr, o: Expr) -> Expr:
        taps = rows.tap(p, r), columns.tap(q, s)
        product = widen(read(b, y, p, q, x)) * weight(o, *taps, a)
        tests = [tap < reach.kernel for tap, reach in zip(taps, (rows, columns), strict=True) if _ragged(reach)]
        return total(guard(both(tests), product), [r, s, a])

    acc = te.compute((count, height, rows.phases, columns.phases, width, out_c), term, "acc")
    cut = (count, height, rows.phases, width, columns.phases, out_c)  # the same elements in the same order

    def result(b: Expr, y: Expr, p: Expr, x: Expr, q: Expr, o: Expr) -> Expr:
        return finish(acc[b, y, p, q, x, o], b, y * rows.phases + p, x * columns.phases + q, o)

    out = te.compute(cut, result, "out")
    if schedule is not None:
        return out, lambda sch: schedule(sch, across)
    return out, lambda sch: _schedule(sch, form, across, form.runs and abs(columns.step) == 1 and not form.peel)


def _height(patch: Patch, form: PatchForm) -> Index:
    """Return the rows of a phase; a variable number counts all rows, since there are no phases then."""
    height = form.shape[1]
    return height // patch.rows.phases if isinstance(height, int) else height


def _copied(
    patch: Patch,
    images: tuple[int, Index],
    across: int,
    element: Load,
    row_exists: Callable[[Expr], Expr] | None,
) -> te.Tensor:
    """Return the copy for tiles of `across` pixels. images: their number, and rows of each; row_exists: as in
    patch_conv."""
    rows, columns, (count, height) = patch.rows, patch.columns, images

    def copied(b: Expr, y: Expr, x: Expr, i: Expr, j: Expr, k: Expr) -> Expr:
        rows_in: list[Expr] = []
        row = rows.source(1, y, i)
        if row_exists is not None:
            rows_in.append(row_exists(row))
        elif isinstance(height, int):
            row, rows_in = _inside(rows, 1, height, row)
        column, columns_in = _inside(columns, across, patch.width, columns.source(across, x * across, j))
        return guard(both([*rows_in, *columns_in]), element(b, row, column, k))

    turns = (count, height, -(-patch.width // across))
    return te.compute((*turns, rows.copied(1), columns.copied(across), patch.channels), copied, "cols")


def _schedule(sch: s_tir.Schedule, form: PatchForm, across: int, fuse: bool) -> None:
    batch, row, p, x, q, o = sch.get_loops(sch.get_sblock("out"))
    sch.reorder(batch, row, x, p, q, o)
    for phase in (p, q) if form.apart else ():
        sch.unroll(phase)
    tiles, gather = {2: across, 5: form.tile[1]}, "cols" if form.copies else ""
    lanes = 5 if form.lanes else None
    peel, turn = form.peel, form.turn
    tile_reduction(sch, tiles, gather=gather, gather_axis=2, peel_reduction=peel, fuse=fuse, turn=turn, lanes=lanes)
    if gather and form.lanes and int(sch.get(sch.get_loops(sch.get_sblock(gather))[-1]).extent) >= LANES:
        four_at_a_time(sch, gather)


def _inside(reach: Reach, tile: int, positions: int, place: Expr) -> tuple[Expr, list[Expr]]:
    """Return (element at a place, conditions for it to exist)."""
    before, behind = reach.within(tile, positions)
    tests = [test for test, known in ((place >= 0, before), (place < reach.extent * reach.holes, behind)) if not known]
    if reach.holes == 1:
        return place, tests
    return tirx.indexdiv(place, reach.holes), [*tests, tirx.EQ(tirx.indexmod(place, reach.holes), 0)]


def _ragged(reach: Reach) -> bool:
    """Tell whether some phases have fewer taps than others."""
    return reach.kernel % reach.phases != 0
