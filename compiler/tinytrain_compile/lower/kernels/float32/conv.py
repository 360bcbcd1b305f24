"""Convolutions. 1x1 is a matrix product; k x k gathers im2col rows into scratch; depthwise is computed in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Elements,
    Finish,
    KernelSpec,
    Load,
    MapShape,
    Schedule,
    both,
    guard,
    kernel,
    map_shape,
    peels,
    reduce_axes,
    tensor,
    tensors,
    total,
    weight_of,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.linear import (
    PAIR_TERMS,
    add_bias,
    matrix_product,
    paired_tile,
    product_tiles,
)
from tinytrain_compile.lower.kernels.float32.vector_tiles import vector_tiles
from tinytrain_compile.lower.kernels.patches import PatchForm, patch_conv
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.conv import (
    ConvAttrs,
    ConvGradInputAttrs,
    backward_patch,
    forward_patch,
    gathers,
    gathers_error,
    is_product,
)
from tinytrain_compile.ops.conv_form import Patch
from tinytrain_compile.ops.names import attrs_of, operand, result

CHANNEL_TILE = 4
"""Channels that a depthwise kernel handles per visit of a tap, so that all of them share one border test."""
LANE_CHANNELS = 16
"""CHANNEL_TILE on vectors."""
ROW_TILE = (4, 2)
"""(Pixels of a row, channels) of a depthwise kernel on pairs, whose windows' rows are unrolled."""
MOST_TAPS = 7
"""Most taps of such a row: its code grows with them."""

FEW_PRODUCTS = 6
"""Most products of an output channel with a row of taps for a weight gradient's tile to have the whole row."""

Place = Callable[[Expr, Expr, Expr, Expr], tuple[Expr, Expr, Expr | None]]
"""(y, x, tap row, tap column) -> (row, column, condition or None): see TapWindow"""


class TapWindow:
    """Index arithmetic between pixels and taps of a convolution, and the tests that keep it inside the image."""

    def __init__(self, conv: ConvAttrs, image_hw: tuple[int, int]) -> None:
        self.conv = conv
        self.image_hw = image_hw
        self._out = conv.output_hw(*image_hw)

    def forward(self, y: Expr, x: Expr, r: Expr, s: Expr) -> tuple[Expr, Expr, Expr | None]:
        """Return (row, column, condition or None) of the input pixel under tap (r, s) of output pixel (y, x)."""
        (row, row_in), (column, column_in) = self.along(0, y, r), self.along(1, x, s)
        return row, column, both([row_in, column_in])

    def along(self, axis: int, position: Expr, tap: Expr) -> tuple[Expr, Expr | None]:
        """Return (index, condition or None) along axis 0 (rows) or 1 (columns) of the place under a tap of an output
        position."""
        begin = self.conv.pads[axis]
        index = position * self.conv.strides[axis] + tap * self.conv.dilations[axis] - begin
        before, behind = self.beyond(axis)
        return index, both([index >= 0 if before else None, index < self.image_hw[axis] if behind else None])

    def beyond(self, axis: int) -> tuple[bool, bool]:
        """Tell whether windows reach beyond the first, and beyond the last element along rows, 0, or columns, 1."""
        conv, (begin, end) = self.conv, self.conv.pads[axis::2]
        reach = (self._out[axis] - 1) * conv.strides[axis] + (conv.kernel[axis] - 1) * conv.dilations[axis]
        return begin > 0, end > 0 or reach - begin >= self.image_hw[axis]

    def backward(self, y: Expr, x: Expr, r: Expr, s: Expr) -> tuple[Expr, Expr, Expr | None]:
        """Return (row, column, condition or None) of the output pixel whose tap (r, s) reads input pixel (y, x)."""
        rows: list[Expr] = []
        tests: list[Expr | None] = []
        for axis, (position, tap) in enumerate(((y, r), (x, s))):
            stride = self.conv.strides[axis]
            offset = position + self.conv.pads[axis] - tap * self.conv.dilations[axis]
            tests.append(offset >= 0 if self.conv.kernel[axis] > 1 else None)
            tests.append(offset < self._out[axis] * stride)
            if stride > 1:
                tests.append(tirx.EQ(tirx.indexmod(offset, stride), 0))
                offset = tirx.indexdiv(offset, stride)
            rows.append(offset)
        return rows[0], rows[1], both(tests)


