"""Integer depthwise convolution: a channel's image lies in scratch as int16 with its border, so no tap is tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import s_tir, te

from tinytrain_compile.lower import intrinsics
from tinytrain_compile.lower.kernels.base import guarded, i32, reduce_axes, total
from tinytrain_compile.lower.kernels.linear import Finish, Load, Schedule
from tinytrain_compile.lower.schedules import HINT
from tinytrain_compile.ops.pairs import PlaneTiles

Pixel = Callable[[Any, Any, Any, Any], Any]
"""(n, plane row, plane column, channel) -> int16 expression, 0 outside of the image"""
UNROLLED_ROWS = 3
"""Kernels of at most this height have the loop over their rows unrolled."""


def plane_conv(
    shape: tuple[int, ...],
    strides: tuple[int, int],
    pixel: Pixel,
    tap: Load,
    finish: Finish,
    tiles: PlaneTiles,
    columns: int,
) -> tuple[te.Tensor, Schedule]:
    """out[n,y,x,c] = finish(sum over taps of plane[c, y stride + r, x stride + s] tap(c, r, s)); columns: of the kernel."""
    n, _, _, channels = shape
    plane = te.compute((n, channels, *tiles.plane), lambda b, c, y, x: pixel(b, y, x, c), "plane")

    def filled(c: Any, r: Any, s: Any) -> Any:
        value = tap(c, r, s).astype("int16")
        return value if columns == tiles.taps[1] else guarded(s < columns, value)

    taps = te.compute((channels, *tiles.taps), filled, "taps")
    r, s = reduce_axes(*tiles.taps)

    def term(b: Any, y: Any, x: Any, c: Any) -> Any:
        return total(i32(plane[b, c, y * strides[0] + r, x * strides[1] + s]) * i32(taps[c, r, s]), [r, s])

    acc = te.compute(shape, term, "acc")
    out = te.compute(shape, lambda *i: finish(acc(*i), *i), "out")
    return out, lambda sch: _schedule(sch, tiles)


def _schedule(sch: s_tir.Schedule, tiles: PlaneTiles) -> None:
    out, acc = sch.get_sblock("out"), sch.get_sblock("acc")
    batch, height, width, channel = sch.get_loops(out)
    strip, row = sch.split(height, [None, tiles.strip])
    column, pixel = sch.split(width, [None, tiles.width])
    sch.reorder(batch, channel, strip, row, column, pixel)
    sch.unroll(pixel)
    sch.set_scope(acc, 0, "local")
    sch.compute_at(acc, column, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("plane"), strip, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("taps"), channel, preserve_unit_loops=True)
    own = sch.get_loops(acc)[5:]
    spatial, (r, s) = own[:4], own[4:]
    many, lanes = sch.split(s, [None, 2])
    sch.reorder(r, many, *spatial, lanes)
    for loop in (many, *spatial):
        sch.unroll(loop)
    if tiles.taps[0] <= UNROLLED_ROWS:
        sch.unroll(r)
    start = sch.decompose_reduction(acc, r)
    for loop in sch.get_loops(start)[5:]:
        sch.unroll(loop)
    sch.tensorize(lanes, intrinsics.dot(2))
    sch.annotate(sch.get_loops(sch.get_sblock("plane"))[-1], HINT, 1)
    sch.annotate(sch.get_loops(sch.get_sblock("taps"))[-1], HINT, 1)
