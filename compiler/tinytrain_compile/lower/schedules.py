"""Schedule rules for tiling a kernel's loops, shared by all kernels; chosen by the kernel, sized by the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tvm import s_tir, te, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tinytrain_compile.lower.intrinsics.lanes import LANES

HINT = "pragma_loop_partition_hint"
"""Annotation that makes LoopPartition peel a loop's ragged end (or a split weight's border) into a loop of its own."""

KEPT, KEPT_ROWS = "kept", "kept_rows"
"""Stages that put the sums of a tile into scratch if the next stage loops over the tile: over all elements, or over
rows that are unrolled."""


def _split(schedule: s_tir.Schedule, block: SBlockRV, tiles: Mapping[int, int]) -> tuple[list[LoopRV], list[LoopRV]]:
    """Return loops of a block over tiles (and over axes that have none), and over the elements of a tile."""
    outer: list[LoopRV] = []
    inner: list[LoopRV] = []
    for axis, loop in enumerate(schedule.get_loops(block)):
        if axis in tiles:
            first, second = schedule.split(loop, [None, tiles[axis]])
            outer.append(first)
            inner.append(second)
        else:
            outer.append(loop)
    if not outer:
        raise ValueError("a tiled kernel needs an axis")
    return outer, inner


def tile_reduction(
    schedule: s_tir.Schedule,
    tiles: Mapping[int, int],
    acc: str = "acc",
    out: str = "out",
    gather: str = "",
    gather_axis: int = 0,
    peel_reduction: bool = False,
    fuse: bool = False,
    turn: int = 1,
    lanes: int | None = None,
    edges: bool = False,
    peeled: Sequence[int] = (),
) -> None:
    """Compute `out` tile by tile, with the sums of `acc` for one tile in registers.

    tiles: output axis -> tile size; the tiled axes' inner loops are unrolled, in axis order.
    gather: an intermediate block that is filled once per tile of axis `gather_axis` (im2col rows), in scratch.
    peel_reduction: also split reduction loops at changes of a condition (weights in two parts).
    fuse: the last two reduction loops are one, over neighbours in memory. turn: most terms of every sum in a turn of
    the innermost loop (those of a turn are unrolled). lanes: the tiled axis of which four elements are a vector. edges:
    if conditions differ within a tile, turns at the ends of the innermost loop have separate code. peeled: output axes
    whose tiles at the ends have separate code if conditions differ there.
    """
    sums = schedule.get_sblock(acc)
    whole = schedule.get_loops(schedule.get_sblock(out))
    extents = {axis: int(schedule.get(whole[axis]).extent) for axis in tiles}
    outer, inner, lane = _tiles_of_results(schedule, sums, tiles, lanes)
    schedule.compute_at(sums, outer[-1], preserve_unit_loops=True)
    schedule.set_scope(sums, 0, "local")
    own = schedule.get_loops(sums)[len(outer) :]
    axes = len(outer)
    spatial, reductions = own[:axes], own[axes:]
    reductions, turned = _turns(schedule, reductions, fuse, turn)
    spatial, own_lane = _lanes(schedule, spatial, lanes)
    schedule.reorder(*reductions, *turned, *spatial, *own_lane)
    _straighten(schedule, [*turned, *spatial, *inner], [*lane, *own_lane])
    starts = schedule.get_loops(schedule.decompose_reduction(sums, reductions[0]))[len(outer) :]
    _straighten(schedule, starts[: len(starts) - len(own_lane)], starts[len(starts) - len(own_lane) :])
    if gather:
        schedule.compute_at(schedule.get_sblock(gather), outer[gather_axis], preserve_unit_loops=True)
    every = tiles if peel_reduction else peeled
    _peel(schedule, outer, extents, tiles, every)
    if peel_reduction or edges:
        loops = schedule.get_loops(schedule.get_sblock(f"{acc}_update"))[len(outer) :][: len(reductions)]
        for loop in loops if peel_reduction else loops[-1:]:
            schedule.annotate(loop, HINT, 1)


def tile_elements(
    schedule: s_tir.Schedule, tiles: Mapping[int, int], lanes: int | None = None, acc: str = "acc"
) -> None:
    """Compute results tile by tile, with elements of `acc` computed where they are used; see tile_reduction."""
    elements = schedule.get_sblock(acc)
    last = schedule.get_loops(schedule.get_output_blocks("root")[-1])
    extents = {axis: int(schedule.get(last[axis]).extent) for axis in tiles}
    outer, inner, lane = _tiles_of_results(schedule, elements, tiles, lanes)
    schedule.compute_inline(elements)
    _straighten(schedule, inner, lane)
    _peel(schedule, outer, extents, tiles)


def _peel(
    schedule: s_tir.Schedule,
    outer: Sequence[LoopRV],
    extents: Mapping[int, int],
    tiles: Mapping[int, int],
    peeled: Iterable[int] = (),
) -> None:
    """Give the last tile of an axis code of its own, if it is shorter or the axis is one of `peeled`."""
    ragged = [axis for axis, size in tiles.items() if extents[axis] % size]
    for axis in sorted({*ragged, *peeled}):
        if extents[axis] > tiles[axis]:
            schedule.annotate(outer[axis], HINT, 1)


def _tiles_of_results(
    schedule: s_tir.Schedule, sums: SBlockRV, tiles: Mapping[int, int], lanes: int | None
) -> tuple[list[LoopRV], list[LoopRV], list[LoopRV]]:
    """Compute results of sums in one nest over tiles; return its loops, those to unroll, those over lanes.

    Results are unrolled after the sums, one after another, or computed together in loops over the kept sums.
    """
    across = None if lanes is None else sorted(tiles).index(lanes)
    kept = [block for block in schedule.get_consumers(sums) if schedule.get(block).name_hint in (KEPT, KEPT_ROWS)]
    nests: list[list[LoopRV]] = []
    inner: list[LoopRV] = []
    lane: list[LoopRV] = []
    for block in schedule.get_output_blocks("root"):
        outer, within = _split(schedule, block, tiles)
        within, own = _lanes(schedule, within, None if kept else across)
        schedule.reorder(*outer, *within, *own)
        nests.append([*outer, *within] if kept else outer)
        inner, lane = [*inner, *within], [*lane, *own]
    if len(nests) > 1:
        schedule.merge(*(nest[-1] for nest in nests))
    last = schedule.get_output_blocks("root")[-1]
    outer = schedule.get_loops(last)[: len(nests[0]) - (len(tiles) if kept else 0)]
    if not kept:
        return outer, inner, lane
    if schedule.get(kept[0]).name_hint == KEPT_ROWS:
        schedule.unroll(schedule.get_loops(last)[-1])
    schedule.compute_at(kept[0], outer[-1], preserve_unit_loops=True)
    inner, lane = _lanes(schedule, schedule.get_loops(kept[0])[len(outer) :], lanes)
    schedule.reorder(*inner, *lane)
    return outer, inner, lane


def _straighten(schedule: s_tir.Schedule, loops: Sequence[LoopRV], lanes: Sequence[LoopRV]) -> None:
    for loop in loops:
        schedule.unroll(loop)
    for loop in lanes:
        schedule.vectorize(loop)


def four_at_a_time(schedule: s_tir.Schedule, *stages: str, most: int = 4) -> None:
    """Put stages over the same elements in one loop, cut into vectors; most: of these in a turn of the loop."""
    outer: list[LoopRV] = []
    ragged = False
    for name in stages or ("out",):
        loop = schedule.get_loops(schedule.get_sblock(name))[-1]
        extent = int(schedule.get(loop).extent)
        turn = next(few for few in range(most, 0, -1) if few == 1 or extent % (few * LANES) == 0)
        loop, few, lane = schedule.split(loop, [None, turn, LANES])
        schedule.unroll(few)
        schedule.vectorize(lane)
        outer.append(loop)
        ragged = extent % LANES > 0 and extent > LANES
    loop = schedule.merge(*outer) if len(outer) > 1 else outer[0]
    if ragged:
        schedule.annotate(loop, HINT, 1)


def _lanes(schedule: s_tir.Schedule, loops: Sequence[LoopRV], place: int | None) -> tuple[list[LoopRV], list[LoopRV]]:
    """Cut the loop at this place into whole vectors; return all loops, and that over a vector's lanes, if any."""
    if place is None:
        return list(loops), []
    vectors, lane = schedule.split(loops[place], [None, LANES])
    return [*loops[:place], vectors, *loops[place + 1 :]], [lane]


