"""Dilated depthwise convolutions on vectors whose taps are gathered from a copy of the image (tt_mve_taps.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LARGEST_PITCH
from tinytrain_compile.lower.kernels.base import KernelSpec, called, first, i32, plain, struct, tensors, written
from tinytrain_compile.lower.kernels.int8.helium.odd import end_of
from tinytrain_compile.lower.kernels.int8.helium.windows import cost_in_bands
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import geometry, is_spread
from tinytrain_compile.ops.names import attrs_of, operand, result

LANES = 16
"""Taps of a gather."""
MOST_VECTORS, LARGEST_PLACE, LARGEST_LISTED = 4, 255, 65535
"""TT_MOST_TAPS16 of tt_mve_taps.h; places of taps are bytes, those of windows 16 bits."""


_CALL, _CHANNEL, _VECTOR, _FOUR, _NEXT, _WINDOWS = 200, 70, 10, 11, 5, 13.3
"""Instructions of a call, of a channel, of each vector of its taps; of the ends of four outputs, of reading their addresses
from the list, and of four windows of 16 taps."""
_EIGHT, _ROW, _EIGHT_OF_ROW, _BORDER_ROW, _LIST_ROW, _STRIP = 5, 25, 4, 30, 35, 80
"""Instructions of eight elements that are copied by the list; of a row that is not, and of eight of its elements; of a row
of the border; of a row of the list; of a strip. All were fitted to 75 layers."""
_LITTLE, _WORTH = 1.1, 0.95
"""Bands stay if dilation costs them at most this much, or if gathers save less: a gather is one instruction, but a core may
read its bytes one after the other."""


@dataclass(frozen=True)
class Copied:
    """tt_copied of tt_mve_taps.h."""

    high: int
    wide: int
    strip: int
    rows: int
    before: int
    pitch: int
    size: int
    vectors: int
    listed: int

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the taps' places, of the list of windows in whole fours, and of the copy."""
        return LANES * self.vectors + 8 * -(-self.listed * self.wide // 4) + self.size

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the struct."""
        rows = (self.high, self.wide, self.strip, self.rows)
        return (*rows, self.before, self.pitch, self.size, self.vectors, self.listed)

    def cost(self, image: tuple[int, int], top: int, stride: int, channels: int) -> float:
        """Estimate the instructions of a channel. image: its rows and columns; top, stride: of the layer, in rows."""
        height, width = image
        strips, eights = -(-self.high // self.strip), -(-width // 8)
        begin = [min(i * self.strip, self.high - self.strip) * stride - top for i in range(strips)]
        inside = sum(max(0, min(height, first + self.rows) - max(first, 0)) for first in begin)
        copied = inside * (_ROW + _EIGHT_OF_ROW * eights)
        if self.listed > self.strip:
            copied = _EIGHT * -(-inside * width // 8)
        border = _BORDER_ROW * (strips * self.rows - inside) if strips > 1 else 0
        fours = -(-self.strip * self.wide // 4) * (_FOUR + _NEXT * (self.listed > 0) + _WINDOWS * self.vectors)
        once = _CALL + self.listed * (_LIST_ROW + _EIGHT * eights)
        return _CHANNEL + _VECTOR * self.vectors + copied + border + strips * (_STRIP + fours) + once / channels


def gathered_windows(node: Node, room: int) -> tuple[float, Copied] | None:
    """Return the cheapest copy in `room` bytes, and its cost; None if a layer's taps are too many or too far apart."""
    conv, (count, height, width, channels), (_, high, wide, _) = (
        geometry(node),
        operand(node, "x").shape,
        result(node, "y").shape,
    )
    reach, left = (conv.kernel[1] - 1) * conv.dilations[1], conv.pads[1]
    behind = max(0, (wide - 1) * conv.strides[1] + reach - left - (width - 1))
    before = max(left, behind)
    pitch, vectors = before + width, -(-math.prod(conv.kernel) // LANES)
    if vectors > MOST_VECTORS or (conv.kernel[0] - 1) * pitch + reach > LARGEST_PLACE:
        return None
    ways: list[tuple[float, Copied]] = []
    for strip in {-(-high // strips) for strips in range(1, high + 1)}:
        rows = (strip - 1) * conv.strides[0] + (conv.kernel[0] - 1) * conv.dilations[0] + 1
        filled = min(rows, conv.pads[0] + height)  # after which there is border only
        for listed in {max(filled, strip + 1), strip} if wide == width and conv.strides == (1, 1) else {strip}:
            listed = listed if high > 1 else 0
            cut = Copied(high, wide, strip, rows, before, pitch, rows * pitch + behind, vectors, listed)
            if cut.scratch_bytes <= room and cut.size <= LARGEST_LISTED:
                ways.append((cut.cost((height, width), conv.pads[0], conv.strides[0], count * channels), cut))
    return min(ways, key=lambda way: (way[0], way[1].scratch_bytes), default=None)


def _pays(node: Node, cost: float) -> bool:
    """Tell whether gathers are worth it: bands would take more, and more than without dilation."""
    bands = cost_in_bands(node)
    if bands is None:
        return True
    attrs = attrs_of(node, QConvAttrs)
    plain = cost_in_bands(replace(node, attrs=replace(attrs, conv=replace(attrs.conv, dilations=(1, 1)))))
    return cost < _WORTH * bands and (plain is None or bands > _LITTLE * plain)


def gathered_depthwise(node: Node, room: int) -> KernelSpec | None:
    """Compute a dilated depthwise QConv in `room` bytes of scratch; None for others, and if bands are as good."""
    attrs, image = attrs_of(node, QConvAttrs), operand(node, "x").shape
    conv = attrs.conv
    suits = is_spread(node) and conv.split is None and image[3] < LARGEST_PITCH
    found = gathered_windows(node, room) if suits else None
    if found is None or not _pays(node, found[0]):
        return None
    cut = found[1]
    inputs = tensors(node, "x", "w", "bias", "multiplier", "shift")
    scratch = tirx.decl_buffer((cut.scratch_bytes,), "int8", "copy")
    down = conv.dilations[0] if conv.kernel[0] > 1 else 1

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        sizes = struct("tt_image_of", (*image, *conv.pads[:2], attrs.x_zero))
        window = struct("tt_taps_of", (*conv.kernel, *conv.strides, *conv.kernel))
        numbers = (sizes, window, i32(down), i32(conv.dilations[1]), struct("tt_copied_of", cut.numbers))
        call = called("tt_depthwise8_gathered", *map(first, (y, scratch, *given)), *numbers, end_of(attrs))
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), call)

    return KernelSpec(inputs, [written(inputs, result(node, "y").shape, "int8", make)], plain)
