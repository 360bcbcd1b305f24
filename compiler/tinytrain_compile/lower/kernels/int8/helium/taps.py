"""Dilated depthwise convolutions on vectors whose taps are gathered from a copy of the image (tt_mve_taps.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LARGEST_PITCH
from tinytrain_compile.lower.kernels.base import KernelSpec, called, first, i32, plain, struct, tensors, written
from tinytrain_compile.lower.kernels.int8.helium.odd import end_of
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import geometry, is_spread
from tinytrain_compile.ops.names import attrs_of, operand, result

LANES = 16
"""Taps of a gather."""
MOST_VECTORS, LARGEST_PLACE = 4, 255
"""TT_MOST_TAPS16 of tt_mve_taps.h; places of taps are bytes."""


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
        return (self.high, self.wide, self.strip, self.rows, self.before, self.pitch, self.size, self.vectors, self.listed)


def copied(node: Node, room: int) -> Copied | None:
    """Copy as many rows of the image together as `room` bytes hold; None if its taps are too many or too far apart."""
    conv, (_, _, width, _), (_, high, wide, _) = geometry(node), operand(node, "x").shape, result(node, "y").shape
    reach, left = (conv.kernel[1] - 1) * conv.dilations[1], conv.pads[1]
    behind = max(0, (wide - 1) * conv.strides[1] + reach - left - (width - 1))
    before = max(left, behind)
    pitch, vectors = before + width, -(-math.prod(conv.kernel) // LANES)
    if vectors > MOST_VECTORS or (conv.kernel[0] - 1) * pitch + reach > LARGEST_PLACE:
        return None
    for strips in range(1, high + 1):
        strip = -(-high // strips)
        rows = (strip - 1) * conv.strides[0] + (conv.kernel[0] - 1) * conv.dilations[0] + 1
        for listed in (rows, strip) if wide == width and conv.strides == (1, 1) else (strip,):
            cut = Copied(high, wide, strip, rows, before, pitch, rows * pitch + behind, vectors, listed)
            if cut.scratch_bytes <= room:
                return cut
    return None


def gathered_depthwise(node: Node, room: int) -> KernelSpec | None:
    """Compute a dilated depthwise QConv; None for others."""
    attrs, image = attrs_of(node, QConvAttrs), operand(node, "x").shape
    conv = attrs.conv
    cut = copied(node, room) if is_spread(node) and conv.split is None and image[3] < LARGEST_PITCH else None
    if cut is None:
        return None
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
