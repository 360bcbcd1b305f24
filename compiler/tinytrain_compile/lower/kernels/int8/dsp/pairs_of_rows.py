"""3x3 depthwise convolutions whose channel image lies by columns: two rows of it are a word, tiles have two rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import s_tir, te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.ends import depthwise_2x2, depthwise_ends
from tinytrain_compile.lower.kernels.base import Finish, Load, MapShape, Schedule, i32, reduce_axes, total
from tinytrain_compile.lower.kernels.int8.dsp.windows import Pixel
from tinytrain_compile.lower.schedules import HINT, keep_tables
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import short_ends
from tinytrain_compile.ops.names import result

TILE, TAPS = 2, 3
REACH = 4095
"""Bytes by which an instruction reaches from an output to the others of its tile."""


@dataclass(frozen=True)
class PairsOfRows:
    """zero: of the output. strip: output rows, an even number, whose input rows lie in scratch at a time."""

    zero: int
    strip: int


def pairs_of_rows(node: Node, strip: int) -> PairsOfRows | None:
    """Whether a depthwise convolution has this form: 3x3 in steps of one, whole tiles, sums whose ends all shift down.

    strip: rows for which there is room.
    """
    attrs, (_, height, width, channels) = node.attrs, result(node, "y").shape
    assert isinstance(attrs, QConvAttrs)
    if attrs.conv.kernel != (TAPS, TAPS) or attrs.conv.strides != (1, 1) or height % TILE or width % TILE:
        return None
    if not short_ends(node) or strip % TILE or (width + 1) * channels > REACH:
        return None
    return PairsOfRows(attrs.y_zero, strip)


def depthwise_pairs(
    shape: MapShape, pixel: Pixel, weight: Load, finish: Finish, form: PairsOfRows, tables: Sequence[te.Tensor]
) -> tuple[te.Tensor, Schedule]:
    """out[n,y,x,c] = finish(sum over taps of padded[c, x + s, y + r] weight(c, r, s, 0)); see depthwise_sums."""
    n, height, width, channels = shape
    image = (n, channels, width + TAPS - 1, height + TAPS - 1)
    padded = te.compute(image, lambda b, c, x, y: pixel(b, y, x, c), "padded")

    def tap(c: Expr, s: Expr, r: Expr) -> Expr:
        return weight(c, r, s, 0).astype("int16")

    taps = te.compute((channels, TAPS, TAPS), tap, "taps")
    r, s = reduce_axes(TAPS, TAPS)

    def term(b: Expr, c: Expr, y: Expr, x: Expr, p: Expr, q: Expr) -> Expr:
        return total(i32(padded[b, c, x * TILE + q + s, y * TILE + p + r]) * i32(taps[c, s, r]), [r, s])

    tiles = (height // TILE, width // TILE)
    acc = te.compute((n, channels, *tiles, TILE, TILE), term, "acc")

    def element(b: Expr, y: Expr, p: Expr, x: Expr, q: Expr, c: Expr) -> Expr:
        return finish(acc[b, c, y, x, p, q], b, y * TILE + p, x * TILE + q, c)

    cut = (n, tiles[0], TILE, tiles[1], TILE, channels)  # the same elements in the same order
    out = te.compute(cut, element, "out")
    return out, lambda sch: _schedule(sch, form, (width, channels), tables)


def _schedule(sch: s_tir.Schedule, form: PairsOfRows, line: tuple[int, int], tables: Sequence[te.Tensor]) -> None:
    """line: pixels of a row, and their channels."""
    out, acc = sch.get_sblock("out"), sch.get_sblock("acc")
    batch, height, row, width, column, channel = sch.get_loops(out)
    strip, inside = sch.split(height, [None, form.strip // TILE])
    sch.reorder(batch, channel, strip, inside, width, row, column)
    sch.set_scope(acc, 0, "local")
    sch.compute_at(acc, width, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("padded"), strip, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("taps"), channel, preserve_unit_loops=True)
    keep_tables(sch, tables, channel, 2)
    first = sch.get_loops(acc)[-4]
    start = sch.decompose_reduction(acc, first)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    sch.tensorize(first, depthwise_2x2(form.strip + TAPS - 1))
    sch.tensorize(row, depthwise_ends(form.zero, line[1], line[0]))
    x, y = sch.get_loops(sch.get_sblock("padded"))[-2:]
    sch.reorder(y, x)
    sch.annotate(x, HINT, 1)
