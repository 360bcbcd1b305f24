"""Integer convolutions whose windows are copied, two pixels at a time: their sizes, and how tt_conv16 cuts them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.int8.conv_form import (
    FORWARD_ENDS,
    forward_dense,
    forward_product,
    geometry,
    is_dense,
    is_product,
    short_ends,
)
from tinytrain_compile.ops.int8.tiles import DOT_TERMS, ROW_BYTES
from tinytrain_compile.ops.names import is_prepared, operand, result

PAIR, _WIDE, _WORD, _TILE_PITCH = 2, 2, 4, 4094
"""Pixels of a tile; bytes of a widened element and of a word; most channels of the output if a helper finishes the sums
of a tile, as in dsp/product.py."""
_ANY_ROOM = 1 << 30
"""More bytes of scratch than any layer has use for."""
LEAST_KEPT = 6
"""Output channels whose weights must be widened together, if not all are: every such strip of channels reads all
windows again, which takes as many instructions as widening the weights of six channels saves."""
TURN = 32
"""TT_TURN of tt_conv.h: pixels of a call that reads the image in place."""
_SUMS, _WINDOWS, _GATHERED, _TAP = 2, 2, 4, 4
"""Approximate instructions to multiply an element of two windows by a channel's weight, to widen it in both, to do this
tap by tap, and to widen a weight so; weights of whole windows take about one."""
FEW, FEW_STEP = 12, 127
"""TT_FEW_MOST of tt_few.h: elements of a window that stays in registers; most elements from it to the next one."""
FEW_CHANNELS = 7
"""TT_FEW_CHANNELS of tt_few.h: output channels whose sums stay in registers."""
HELD = 16
"""Such windows that are copied together, if they do not lie in rows of the image, and if scratch has place for them."""
LEAST_ERRORS, ERROR_ENDS = 4, 8
"""Channels of an image for which windows of the error are worth widening: with two, 3x3 13x14x39 from 35 takes
3,751,006 instead of 3,298,187 instructions on a Cortex-M7. Bytes of a channel's factor and shift."""
_SHORT = 12
"""Channels up to which dilated taps are copied for a row of the output; longer ones are read in place as fast."""
WORTH = 12
"""Output channels for which a window is worth reading again: 3x3 7x7x48 to 33 takes 800,234 instead of 882,888
instructions on a Cortex-M4 with twelve instead of six channels at a time."""


