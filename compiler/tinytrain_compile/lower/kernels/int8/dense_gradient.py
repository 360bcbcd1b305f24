"""Sums of integer gradients of dense convolutions: of weights, and of data where these are k x k."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import Finish, Load, Schedule, guarded, tensor, tensors
from tinytrain_compile.lower.kernels.context import CodeStyle, KernelContext
from tinytrain_compile.lower.kernels.float32.conv import TapWindow, weight_sums
from tinytrain_compile.lower.kernels.int8.dsp.correlation import correlation
from tinytrain_compile.lower.kernels.int8.dsp.product import PackedOperand, packed_product
from tinytrain_compile.lower.kernels.int8.dsp.windows import (
    Filling,
    RowBlock,
    has_windows,
    inside_image,
    output_shape,
    row_conv,
    within,
)
from tinytrain_compile.lower.kernels.int8.lane_sums import lane_sums
from tinytrain_compile.lower.kernels.int8.operands import Centred
from tinytrain_compile.ops.int8.conv import QConvUpdateAttrs
from tinytrain_compile.ops.int8.conv_form import backward_dense, error_patch, geometry, is_product, weight_tiles
from tinytrain_compile.ops.int8.correlation_tiles import CorrelationTiles
from tinytrain_compile.ops.int8.tiles import DenseTiles, packed_tiles
from tinytrain_compile.ops.names import operand

DEPTHWISE_TILE = 4
"""Channels of a depthwise weight that are summed together."""
Gradient = tuple[te.Tensor, te.Tensor, te.Tensor, Schedule]
"""(x, g, out, schedule)"""


# ---- data -----------------------------------------------------------------------------------------------------------


def gradient_rows(node: Node, context: KernelContext) -> DenseTiles | None:
    """Tiles of a k x k data gradient if it is to run over widened rows of the error."""
    tiles = backward_dense(node)
    if tiles is None:
        return None
    reaches = (error_patch(node).rows, error_patch(node).columns)
    zeros = any(reach.window * reach.phases > reach.kernel for reach in reaches)
    return tiles if context.widens(has_windows(tiles, operand(node, "g").shape[3], context.style), zeros) else None


def row_gradient(
    node: Node,
    g: te.Tensor,
    weight: Load,
    finish: Finish,
    tiles: DenseTiles,
    style: CodeStyle,
    stages: Sequence[te.Tensor],
    block: RowBlock | None = None,
) -> tuple[te.Tensor, Schedule]:
    """Like a convolution of the error g (n, rows, columns x channels) with the turned weight, phase by phase.

    block: of some rows of each phase; g is its image.
    """
    patch = error_patch(node)
    reaches, channels = (patch.rows, patch.columns), patch.channels
    div, mod = tirx.indexdiv, tirx.indexmod

    def element(b: Expr, y: Expr, position: Expr) -> Expr:
        row, place = y + patch.rows.ends[0], position + patch.columns.ends[0] * channels
        across, apart = patch.columns.extent * channels, patch.columns.holes
        if block is not None:
            inside = tirx.And(block.inside(y), within(place, across * apart))
            if apart > 1:
                inside = tirx.And(inside, tirx.EQ(mod(div(place, channels), apart), 0))
                place = div(place, channels * apart) * channels + mod(place, channels)
            return guarded(inside, g[block.row_at[y] + place].astype("int16"))
        return guarded(inside_image(row, place, (patch.rows.extent, across)), g[b, row, place].astype("int16"))

    def factor(o: Expr, p: Expr, q: Expr, r: Expr, f: Expr) -> Expr:
        tests: list[Expr] = []
        taps: list[Expr] = []
        for reach, phase, place in zip(reaches, (p, q), (r, div(f, channels)), strict=True):
            turn = reach.turn(phase, place)
            taps.append(reach.tap(phase, turn))
            tests += [turn >= 0, turn < reach.taps, taps[-1] < reach.kernel] if reach.phases > 1 else []
        value = weight(mod(f, channels), *taps, o).astype("int16")
        return guarded(functools.reduce(tirx.And, tests), value) if tests else value

    run, split, shape = patch.columns.window * channels, geometry(node).split, output_shape(node)
    if block is not None:
        tiles, shape = block.rows(tiles, 1, shape[3]), output_shape(node, block.count * patch.rows.phases)
    filling = Filling(channels, split is not None and split.on_device)
    return row_conv(shape, (1, channels), element, factor, run, finish, tiles, style, stages, filling)


# ---- weights --------------------------------------------------------------------------------------------------------


def _maps(node: Node, context: KernelContext) -> CorrelationTiles | None:
    """Tiles of a weight gradient if it is to run over widened maps."""
    tiles = weight_tiles(node)
    if tiles is None or (context.uses_vectors and lane_sums(node.outputs[0].shape, geometry(node).groups)):
        return None
    return tiles if context.widens(tiles.tile == (2, 2), False) else None


def keeps_tables(node: Node, context: KernelContext) -> bool:
    """Whether what the end of a channel's sums reads can be kept in registers: see `stages` of weight_gradient."""
    return is_product(geometry(node)) or _maps(node, context) is not None


