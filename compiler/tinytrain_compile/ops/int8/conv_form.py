"""Forms of integer convolutions and their gradients, and how they are cut into tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import Split
from tinytrain_compile.ops.conv import ConvAttrs, backward_patch, gathers
from tinytrain_compile.ops.conv_form import Patch
from tinytrain_compile.ops.int8.tiles import (
    DOT_TERMS,
    LEAST_ROW_BYTES,
    ROW_BYTES,
    ROW_WEIGHT_BYTES,
    SCRATCH_BYTES,
    DenseTiles,
    DepthwiseTiles,
    LineTiles,
    PackedTiles,
    dense_tiles,
    depthwise_tiles,
    error_tiles,
    light_row_tiles,
    line_tiles,
    packed_row_tiles,
    packed_tiles,
    ragged_tile,
    ready_tiles,
    register_tile,
)
from tinytrain_compile.ops.linear import weight_dtypes
from tinytrain_compile.ops.names import is_prepared, operand, result

_MAP = 4
"""Axes of a map and of a weight."""
TURNED, VECTOR_BYTES = 4, 16
"""Channels of the image whose data gradient is computed together on vectors; products of one of their instructions."""
FORWARD_ENDS, ERROR_ENDS = 3, 2
"""Words per channel that the end of a sum reads: bias, factor and shift; for an error, factor and shift."""


def geometry(node: Node) -> ConvAttrs:
    """Return the convolution that a QConv, a QConvGradInput or an update of a weight is about."""
    conv = getattr(node.attrs, "conv", None)
    assert isinstance(conv, ConvAttrs)
    return conv


def lying(node: Node) -> Node:
    """Return a depthwise layer of a map of one column, or any layer's gradient, as that of one row: its bytes are the
    same."""
    conv, attrs = getattr(node.attrs, "conv", None), cast(Any, node.attrs)
    if conv is None or (conv.groups == 1 and node.op == "QConv"):
        return node
    maps = [value for value in (*node.inputs, *node.outputs) if len(value.shape) == _MAP]
    if any(value.shape[2] != 1 for value in maps):
        return node

    def turned(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(replace(v, shape=(v.shape[0], 1, v.shape[1], v.shape[3])) if v in maps else v for v in values)

    top, left, bottom, right = conv.pads
    pairs = {"kernel": conv.kernel[::-1], "strides": conv.strides[::-1], "dilations": conv.dilations[::-1]}
    changes: dict[str, Any] = {"conv": replace(conv, pads=(left, top, right, bottom), **pairs)}
    if hasattr(attrs, "input_hw"):
        changes["input_hw"] = attrs.input_hw[::-1]
    return replace(node, inputs=turned(node.inputs), outputs=turned(node.outputs), attrs=replace(attrs, **changes))


def is_product(conv: ConvAttrs) -> bool:
    """Tell whether a convolution is a plain matrix product over pixels."""
    return conv.groups == 1 and not gathers(conv) and conv.strides == (1, 1)


def stored_dtypes(w: Value, split: Split | None) -> tuple[str, ...]:
    """Return the types of the operands that hold a weight, w first: int16 if it is prepared."""
    return ("int16",) if split is None and w.dtype == "int16" else weight_dtypes(split)


def forward_product(node: Node) -> PackedTiles:
    """Return tiles of a 1x1 QConv: pixels by output channels; a weight in two parts is not stored as it is read."""
    *image, channels = operand(node, "x").shape
    pixels = math.prod(image)
    if is_prepared(node):
        return ready_tiles(pixels, channels)
    tiles = packed_tiles(pixels, result(node, "y").shape[3], channels, geometry(node).split is None)
    return tiles.with_ends(FORWARD_ENDS, 1, pixels)


def error_product(node: Node) -> PackedTiles:
    """Return tiles of a 1x1 QConvGradInput: pixels by input channels."""
    *image, channels = result(node, "error").shape
    pixels = math.prod(image)
    if is_prepared(node):
        return ready_tiles(pixels, operand(node, "g").shape[3])
    lies = geometry(node).split is None
    return error_tiles(pixels, channels, operand(node, "g").shape[3], lies).with_ends(ERROR_ENDS, 1, pixels)


def error_product_scratch(node: Node) -> int:
    """Return bytes of scratch of a 1x1 QConvGradInput, on any core: vectors read neither int8 columns nor prepared
    weights."""
    tiles, (*pixels, channels) = error_product(node), result(node, "error").shape
    if tiles.ready:
        return tiles.scratch_bytes
    return max(tiles.scratch_bytes, error_tiles(math.prod(pixels), channels, operand(node, "g").shape[3]).scratch_bytes)


def forward_row_product(node: Node) -> tuple[PackedTiles, bool]:
    """Return (tiles of some rows of a 1x1 QConv, whether all widened weights stay from call to call).

    They do if they are few, or take at most ROW_WEIGHT_BYTES and serve at least as many pixels as they have rows.
    Others would need more scratch than the whole map's kernel.
    """
    (_, height, width, channels), outputs = operand(node, "x").shape, result(node, "y").shape[3]
    if is_prepared(node):
        return ready_tiles(width, channels, by_rows=True), False
    kept = packed_row_tiles(width, outputs, channels).with_ends(FORWARD_ENDS, 1, height * width)
    served = outputs <= height * width and kept.strip_bytes <= ROW_WEIGHT_BYTES
    if served or kept.scratch_bytes <= SCRATCH_BYTES[0]:
        return kept, True
    return light_row_tiles(width, outputs, channels, geometry(node).split is None), False


def error_row_product(node: Node) -> tuple[PackedTiles, bool]:
    """Return (tiles of some rows of a 1x1 QConvGradInput, whether all widened weights stay from call to call).

    They do up to ROW_WEIGHT_BYTES.
    """
    (_, height, width, channels), outputs = result(node, "error").shape, operand(node, "g").shape[3]
    if is_prepared(node):
        return ready_tiles(width, outputs, by_rows=True), False
    kept = packed_row_tiles(width, channels, outputs).with_ends(ERROR_ENDS, 1, height * width)
    if kept.strip_bytes <= ROW_WEIGHT_BYTES:
        return kept, True
    return light_row_tiles(width, channels, outputs, False), False


def is_depthwise(node: Node) -> bool:
    """Tell whether a convolution or its gradient is computed channel by channel: depthwise, without gaps in the kernel
    of a gradient or of strides.

    Not if its result is one pixel: no element of the image is read twice, so none is worth a copy.
    """
    conv = geometry(node)
    if math.prod(node.outputs[0].shape[:3]) == 1:
        return False
    image = operand(node, "g" if node.op == "QConvGradInput" else "x")
    depthwise = conv.groups == image.shape[3] == node.outputs[0].shape[3] > 1
    return depthwise and conv.kernel != (1, 1) and (conv.dilations == (1, 1) or is_spread(node))


def is_spread(node: Node) -> bool:
    """Tell whether the dilated windows of a depthwise QConv are laid together: those in steps of one pixel."""
    conv = geometry(node)
    return node.op == "QConv" and conv.strides == (1, 1) and conv.dilations != (1, 1)


def spreads_error(node: Node) -> bool:
    """Tell whether dilated windows of a depthwise data gradient may be laid together: those in steps of one pixel."""
    conv, error = geometry(node), node.outputs[0].shape
    depthwise = node.op == "QConvGradInput" and conv.groups == operand(node, "g").shape[3] == error[3] > 1
    return depthwise and conv.strides == (1, 1) and conv.dilations != (1, 1) and conv.split is None


def shared_steps(node: Node) -> tuple[int, int]:
    """Return by how much the taps of a depthwise layer are dilated and its result is divisible: (rows, columns)."""
    _, rows, columns, _ = node.outputs[0].shape
    down, right = geometry(node).dilations
    return math.gcd(down, rows), math.gcd(right, columns)


def spread_columns(node: Node) -> tuple[int, int]:
    """Return (columns of taps, interleaved images) of a depthwise layer with dilated columns.

    As many images as divide both the dilation and the row; what is left of the dilation are zeros between the taps.
    """
    conv, (_, images) = geometry(node), shared_steps(node)
    return (conv.kernel[1] - 1) * (conv.dilations[1] // images) + 1, images


def reads_ragged(node: Node) -> bool:
    """Tell whether a QConv is 1x1 of one pixel, and its rows of weights are no whole words (see DOT_TERMS)."""
    image, conv = operand(node, "x").shape, geometry(node)
    one = math.prod(image[:3]) == 1 and is_product(conv) and conv.split is None
    return one and image[3] % DOT_TERMS > 0 and not is_prepared(node)


def transposed_copy(node: Node) -> Value | None:
    """Return the weight of a 1x1 data gradient, whose kernel reads it faster by input channel, (in, out); else None."""
    flat = node.op == "QConvGradInput" and is_product(geometry(node)) and geometry(node).split is None
    return operand(node, "w") if flat and not is_prepared(node) else None


def forward_depthwise(node: Node) -> DepthwiseTiles:
    """Return tiles of a depthwise QConv, or of a data gradient whose windows are dilated."""
    conv, (_, height, width, _) = geometry(node), node.outputs[0].shape
    columns, images = spread_columns(node)
    kernel, dilations = (conv.kernel[0], columns), (conv.dilations[0], images)
    return depthwise_tiles((height, width), kernel, conv.strides, dilations=dilations)


def backward_phases(node: Node) -> tuple[int, int]:
    """Return into how many interleaved images a depthwise QConvGradInput is cut: the strides, if they divide the image.

    A pixel's row plus the padding, modulo the stride, tells which taps reach it; so each phase is a convolution with
    stride 1 and a subset of the taps.
    """
    strides, (_, height, width, _) = geometry(node).strides, result(node, "error").shape
    return strides if height % strides[0] == width % strides[1] == 0 else (1, 1)


def backward_depthwise(node: Node) -> DepthwiseTiles:
    """Return tiles of a depthwise QConvGradInput: a convolution with stride 1, whatever the layer's is."""
    conv, (_, height, width, _) = geometry(node), result(node, "error").shape
    phases = backward_phases(node)
    lead = [(count - 1 + pad % count) // count for count, pad in zip(phases, conv.pads, strict=False)]
    return depthwise_tiles((height, width), conv.kernel, (1, 1), phases, (lead[0], lead[1]))


def is_dense(node: Node) -> bool:
    """Tell whether a QConv runs over widened rows of the image: dense, its weight in one part."""
    conv = geometry(node)
    return conv.groups == 1 and conv.split is None and conv.dilations == (1, 1)


def forward_dense(node: Node) -> DenseTiles:
    """Return tiles of a dense QConv wider than 1x1, or with a stride."""
    conv = geometry(node)
    outputs = result(node, "y").shape[3]
    tiles = dense_tiles(result(node, "y").shape, conv.kernel, conv.strides, operand(node, "x").shape[3])
    return replace(tiles, channels=outputs, weights_first=True, ready=True) if is_prepared(node) else tiles


def short_ends(node: Node) -> bool:
    """Tell whether a helper finishes all sums of a tile of a QConv: they shift down, and are clamped to int8 only."""
    attrs: Any = node.attrs
    return attrs.shifts_down and not attrs.above and not attrs.once and (attrs.low, attrs.high) == (-128, 127)


def forward_lines(node: Node) -> LineTiles | None:
    """Return tiles of a dense QConv of few channels, for cores with products in pairs."""
    conv, (_, _, width, outputs) = geometry(node), result(node, "y").shape
    channels, tiles = operand(node, "x").shape[3], forward_dense(node)
    if not short_ends(node) or tiles.ready:
        return None
    apart, run = conv.strides[1] * channels * tiles.taps, conv.kernel[1] * channels
    return line_tiles(width, outputs, apart, run, FORWARD_ENDS, tiles)


def forward_row_lines(node: Node) -> LineTiles | None:
    """Return forward_lines of some rows of a map: half a row at a time, in the scratch that cores without them need."""
    lines = forward_lines(node)
    return lines.of_halves(sum(forward_dense(node).bytes_of_rows(result(node, "y").shape[3]))) if lines else None


def dense_turn(node: Node) -> int:
    """Return output rows of a dense QConv whose input rows are copied before any of them is written, on all cores.

    0: the whole image is needed until the end.
    """
    rows = forward_dense(node)
    if rows.weights_first and rows.channels < result(node, "y").shape[3]:
        return 0
    return 1 if forward_lines(node) else rows.strip


def error_patch(node: Node) -> Patch:
    """Return the patch of the incoming error that a QConvGradInput of a dense convolution reads."""
    conv, (_, height, width, _) = geometry(node), result(node, "error").shape
    return backward_patch(conv, (height, width), operand(node, "g").shape)


def backward_dense(node: Node, by_rows: bool = False) -> DenseTiles | None:
    """Return tiles of a dense k x k QConvGradInput over widened rows of the error; None: taps or strides leave holes.

    by_rows: some rows of the error at a time, with zeros in the holes that strides leave.
    """
    conv, patch = geometry(node), error_patch(node)
    if (
        conv.groups > 1
        or is_product(conv)
        or conv.dilations != (1, 1)
        or (max(patch.rows.holes, patch.columns.holes) > 1 and not by_rows)
    ):
        return None
    kernel, phases = (patch.rows.window, patch.columns.window), (patch.rows.phases, patch.columns.phases)
    budget = min(max(LEAST_ROW_BYTES, (operand(node, "g").elements + result(node, "error").elements) // 2), ROW_BYTES)
    return dense_tiles(result(node, "error").shape, kernel, (1, 1), patch.channels, phases, budget)


def turned_bytes(node: Node) -> int:
    """Return bytes of the weights that a dense QConvGradInput reads on vectors: of TURNED channels of the image.

    They are those of the phase with most taps. Runs of neighbouring taps are filled up to whole vectors.
    """
    conv, outputs = geometry(node), operand(node, "g").shape[3]
    shared = [math.gcd(*pair) for pair in zip(conv.strides, conv.dilations, strict=True)]
    rows, columns = (-(-conv.kernel[i] * shared[i] // conv.strides[i]) for i in (0, 1))
    runs, run = (1, columns * outputs) if conv.dilations[1] == shared[1] else (columns, outputs)
    return TURNED * rows * runs * -(-run // VECTOR_BYTES) * VECTOR_BYTES


def column_bytes(node: Node) -> int:
    """Return bytes of the weights that a dense QConvGradInput reads tap by tap: two columns of each tap, as int16.

    If three weights of a column are left, they are in a whole block (tt_column).
    """
    outputs = operand(node, "g").shape[3]
    column = outputs + (outputs > DOT_TERMS and outputs % DOT_TERMS == DOT_TERMS - 1)
    return 2 * _WIDE * math.prod(geometry(node).kernel) * column


def four_taps_bytes(node: Node) -> int:
    """Return bytes of the weights that a depthwise QConvGradInput reads tap by tap: of four channels, as int16."""
    conv = geometry(node)
    return 4 * _WIDE * math.prod(conv.kernel) if conv.groups == operand(node, "g").shape[3] > 1 else 0


def is_one_sample(shape: tuple[int, ...], conv: ConvAttrs) -> bool:
    """Tell whether the gradient of a weight is the product of one error and one input. shape: of inputs, channels
    last."""
    return is_product(conv) and math.prod(shape[:3]) == 1


def is_rank_one(node: Node) -> bool:
    """Tell whether the gradient of an update is a column times a row: a dense layer and one sample."""
    return getattr(node.attrs, "by_steps_of_rows", False) and is_one_sample(operand(node, "x").shape, geometry(node))


def weight_tiles(node: Node) -> CorrelationTiles | None:
    """Return tiles of the weight gradient of a dense convolution wider than 1x1, or with a stride."""
    conv = geometry(node)
    if conv.groups > 1 or is_product(conv):
        return None
    return correlation_tiles(conv, operand(node, "x").shape, operand(node, "g").shape)


def single_tiles(node: Node, few_registers: bool) -> CorrelationTiles | None:
    """Return weight_tiles for cores without products in pairs, in no more scratch; None: sums that run in place.

    Unused sums of a tile cost them more. Instead, they take one row of four columns if these divide the layer (_ROW,
    which needs registers), or sums in place if a quarter of all products is unused: 1.12 times as long on a Cortex-M0+
    for maps of 28x28, 1 to 8 channels, 3x3.
    """
    tiles = weight_tiles(node)
    if tiles is None:
        return None
    conv, x, g = geometry(node), operand(node, "x").shape, operand(node, "g").shape
    columns = conv.kernel[1] * x[3]
    exact = register_tile(g[3], columns)
    if exact == tiles.tile:
        return tiles
    if exact == _ROW and not few_registers:
        return correlation_tiles(conv, x, g, True, tiles.scratch_bytes) or tiles
    few = few_registers or exact == (1, 1)
    return None if few and 3 * tiles.products(g[3], columns) >= 4 * g[3] * columns * g[2] else tiles


VECTOR, SMALL_MAP = 16, 64
"""Elements of a vector; pixels of an error from which on its map does not end with zeros (tt_map_end)."""


def map_sizes(node: Node) -> tuple[int, int]:
    """Return bytes of maps of a weight gradient on vectors: (error, image).

    Either is of a channel; the image is that under a column of taps, thinned by the strides. A small error is whole
    vectors.
    """
    conv, (count, high, wide, _) = geometry(node), operand(node, "g").shape
    phases = min(conv.kernel[0], conv.strides[0]) if conv.dilations[0] == 1 else conv.strides[0]
    rows = phases * (high + (conv.kernel[0] - 1) * conv.dilations[0] // conv.strides[0])
    pixels = count * high * wide
    error = -(-pixels // VECTOR) * VECTOR if count == 1 and pixels < SMALL_MAP else pixels
    return error, count * (high if is_product(conv) else rows) * wide


_PLACES = 1 << 16
"""Numbers of 16 bits."""


@dataclass(frozen=True)
class BorderedMaps:
    """tt_bordered_maps_of: elements of the error's map, of one of the image, and of the last one."""

    error: int
    image: int
    last: int


def bordered_maps(node: Node) -> BorderedMaps | None:
    """Return the maps of a weight gradient on vectors whose image has a border in scratch, for all columns of taps.

    None for strides, several images, a single column, and maps that tt_gather_rows8 does not lay.
    """
    conv, image, error = geometry(node), operand(node, "x").shape, operand(node, "g").shape
    narrow, large = min(image[2], error[2]) == 1, max(image[1], error[1]) * max(image[2], error[2]) ** 2 >= _PLACES
    if conv.strides != (1, 1) or image[0] > 1 or is_product(conv) or narrow or large:
        return None
    reach = [(taps - 1) * step for taps, step in zip(conv.kernel, conv.dilations, strict=True)]
    behind = [max(0, error[1 + i] + reach[i] - conv.pads[i] - image[1 + i]) for i in (0, 1)]
    pitch = image[2] + max(conv.pads[1], behind[1])
    pixels = (error[1] - 1) * pitch + error[2]
    return BorderedMaps(
        -(-pixels // VECTOR) * VECTOR if pixels < SMALL_MAP else pixels,
        (image[1] + max(conv.pads[0], behind[0])) * pitch,
        (image[1] + conv.pads[0] + behind[0] - 1) * pitch + conv.pads[1] + image[2] + behind[1],
    )


def keeps_sums(node: Node, across: int) -> bool:
    """Tell whether the sums of a row of taps go to scratch, as tt_sums_first does.

    across: maps of the image at a time.
    """
    attrs: Any = node.attrs
    if node.op != "QUpdate" or attrs.fine or attrs.squares or attrs.momentum == "sign":
        return False
    return across > TURNED or attrs.momentum != ""


def weight_bytes(node: Node, across: int, bordered: BorderedMaps | None = None) -> int:
    """Return bytes of the weight gradient of a dense layer on vectors, with `across` maps of the image at a time.

    In scratch are the maps (map_sizes, unless they have borders) and, if steps are rounded by noise, the sums of a row
    of taps (keeps_sums), as int32 in whole pairs of vectors: those of two channels' errors if both fit into registers
    (tt_together).
    """
    error, image = (bordered.error, bordered.image) if bordered else map_sizes(node)
    last, maps = (bordered.last, min(across, operand(node, "x").shape[3])) if bordered else (image, across)
    if not keeps_sums(node, across):
        return error + (maps - 1) * image + last
    together = 2 if operand(node, "g").shape[0] == 1 and error % VECTOR == 0 and error < SMALL_MAP else 1
    return together * (-(-across // 8) * 32 + error) + (-(-maps // TURNED) * TURNED - 1) * image + last


def row_maps(node: Node) -> int:
    """Return the sums of a row of taps that go to scratch together if the image has a border there; 0: they do not."""
    conv, channels = geometry(node), operand(node, "x").shape[3]
    maps = conv.kernel[1] * channels
    return maps if conv.kernel[1] > 1 and channels >= TURNED and channels % 2 == 0 and keeps_sums(node, maps) else 0


def map_bytes(node: Node) -> int:
    """Return the bytes that a weight gradient over maps asks for on vectors.

    They are the least of all forms if these are few. If a border makes the error's map no larger, all weights may be
    computed in one turn.
    """
    apart = channel_maps(node)
    if apart or geometry(node).groups > 1:
        least, turn = apart[1] if apart else 0, 0
    else:
        form, least = bordered_maps(node), weight_bytes(node, TURNED)
        alike = form is not None and form.error == map_sizes(node)[0] and row_maps(node) > 0
        turn = weight_bytes(node, row_maps(node), form) if alike else 0
    return max(least if least <= LEAST_ROW_BYTES else 0, turn if turn <= SCRATCH_BYTES[0] else 0)


CHANNEL_BYTES = 1024
"""Most bytes of a channel's maps (channel_maps), unless those for a single row of the error are more. With dilation
LEAST_ROW_BYTES: 5x5 32x32x15 with dilation 4 takes 150,237 instead of 516,239 instructions on a Cortex-M55."""


def channel_maps(node: Node) -> tuple[int, int] | None:
    """Return (rows of the error at a time, bytes) of a weight gradient on vectors, channel by channel.

    In scratch are a sum for every tap, in whole vectors, and a channel's error and image with the borders of each row.
    None for less than four taps, and for layers that are neither depthwise nor of an image of one channel. That has
    maps of its columns of taps (weight_bytes) from four on: 49x10x1 to 64, 10x4, takes 97,137 instead of 150,138
    instructions on a Cortex-M55.
    """
    conv, image, (_, high, wide, outputs) = geometry(node), operand(node, "x").shape, operand(node, "g").shape
    taps = math.prod(conv.kernel)
    single = image[3] == 1 and conv.kernel[1] < TURNED
    if not (single or conv.groups == image[3] == outputs > 1) or taps < TURNED or conv.split is not None:
        return None
    reach = [(conv.kernel[i] - 1) * conv.dilations[i] // conv.strides[i] for i in (0, 1)]
    pairs = zip(conv.kernel, conv.strides, conv.dilations, strict=True)
    phases = math.prod(stride if stride < kernel or dilation > 1 else kernel for kernel, stride, dilation in pairs)

    def size(rows: int) -> int:
        return -(-taps // 4) * 16 + (wide + reach[1]) * (rows + phases * (rows + reach[0]))

    most = CHANNEL_BYTES if conv.dilations == (1, 1) else LEAST_ROW_BYTES
    return max(((rows, size(rows)) for rows in range(1, high + 1) if size(rows) <= most), default=(1, size(1)))


# ---- tiles of weight gradients over widened maps --------------------------------------------------------------------


_WIDE = 2
"""Bytes of a widened element, int16."""
_ERROR, _IMAGE, _TABLES = 2, 5, 25
"""Approximate instructions to widen an element of the error, and of the image with its border; and to prepare what the
end of an output channel's sums reads."""
_PRODUCTS, _CROSSING = 5, (1, 6)
"""Approximate instructions of four products; and to widen an element more if columns of two taps, not or dilated, are
in a tile: measured on a Cortex-M7, 6.3 for a layer of 27 channels on maps of 13x13 with taps 2 apart."""
_ROW = (1, 4)
"""Register tile of an odd number of output channels, if it divides the columns."""
SMALL_LAYER = 16384
"""Products from which on incomplete tiles are worth their code, about 500 B, and their scratch."""
SPARE = 32
"""Less scratch may cost at most one in this many multiply-accumulates."""


@dataclass(frozen=True)
class CorrelationTiles:
    """Tiles of a weight gradient whose operands are stored by channel, in rows of `pitch` elements (whole DOT_TERMS).

    Zeros follow the error's width. The image is stored once for every column of taps, moved by it and thinned by the
    stride; its rows are in `phases` images of `image_rows` rows, thinned too. So a tap reads neighbours, as many as an
    error's map has: rows * pitch. tile: (output channels, image channels) per register tile. strip: maps of operand
    strip_axis (0 the error, 1 the image) that are widened at a time; of the other operand, one tile is. batch: images.
    runs: as many parts of the columns of taps have tiles of their own; a strip is some of them, or a part of one.
    """

    tile: tuple[int, int]
    strip_axis: int
    strip: int
    batch: int
    rows: int
    pitch: int
    phases: int
    image_rows: int
    strides: tuple[int, int]
    dilations: tuple[int, int]
    runs: int = 1

    @property
    def blocks(self) -> int:
        """Blocks of DOT_TERMS elements in a map of the error."""
        return self.rows * self.pitch // DOT_TERMS

    @property
    def maps(self) -> tuple[int, int]:
        """Elements of all images of one channel of the error, and of the image for one column of taps."""
        return self.batch * self.rows * self.pitch, self.batch * self.phases * self.image_rows * self.pitch

    def phase(self, tap: Any) -> Any:
        """Return which of the image's phases holds the rows of a tap."""
        return tap * self.dilations[0] % self.strides[0]

    def first(self, tap: Any) -> Any:
        """Return the first row of a tap in its phase."""
        return tap * self.dilations[0] // self.strides[0]

    def products(self, outputs: int, columns: int) -> int:
        """Count the products for a row of the error and one of taps, those of unused sums included."""
        run = -(-columns // self.runs // self.tile[1]) * self.tile[1]
        return -(-outputs // self.tile[0]) * self.tile[0] * self.runs * run * self.pitch

    def widening(self, errors: int, images: int, crossing: bool = False) -> int:
        """Estimate the instructions to widen maps of `errors` channels of the error and `images` of the image.

        crossing: some tiles have columns of two taps.
        """
        error, image = self.maps
        more = _CROSSING[self.dilations[1] > 1] if crossing else 0
        return _ERROR * error * errors + (_IMAGE + more) * image * images

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the strip and of one tile of the other operand."""
        return _scratch(self.maps, self.tile, self.strip_axis, self.strip)


def _scratch(maps: tuple[int, int], tile: tuple[int, int], axis: int, strip: int) -> int:
    return _WIDE * (strip * maps[axis] + tile[1 - axis] * maps[1 - axis])


def correlation_tiles(
    conv: ConvAttrs, image: tuple[int, ...], error: tuple[int, ...], exact: bool = False, most: int = SCRATCH_BYTES[1]
) -> CorrelationTiles | None:
    """Choose a way to widen both operands within a budget that takes little scratch; None if none fits.

    exact: register tiles divide the channels; they also do if others do not fit. most: bytes of the budget.
    """
    (batch, height, width, outputs), (taps, channels) = error, (conv.kernel[1], image[3])
    pitch = -(-width // DOT_TERMS) * DOT_TERMS
    phases = min(conv.kernel[0], conv.strides[0]) if conv.dilations[0] == 1 else conv.strides[0]
    image_rows = height + (conv.kernel[0] - 1) * conv.dilations[0] // conv.strides[0]
    form = (batch, height, pitch, phases, image_rows, conv.strides, conv.dilations)
    budget = min(max(SCRATCH_BYTES[0], 2 * (math.prod(image) + math.prod(error))), most)
    shape, odd = (outputs, conv.kernel[0], taps * channels), channels % 2 == 1 and channels > 1 and taps > 1
    sums = math.prod(shape) * batch * height * pitch
    for choose in (register_tile,) if exact or sums < SMALL_LAYER else (ragged_tile, register_tile):
        tile = choose(outputs, taps * channels)
        ways = (1, taps) if odd and tile[1] == 2 and choose is ragged_tile else (1,)
        found = [
            (cost, tiles)
            for runs in ways
            for cost, tiles in _correlations(shape, tile, runs, odd and runs == 1, form)
            if tiles.scratch_bytes <= budget
        ]
        if tile != (1, 1) and found:
            return _least_scratch(found, sums)
    return None


def _least_scratch(found: list[tuple[int, CorrelationTiles]], products: int) -> CorrelationTiles:
    """Return those tiles with the least scratch that cost little more than the cheapest."""
    enough = min(cost for cost, _ in found) + products // SPARE
    fitting = [(tiles.scratch_bytes, cost, tiles.strip_axis, tiles.runs, tiles) for cost, tiles in found]
    return min(way for way in fitting if way[1] <= enough)[-1]


def _correlations(
    shape: tuple[int, int, int], tile: tuple[int, int], runs: int, crossing: bool, form: tuple[Any, ...]
) -> Iterator[tuple[int, CorrelationTiles]]:
    """Yield (approximate instructions, tiles) of all strips. shape: (output channels, rows of taps, columns).

    runs: the columns of every tap end with a tile. crossing: some tiles have columns of two taps.
    """
    outputs, taps, columns = shape
    run = -(-columns // runs // tile[1]) * tile[1]
    whole = (-(-outputs // tile[0]) * tile[0], runs * run)
    for axis, (own, other) in enumerate((whole, whole[::-1])):
        for strip in range(tile[axis], own + 1, tile[axis]):
            if own % strip > 0 or (axis == 1 and run % strip > 0 and strip % run > 0):
                continue
            tiles = CorrelationTiles(tile, axis, strip, *form, runs=runs)
            widened = (own, other * (own // strip)) if axis == 0 else (other * (own // strip), own)
            read = outputs * (whole[1] // (strip if axis == 1 else tile[1]))
            sums = math.prod(whole) * taps * tiles.maps[0] * _PRODUCTS // 4
            yield tiles.widening(*widened, crossing) + _TABLES * read + sums, tiles