@dataclass(frozen=True)
class WindowMap:
    """Sizes (rows, columns) of a convolution over all channels; a map of one column is taken for one of one row.

    strip: output rows whose input rows the plan lets a kernel copy together; 0: the image is read in place.
    """

    size: tuple[int, int]
    pads: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    out: tuple[int, int]
    channels: int
    strip: int

    @property
    def elements(self) -> int:
        """Elements under the taps of a pixel."""
        return math.prod(self.kernel) * self.channels

    @property
    def is_apart(self) -> bool:
        """Tell whether each tap of a copied row is a separate run of memory."""
        return self.strip > 0 and self.dilations[1] > 1

    @property
    def left_bytes(self) -> int:
        """Bytes of what is left of the rows of a window beside their whole blocks, in whole blocks."""
        rows = (1 if self.strip == 0 else self.kernel[0]) * (self.kernel[1] if self.is_apart else 1)
        run = self.elements // rows
        return -(-(rows * (run % DOT_TERMS)) // DOT_TERMS) * DOT_TERMS

    @property
    def copied_bytes(self) -> int:
        """Bytes of the input rows of a strip, as int8."""
        return ((self.strip - 1) * self.strides[0] + self.kernel[0]) * self.pitch if self.strip else 0

    @property
    def pitch(self) -> int:
        """Elements of an input row of a strip."""
        reach = (self.kernel[1] - 1) * self.dilations[1] + 1
        return ((self.out[1] - 1) * self.strides[1] + reach) * self.channels


def window_map(node: Node) -> WindowMap | None:
    """Return the sizes of a QConv that reads all channels, its weights as they lie in the file; None for others."""
    conv, (_, *size, channels), (_, *out, _) = geometry(node), operand(node, "x").shape, result(node, "y").shape
    if conv.groups > 1 or conv.split is not None or is_prepared(node):
        return None
    strip = forward_dense(node).strip if is_dense(node) and not is_product(conv) else 0
    pairs = [(size[0], size[1]), conv.pads[:2], conv.kernel, conv.strides, conv.dilations, (out[0], out[1])]
    if is_product(conv) and conv.strides == (1, 1) and not any(conv.pads):
        pairs[0] = pairs[-1] = (1, math.prod(size))
    if size[1] == out[1] == conv.kernel[1] == 1:
        strip, pairs = min(strip, 1), [(across, down) for down, across in pairs]
    image, pads, kernel, strides, dilations, shown = pairs
    return WindowMap(image, pads, kernel, strides, dilations, shown, channels, strip)


@dataclass(frozen=True)
class PairedWindows:
    """A layer as tt_conv16 cuts it. strip: output rows whose input rows are copied together; 0: the image is read in
    place. kept: output channels whose weights are widened together; 0: they are read as they lie. ends: what the ends
    of these channels' sums read lies together. turns: calls of an image for all channels."""

    strip: int
    kept: int
    ends: bool
    turns: int
    scratch_bytes: int


def paired_windows(node: Node, room: int, shares: bool) -> PairedWindows | None:
    """Cut a layer for `room` bytes of scratch; None if these do not hold the windows of two pixels.

    shares: its image and its output may share bytes. Then an image that is read in place is read once.
    """
    cuts = [cut for of in _strips(node, shares) if (cut := _cut(node, of, room, shares)) is not None]
    return min(cuts, key=lambda cut: _cost(node, cut), default=None)


def _has_short_taps(of: WindowMap) -> bool:
    """Tell whether taps are dilated, and of few channels or of no whole words."""
    return of.dilations != (1, 1) and (of.channels % DOT_TERMS > 0 or of.channels <= _SHORT)


def _strips(node: Node, shares: bool) -> list[WindowMap]:
    """Return ways to copy a layer's rows: as the plan has it, and all rows together.

    Dilated rows of short taps are copied for one row of the output, as none of it has the place of an input. 3x3
    16x16x4 to 8 with dilation 2 takes 98,032 instead of 109,151 instructions on a Cortex-M7.
    """
    of = window_map(node)
    if of is not None and _has_short_taps(of):
        row = replace(of, strip=1)
        return [row, of] if row.copied_bytes <= ROW_BYTES else [of]
    if of is None or (of.strip and not shares and of.channels % DOT_TERMS == 0):
        return [] if of is None else [replace(of, strip=0)]
    return [of, replace(of, strip=of.out[0])] if of.strip else [of]


def _cut(node: Node, of: WindowMap, room: int, shares: bool) -> PairedWindows | None:
    outputs = result(node, "y").shape[3]
    row, ends = _row_bytes(of), short_ends(node) and outputs <= _TILE_PITCH
    least = 2 * row + of.copied_bytes + 2 * of.left_bytes
    if of.strip == 0 and of.channels % DOT_TERMS == 0:
        least += of.channels if any(geometry(node).pads) else 0
    elif of.strip == 0 and (of.elements > of.channels or any(geometry(node).pads)):
        least += 2 * of.elements
    high, wide = of.out
    if (of.strip or high) * wide % 2:
        least += 2 * outputs  # of the last pixel, computed twice
    row += FORWARD_ENDS * _WORD * ends
    most = (room - least) // row
    if most < 0:
        return None
    kept = outputs if most >= outputs else 0
    if not kept and most >= LEAST_KEPT and not (shares and of.strip == 0):
        kept = -(-outputs // -(-outputs // (most - most % 2)))
        kept += kept % 2
    if of.is_apart and not kept:
        return None  # weights that are read as they lie have no whole words either
    strips = -(-outputs // kept) if kept and of.strip in (0, high) else 1
    turns = (high // of.strip if of.strip else -(-high * wide // TURN)) * strips
    return PairedWindows(of.strip, kept, ends and kept > 0, turns, least + row * kept)


def _cost(node: Node, cut: PairedWindows) -> int:
    """Estimate the instructions per element of a window: sums of pairs, their windows, and weights."""
    (_, high, wide, _), outputs = result(node, "y").shape, result(node, "y").shape[3]
    strips = high // cut.strip if cut.strip else 1
    pairs = strips * -(-(high // strips) * wide // 2)
    reads = -(-outputs // cut.kept) if cut.kept else outputs
    again = strips if cut.kept < outputs else 1
    of = window_map(node)
    short = of is not None and _has_short_taps(of)
    windows, weights = (_WINDOWS, _TAP if short else 1) if cut.strip else (_GATHERED if short else _WINDOWS, 1)
    return pairs * outputs * _SUMS + pairs * reads * windows + again * outputs * weights


@dataclass(frozen=True)
class FewWindows:
    """A layer as tt_conv_few cuts it. strip, turns: as for PairedWindows.

    sums: those of all channels stay in registers, else a window does. held: windows that are copied together; 0: they
    are read where they lie.
    """

    strip: int
    sums: bool
    held: int
    turns: int
    scratch_bytes: int


def few_windows(node: Node, room: int) -> FewWindows | None:
    """Cut a layer of small windows, or of few output channels, for `room` bytes of scratch.

    None for other layers, and if these bytes are too few. Layers with an even number of channels on both sides: only
    1x1 of more than four inputs and seven outputs. As an output may take the place of a pixel behind it, two are copied
    first. 64x64x8 to 32 takes 1,697,216 instead of 1,905,367 instructions on a Cortex-M7, but 8x8x10 to 6 8,254 instead
    of 8,039.
    """
    of, outputs = window_map(node), result(node, "y").shape[3]
    if of is None or outputs > _TILE_PITCH or not short_ends(node):
        return None
    dilated = of.dilations != (1, 1)
    of = replace(of, strip=1) if dilated else of
    even = of.channels % 2 == outputs % 2 == 0
    if even and (of.elements <= DOT_TERMS or outputs <= FEW_CHANNELS or not _has_pairs(node)):
        return None
    copied = of.strip > 0
    in_image = of.elements == of.channels and not any(geometry(node).pads)
    lies = not even and not dilated and ((of.kernel[0] == 1 or is_square(of)) if copied else in_image)
    sums = (
        not even
        and not dilated
        and outputs <= FEW_CHANNELS
        and (copied or in_image)
        and not (lies and of.elements <= FEW)
    )
    step = of.strides[1] * of.channels
    if not sums and (of.elements > FEW or (lies and step > FEW_STEP)):
        return None
    if sums and (step if of.kernel[0] == 1 else of.kernel[0] * of.pitch) > _TILE_PITCH:
        return None
    rows, run = (of.kernel[0], of.elements // of.kernel[0]) if sums else (1, of.elements)
    least = _WORD * (rows * _words(run) + FORWARD_ENDS) * outputs + of.copied_bytes
    slot = -(-of.elements // _WORD) * _WORD
    held = 0 if sums or lies else min(HELD, (room - least) // slot)
    held -= held % PAIR if even else 0
    if least > room or (held == 0 and not (sums or lies)):
        return None
    turns = of.out[0] // of.strip if copied else -(-math.prod(of.out) // TURN)
    return FewWindows(of.strip, sums, held, turns, least + held * slot)


def _has_pairs(node: Node) -> bool:
    """Tell whether a layer is 1x1, and no output takes the place of an input but for those of its pair of pixels."""
    if not is_product(geometry(node)):
        return False
    count, *image = operand(node, "x").shape[:3]
    unit = forward_product(node).unit(count * math.prod(image))
    return unit <= PAIR and math.prod(image) % unit == 0


def is_square(of: WindowMap) -> bool:
    """Tell whether windows of three by three elements are read from the copied rows of a strip."""
    return of.kernel == (3, 3) and of.channels == 1 and 2 * of.pitch <= _TILE_PITCH


def _words(elements: int) -> int:
    """Return the words of a run of elements, as tt_few_words does."""
    whole, rest = divmod(elements, DOT_TERMS)
    return 2 * whole + min(rest, 2)


def is_paired(node: Node) -> bool:
    """Tell whether a 1x1 QConv has no whole tiles: an odd number of outputs, or no whole words of inputs.

    Not if a few pixels read weights as they lie, or if all pixels of a strip are copied before any output is written;
    such an output may take the place of a smaller input.
    """
    tiles, (*image, channels) = forward_product(node), operand(node, "x").shape
    if tiles.direct:
        return False
    return result(node, "y").shape[3] % 2 == 1 or (channels % DOT_TERMS > 0 and tiles.unit(math.prod(image)) <= PAIR)


def paired_room(node: Node, shares: bool) -> PairedWindows | None:
    """Cut a layer of an odd map, odd channels or dilated windows as it is fastest, whatever scratch it has otherwise.

    Its widened weights take up to ROW_BYTES, or those of WORTH channels up to twice as much. None for other layers.
    """
    of, (_, rows, columns, outputs) = window_map(node), result(node, "y").shape
    if of is None or rows * columns == 1 or (is_product(geometry(node)) and not is_paired(node)):
        return None
    if not (of.out[1] % 2 or outputs % 2 or of.channels % DOT_TERMS or of.dilations != (1, 1)):
        return None
    row = _row_bytes(of)
    kept = min(outputs, max(ROW_BYTES // row, min(WORTH, 2 * ROW_BYTES // row)))
    if kept < min(outputs, LEAST_KEPT):
        return None
    ways = _strips(node, shares)
    way = ways[-1] if kept < outputs and ways[-1].copied_bytes <= ROW_BYTES else ways[0]
    whole = _cut(node, way, _ANY_ROOM, shares)
    assert whole is not None
    row += FORWARD_ENDS * _WORD * whole.ends
    return _cut(node, way, whole.scratch_bytes - row * (whole.kept - kept), shares)


def _row_bytes(of: WindowMap) -> int:
    """Return the bytes of a window as int16, in whole blocks."""
    return _WIDE * -(-of.elements // DOT_TERMS) * DOT_TERMS


@dataclass(frozen=True)
class PairedErrors:
    """A data gradient as tt_pairs_error cuts it. kept: channels of the image whose weights are widened together."""

    kept: int
    scratch_bytes: int


def paired_errors(node: Node, room: int) -> PairedErrors | None:
    """Cut a QConvGradInput without strides for `room` bytes of scratch; None if they hold the weights of few channels.

    In scratch are two windows of the error, widened and as they lie; what is left of their rows; the weights of a
    channel, its factor and its shift.
    """
    conv, outputs, channels = geometry(node), operand(node, "g").shape[3], result(node, "error").shape[3]
    elements, rest = math.prod(conv.kernel) * outputs, conv.kernel[1] * outputs % DOT_TERMS
    widened = _WIDE * DOT_TERMS * -(-elements // DOT_TERMS)
    least, each = PAIR * (widened + elements + DOT_TERMS * -(-conv.kernel[0] * rest // DOT_TERMS)), widened + ERROR_ENDS
    most = (room - least) // each
    kept = channels if most >= channels else most - most % 2
    return PairedErrors(kept, least + kept * each) if kept >= min(channels, LEAST_ERRORS) else None
