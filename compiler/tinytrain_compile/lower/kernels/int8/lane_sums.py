"""Schedules of sums on vectors: register tiles of four lanes, each term a value they share times four neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, te
from tvm.s_tir.schedule import LoopRV

from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import Schedule
from tinytrain_compile.lower.schedules import keep_tables

MOST_VECTORS = 3
"""Most vectors of sums side by side, for each of two rows: with the loaded operands, they fill the eight registers."""


def vectors_of(extent: int) -> int:
    """Return the number of vectors of a tile along an axis of whole vectors."""
    return max(count for count in range(1, MOST_VECTORS + 1) if extent % (count * LANES) == 0)


def lane_sums(
    shape: tuple[int, ...], groups: int, ends: bool = False, tables: Sequence[te.Tensor] = ()
) -> Schedule | None:
    """Schedule weight gradients (out, row, column, in): four input channels, or four of a depthwise one, at a time.

    ends: the end of the sums is in lanes too, not scalar; tables: operands that it reads per output channel. None:
    there are no whole vectors, or several output channels read the same input channel.
    """
    axis = 0 if shape[3] == 1 else 3
    if shape[axis] % LANES or (axis == 0 and 1 < groups < shape[0]):
        return None
    vectors = vectors_of(shape[axis])
    pair = 2 if axis == 3 and shape[0] % 2 == 0 else 1

    def schedule(sch: s_tir.Schedule) -> None:
        loops = list(sch.get_loops(sch.get_sblock("out")))
        inner = {0: [pair], axis: [vectors, LANES]}
        tiled: list[LoopRV] = []
        for place in sorted(inner):
            loops[place], *own = sch.split(loops[place], [None, *inner[place]])
            tiled += own
        sch.reorder(*loops, *tiled)
        for loop in tiled[:-1] if ends else tiled:
            sch.unroll(loop)
        _lane_tile(sch, loops[-1], len(loops), 4, axis)
        keep_tables(sch, tables, loops[0], 1)
        if ends:
            sch.vectorize(tiled[-1])

    return schedule


def _lane_tile(sch: s_tir.Schedule, place: LoopRV, depth: int, rank: int, axis: int) -> None:
    """Keep a tile's sums in registers, from the start of the depth-th loop; `axis` of their `rank` axes is in lanes."""
    acc = sch.get_sblock("acc")
    sch.set_scope(acc, 0, "local")
    sch.compute_at(acc, place, preserve_unit_loops=True)
    own = sch.get_loops(acc)[depth:]
    spatial, reductions = list(own[:rank]), own[rank:]
    spatial[axis], lane = sch.split(spatial[axis], [None, LANES])
    sch.reorder(*reductions, *spatial, lane)
    for loop in spatial:
        sch.unroll(loop)
    sch.vectorize(lane)  # while its block is still known to be a sum
    start = sch.get_loops(sch.decompose_reduction(acc, reductions[0]))[depth:]
    for loop in start[:-1]:
        sch.unroll(loop)
    sch.vectorize(start[-1])
