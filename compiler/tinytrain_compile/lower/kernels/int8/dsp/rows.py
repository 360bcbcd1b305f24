"""Convolutions for cores with products in pairs whose windows are read in rows: few channels, and depthwise ones.

With few channels, the input of a row of the output is stored by columns, so that a window is one run. The taps of a row
of few channels do not fill whole words: three rows of nine are 30 products in pairs of pairs, or 32, but one run of 27
is 28.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, te, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics import tensor as instructions
from tinytrain_compile.lower.kernels.base import (
    Finish,
    KernelSpec,
    Load,
    MapShape,
    Schedule,
    called,
    first,
    guarded,
    i32,
    plain,
    reduce_axes,
    tensors,
    total,
    written,
)
from tinytrain_compile.lower.kernels.int8.dsp.windows import RowBlock, output_shape
from tinytrain_compile.lower.schedules import HINT
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import short_ends
from tinytrain_compile.ops.int8.tiles import DOT_TERMS, LineTiles
from tinytrain_compile.ops.names import attrs_of, operand, result


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
    """Return out[n,y,x,o] = finish(sum over r, f of rows[n, y stride + r, x columns + f] weight(o, r, f)).

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
    if form.blocks == 1:  # its helper has no loop for one turn
        sch.reorder(step, rows, columns, *lanes)
    start = sch.decompose_reduction(acc, step if form.blocks == 1 else rows)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    sch.tensorize(rows, instructions.dot_2x2(form.blocks))
    outer = sch.get_loops(sch.get_sblock("left"))[-4 if form.blocks > 1 else -3]
    sch.tensorize(outer, instructions.copy_two(form.blocks, form.apart))
    places, tap = sch.get_loops(sch.get_sblock("line"))[-2:]
    sch.reorder(tap, places)
    sch.annotate(places, HINT, 1)
    sch.tensorize(pixel, end)


# ---- depthwise rows, read where they are ----------------------------------------------------------------------------


TURN, LEAST = 4, 5
"""Outputs in a turn of the helper's loop. In whole maps: the fewest in a row that are worth its beginning, if no
column is missing behind it."""
FARTHEST = 255
"""Most bytes to the next pixel of a channel: the largest pointer increment of a load."""


def direct_rows(node: Node, block: RowBlock) -> KernelSpec | None:
    """Compute one call of tt_depthwise_rows3, whose sums all shift down; None for other layers."""
    if not _fits(node):
        return None
    shape, numbers = output_shape(node, block.count), _numbers(node)

    def body(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        return called("tt_depthwise_rows3", *map(first, (y, *given)), i32(block.count), *numbers)

    inputs = [block.image, *tensors(node, "w", "bias", "multiplier", "shift")]
    return KernelSpec(inputs, [written([*inputs, block.row_at], shape, "int8", body)], plain)


def direct_maps(node: Node) -> KernelSpec | None:
    """Compute one call of tt_depthwise_maps3, for maps in steps of two; those in steps of one are faster as pairs of
    rows (maps.py).

    It has a quarter fewer instructions than with the image in scratch. But these wait for one another: by the model of
    a dual-issue core, it takes 6 % more cycles.
    """
    attrs, (images, height, _, _) = attrs_of(node, QConvAttrs), operand(node, "x").shape
    across, width = result(node, "y").shape[2], operand(node, "x").shape[2]
    if attrs.conv.strides[0] == 1 or across < LEAST + width % 2 or not _fits(node):
        return None
    shape = output_shape(node)
    numbers = [*map(i32, (images, height, attrs.conv.pads[0], shape[1])), *_numbers(node)]

    def body(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        return called("tt_depthwise_maps3", *map(first, (y, *given)), *numbers)

    inputs = tensors(node, "x", "w", "bias", "multiplier", "shift")
    return KernelSpec(inputs, [written(inputs, shape, "int8", body)], plain)


def _fits(node: Node) -> bool:
    attrs, (_, height, width, channels) = attrs_of(node, QConvAttrs), operand(node, "x").shape
    conv, (_, down, across, _) = attrs.conv, result(node, "y").shape
    if (
        conv.kernel != (3, 3)
        or conv.dilations != (1, 1)
        or conv.split is not None
        or channels > FARTHEST
        or not short_ends(node)
    ):
        return False
    if conv.strides == (1, 1):
        return conv.pads[1] == 1 and width == across and not across % TURN
    if conv.strides != (2, 2) or max(conv.pads[:2]) > 1 or across < 2:
        return False
    if conv.pads[1] == 0 and 2 * across < width:  # no border: the compiler finds no registers for the loop
        return False
    return all(
        2 * out - pad <= size for out, pad, size in ((down, conv.pads[0], height), (across, conv.pads[1], width))
    )


def _numbers(node: Node) -> list[Expr]:
    """Return (outputs of a row, columns of the image, of the border before it, channels, stride, zero points)"""
    attrs, (_, _, across, channels) = attrs_of(node, QConvAttrs), node.outputs[0].shape
    image = (operand(node, "x").shape[2], attrs.conv.pads[1])
    return [i32(number) for number in (across, *image, channels, attrs.conv.strides[0], attrs.x_zero, attrs.y_zero)]