def _turns(
    schedule: s_tir.Schedule, loops: Sequence[LoopRV], fuse: bool, turn: int
) -> tuple[list[LoopRV], list[LoopRV]]:
    """Return reduction loops, and the loop over the terms of a turn if these are several; see tile_reduction.

    A sum of few terms is one turn; a number of terms without a suitable divisor ends with a shorter turn.
    """
    loops = [*loops[:-2], schedule.fuse(*loops[-2:])] if fuse else list(loops)
    terms = int(schedule.get(loops[-1]).extent)
    few = max(steps for steps in range(1, max(1, turn) + 1) if terms % steps == 0)
    if turn > 1 and terms <= 2 * turn:
        few = terms
    elif few == 1 < turn:
        few = turn
    if few == 1:
        return loops, []
    many, inner = schedule.split(loops[-1], [None, few])
    if terms % few:
        schedule.annotate(many, HINT, 1)
    return [*loops[:-1], many], [inner]


def best_tile(extent: int, wanted: int, ragged: bool = False) -> int:
    """Tile size for an axis: a divisor near `wanted` if there is a good one, else `wanted` with a peeled end.

    ragged: a long axis is worth a peeled end rather than a divisor that is smaller by 2.
    """
    if extent <= wanted:
        return extent
    least = wanted - (1 if ragged and extent > 2 * wanted else 2)
    divisors = [size for size in range(wanted + 1, 1, -1) if extent % size == 0 and size >= least]
    return divisors[0] if divisors else wanted


