"""Integer depthwise convolutions and their data gradients: the contents of a channel's image, and its taps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import Finish, Load, Schedule, guarded
from tinytrain_compile.lower.kernels.context import CodeStyle
from tinytrain_compile.lower.kernels.int8.dsp.windows import RowBlock, Taps, depthwise_sums, output_shape, within
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import (
    backward_depthwise,
    backward_phases,
    forward_depthwise,
    spread_columns,
)
from tinytrain_compile.ops.names import attrs_of, operand

Stages = Sequence[te.Tensor]


def depthwise(
    node: Node,
    x: te.Tensor,
    weight: Load,
    finish: Finish,
    style: CodeStyle,
    stages: Stages,
    lanes: bool = False,
    block: RowBlock | None = None,
) -> tuple[te.Tensor, Schedule]:
    """Compute a forward pass: the channel image is the image minus its zero point, with a border of zeros."""
    attrs = attrs_of(node, QConvAttrs)
    conv, (_, height, width, channels) = attrs.conv, operand(node, "x").shape
    shape, tiles = output_shape(node), forward_depthwise(node)
    if block is not None:
        shape, tiles = output_shape(node, block.count), block.depthwise(tiles, conv.strides[0])

    def pixel(b: Expr, y: Expr, s: Expr, c: Expr) -> Expr:
        row, column = y - conv.pads[0], s - conv.pads[1]
        if block is not None:
            inside, value = block.inside(y), x[block.row_at[y] + column * channels + c]
        else:
            inside, value = within(row, height), x[b, row, column, c]
        inside = tirx.And(inside, within(column, width))  # last, because it may be split off
        return guarded(inside, value.astype("int16") - tirx.const(attrs.x_zero, "int16"))

    taps, images = spread_columns(node)
    between = conv.dilations[1] // images

    def tap(c: Expr, _p: Expr, _q: Expr, r: Expr, s: Expr) -> Expr:
        if between == 1:
            return guarded(s < taps, weight(c, r, s, 0).astype("int16"))
        there = tirx.And(s < taps, tirx.EQ(tirx.indexmod(s, between), 0))
        return guarded(there, weight(c, r, tirx.indexdiv(s, between), 0).astype("int16"))

    plain = conv.dilations == (1, 1)
    columns = taps if lanes else 0
    inside = (conv.pads[0], conv.pads[0] + height) if block is None and plain else None
    return depthwise_sums(shape, conv.strides, pixel, Taps(tap), finish, tiles, style, stages, columns, inside)


def _ahead(pads: Sequence[int], phases: Sequence[int]) -> Callable[[Expr, Expr], tuple[Expr, Expr]]:
    """Return the rows and columns by which the pixels that a phase reads begin later."""

    def ahead(p: Expr, q: Expr) -> tuple[Expr, Expr]:
        row, column = (
            tirx.indexdiv(phase + pads[axis] % phases[axis], phases[axis]) for axis, phase in enumerate((p, q))
        )
        return row, column

    return ahead


def depthwise_gradient(
    node: Node,
    g: te.Tensor,
    weight: Load,
    finish: Finish,
    style: CodeStyle,
    stages: Stages,
    lanes: bool = False,
    block: RowBlock | None = None,
) -> tuple[te.Tensor, Schedule]:
    """Take the error as the padded image, with a border of zeros; taps run backwards.

    If strides do not divide the image, zeros separate the rows of the error. Otherwise the phases are computed one by
    one (see backward_phases), and the channel image has no such zeros.
    """
    attrs = attrs_of(node, QConvGradInputAttrs)
    conv, (_, height, width, channels), phases = attrs.conv, operand(node, "g").shape, backward_phases(node)
    shape, tiles = output_shape(node), backward_depthwise(node)
    if block is not None:
        shape, tiles = output_shape(node, block.count * phases[0]), block.depthwise(tiles, 1)
    last = [-(-extent // count) - 1 for extent, count in zip(conv.kernel, phases, strict=True)]

    def pixel(b: Expr, y: Expr, s: Expr, c: Expr) -> Expr:
        rows = [place + conv.pads[i] // phases[i] - last[i] for i, place in enumerate((y, s))]
        tests: list[list[Expr]] = [[], []]  # of the row, of the column
        for axis, extent in enumerate((height, width)):
            stride = conv.strides[axis] // phases[axis]
            tests[axis] += [rows[axis] >= 0, rows[axis] < extent * stride]
            if stride > 1:
                tests[axis].append(tirx.EQ(tirx.indexmod(rows[axis], stride), 0))
                rows[axis] = tirx.indexdiv(rows[axis], stride)
        if block is None:
            value = g[b, rows[0], rows[1], c]
        else:
            tests[0], value = [block.inside(y)], g[block.row_at[y] + rows[1] * channels + c]
        return guarded(functools.reduce(tirx.And, [*tests[0], *tests[1]]), value.astype("int16"))

    def tap(c: Expr, p: Expr, q: Expr, r: Expr, s: Expr) -> Expr:
        places: list[Expr] = []
        for axis, (phase, back) in enumerate(((p, last[0] - r), (q, last[1] - s))):
            places.append(back * phases[axis] + tirx.indexmod(phase + conv.pads[axis], phases[axis]))
        inside = [test for i, place in enumerate(places) for test in (place >= 0, place < conv.kernel[i])]
        return guarded(functools.reduce(tirx.And, inside), weight(c, *places, 0).astype("int16"))

    columns = last[1] + 1 if lanes else 0
    above = last[0] - conv.pads[0] // phases[0]
    inside = (above, above + height * (conv.strides[0] // phases[0])) if block is None else None
    taps = Taps(tap, _ahead(conv.pads, phases))
    return depthwise_sums(shape, (1, 1), pixel, taps, finish, tiles, style, stages, columns, inside)
