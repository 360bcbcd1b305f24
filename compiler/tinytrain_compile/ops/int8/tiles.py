"""Tiling of integer products: which operand is widened in scratch, how much of it, and the register tile."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

DOT_TERMS = 4
"""Products that are summed by one helper call."""
SCRATCH_BYTES = (2048, 21504)
"""Limits in bytes of the scratch for widened operands; between them, it is twice the bytes of the activations."""
ERROR_SCRATCH_BYTES = 12288
"""Most bytes of that scratch for a data gradient: it runs while most memory holds values for the backward pass."""
DIRECT_ROWS = 4
"""Rows of the left operand up to which the right one is not worth widening: four of its elements take three
instructions for every four rows if they are read unwidened, else one for every two rows, and 3.75 once."""
COLUMN = (DIRECT_ROWS, 1)
"""Register tile for DIRECT_ROWS."""
READY_COLUMNS = 2
"""Rows that are stored together in a prepared weight in flash."""
READY_ROW_BYTES = 512
"""Scratch bytes for the other operand when computing by rows, if its minimum fits; for whole maps SCRATCH_BYTES[0]."""
ROW_WEIGHT_BYTES = 5120
"""Most bytes of widened weights that stay in scratch from call to call of some rows. More are widened in every call, a
few at a time: for rows of 16 pixels that is a twelfth more instructions of such a layer."""
COLUMNS = 4
"""Columns of the weight that a pixel's data gradient reads at a time."""
_WIDE, _WORD, _SUMS, _ON = 2, 4, 4, 8
"""Bytes of a widened element and of a word; sums of a whole tile; alignment of buffers, as in rows.py."""
_REPAID = 2
"""Tiles after which keeping what the end of a channel's sums reads has paid off."""