class Layer:
    """A forward convolution except its image: the other operands, and the forms that are not a matrix product.

    operands: as placeholders, in order. weight: access to all of it, in one part or in two. finish: adds the bias.
    """

    def __init__(self, node: Node, context: KernelContext) -> None:
        assert isinstance(node.attrs, ConvAttrs)
        self.attrs, self._context = node.attrs, context
        self.bias = tensor(node, "bias") if node.attrs.bias else None
        weights, self.weight = weight_of(node, node.attrs.split)
        self.operands = [*weights, *([] if self.bias is None else [self.bias])]
        self.finish = add_bias(self.bias)

    def dense(
        self, shape: MapShape, patch: Patch, element: Load, row_exists: Callable[[Expr], Expr] | None = None
    ) -> tuple[te.Tensor, Schedule]:
        """Compute a convolution with one group; element, row_exists: see patch_conv."""
        attrs, context, out_c = self.attrs, self._context, shape[3]
        lanes = _has_lanes(context, attrs, out_c)
        tile, turn = _patch_tile(patch.width, out_c, context, attrs)
        if lanes:
            tile = _lane_tile(patch.width, out_c, context, apart=True)
        form = PatchForm(shape, tile, gathers(attrs), peels(attrs.split), lanes=lanes, turn=turn)
        return patch_conv(patch, form, element, self.weight, self.finish, row_exists=row_exists)

    def in_groups(self, shape: MapShape, x: Elements, place: Place) -> tuple[te.Tensor, Schedule]:
        """Compute a convolution with several groups; place: the pixel under a tap."""
        depthwise = _is_depthwise(self.attrs, int(x.shape[3]), shape[3])
        lanes = depthwise and _has_lanes(self._context, self.attrs, shape[3])
        in_rows = depthwise and _in_rows(self._context, self.attrs)
        return grouped(shape, self.attrs, x, self.weight, place, self.finish, lanes, in_rows)


@kernel("Conv")
def conv(node: Node, context: KernelContext) -> KernelSpec:
    """Forward convolution: picks the form by groups and kernel size."""
    layer, image = Layer(node, context), operand(node, "x").shape
    n, height, width, out_c = shape = map_shape(result(node, "y"))
    if is_product(layer.attrs):
        x, w = tensor(node, "x", (n * height * width, image[3])), layer.weight
        return matrix_product(
            [x, *layer.operands],
            (n * height * width, out_c, image[3]),
            lambda i, a: x[i, a],
            lambda a, j: w(j, 0, 0, a),
            context,
            layer.bias,
            peels(layer.attrs.split),
            apart=(True, True),
        )
    x = tensor(node, "x")
    if layer.attrs.groups == 1:
        out, schedule = layer.dense(shape, forward_patch(layer.attrs, image), lambda *i: x[i])
    else:
        out, schedule = layer.in_groups(shape, x, TapWindow(layer.attrs, (image[1], image[2])).forward)
    return KernelSpec([x, *layer.operands], [out], schedule)


def _has_lanes(context: KernelContext, conv: ConvAttrs, channels: int) -> bool:
    """Tell whether channels are computed four at a time; a weight in two parts is not."""
    return context.uses_float_vectors and conv.split is None and channels >= LANES


def _in_rows(context: KernelContext, conv: ConvAttrs) -> bool:
    """Tell whether a depthwise kernel has a row of taps and a few pixels of a row in registers at a time, on pairs."""
    return context.uses_float_pairs and conv.split is None and conv.kernel[1] <= MOST_TAPS


def _is_depthwise(conv: ConvAttrs, in_c: int, out_c: int) -> bool:
    return conv.groups == in_c == out_c


def _patch_tile(
    width: int, channels: int, context: KernelContext, conv: ConvAttrs, ragged: bool = False
) -> tuple[tuple[int, int], int]:
    """Return ((pixels, channels) of a tile, terms in a turn); ragged: see best_tile."""
    if context.uses_float_pairs and conv.split is None:
        return paired_tile(min(width, context.paired_tile[0]), channels, context), PAIR_TERMS
    return (context.tile[0], best_tile(channels, context.tile[1], ragged)), 1


def _lane_tile(width: int, channels: int, context: KernelContext, apart: bool) -> tuple[int, int]:
    """Return (pixels, channels) of a tile, with no more pixels than scratch is planned for."""
    tile, _ = vector_tiles((width, channels), context, (False, apart), most=KernelContext().tile[0])
    return tile


