"""Data gradients of convolutions of few or odd channels on vectors: windows are runs of a line (tt_mve_lines.h)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import KernelSpec
from tinytrain_compile.lower.kernels.int8.strided import error_call
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv_form import VECTOR_BYTES, geometry, turned_bytes
from tinytrain_compile.ops.names import operand, result

_VECTOR, _FOUR, _LINE, _FAR, _COPY = 10, 18, 18, 8, 3
"""Approximate instructions of four windows: for each vector, and for the rest; to begin a row; more of four in a
column; to copy a vector of the error.

Chosen with the next ones: on a Cortex-M55, 69 of 72 layers then have the faster form; the worst loses 4 %."""
_RUN_VECTOR, _RUN, _PIXEL = 10, 6, 36
"""Approximate instructions of four channels of a pixel whose windows are read in the error: for each vector (one less
if runs are whole vectors), for each run, for the rest."""


@dataclass(frozen=True)
class _Lines:
    """Sizes of the phase with most taps. taps: rows, columns; apart: columns of the image from pixel to pixel.

    pixels: of a row, at most; across, strip: channels and rows that are in scratch together.
    """

    taps: tuple[int, int]
    apart: int
    pixels: int
    outputs: int
    across: int = 0
    strip: int = 0
    one_image: bool = False

    @property
    def window(self) -> int:
        """Elements under all taps, in whole vectors."""
        return _whole(math.prod(self.taps) * self.outputs)

    @property
    def line(self) -> int:
        """Elements of a line."""
        return (self.pixels - 1) * self.taps[0] * self.outputs + self.window

    def is_down(self, pixels: int, rows: int) -> bool:
        """Tell whether the last pixels of a row are computed with those of other rows (tt_last_columns)."""
        last, strips = pixels % LANES, -(-rows // self.strip)
        down = strips * (self.strip * (pixels // LANES) + last * -(-self.strip // LANES))
        fewer = self.one_image and self.strip >= LANES and down < rows * -(-pixels // LANES)
        return last > 0 and (fewer or pixels < LANES)

    def cost(self, width: int, rows: int) -> int:
        """Estimate the instructions of a channel, in so many rows."""
        starts = [(width - start + self.apart - 1) // self.apart for start in range(self.apart)]
        strips = -(-rows // self.strip)
        laid = strips * self.strip if any(self.is_down(pixels, rows) for pixels in starts) else rows
        four, total = _VECTOR * self.window // VECTOR_BYTES + _FOUR, 0
        for pixels in starts:
            if not self.is_down(pixels, rows):
                total += laid * (-(-pixels // LANES) * four + _LINE)
                continue
            last, columns = pixels % LANES, strips * -(-self.strip // LANES)
            total += laid * (pixels // LANES * four + (_LINE if pixels >= LANES else 0))
            total += last * (columns * (four + _FAR) + strips * _LINE)
        return total

    @property
    def scratch_bytes(self) -> int:
        """Bytes of turned weights and lines."""
        return self.across * self.window + self.strip * self.line


def _whole(elements: int) -> int:
    return -(-elements // VECTOR_BYTES) * VECTOR_BYTES


def line_gradient(node: Node) -> KernelSpec | None:
    """Compute the error of an image of any number of channels over lines.

    None if neither rows (of a phase) nor the lines that are together have four pixels, or if the plan's scratch does
    not hold a line and the weights of a channel. None too if windows that are read in the error are possible, and take
    fewer instructions.
    """
    lines = _cut(node)
    if lines is None:
        return None
    in_error = result(node, "error").shape[3] >= LANES and turned_bytes(node) <= op_def(node.op).scratch(node)
    if in_error and _cost(node, lines) >= _cost_in_error(node, lines):
        return None
    return error_call(node, "tt_lines8_error", lines.scratch_bytes, together=(lines.strip, lines.across))


def _cut(node: Node) -> _Lines | None:
    """Cut a layer for the plan's scratch: as many channels as fit, then as many rows, in turns of about the same."""
    conv, (count, height, width, channels) = geometry(node), result(node, "error").shape
    shared = [math.gcd(*pair) for pair in zip(conv.strides, conv.dilations, strict=True)]
    rows, columns = (-(-conv.kernel[i] * shared[i] // conv.strides[i]) for i in (0, 1))
    apart = conv.strides[1] * conv.dilations[1] // shared[1]
    one = _Lines((rows, columns), apart, -(-width // apart), operand(node, "g").shape[3])
    held, least = op_def(node.op).scratch(node), 1
    if width // apart < LANES:
        if count > 1 or conv.strides != (1, 1) or height < LANES or width < apart:
            return None
        least = LANES
    most = min(channels, (held - least * one.line) // one.window)
    if most < 1:
        return None
    across = _even(channels, most)
    strip = _even(count * -(-height // conv.strides[0]), (held - across * one.window) // one.line)
    return _Lines(one.taps, apart, one.pixels, one.outputs, across, max(strip, least), one_image=count == 1)


def _even(total: int, most: int) -> int:
    """Return how many are taken in a turn, so that turns are as few as with `most`, and about the same."""
    return -(-total // -(-total // most))


def _cost(node: Node, lines: _Lines) -> int:
    """Estimate the instructions over lines."""
    count, height, width, channels = result(node, "error").shape
    turns = -(-channels // lines.across)
    copied = turns * lines.taps[0] * _whole(lines.outputs) // VECTOR_BYTES * lines.pixels
    rows = count * height
    return lines.cost(width, rows) * channels + lines.apart * rows * copied * _COPY


def _cost_in_error(node: Node, lines: _Lines) -> float:
    """Estimate the instructions of tt_conv8_error, which leaves out rows of taps beside the error."""
    conv, (count, height, width, channels) = geometry(node), result(node, "error").shape
    high, outputs = operand(node, "g").shape[1:4:2]
    (rows, columns), neighbours = lines.taps, lines.apart == conv.strides[1]
    runs, run = (1, columns * outputs) if neighbours else (columns, outputs)
    first = [i * conv.strides[0] - conv.pads[0] for i in range(high)]
    inside = sum(0 <= at + tap * conv.dilations[0] < height for at in first for tap in range(conv.kernel[0]))
    reached = rows * inside / (high * conv.kernel[0])
    vector = _RUN_VECTOR - (run == _whole(run))
    pixel = reached * runs * (vector * _whole(run) // VECTOR_BYTES + _RUN) + _PIXEL
    return count * height * width * -(-channels // LANES) * pixel