def weight_gradient(
    node: Node,
    attrs: QConvUpdateAttrs,
    shape: tuple[int, ...],
    finish: Finish,
    context: KernelContext,
    stages: Sequence[te.Tensor] = (),
) -> Gradient:
    """(x, g, out, schedule) of out = finish(sum of g (x - zero), indices of the weight).

    stages: what finish reads of an output channel, if keeps_tables.
    """
    conv = replace(attrs.conv, bias=False)
    if is_product(conv):
        return _flat_weight_gradient(node, attrs.x_zero, finish, context.style, stages)
    tiles = _maps(node, context)
    if tiles is not None:
        return _correlated(node, attrs, finish, tiles, stages)
    x, g = tensors(node, "x", "g")
    _, height, width, _ = operand(node, "x").shape
    window = TapWindow(conv, (height, width))
    tile = (DEPTHWISE_TILE, 1) if shape[3] == 1 else context.integer_tile
    lanes = lane_sums(shape, conv.groups) if context.uses_vectors else None
    out, schedule = weight_sums(shape, conv, Centred(x, attrs.x_zero), Centred(g), window, finish, tile, schedule=lanes)
    return x, g, out, schedule


def _correlated(
    node: Node, attrs: QConvUpdateAttrs, finish: Finish, tiles: CorrelationTiles, stages: Sequence[te.Tensor]
) -> Gradient:
    """The same of a dense k x k convolution, or one with a stride: tap columns and image channels are one axis."""
    conv, (_, rows, columns, outputs) = attrs.conv, operand(node, "g").shape
    batch, height, width, channels = operand(node, "x").shape
    x, g = tensor(node, "x"), tensor(node, "g", (batch, rows * columns, outputs))
    div, mod = tirx.indexdiv, tirx.indexmod

    def image(b: Expr, j: Expr, phase: Expr, line: Expr, position: Expr) -> Expr:
        row = line * conv.strides[0] + phase - conv.pads[0]
        column = position * conv.strides[1] + div(j, channels) * conv.dilations[1] - conv.pads[1]
        value = x[b, row, column, mod(j, channels)].astype("int16") - tirx.const(attrs.x_zero, "int16")
        return guarded(inside_image(row, column, (height, width)), value)

    def weight(acc: Expr, o: Expr, r: Expr, j: Expr) -> Expr:
        return finish(acc, o, r, div(j, channels), mod(j, channels))

    form = (outputs, conv.kernel[0], conv.kernel[1] * channels)
    out, schedule = correlation(form, columns, g, image, weight, tiles, stages)
    return x, g, out, schedule


def _flat_weight_gradient(
    node: Node, x_zero: int, finish: Finish, style: CodeStyle, stages: Sequence[te.Tensor]
) -> Gradient:
    """The same for a 1x1 convolution: a product over pixels."""
    *image, inputs = operand(node, "x").shape
    pixels, outputs = math.prod(image), operand(node, "g").shape[3]
    x, g = tensor(node, "x", (pixels, inputs)), tensor(node, "g", (pixels, outputs))
    extents = (outputs, inputs, pixels)
    left = PackedOperand(lambda o, k: g[k, o], 0, outputs, columns=True)
    right = PackedOperand(lambda i, k: x[k, i], -x_zero, inputs, columns=True)

    def weight(acc: Expr, o: Expr, i: Expr) -> Expr:
        return finish(acc, o, 0, 0, i)

    tiles = packed_tiles(*extents)
    out, schedule = packed_product(extents, left, right, weight, tiles, style, stages, channel_axis=0)
    return x, g, out, schedule