@dataclass(frozen=True)
class PackedTiles:
    """tile: rows of (left, right) per register tile. strip: rows of operand strip_axis that are widened at a time.

    depth: products in a sum, filled up with zeros to whole DOT_TERMS. direct: the right operand is read as int8,
    unwidened; then the strip is one of the left. ready: the right operand is stored widened; likewise. ends: words per
    row of the strip that the end of a sum reads; they follow the operands if the strip is one of channels.
    """

    tile: tuple[int, int]
    strip_axis: int
    strip: int
    depth: int
    direct: bool = False
    ends: int = 0
    ready: bool = False

    @property
    def widens_right(self) -> bool:
        """True if the right operand is widened in scratch."""
        return not (self.direct or self.ready)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the strip, of one tile of the other operand, and of the words kept for the rows of the strip."""
        operands = _WIDE * self.depth * (self.strip + (self.tile[1 - self.strip_axis] if self.widens_right else 0))
        return operands + (-(-operands // _ON) * _ON - operands + self.ends_bytes if self.ends else 0)

    @property
    def strip_bytes(self) -> int:
        """Bytes of the strip."""
        return _WIDE * self.depth * self.strip

    @property
    def ends_bytes(self) -> int:
        """Bytes of the words that the ends of sums read."""
        return _WORD * self.ends * self.strip

    def with_ends(self, words: int, channel_axis: int, others: int) -> PackedTiles:
        """Return the tiles with this many words kept per channel, if several tiles of the `others` rows read them."""
        kept = channel_axis == self.strip_axis and self.tile == (2, 2) and not self.direct and others > 2 * _REPAID
        return replace(self, ends=words) if kept else self

    def unit(self, m: int) -> int:
        """Return the least number of the m rows of the left operand that are copied before any of their output is
        written.

        Kernels may take any number of units, and one row if no unit divides m.
        """
        rows = min(m, self.strip if self.strip_axis == 0 else self.tile[0])
        return rows if m % rows == 0 else 1


def error_tiles(m: int, n: int, k: int, columns_lie: bool = False) -> PackedTiles:
    """Return tiles of a 1x1 data gradient: m pixels, n input channels, k output channels.

    columns_lie: the weight is one matrix (k, n); for one pixel it is read unwidened.
    """
    if columns_lie and m == 1 and n % COLUMNS == 0 and _whole_terms(k):
        return _direct_tiles((1, COLUMNS), m, k)
    return packed_tiles(m, n, k, most=ERROR_SCRATCH_BYTES)


def packed_tiles(
    m: int, n: int, k: int, rows_lie: bool = False, most: int = SCRATCH_BYTES[1], ragged: bool = False
) -> PackedTiles:
    """Return tiles of an (m, k) by (n, k) product: the cheaper of two ways to widen both operands within a budget.

    most: bytes of that budget. rows_lie: rows of the right operand are stored as they are read; if few rows of the left
    meet them, they are not widened. ragged: the last tile of columns may have an unused one.
    """
    tile = ragged_tile(m, n) if ragged else product_tile(m, n)
    if rows_lie and m <= DIRECT_ROWS and _whole_terms(k):
        return _direct_tiles(COLUMN if m > 2 else tile, m, k)
    budget = min(max(SCRATCH_BYTES[0], 2 * m * (k + n)), most)
    whole = [-(-extent // size) * size for extent, size in zip((m, n), tile, strict=True)]
    depth = -(-k // DOT_TERMS) * DOT_TERMS
    ways: list[tuple[int, PackedTiles]] = []
    for axis, (own, other) in enumerate((whole, whole[::-1])):
        rows = [r for r in range(tile[axis], own + 1, tile[axis]) if own % r == 0]
        fitting = [r for r in rows if _WIDE * depth * (r + tile[1 - axis]) <= budget]
        strip = max(fitting, default=rows[0])
        ways.append((own + other * (own // strip), PackedTiles(tile, axis, strip, depth)))
    return min(ways, key=lambda way: (way[0], way[1].scratch_bytes))[1]


def ready_tiles(m: int, k: int, by_rows: bool = False) -> PackedTiles:
    """Return tiles of (m, k) by (n, k), n even, whose right operand is stored widened: as much of the left as fits a
    few bytes.

    by_rows: m is the number of pixels in a row of a map; whole rows are computed at a time.
    """
    tall = 1 if m == 1 or (by_rows and m % 2) else 2  # as in product_tile: an odd m leaves one row unused
    whole, depth = -(-m // tall) * tall, -(-k // DOT_TERMS) * DOT_TERMS
    most = READY_ROW_BYTES if by_rows else SCRATCH_BYTES[0]
    rows = [r for r in range(tall, whole + 1, tall) if whole % r == 0]
    strip = max((r for r in rows if _WIDE * depth * r <= most), default=rows[0])
    return PackedTiles((tall, READY_COLUMNS), 0, strip, depth, ready=True)


def _whole_terms(k: int) -> bool:
    """Tell whether rows of k elements can be read unwidened."""
    return k % DOT_TERMS == 0 and k > DOT_TERMS


def _direct_tiles(tile: tuple[int, int], m: int, k: int) -> PackedTiles:
    tile = tile if math.prod(tile) == _SUMS else (1, 1)
    return PackedTiles(tile, 0, -(-m // tile[0]) * tile[0], k, True)


def packed_row_tiles(width: int, n: int, k: int) -> PackedTiles:
    """Return tiles for some rows of `width` pixels: all n rows of the other operand stay widened from call to call."""
    return PackedTiles(register_tile(width, n), 1, n, -(-k // DOT_TERMS) * DOT_TERMS)


def light_row_tiles(width: int, n: int, k: int, rows_lie: bool) -> PackedTiles:
    """Return tiles for some rows of `width` pixels that keep nothing from call to call.

    Rows of the other operand are widened in every call or, if few pixels meet them, read unwidened.
    """
    tile = register_tile(width, n)
    if rows_lie and _whole_terms(k) and (width <= DIRECT_ROWS or width % 2):
        return _direct_tiles(COLUMN if width == DIRECT_ROWS else tile, width, k)
    return PackedTiles(tile, 0, width, -(-k // DOT_TERMS) * DOT_TERMS)


def ragged_tile(m: int, n: int) -> tuple[int, int]:
    """Return 2x2 unless an extent is 1: a row or column of the last tile is unused if an extent is odd."""
    if m > 1 and n > 1:
        return 2, 2
    return register_tile(m, n) if m * n % 2 == 0 else (min(m, 2), min(n, 2))


def product_tile(m: int, n: int) -> tuple[int, int]:
    """Return register_tile, also for an odd m above 1 if n is even: then a row of the last tile is unused."""
    return register_tile(m + m % 2, n) if m > 1 and n % 2 == 0 else register_tile(m, n)


def register_tile(m: int, n: int) -> tuple[int, int]:
    """Return 2x2 if both extents are even: four sums, operands and pointers fill a Cortex-M's registers."""
    if m % 2 == 0:
        return (2, 2) if n % 2 == 0 else (2, 1)
    return (1, 4) if n % 4 == 0 else (1, 2) if n % 2 == 0 else (1, 1)


# ---- depthwise: one channel's image at a time, with its border, in scratch ------------------------------------------

