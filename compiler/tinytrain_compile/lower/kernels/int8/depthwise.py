"""Integer depthwise convolutions and their data gradients: what lies in the plane of a channel, and its taps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import te, tirx

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import CodeStyle, guarded
from tinytrain_compile.lower.kernels.float32.linear import Finish, Load, Schedule
from tinytrain_compile.lower.kernels.int8.dsp.windows import Taps, plane_conv, within
from tinytrain_compile.lower.kernels.tensors import tensor
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import backward_phases, backward_planes, forward_planes, forward_rows
from tinytrain_compile.ops.int8.tiles import PlaneTiles, RowTiles
from tinytrain_compile.ops.names import operand, result

Stages = Sequence[te.Tensor]
Read = Callable[[Any, Any, Any], tuple[Any, Any]]
"""(n, row with the border, position in it) -> (whether it is inside of the image, int8 expression)"""


@dataclass(frozen=True)
class Band:
    """A few rows of a map: `count` of them (of each phase), a variable.

    image: the flat operand. row_at: for every row of the plane, where in it this row of the image begins, or a negative
    number for a row of the border.
    """

    count: Any
    image: te.Tensor
    row_at: te.Tensor

    def inside(self, y: Any) -> Any:
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


def dense_rows(node: Node, band: Band | None) -> tuple[te.Tensor, tuple[Any, ...], RowTiles, Read]:
    """(image, shape of the output, tiles, what lies at a place) of a dense convolution: a row's pixels are one run."""
    attrs, (n, height, width, channels) = node.attrs, operand(node, "x").shape
    assert isinstance(attrs, QConvAttrs)
    conv, shape, tiles = attrs.conv, result(node, "y").shape, forward_rows(node)
    x = tensor(node, "x", (n, height, width * channels)) if band is None else band.image
    if band is not None:
        shape, tiles = (1, band.count, *shape[2:]), band.rows(tiles, conv.strides[0], shape[3])

    def read(b: Any, y: Any, position: Any) -> tuple[Any, Any]:
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
    shape, tiles = result(node, "y").shape, forward_planes(node)
    if band is not None:
        shape, tiles = (1, band.count, *shape[2:]), band.planes(tiles, conv.strides[0])

    def pixel(b: Any, y: Any, s: Any, c: Any) -> Any:
        row, column = y - conv.pads[0], s - conv.pads[1]
        if band is not None:
            inside, value = band.inside(y), x[band.row_at[y] + column * channels + c]
        else:
            inside, value = within(row, height), x[b, row, column, c]
        inside = tirx.And(inside, within(column, width))  # last, because it may be split off
        return guarded(inside, value.astype("int16") - tirx.const(attrs.x_zero, "int16"))

    def tap(c: Any, _p: Any, _q: Any, r: Any, s: Any) -> Any:
        return guarded(s < conv.kernel[1], weight(c, r, s, 0).astype("int16"))

    columns = conv.kernel[1] if lanes else 0
    return plane_conv(shape, conv.strides, pixel, Taps(tap), finish, tiles, style, stages, columns)


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
    shape, tiles = result(node, "error").shape, backward_planes(node)
    if band is not None:
        shape, tiles = (1, band.count * phases[0], *shape[2:]), band.planes(tiles, 1)
    last = [-(-extent // count) - 1 for extent, count in zip(conv.kernel, phases, strict=True)]

    def pixel(b: Any, y: Any, s: Any, c: Any) -> Any:
        rows = [place + conv.pads[i] // phases[i] - last[i] for i, place in enumerate((y, s))]
        tests: list[list[Any]] = [[], []]  # of the row, of the column
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

    def tap(c: Any, p: Any, q: Any, r: Any, s: Any) -> Any:
        places: list[Any] = []
        for axis, (phase, back) in enumerate(((p, last[0] - r), (q, last[1] - s))):
            places.append(back * phases[axis] + tirx.indexmod(phase + conv.pads[axis], phases[axis]))
        inside = [test for i, place in enumerate(places) for test in (place >= 0, place < conv.kernel[i])]
        return guarded(functools.reduce(tirx.And, inside), weight(c, *places, 0).astype("int16"))

    def ahead(p: Any, q: Any) -> tuple[Any, Any]:
        row, column = (
            tirx.indexdiv(phase + conv.pads[axis] % phases[axis], phases[axis]) for axis, phase in enumerate((p, q))
        )
        return row, column

    columns = last[1] + 1 if lanes else 0
    return plane_conv(shape, (1, 1), pixel, Taps(tap, ahead), finish, tiles, style, stages, columns)
