"""How the weight gradient of a dense convolution is cut: the image correlated with the error, in pairs of int16."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.tiles import DOT_TERMS, register_tile

SCRATCH_BYTES = (2048, 21504)
"""What widened operands may take at least and at most; between these, twice the bytes of image and error."""
_WIDE = 2
_ERROR, _IMAGE, _TABLES = 2, 5, 25
"""Instructions, about, that widen an element of the error, and of the image, with its border; that get ready what the
end of an output channel's sums reads."""
SPARE = 32
"""One in so many multiply-accumulates is what less scratch may cost."""


@dataclass(frozen=True)
class CorrelationTiles:
    """Both operands lie channel by channel, as rows of `pitch` elements (whole DOT_TERMS; 0 behind the error's width).

    The image lies once for every column of taps, moved by it and thinned by the stride; its rows in `phases` images of
    `image_rows` rows, thinned too. So what a tap reads are neighbours, as many as an error's map has: rows * pitch.
    tile: (output channels, image channels) per register tile. strip: maps of operand strip_axis (0 the error, 1 the
    image) that lie widened at a time, of the other one tile does. batch: images; row_step: between rows of taps.
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

    @property
    def blocks(self) -> int:
        """Of DOT_TERMS elements, in a map of the error."""
        return self.rows * self.pitch // DOT_TERMS

    @property
    def maps(self) -> tuple[int, int]:
        """Elements of all images of one channel of the error, and of the image for one column of taps."""
        return self.batch * self.rows * self.pitch, self.batch * self.phases * self.image_rows * self.pitch

    def phase(self, tap: Any) -> Any:
        """In which of the image's phases the rows of a tap lie."""
        return tap * self.dilations[0] % self.strides[0]

    def first(self, tap: Any) -> Any:
        """The first of them."""
        return tap * self.dilations[0] // self.strides[0]

    def widening(self, errors: int, images: int) -> int:
        """Instructions, about, for maps of so many channels of the error, and so many of the image."""
        error, image = self.maps
        return _ERROR * error * errors + _IMAGE * image * images

    @property
    def scratch_bytes(self) -> int:
        """Of the strip, and of one tile of the other operand."""
        return _scratch(self.maps, self.tile, self.strip_axis, self.strip)


def _scratch(maps: tuple[int, int], tile: tuple[int, int], axis: int, strip: int) -> int:
    return _WIDE * (strip * maps[axis] + tile[1 - axis] * maps[1 - axis])


def correlation_tiles(conv: ConvAttrs, image: tuple[int, ...], error: tuple[int, ...]) -> CorrelationTiles | None:
    """Of the ways to widen both operands within a budget, one that takes little scratch; None: none fits."""
    batch, height, width, outputs = error
    columns = conv.kernel[1] * image[3]
    tile = register_tile(outputs, columns)
    if tile == (1, 1):
        return None
    pitch = -(-width // DOT_TERMS) * DOT_TERMS
    phases = min(conv.kernel[0], conv.strides[0]) if conv.dilations[0] == 1 else conv.strides[0]
    image_rows = height + (conv.kernel[0] - 1) * conv.dilations[0] // conv.strides[0]
    form = (batch, height, pitch, phases, image_rows, conv.strides, conv.dilations)
    least, most = SCRATCH_BYTES
    budget = min(max(least, 2 * (math.prod(image) + math.prod(error))), most)
    found: list[tuple[int, CorrelationTiles]] = []
    for axis, (own, other) in enumerate(((outputs, columns), (columns, outputs))):
        for strip in range(tile[axis], own + 1, tile[axis]):
            tiles = CorrelationTiles(tile, axis, strip, *form)
            if own % strip == 0 and tiles.scratch_bytes <= budget:
                widened = (own, other * (own // strip)) if axis == 0 else (other * (own // strip), own)
                read = outputs * (columns // (strip if axis == 1 else tile[1]))
                found.append((tiles.widening(*widened) + _TABLES * read, tiles))
    if not found:
        return None
    sums = outputs * columns * conv.kernel[0] * batch * height * pitch
    enough = min(cost for cost, _ in found) + sums // SPARE
    return min((tiles.scratch_bytes, cost, tiles.strip_axis, tiles) for cost, tiles in found if cost <= enough)[3]