def keep_results(schedule: s_tir.Schedule, loop: LoopRV, depth: int) -> None:
    """Compute the elements of `out` in a turn of `loop` (the depth-th) before storing any of them, so that loads happen
    once.

    (After a store of bytes, C compilers load again, despite `restrict`.)
    """
    results = schedule.cache_write(schedule.get_sblock("out"), 0, "local")
    schedule.reverse_compute_at(results, loop, preserve_unit_loops=True)
    for inner in schedule.get_loops(results)[depth:]:
        schedule.unroll(inner)


def scalars(*names: str) -> Callable[[s_tir.Schedule], None]:
    """Return the schedule of a kernel that keeps these stages of one element, values or sums, in registers."""

    def schedule(sch: s_tir.Schedule) -> None:
        for name in names:
            block = sch.get_sblock(name)
            sch.set_scope(block, 0, "local")
            if any(axis.iter_type == tirx.IterVar.CommReduce for axis in sch.get(block).iter_vars):
                sch.decompose_reduction(block, sch.get_loops(block)[0])

    return schedule


def keep_tables(
    schedule: s_tir.Schedule, tables: Sequence[te.Tensor], loop: LoopRV | None = None, depth: int = 0
) -> None:
    """Compute the parts of these stages that `out` reads once per turn of `loop` (the depth-th; None: once), in
    registers."""
    for table in tables:
        block = schedule.get_sblock(str(table.op.name))
        schedule.set_scope(block, 0, "local")
        if loop is not None:
            schedule.compute_at(block, loop, preserve_unit_loops=True)
        for inner in schedule.get_loops(block)[depth:]:
            schedule.unroll(inner)
