"""Dense k x k convolutions of few channels: what a row of the output reads lies by columns, so a window is one run.

The taps of a row of few channels are no whole words: three rows of nine are 30 products in pairs of pairs, or 32, but
one run of 27 is 28.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.lower.intrinsics import dsp
from tinytrain_compile.lower.intrinsics.ends import copy_two
from tinytrain_compile.lower.kernels.base import Finish, Load, MapShape, Schedule, guarded, i32, reduce_axes, total
from tinytrain_compile.lower.schedules import HINT
from tinytrain_compile.ops.int8.line_tiles import LineTiles
from tinytrain_compile.ops.int8.tiles import DOT_TERMS


def line_conv(
    shape: MapShape,
    stride: int,
    element: Load,
    weight: Load,
    finish: Finish,
    form: LineTiles,
    tables: Sequence[te.Tensor],
    end: str,
) -> tuple[te.Tensor, Schedule]:
    """out[n,y,x,o] = finish(sum over r, f of rows[n, y stride + r, x columns + f] weight(o, r, f)).

    element(n, row, position in the row): int16, 0 outside of the image; end: the intrinsic that finishes a tile.
    """
    n, height, width, channels = shape
    div, mod, taps, steps = tirx.indexdiv, tirx.indexmod, form.taps, form.blocks
    parts, tiles = width // form.width, form.width // 2

    def of_line(b: Expr, y: Expr, part: Expr, f: Expr, r: Expr) -> Expr:
        return element(b, y * stride + r, part * (form.width * form.apart // taps) + f)

    line = te.compute((n, height, parts, form.length // taps, taps), of_line, "line")

    def of_window(b: Expr, y: Expr, part: Expr, x: Expr, step: Expr, p: Expr, odd: Expr, half: Expr) -> Expr:
        place = (x * 2 + p) * form.apart + step * DOT_TERMS + odd * 2 + half
        return line[b, y, part, div(place, taps), mod(place, taps)]

    left = te.compute((n, height, parts, tiles, steps, 2, 2, 2), of_window, "left")

    def of_weight(j: Expr, step: Expr, q: Expr, odd: Expr, half: Expr) -> Expr:
        place = step * DOT_TERMS + odd * 2 + half
        value = weight(j * 2 + q, mod(place, taps), div(place, taps)).astype("int16")
        return value if DOT_TERMS * steps == taps * form.run else guarded(place < taps * form.run, value)

    right = te.compute((channels // 2, steps, 2, 2, 2), of_weight, "right")
    step, odd, half = axes = reduce_axes(steps, 2, 2)

    def term(b: Expr, y: Expr, x: Expr, o: Expr, p: Expr, q: Expr) -> Expr:
        window = left[b, y, div(x, tiles), mod(x, tiles), step, p, odd, half]
        return total(i32(window) * i32(right[o, step, q, odd, half]), axes)

    acc = te.compute((n, height, width // 2, channels // 2, 2, 2), term, "acc")

    def value(b: Expr, y: Expr, x: Expr, o: Expr) -> Expr:
        return finish(acc[b, y, div(x, 2), div(o, 2), mod(x, 2), mod(o, 2)], b, y, x, o)

    out = te.compute(shape, value, "out")
    return out, lambda sch: _schedule(sch, form, tables, end)


def _schedule(sch: s_tir.Schedule, form: LineTiles, tables: Sequence[te.Tensor], end: str) -> None:
    def flat(b: Expr, y: Expr, part: Expr, f: Expr, r: Expr) -> list[Expr]:
        return [b, y, part, f * form.taps + r]

    out, acc = sch.get_sblock("out"), sch.get_sblock("acc")
    _, _, column, channel = sch.get_loops(out)
    part, tile, pixel = sch.split(column, [None, form.width // 2, 2])
    sch.unroll(part)  # each has another border
    pair, one = sch.split(channel, [None, 2])
    sch.reorder(tile, pair, pixel, one)
    sch.set_scope(acc, 0, "local")
    sch.compute_at(acc, pair, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("left"), tile, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("line"), part, preserve_unit_loops=True)
    sch.transform_layout(sch.get_sblock("line"), ("write", 0), flat)
    for table in tables:
        sch.unroll(sch.get_loops(sch.get_sblock(str(table.op.name)))[-1])
    rows, columns, step, *lanes = sch.get_loops(acc)[-5:]
    if form.blocks == 1:  # its helper knows no loop of one turn
        sch.reorder(step, rows, columns, *lanes)
    start = sch.decompose_reduction(acc, step if form.blocks == 1 else rows)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    sch.tensorize(rows, dsp.dot_2x2(form.blocks))
    sch.tensorize(
        sch.get_loops(sch.get_sblock("left"))[-4 if form.blocks > 1 else -3], copy_two(form.blocks, form.apart)
    )
    places, tap = sch.get_loops(sch.get_sblock("line"))[-2:]
    sch.reorder(tap, places)
    sch.annotate(places, HINT, 1)
    sch.tensorize(pixel, end)