TILE_PIXELS = 4
"""Pixels of a row that are computed together."""
DEPTHWISE_BYTES = 3072
"""Most bytes of a strip of a channel's image, unless one row of output needs more."""
_PAIR = 2
"""Terms of one SMLAD."""


@dataclass(frozen=True)
class DepthwiseTiles:
    """strip: output rows (of each phase) whose input rows are in scratch at a time; width: output pixels in a tile.

    phases: how many interleaved images the output is, each with taps of its own. taps: (rows, columns) of the kernel of
    one phase, columns filled up with zeros to whole pairs; padded: (rows, columns) of a channel image with its border,
    for all output rows. dilations: distances of taps; a row of a channel image then is as many interleaved ones.
    """

    strip: int
    width: int
    taps: tuple[int, int]
    padded: tuple[int, int]
    strip_rows: int
    phases: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the strip of a channel image and of the taps of all phases, each rounded up to 8."""
        sizes = (self.strip_rows * self.padded[1], math.prod(self.phases) * self.taps[0] * self.taps[1])
        return sum(-(-_WIDE * size // 8) * 8 for size in sizes)


def depthwise_tiles(
    out_hw: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    phases: tuple[int, int] = (1, 1),
    lead: tuple[int, int] = (0, 0),
    dilations: tuple[int, int] = (1, 1),
) -> DepthwiseTiles:
    """Return strips as high as DEPTHWISE_BYTES allow, and at most four pixels at a time, a divisor of the width.

    phases divide out_hw, and dilations its columns.

    lead: rows and columns of the channel image by which the last phase is ahead of the first.
    """
    height, width = out_hw[0] // phases[0], out_hw[1] // (phases[1] * dilations[1])
    tap_rows, tap_columns = -(-kernel[0] // phases[0]), -(-kernel[1] // phases[1])
    columns = -(-tap_columns // _PAIR) * _PAIR
    tile = next((t for t in (4, 3) if width % t == 0), min(width, TILE_PIXELS))
    padded_columns = dilations[1] * ((-(-width // tile) * tile - 1) * strides[1] + columns + lead[1])

    def rows(strip: int) -> int:
        return (strip - 1) * strides[0] + (tap_rows - 1) * dilations[0] + 1 + lead[0]

    strips = [s for s in range(1, height + 1) if height % s == 0]
    strip = max((s for s in strips if _WIDE * rows(s) * padded_columns <= DEPTHWISE_BYTES), default=1)
    return DepthwiseTiles(
        strip, tile, (tap_rows, columns), (rows(height), padded_columns), rows(strip), phases, dilations
    )


# ---- dense convolution: rows of the image, with their border, in scratch --------------------------------------------

ROW_BYTES = 6144
"""Most bytes of widened rows of the image, and of widened weights, unless the smallest tile needs more."""
WINDOW = 514
"""Most elements between operands of `tt_dot_windows`: the largest offset of an instruction."""
_PADDING = 1
"""Most elements added to a widened row to fill whole words."""
LEAST_ROW_BYTES = 3072
"""ROW_BYTES of a data gradient, which runs while much memory is in use: more if both errors are larger."""


@dataclass(frozen=True)
class DenseTiles:
    """strip: output rows whose input rows are in scratch at a time; channels: whose weights are; tile: pixels,
    channels.

    weights_first: weights are widened once, and rows again for every part of the channels (or the other way round).
    terms: products per helper call. run: elements under one row of taps, filled up to whole terms; pitch: of a row.
    phases: how many interleaved images the output is, each with weights of its own. ready: weights of all channels are
    stored widened.
    """

    strip: int
    channels: int
    tile: tuple[int, int]
    terms: int
    run: int
    pitch: int
    rows: int
    strip_rows: int
    taps: int
    weights_first: bool
    phases: tuple[int, int] = (1, 1)
    ready: bool = False

    @property
    def in_turn(self) -> bool:
        """True if windows of a tile's two channels alternate row by row, as they exceed one offset (WINDOW)."""
        return self.taps * self.run > WINDOW

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the strip of rows and of the weights, each rounded up to 8."""
        weights = 0 if self.ready else math.prod(self.phases) * self.channels * self.taps * self.run
        sizes = (self.strip_rows * self.pitch, weights)
        return sum(-(-_WIDE * size // 8) * 8 for size in sizes)

    def bytes_of_rows(self, channels: int) -> tuple[int, int]:
        """Return bytes for an output by rows: (weights of all channels, image rows of one), each rounded up to 8."""
        weights = 0 if self.ready else math.prod(self.phases) * channels * self.taps * self.run
        rows = self.taps * (self.pitch + _PADDING)
        return -(-_WIDE * weights // _ON) * _ON, -(-_WIDE * rows // _ON) * _ON


def dense_tiles(
    out_shape: tuple[int, ...],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    channels: int,
    phases: tuple[int, int] = (1, 1),
    budget: int = ROW_BYTES,
) -> DenseTiles:
    """Return tiles of a convolution of an image with `channels` channels to out_shape (n, height, width, channels).

    They widen the fewest elements and, among equals, need the least scratch. If the whole image is widened at once,
    every weight is widened once, however few at a time.

    phases divide height and width; kernel, strides: of each. budget: see ROW_BYTES.
    """
    height, width, out_channels = out_shape[1] // phases[0], out_shape[2] // phases[1], out_shape[3]
    terms = DOT_TERMS if channels % DOT_TERMS == 0 else _PAIR
    run = -(-kernel[1] * channels // terms) * terms
    pitch = -(-((width - 1) * strides[1] * channels + run) // terms) * terms

    def rows(strip: int) -> int:
        return (strip - 1) * strides[0] + kernel[0]

    tile = (2 if width % 2 == 0 else 1, 2 if out_channels % 2 == 0 else 1)
    strips = [s for s in range(1, height + 1) if height % s == 0]
    strips = [s for s in strips if _WIDE * rows(s) * pitch <= budget] or [1]
    parts = [c for c in range(tile[1], out_channels + 1, tile[1]) if out_channels % c == 0]
    depth = math.prod(phases) * kernel[0] * run
    parts = [c for c in parts if _WIDE * c * depth <= budget] or parts[:1]
    weights, ways = out_channels * depth, list[tuple[int, DenseTiles]]()
    for strip, part in itertools.product(strips, parts):
        image = height // strip * rows(strip) * pitch
        costs = (weights + image * (out_channels // part), image + weights * (height // strip))
        first = costs[0] < costs[1]
        cut = DenseTiles(strip, part, tile, terms, run, pitch, rows(height), rows(strip), kernel[0], first, phases)
        ways.append((min(costs), cut))
    return min(ways, key=lambda way: (way[0], max(way[1].scratch_bytes, SCRATCH_BYTES[0]), -way[1].channels))[1]


# ---- dense convolutions of few channels, line by line ---------------------------------------------------------------


MOST_BLOCKS = 7
"""Blocks of DOT_TERMS products for which one helper call computes a row of tiles (TT_BLOCKS of tt_dsp_tiles.h)."""
_TILE = 2
"""Rows of either operand in a tile."""


@dataclass(frozen=True)
class LineTiles:
    """taps: rows of a window; run: elements under a row of taps; apart: elements of a line between windows.

    width: output pixels for which a line is copied; length: elements of a line; kept_bytes: bytes of the weights and of
    what the ends of sums read.
    """

    taps: int
    run: int
    apart: int
    width: int
    kept_bytes: int

    @property
    def blocks(self) -> int:
        """Products of a sum, in blocks of DOT_TERMS."""
        return -(-self.taps * self.run // DOT_TERMS)

    @property
    def length(self) -> int:
        """Elements of a line: whole columns of taps."""
        return -(-((self.width - 1) * self.apart + DOT_TERMS * self.blocks) // self.taps) * self.taps

    @property
    def scratch_bytes(self) -> int:
        """Bytes of what is kept, of a line and of two windows."""
        return self.kept_bytes + _words(self.length) + _words(_TILE * DOT_TERMS * self.blocks)

    def of_halves(self, size: int) -> LineTiles | None:
        """Return tiles with lines of half a row; None if they need more than `size` bytes, or a row cannot be
        halved."""
        half = replace(self, width=self.width // 2)
        return half if self.width % (2 * _TILE) == 0 and half.scratch_bytes <= size else None


def _words(elements: int) -> int:
    """Return the bytes of int16 elements, rounded up to 8."""
    return -(-_WIDE * elements // _ON) * _ON


def line_tiles(width: int, outputs: int, apart: int, run: int, words: int, rows: DenseTiles) -> LineTiles | None:
    """Return the form if it has fewer products than `rows` in no more memory. words: per channel, read by the ends."""
    terms = -(-rows.taps * run // DOT_TERMS) * DOT_TERMS
    if rows.tile != (_TILE, _TILE) or terms > MOST_BLOCKS * DOT_TERMS or terms >= rows.taps * rows.run:
        return None
    form = LineTiles(rows.taps, run, apart, width, _words(outputs * terms) + _WORD * words * outputs)
    return form if form.scratch_bytes <= rows.scratch_bytes else None
