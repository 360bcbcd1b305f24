"""Integer depthwise convolutions and their data gradients: what lies in the plane of a channel, and its taps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import Index, MapShape, guarded
from tinytrain_compile.lower.kernels.context import CodeStyle
from tinytrain_compile.lower.kernels.float32.linear import Finish, Load, Schedule
from tinytrain_compile.lower.kernels.int8.dsp.windows import Taps, plane_conv, within
from tinytrain_compile.lower.kernels.tensors import tensor
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import backward_phases, backward_planes, forward_planes, forward_rows
from tinytrain_compile.ops.int8.tiles import PlaneTiles, RowTiles
from tinytrain_compile.ops.names import operand

Stages = Sequence[te.Tensor]
Read = Callable[[Expr, Expr, Expr], tuple[Expr, Expr]]
"""(n, row with the border, position in it) -> (whether it is inside of the image, int8 expression)"""


@dataclass(frozen=True)
class Band:
    """A few rows of a map: `count` of them (of each phase), a variable.

    image: the flat operand. row_at: for every row of the plane, where in it this row of the image begins, or a negative
    number for a row of the border.
    """

    count: Expr
    image: te.Tensor
    row_at: te.Tensor

    def inside(self, y: Expr) -> Expr:
        """Whether row y of the plane is one of the image."""
        return self.row_at[y] >= 0

    def planes(self, tiles: PlaneTiles, stride: int) -> PlaneTiles:
        """Strips of one row."""
        rows = tiles.strip_rows - (tiles.strip - 1) * stride
        whole = (rows + (self.count - 1) * stride, tiles.plane[1])
        return replace(tiles, strip=1, strip_rows=rows, plane=whole)

    def rows(self, tiles: RowTiles, stride: int, channels: int) -> RowTiles:
        """Strips of one row, and the weights of all channels widened before."""
        rows = tiles.taps + (self.count - 1) * stride
        return replace(tiles, strip=1, channels=channels, rows=rows, strip_rows=tiles.taps, weights_first=True)


def _shape(node: Node, rows: Index | None = None) -> MapShape:
    """Of the output, or of so many rows of one image."""
    count, height, width, channels = node.outputs[0].shape
    return (count, height, width, channels) if rows is None else (1, rows, width, channels)


def dense_rows(node: Node, band: Band | None) -> tuple[te.Tensor, MapShape, RowTiles, Read]:
    """(image, shape of the output, tiles, what lies at a place) of a dense convolution: a row's pixels are one run."""
    attrs, (n, height, width, channels) = node.attrs, operand(node, "x").shape
    assert isinstance(attrs, QConvAttrs)
    conv, shape, tiles = attrs.conv, _shape(node), forward_rows(node)
    x = tensor(node, "x", (n, height, width * channels)) if band is None else band.image
    if band is not None:
        shape, tiles = _shape(node, band.count), band.rows(tiles, conv.strides[0], shape[3])

    def read(b: Expr, y: Expr, position: Expr) -> tuple[Expr, Expr]:
        row, place = y - conv.pads[0], position - conv.pads[1] * channels
        if band is not None:
            inside, value = band.inside(y), x[band.row_at[y] + place]
        else:
            inside, value = within(row, height), x[b, row, place]
        return tirx.And(inside, within(place, width * channels)), value

    return x, shape, tiles, read


def depthwise(
    node: Node,
    x: te.Tensor,
    weight: Load,
    finish: Finish,
    style: CodeStyle,
    stages: Stages,
    lanes: bool = False,
    band: Band | None = None,
) -> tuple[te.Tensor, Schedule]:
    """Forward: the plane is the image less its zero point, with a border of zeros."""
    attrs = node.attrs
    assert isinstance(attrs, QConvAttrs)
    conv, (_, height, width, channels) = attrs.conv, operand(node, "x").shape
    shape, tiles = _shape(node), forward_planes(node)
    if band is not None:
        shape, tiles = _shape(node, band.count), band.planes(tiles, conv.strides[0])

    def pixel(b: Expr, y: Expr, s: Expr, c: Expr) -> Expr:
        row, column = y - conv.pads[0], s - conv.pads[1]
        if band is not None:
            inside, value = band.inside(y), x[band.row_at[y] + column * channels + c]
        else:
            inside, value = within(row, height), x[b, row, column, c]
        inside = tirx.And(inside, within(column, width))  # last, because it may be split off
        return guarded(inside, value.astype("int16") - tirx.const(attrs.x_zero, "int16"))

    def tap(c: Expr, _p: Expr, _q: Expr, r: Expr, s: Expr) -> Expr:
        return guarded(s < conv.kernel[1], weight(c, r, s, 0).astype("int16"))

    columns = conv.kernel[1] if lanes else 0
    return plane_conv(shape, conv.strides, pixel, Taps(tap), finish, tiles, style, stages, columns)


def _ahead(pads: Sequence[int], phases: Sequence[int]) -> Callable[[Expr, Expr], tuple[Expr, Expr]]:
    """By how many rows and columns the pixels that a phase reads begin further on."""

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
    band: Band | None = None,
) -> tuple[te.Tensor, Schedule]:
    """The plane is the error with a border of zeros; taps run backwards.

    Between the rows of an error whose strides do not divide the image there are zeros; else the phases are computed
    one by one (see backward_phases), and the plane has only what there is.
    """
    attrs = node.attrs
    assert isinstance(attrs, QConvGradInputAttrs)
    conv, (_, height, width, channels), phases = attrs.conv, operand(node, "g").shape, backward_phases(node)
    shape, tiles = _shape(node), backward_planes(node)
    if band is not None:
        shape, tiles = _shape(node, band.count * phases[0]), band.planes(tiles, 1)
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
        if band is None:
            value = g[b, rows[0], rows[1], c]
        else:
            tests[0], value = [band.inside(y)], g[band.row_at[y] + rows[1] * channels + c]
        return guarded(functools.reduce(tirx.And, [*tests[0], *tests[1]]), value.astype("int16"))

    def tap(c: Expr, p: Expr, q: Expr, r: Expr, s: Expr) -> Expr:
        places: list[Expr] = []
        for axis, (phase, back) in enumerate(((p, last[0] - r), (q, last[1] - s))):
            places.append(back * phases[axis] + tirx.indexmod(phase + conv.pads[axis], phases[axis]))
        inside = [test for i, place in enumerate(places) for test in (place >= 0, place < conv.kernel[i])]
        return guarded(functools.reduce(tirx.And, inside), weight(c, *places, 0).astype("int16"))

    columns = last[1] + 1 if lanes else 0
    return plane_conv(shape, (1, 1), pixel, Taps(tap, _ahead(conv.pads, phases)), finish, tiles, style, stages, columns)