def _by_channels(
    shape: MapShape, term: Callable[..., Expr], finish: Finish, lanes: bool, row_taps: int = 0
) -> tuple[te.Tensor, Schedule]:
    """Compute out[n,y,x,c] = finish(term(n, y, x, c), n, y, x, c), where term is a sum; a few channels together.

    row_taps: taps in a row of a window whose rows are unrolled, for a few pixels of a row at a time; 0: not unrolled.
    """
    acc = te.compute(shape, term, "acc")
    out = te.compute(shape, lambda *i: finish(acc(*i), *i), "out")
    if row_taps:
        pixels = best_tile(shape[2], ROW_TILE[0])
        tiles = {2: pixels, 3: best_tile(shape[3], max(ROW_TILE[1], math.prod(ROW_TILE) // pixels))}
        return out, lambda sch: tile_reduction(sch, tiles, turn=row_taps, peeled=(2,))
    vectors = min(LANE_CHANNELS, -(-shape[3] // LANES) * LANES)
    tiles = {3: vectors if lanes else best_tile(shape[3], CHANNEL_TILE)}
    return out, lambda sch: tile_reduction(sch, tiles, lanes=3 if lanes else None)


def grouped(
    shape: MapShape,
    attrs: ConvAttrs,
    data: Elements,
    weight: Load,
    place: Place,
    finish: Finish,
    lanes: bool = False,
    in_rows: bool = False,
) -> tuple[te.Tensor, Schedule]:
    """Compute a depthwise or grouped convolution: a few output channels share one visit (and border test) of each tap.

    in_rows: see _in_rows.
    """
    per_group_in = int(data.shape[3]) // attrs.groups
    per_group_out = shape[3] // attrs.groups
    r, s, a = reduce_axes(*attrs.kernel, per_group_in)
    axes, lane = ([r, s], 0) if in_rows else ([r, s, a], a)

    def term(b: Expr, y: Expr, x: Expr, o: Expr) -> Expr:
        row, col, inside = place(y, x, r, s)
        group = o if per_group_out == 1 else tirx.indexdiv(o, per_group_out)
        channel = group if per_group_in == 1 else group * per_group_in + a
        return total(guard(inside, data[b, row, col, channel] * weight(o, r, s, lane)), axes)

    return _by_channels(shape, term, finish, lanes, attrs.kernel[1] if in_rows else 0)


@kernel("ConvGradInput")
def conv_grad_input(node: Node, context: KernelContext) -> KernelSpec:
    """Compute the data gradient: every input pixel collects from the output pixels whose taps read it."""
    attrs = attrs_of(node, ConvGradInputAttrs)
    c = attrs.conv
    (weights, w), error = weight_of(node, c.split), operand(node, "dy").shape
    n, height, width, in_c = shape = map_shape(result(node, "dx"))
    out_c = error[3]
    if c.groups == 1 and not gathers(c) and c.strides == (1, 1):
        dy = tensor(node, "dy", (n * height * width, out_c))
        extents = (n * height * width, in_c, out_c)
        peel = peels(c.split)
        return matrix_product(
            [dy, *weights],
            extents,
            lambda i, a: dy[i, a],
            lambda a, j: w(a, 0, 0, j),
            context,
            peel=peel,
            long=1,
            apart=(True, False),
        )
    dy = tensor(node, "dy")
    window = TapWindow(c, attrs.input_hw)
    inputs = [dy, *weights]
    finish = add_bias(None)
    if c.groups == 1:
        patch = backward_patch(c, attrs.input_hw, error)
        lanes, copies = _has_lanes(context, c, in_c), gathers_error(c, attrs.input_hw)
        tile, turn = _patch_tile(patch.width, in_c, context, c, context.ragged)
        if lanes:
            tile = _lane_tile(patch.width, in_c, context, apart=False)
        apart = context.ragged and not copies  # most phases of a 1x1 convolution have no tap, so they store zeros
        form = PatchForm(shape, tile, copies, peels(c.split), runs=False, apart=apart, lanes=lanes, turn=turn)
        out, schedule = patch_conv(patch, form, lambda *i: dy[i], lambda o, r, s, a: w(a, r, s, o), finish)
    else:
        depthwise = _is_depthwise(c, in_c, out_c)
        lanes, in_rows = depthwise and _has_lanes(context, c, in_c), depthwise and _in_rows(context, c)
        out, schedule = grouped_grad_input(shape, c, dy, w, window.backward, finish, lanes, in_rows)
    return KernelSpec(inputs, [out], schedule)


def grouped_grad_input(
    shape: MapShape,
    c: ConvAttrs,
    dy: Elements,
    weight: Load,
    place: Place,
    finish: Finish,
    lanes: bool = False,
    in_rows: bool = False,
) -> tuple[te.Tensor, Schedule]:
    """Compute the data gradient of a depthwise or grouped convolution; in_rows: see _in_rows."""
    per_group_in, per_group_out = shape[3] // c.groups, int(dy.shape[3]) // c.groups
    r, s, a = reduce_axes(*c.kernel, per_group_out)
    axes = [r, s] if in_rows else [r, s, a]

    def term(b: Expr, y: Expr, x: Expr, i: Expr) -> Expr:
        row, col, inside = place(y, x, r, s)
        group = i if per_group_in == 1 else tirx.indexdiv(i, per_group_in)
        lane = 0 if per_group_in == 1 else tirx.indexmod(i, per_group_in)
        channel = group if per_group_out == 1 else group * per_group_out + a
        return total(guard(inside, dy[b, row, col, channel] * weight(channel, r, s, lane)), axes)

    return _by_channels(shape, term, finish, lanes, c.kernel[1] if in_rows else 0)


@kernel("ConvGradWeight")
def conv_grad_weight(node: Node, context: KernelContext) -> KernelSpec:
    """Compute the weight gradient: every tap sums dy times the pixel that it reads, over all output pixels."""
    attrs = attrs_of(node, ConvAttrs)
    n, height, width, c = operand(node, "x").shape
    o, _, _, per_group = shape = result(node, "dw").shape
    if attrs.groups == 1 and not gathers(attrs) and attrs.strides == (1, 1):
        pixels = n * height * width
        x, dy = tensor(node, "x", (pixels, c)), tensor(node, "dy", (pixels, o))
        extents = (o, c, pixels)
        return matrix_product([x, dy], extents, lambda i, a: dy[a, i], lambda a, j: x[a, j], context, long=0)
    x, dy = tensors(node, "x", "dy")
    window = TapWindow(attrs, (height, width))
    tiles, lanes = product_tiles(o, per_group, context, 0), None
    tile = (tiles[0], tiles[1])
    if context.uses_float_vectors and max(o, per_group) >= LANES and (attrs.groups == 1 or _is_depthwise(attrs, c, o)):
        tile, axis = vector_tiles((o, per_group), context, (False, False))
        lanes = (0, 3)[axis]
        if attrs.groups > 1:
            tile = (min(LANE_CHANNELS, -(-o // LANES) * LANES), 1)
    row = attrs.kernel[1] * per_group
    schedule = None
    if context.uses_float_pairs and attrs.groups == 1 and row <= FEW_PRODUCTS:
        cut = {0: best_tile(o, math.prod(context.wide_tile) // row), 2: attrs.kernel[1], 3: per_group}
        schedule = partial(tile_reduction, tiles=cut, edges=True)
    out, schedule = weight_sums(shape, attrs, x, dy, window, add_bias(None), tile, lanes, schedule)
    return KernelSpec([x, dy], [out], schedule)


def weight_sums(
    shape: tuple[int, ...],
    attrs: ConvAttrs,
    x: Elements,
    dy: Elements,
    window: TapWindow,
    finish: Finish,
    tile: tuple[int, int],
    lanes: int | None = None,
    schedule: Schedule | None = None,
) -> tuple[te.Tensor, Schedule]:
    """Compute out[o,r,s,i] = finish(sum of dy times x over all output pixels whose tap is inside), tiled by default."""
    o, _, _, per_group_in = shape
    per_group_out = o // attrs.groups
    b, y, q = reduce_axes(*(int(d) for d in dy.shape[:3]))

    def term(out: Expr, r: Expr, s: Expr, i: Expr) -> Expr:
        row, col, inside = window.forward(y, q, r, s)
        group = out if per_group_out == 1 else tirx.indexdiv(out, per_group_out)
        channel = i if attrs.groups == 1 else group * per_group_in + i
        return total(guard(inside, dy[b, y, q, out] * x[b, row, col, channel]), [b, y, q])

    acc = te.compute(shape, term, "acc")
    out = te.compute(shape, lambda *i: finish(acc(*i), *i), "out")
    tiles = {0: tile[0], 3: tile[1]}
    return out, schedule or (lambda sch: tile_reduction(sch, tiles, lanes=lanes))
