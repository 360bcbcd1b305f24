"""Integer products on vectors: int8 read in place (or copied, or transposed), four output channels at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm import s_tir, te, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tinytrain_compile.lower.intrinsics import tensor as instructions
from tinytrain_compile.lower.intrinsics.lanes import LANES, LARGEST_PITCH
from tinytrain_compile.lower.kernels.base import Finish, Index, Load, MapShape, Schedule, i32, reduce_axes, total
from tinytrain_compile.lower.schedules import HINT
from tinytrain_compile.ops.int8.tiles import DenseTiles, PackedTiles


@dataclass(frozen=True)
class VectorOperand:
    """One operand of a product: element (row, k), int8.

    how: "here" (rows are read in place), "copied" (`load` then has the elements one after the other), "transposed"
    (columns, `pitch` apart), or "pieced".
    """

    load: Load
    how: str = "here"
    pitch: int = 0


@dataclass(frozen=True)
class Epilogue:
    """The end of sums: finish(sum, m, n), with lanes along n.

    zero: zero point of the operand whose rows are not channels. tables: operands that finish reads per channel.
    """

    finish: Finish
    zero: int = 0
    tables: Sequence[te.Tensor] = field(default_factory=tuple)


def fits(extents: tuple[Index, int, int]) -> bool:
    """Tell whether a product has whole vectors of output channels, and sums."""
    return extents[1] % LANES == 0 and extents[2] > 1


def kept_lanes(operand: te.Tensor, name: str, value: Callable[[Expr], Expr] | None = None) -> te.Tensor:
    """Return an operand per channel that is loaded once, as int32."""
    return te.compute(operand.shape, value or (lambda c: i32(operand[c])), name)


def channel_product(
    extents: tuple[Index, int, int],
    left: VectorOperand,
    right: VectorOperand,
    end: Epilogue,
    strip: int | None,
    stays: bool,
) -> tuple[te.Tensor, Schedule]:
    """Return out[m,n] = finish(sum_k (left(m,k) - zero) right(n,k), m, n), four channels n at a time for all m of a
    strip.

    strip: rows of a copied left operand in scratch. None: all rows are a strip, and none is copied; the transposed
    right operand, if it stays, and its sums are already in scratch (see rows.py).
    """
    (m, n, k), zero = extents, end.zero
    a, b = _copied(left, (m, k)) if left.how == "copied" else left.load, _stage(right, (n, k), "right")
    acc = _sums((m,), n, k, a, b)
    correction = Correction(b, (n, k), zero, strip is None)

    def element(i: Expr, j: Expr) -> Expr:
        value = acc[i, tirx.indexdiv(j, LANES), tirx.indexmod(j, LANES)]
        return end.finish(correction.added(value, j), i, j)

    def schedule(sch: s_tir.Schedule) -> None:
        row, channel = sch.get_loops(sch.get_sblock("out"))
        first, row = sch.split(row, [None, strip] if strip else [1, None])
        channel, lane = sch.split(channel, [None, LANES])
        sch.reorder(first, channel, row, lane)
        _move(sch, "acc", row)
        correction.move(sch, channel)
        for table in end.tables:
            sch.vectorize(sch.get_loops(_move(sch, str(table.op.name), channel))[-1])
        _fill(sch, "left", left, first, k * (strip or 0))
        _fill(sch, "right", right, None if strip is None and stays else channel, k)
        _compute_sums(sch, 3, k)
        correction.compute(sch, 2)
        sch.vectorize(lane)

    return te.compute((m, n), element, "out"), schedule


def patch_product(
    shape: MapShape,
    pitches: tuple[int, int],
    element: Load,
    right: Load,
    run: int,
    end: Epilogue,
    tiles: DenseTiles,
) -> tuple[te.Tensor, Schedule]:
    """Return out[n,y,x,o] = finish(sum over k of (patch(n,y,x)[k] - zero) right(o, k)): a dense convolution.

    A patch has the elements under the taps of a pixel: for every row of taps a run of `run` elements, which begins a
    pitch (rows and elements) after the previous pixel's. element(n, row, position in the row): int8, the zero point
    outside of the image. Scratch holds the rows of a strip, and the patches of a few pixels.
    """
    count, height, width, channels = shape
    depth, row_pitch = tiles.taps * run, (width - 1) * pitches[1] + run
    across = patch_pixels(width, depth, tiles, row_pitch)
    rows = te.compute((count, tiles.rows, row_pitch), element, "rows")

    def patch(b: Expr, y: Expr, x: Expr, k: Expr) -> Expr:
        return rows[b, y * pitches[0] + tirx.indexdiv(k, run), x * pitches[1] + tirx.indexmod(k, run)]

    patches = te.compute((count, height, width, depth), patch, "patches")
    acc = _sums((count, height, width), channels, depth, lambda *i: patches[i], right)
    correction = Correction(right, (channels, depth), end.zero)

    def value(b: Expr, y: Expr, x: Expr, o: Expr) -> Expr:
        summed = acc[b, y, x, tirx.indexdiv(o, LANES), tirx.indexmod(o, LANES)]
        return end.finish(correction.added(summed, o), b, y, x, o)

    def schedule(sch: s_tir.Schedule) -> None:
        batch, row, column, channel = sch.get_loops(sch.get_sblock("out"))
        strip, row = sch.split(row, [None, tiles.strip])
        group, pixel = sch.split(column, [None, across])
        channel, lane = sch.split(channel, [None, LANES])
        sch.reorder(batch, strip, row, group, channel, pixel, lane)
        _move(sch, "acc", pixel)
        correction.move(sch, channel)
        for table in end.tables:
            sch.vectorize(sch.get_loops(_move(sch, str(table.op.name), channel))[-1])
        _copy_patches(sch, strip, group, run)
        _compute_sums(sch, 6, depth)
        correction.compute(sch, 5)
        sch.vectorize(lane)

    return te.compute(shape, value, "out"), schedule


def _copy_patches(sch: s_tir.Schedule, strip: LoopRV, group: LoopRV, run: int) -> None:
    """Copy rows once per strip, then the patches of a few pixels from them, by contiguous runs of elements."""
    sch.compute_at(sch.get_sblock("patches"), group, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("rows"), strip, preserve_unit_loops=True)
    if run > 1:
        _, piece = sch.split(sch.get_loops(sch.get_sblock("patches"))[-1], [None, run])
        sch.tensorize(piece, instructions.copy_row(run))
    sch.annotate(sch.get_loops(sch.get_sblock("rows"))[-1], HINT, 1)


def patch_pixels(width: int, depth: int, tiles: DenseTiles, row_pitch: int) -> int:
    """Return how many pixels of a row have their patches in scratch: as many as the scratch of widened rows holds."""
    room = tiles.scratch_bytes - (tiles.strip_rows * row_pitch + 7) // 8 * 8
    return max((pixels for pixels in range(1, width + 1) if width % pixels == 0 and pixels * depth <= room), default=1)


def copied_rows(extents: tuple[int, int, int], tiles: PackedTiles, pieced: bool) -> int:
    """Return how many rows of the left operand are copied at a time: whole strips (or tiles) of the plan, whose input
    may be above its output; as many as fit in the scratch planned for products in pairs."""
    m, _, k = extents
    unit = tiles.unit(m)
    room = tiles.scratch_bytes - (LANES * k + 8 if pieced else 0)
    return max((rows for rows in range(unit, m + 1, unit) if m % rows == 0 and rows * k <= room), default=unit)


def _stage(rows: VectorOperand, shape: tuple[Index, int], name: str) -> Load:
    if rows.how == "here":
        return rows.load
    staged = te.compute(shape, rows.load, name)
    return lambda *index: staged[index]


def _copied(rows: VectorOperand, shape: tuple[Index, int]) -> Load:
    """Return access to a VectorOperand copied in one piece, so that one call copies several rows."""
    staged = te.compute((shape[0] * shape[1],), rows.load, "left")

    def element(i: Expr, k: Expr) -> Expr:
        return staged[i * shape[1] + k]

    return element


def _sums(rows: tuple[Index, ...], n: int, k: int, a: Load, b: Load) -> te.Tensor:
    """Return acc[*rows, n // LANES, LANES], of a(*row, k) and b(n, k)."""
    (axis,) = reduce_axes(k)

    def term(*index: Expr) -> Expr:
        *row, j, lane = index
        return total(i32(a(*row, axis)) * i32(b(j * LANES + lane, axis)), [axis])

    return te.compute((*rows, n // LANES, LANES), term, "acc")


def _row_sums(rows: Load, shape: tuple[int, int]) -> te.Tensor:
    (axis,) = reduce_axes(shape[1], prefix="s")
    return te.compute((shape[0],), lambda row: total(i32(rows(row, axis)), [axis]), "row_sum")


class Correction:
    """Term added to sums with rows of channels if the other operand's zero point is not 0: minus a row's sum times it.

    early: computed first, in scratch.
    """

    def __init__(self, rows: Load, shape: tuple[int, int], zero: int, early: bool = False) -> None:
        self._zero, self._depth, self._early = zero, shape[1], early
        if zero:
            sums = _row_sums(rows, shape)
            self._values = te.compute((shape[0],), lambda j: sums[j] * i32(-zero), "correction")
            if early:
                self._values = kept_lanes(self._values, "kept_correction")

    def added(self, value: Expr, channel: Expr) -> Expr:
        """Return a sum of this channel, corrected."""
        return value + self._values[channel] if self._zero else value

    def move(self, sch: s_tir.Schedule, place: LoopRV) -> None:
        """Move the stage to the start of the loop over channels."""
        if self._zero:
            sch.vectorize(sch.get_loops(_move(sch, str(self._values.op.name), place))[-1])
            _move(sch, "row_sum", sch.get_loops(sch.get_sblock("correction"))[-1] if self._early else place)

    def compute(self, sch: s_tir.Schedule, depth: int) -> None:
        """Schedule the sums once their operands are in place; the loop over channels is the depth-th."""
        if self._zero:
            _compute_row_sums(sch, 1 if self._early else depth, self._depth)


def _compute_sums(sch: s_tir.Schedule, depth: int, k: int) -> None:
    """Schedule sums once they and their operands are in the depth-th loop: TVM cannot move an intrinsic's operands."""
    acc = sch.get_sblock("acc")
    lanes = sch.get_loops(acc)[-2]
    start = sch.decompose_reduction(acc, lanes)
    for loop in sch.get_loops(start)[depth:]:
        sch.unroll(loop)
    sch.tensorize(lanes, instructions.dot_x4(k))


def _compute_row_sums(sch: s_tir.Schedule, depth: int, k: int) -> None:
    """Schedule sums of rows once they and their operands are in place, in the depth-th loop."""
    block = sch.get_sblock("row_sum")
    axis = sch.get_loops(block)[-1]
    start = sch.decompose_reduction(block, axis)
    for loop in (*sch.get_loops(start)[depth:], *sch.get_loops(block)[depth:-1]):
        sch.unroll(loop)
    sch.tensorize(axis, instructions.row_sum(k))


def _move(sch: s_tir.Schedule, name: str, place: LoopRV) -> SBlockRV:
    """Move a stage into registers at the start of a loop; return it."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, place, preserve_unit_loops=True)
    return block


def _fill(sch: s_tir.Schedule, name: str, rows: VectorOperand, place: LoopRV | None, k: int) -> None:
    """Fill scratch at the start of a loop (None: before all loops)."""
    if rows.how == "here":
        return
    block = sch.get_sblock(name)
    if place is not None:
        sch.compute_at(block, place, preserve_unit_loops=True)
    column = sch.get_loops(block)[-1]
    if rows.how == "copied":
        sch.tensorize(column, instructions.copy_row(k))
    elif rows.how == "transposed" and rows.pitch < LARGEST_PITCH:
        sch.tensorize(column, instructions.turn_column(k, rows.pitch))
    elif rows.how == "pieced":
        sch.annotate(column, HINT, 1)
