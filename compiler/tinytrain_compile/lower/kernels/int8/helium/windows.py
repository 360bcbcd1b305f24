"""Depthwise convolutions and their data gradients on vectors: cutting a channel's image, and the helper's call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import te, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES, LARGEST_PITCH
from tinytrain_compile.lower.kernels.base import (
    Index,
    KernelSpec,
    called,
    first,
    plain,
    struct,
    tensor,
    tensors,
    written,
)
from tinytrain_compile.lower.kernels.int8.dsp.windows import RowBlock, output_shape
from tinytrain_compile.lower.kernels.int8.helium.odd import end_of
from tinytrain_compile.lower.kernels.int8.operands import kept_of
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import (
    backward_depthwise,
    backward_phases,
    forward_depthwise,
    geometry,
    is_spread,
    shared_steps,
    spreads_error,
)
from tinytrain_compile.ops.int8.tiles import DepthwiseTiles
from tinytrain_compile.ops.names import attrs_of, operand, result

BYTES = 16
"""Products of an instruction."""
LARGEST_OFFSET, LARGEST_AREA = 127, 254
"""Largest offset of a load, in bytes; most taps of a kernel, whose places are bytes."""
_BAND, _ROW, _EIGHT = 7, 11, 5
"""Instructions of a band that is laid row by row, of each row, and of eight pixels of one of more than eight."""
_COLUMNS, _COLUMN, _FEW_BANDS, _PLACE = 14, 4, 6, 20
"""Instructions of a band that is laid column by column, and of eight elements of each (tt_lays_columns); bands up to
which their rows are constants (tt_lays_constants), and instructions to find those of others."""
_RUN, _EIGHT_NOTED, _EDGE_RUN, _EDGE_EIGHT, _BORDER = 6, 5, 20, 8, 25
"""Instructions of a band whose elements' places are noted: of a run of columns, of eight elements, of both if the band
has rows of the border; and of laying such rows one by one, if strips differ in them."""
_LINE, _FOUR_ROWS, _FOUR, _BACK, _SUM = 20, 33, 14, 10, 9.2
"""Instructions of a row of output; of four together; of four pixels and their ends; of those if the last four of a row
begin earlier; of a vector of taps for four sums. All were fitted to 200 ways to compute 15 layers."""
_PHASE = 25
"""Instructions of one of several phases of a strip, whose taps are laid anew."""
_EDGES = 2
"""Bands of a map that have rows of its border, at most."""
_PLACES = 1 << 16
"""Elements that 16 bits tell apart."""


@dataclass(frozen=True)
class Bands:
    """tt_bands of tt_mve_windows.h: output rows of a strip and of a band, image rows and columns of one, vectors of
    taps; places: columns whose elements' places in the image are noted; phases: (rows, columns) of interleaved outputs.
    spare: bytes of lanes behind a row of less than four pixels; maps: of interleaved columns, each of `across` in a
    band."""

    strip: int
    band: int
    deep: int
    across: int
    vectors: int
    places: int = 0
    phases: tuple[int, int] = (1, 1)
    spare: int = 0
    maps: int = 1

    @property
    def scratch_bytes(self) -> int:
        """Bytes of a phase's taps, of all phases' tap places, of the bands, and of the elements that sums read after
        these."""
        taps = BYTES * self.vectors * (1 + math.prod(self.phases))
        noted = -(-2 * self.places * self.deep // BYTES) * BYTES
        return taps + noted + -(-self.strip // self.band) * self.maps * self.across * self.deep + BYTES + self.spare

    def lanes_are_maps(self, columns: int) -> bool:
        """Tell whether lanes are pixels of four interleaved maps of `columns` (tt_lanes_are_maps)."""
        fours = self.maps % LANES == 0 and columns % self.maps == 0 and self.band % LANES != 0
        return fours and BYTES * (self.vectors - 1) + 3 * self.across * self.deep <= LARGEST_OFFSET

    def cost(self, width: int, read: int, strips: int, edges: int, differ: bool, columns: int) -> float:
        """Estimate the instructions of a channel, for phases (or maps) of `width` pixels in a row.

        read: columns of the image in a band (of a map); strips: of all maps of rows; edges: most of their bands that
        have rows of the border; differ: whether strips of a map differ in these; columns: of the output.
        """
        bands, by_rows = strips * -(-self.strip // self.band), self.band % LANES == 0
        edges = min(edges, bands)
        if self.places:
            runs, eights = -(-read // self.places), -(-read * self.deep // 8)
            inside = (bands - edges) * (_RUN * runs + _EIGHT_NOTED * eights)
            laid = self.maps * (inside + edges * (_EDGE_RUN * runs + _EDGE_EIGHT * eights))
        else:
            row = _ROW + (_EIGHT * -(-read // 8) if read > 8 else 0)
            rows = min(self.deep * row, (_COLUMNS + _COLUMN * read) * -(-self.deep // 8))
            steady = not differ and bands * -(-self.deep // 8) <= _FEW_BANDS
            laid = bands * (_BAND + self.maps * rows + (0 if steady else _PLACE)) + _BORDER * self.maps * edges * differ
        lines = bands * (self.band // LANES if by_rows else self.band) * math.prod(self.phases) * self.maps
        fours = width if by_rows else -(-width // LANES)
        back = 0 if by_rows or (width % LANES == 0 and self.maps == 1) else _BACK * min(self.maps, 2)
        if self.lanes_are_maps(columns):
            lines, fours, back = lines // LANES, width, 0
        line = _FOUR_ROWS if by_rows else _LINE * min(self.maps, 2)
        laid += _PHASE * strips * math.prod(self.phases) if self.phases != (1, 1) else 0
        return laid + lines * (line + fours * (_FOUR + back + _SUM * self.vectors))


@dataclass(frozen=True)
class Window:
    """Window of a phase's sums: rows and columns of taps, distances between windows, rows and columns by which the last
    phase is ahead of the first."""

    taps: tuple[int, int]
    strides: tuple[int, int]
    lead: tuple[int, int] = (0, 0)


def cut_bands(
    room: int,
    phases: tuple[int, int],
    out_hw: tuple[int, int],
    window: Window,
    strips: Sequence[int],
    image_width: int,
    narrow: bool = False,
    pitches: tuple[int, int] | None = None,
    maps: tuple[int, int] = (1, 1),
    whole: tuple[int, int] = (0, 0),
    edges: int = _EDGES,
) -> tuple[float, Bands] | None:
    """Return the cheapest bands whose scratch is at most `room` bytes, and their cost; None if there are none.

    strips: permitted ones; narrow: whether rows may have less than four pixels; pitches: elements of the image from row
    to row and from pixel to pixel, unless its rows are anywhere. maps: interleaved rows and columns; out_hw is of the
    largest, `whole` of all of them. edges: bands of each that have rows of the border. If phases differ in their
    extents, lanes are pixels of a row.
    """
    width, ragged = -(-out_hw[1] // phases[1]), out_hw[0] % phases[0] + out_hw[1] % phases[1] > 0
    across = (width - 1) * window.strides[1] + window.taps[1] + window.lead[1]
    read = min(across, -(-image_width // maps[1]))
    ways: list[tuple[float, Bands]] = []
    for strip in strips:
        for band in (rows for rows in range(1, strip + 1) if ragged or strip % rows == 0 or rows % LANES == 0):
            deep = (band - 1) * window.strides[0] + window.taps[0] + window.lead[0]
            vectors = -(-((window.taps[1] - 1) * deep + window.taps[0]) // BYTES)
            by_rows = band % LANES == 0
            if by_rows and ragged:
                continue
            step = window.strides[0] if by_rows else window.strides[1] * deep
            spare = 0 if by_rows else step * max(LANES - width, 0)
            reach = BYTES * (vectors - 1) + (LANES - 1) * step
            turns = -(-out_hw[0] // (phases[0] * strip))
            if maps != (1, 1):
                turns = sum(-(-(whole[0] - row) // (maps[0] * strip)) for row in range(maps[0]))
            few = spare or ((ragged or maps != (1, 1)) and width == LANES)
            fits = max(deep, reach) <= LARGEST_OFFSET and (by_rows or narrow or not few)
            for places in _noted(read, deep, pitches, 3 if maps[1] > 1 else 2) if fits else ():
                bands = Bands(strip, band, deep, across, vectors, places, phases, spare, maps[1])
                if bands.scratch_bytes <= room:
                    ways.append(
                        (
                            bands.cost(width, read, turns, edges * maps[0], strip * phases[0] < out_hw[0], whole[1]),
                            bands,
                        )
                    )
    return min(ways, key=lambda way: (way[0], way[1].scratch_bytes), default=None)


def _noted(read: int, deep: int, pitches: tuple[int, int] | None, runs: int) -> list[int]:
    """Return how many columns of a band may have their elements' places noted, which are 16 bits.

    runs: most in a row.
    """
    if pitches is None:
        return [0]
    parts = {-(-read // count) for count in range(1, runs + 1)}
    return [0, *(n for n in sorted(parts) if deep * pitches[0] + n * pitches[1] < _PLACES)]


def band_depthwise(node: Node, block: RowBlock | None) -> KernelSpec | None:
    """Compute a depthwise QConv: a strip of its plan at a time, or a row; None if bands do not suit it."""
    attrs, (count, height, width, channels) = attrs_of(node, QConvAttrs), operand(node, "x").shape
    conv, (_, rows, columns, _) = attrs.conv, result(node, "y").shape
    tiles = _of_rows(forward_depthwise(node), block, conv.strides[0])
    if not _takes(node) or (is_spread(node) and block is not None):
        return None
    anywhere = block is not None
    cut = _cut_maps(node, tiles, anywhere)
    if cut is None:
        return None
    spread, (high, wide), window, bands = cut
    x, (w, *ends) = image_of(node, "x", block), tensors(node, "w", "bias", "multiplier", "shift")
    image = (count, height, width, channels, *conv.pads[:2], attrs.x_zero)

    def body(y: Buffer, scratch: Buffer, given: Sequence[Buffer]) -> Stmt:
        out_hw = (high if block is None else shape[1], wide)
        sizes, taps, cut = _shapes(image, window.taps, conv.strides, conv.kernel, out_hw, out_hw, bands)
        maps = struct("tt_spread_of", (*conv.dilations, *spread, rows, columns))
        places = map(first, (y, scratch, *given))
        return called(_by_rows("tt_depthwise8", block), *places, sizes, taps, maps, cut, end_of(attrs))

    inputs, shape = [x, w, *ends], output_shape(node, block.count if block else None)
    return KernelSpec(inputs, [_in_bands(inputs, block, shape, bands, body)], plain)


Maps = tuple[tuple[int, int], tuple[int, int], Window, Bands]


def _cut_maps(node: Node, tiles: DepthwiseTiles, anywhere: bool = False) -> Maps | None:
    """Cut the result into interleaved maps: (their numbers, rows and columns of the first, its window, its bands).

    None if bands do not suit it. The maps may differ by a row or a column. anywhere: rows of the image lie anywhere.
    """
    return min(_ways(node, tiles, anywhere), key=lambda way: way[0], default=(0, None))[1]


def _ways(node: Node, tiles: DepthwiseTiles, anywhere: bool) -> list[tuple[float, Maps]]:
    steps = [sorted({1, *pair}) for pair in zip(geometry(node).dilations, shared_steps(node), strict=True)]
    ways = [_cut_by(node, tiles, (rows, columns), anywhere) for rows in steps[0] for columns in steps[1]]
    return [way for way in ways if way]


def cost_in_bands(node: Node) -> float | None:
    """Estimate the instructions of a channel of a depthwise QConv, None if bands do not suit it."""
    return min((cost for cost, _ in _ways(node, forward_depthwise(node), False)), default=None)


def _cut_by(node: Node, tiles: DepthwiseTiles, spread: tuple[int, int], anywhere: bool) -> tuple[float, Maps] | None:
    """Return _cut_maps by `spread` maps, and its cost."""
    conv, (_, rows, columns, _) = geometry(node), node.outputs[0].shape
    _, _, width, channels = operand(node, "x" if node.op == "QConv" else "g").shape
    high, wide = -(-rows // spread[0]), -(-columns // spread[1])
    reach = [
        (taps - 1) * step // maps + 1 for taps, step, maps in zip(conv.kernel, conv.dilations, spread, strict=True)
    ]
    window = Window((reach[0], reach[1]), conv.strides)
    strips = range(1, rows // spread[0] + 1) if conv.dilations != (1, 1) else [tiles.strip]
    pitches = None if anywhere else (spread[0] * width * channels, spread[1] * channels)
    narrow = node.op == "QConv" and (columns % spread[1] == 0 or columns // spread[1] >= LANES)
    whole, edges = (rows, columns), (conv.pads[0] > 0) + (conv.pads[2] > 0) if node.op == "QConv" else _EDGES
    out = (high, wide)
    bands = cut_bands(
        tiles.scratch_bytes, tiles.phases, out, window, strips, width, narrow, pitches, spread, whole, edges
    )
    return (bands[0], (spread, (high, wide), window, bands[1])) if bands else None


def band_gradient(node: Node, block: RowBlock | None) -> KernelSpec | None:
    """Compute a depthwise QConvGradInput: in one strip if it fits, or row by row; None if bands do not suit it."""
    attrs, (count, height, width, channels) = attrs_of(node, QConvGradInputAttrs), operand(node, "g").shape
    conv, (_, rows, columns, _), spreads = attrs.conv, result(node, "error").shape, spreads_error(node)
    if not _takes(node) or (attrs.mask.kind == "bits" and channels % 8):
        return None
    cut = _cut_maps(node, forward_depthwise(node)) if spreads else _cut_phases(node, block)
    reach = [(conv.kernel[axis] - 1) * conv.dilations[axis] // conv.strides[axis] for axis in (0, 1)]
    if cut is None or any(reach[axis] < conv.pads[axis] // conv.strides[axis] for axis in (0, 1)):
        return None
    spread, largest, window, bands = cut
    names = ("multiplier", "shift", "w", *attrs.mask.operands)
    inputs = [*tensors(node, "peak", "p_out", "p_in"), image_of(node, "g", block), *tensors(node, *names)]
    layer, shape = (count, height, width, channels, *conv.pads[:2], 0), output_shape(node)
    if block is not None:
        largest, shape = (block.count, largest[1]), output_shape(node, block.count * conv.strides[0])
    layer, taps, cut = _shapes(
        layer, conv.kernel if spreads else window.taps, (1, 1), conv.kernel, (shape[1], columns), largest, bands
    )
    numbers = (layer, taps, struct("tt_spread_of", (*conv.dilations, *spread, rows, columns)), cut)

    def body(y: Buffer, scratch: Buffer, given: Sequence[Buffer]) -> Stmt:
        peak, p_out, p_in, g, multiplier, shift, w, *others = given
        mask, table = others[0] if attrs.mask.operands else g, [] if block is None else [others[-1]]
        places = map(first, (y, scratch, peak, g, w, multiplier, shift, mask, *table))
        return called(
            _by_rows("tt_depthwise8_error", block), *places, p_in[(0,)] - p_out[(0,)], *numbers, kept_of(attrs.mask)
        )

    return KernelSpec(inputs, [_in_bands(inputs, block, shape, bands, body), None], plain)


def _cut_phases(node: Node, block: RowBlock | None) -> Maps | None:
    """Cut a data gradient without dilations into the phases of its strides, as _cut_maps does."""
    (_, _, width, channels), (_, rows, columns, _) = operand(node, "g").shape, result(node, "error").shape
    tiles, phases = _of_rows(backward_depthwise(node), block, 1), geometry(node).strides
    if backward_phases(node) != phases and block is not None:
        return None
    window, high = _gradient_window(geometry(node), phases), -(-rows // phases[0])
    strips = [s for s in range(1, high + 1) if high % s == 0] if block is None else [1]
    pitches = (width * channels, channels) if block is None else None
    bands = cut_bands(tiles.scratch_bytes, phases, (rows, columns), window, strips, width, pitches=pitches)
    return ((1, 1), (high, -(-columns // phases[1])), window, bands[1]) if bands else None


def image_of(node: Node, name: str, block: RowBlock | None) -> te.Tensor:
    """Return the map that windows read: whole, or the image of a call for a few rows."""
    return tensor(node, name) if block is None else block.image


def _of_rows(tiles: DepthwiseTiles, block: RowBlock | None, stride: int) -> DepthwiseTiles:
    return tiles if block is None else block.depthwise(tiles, stride)


def _by_rows(helper: str, block: RowBlock | None) -> str:
    return helper if block is None else f"{helper}_rows"


def _gradient_window(conv: ConvAttrs, phases: tuple[int, int]) -> Window:
    """Return the window in which a phase of a data gradient reads the incoming error."""
    taps = (-(-conv.kernel[0] // phases[0]), -(-conv.kernel[1] // phases[1]))
    lead = [(phases[axis] - 1 + conv.pads[axis] % phases[axis]) // phases[axis] for axis in (0, 1)]
    return Window(taps, (1, 1), (lead[0], lead[1]))


def _takes(node: Node) -> bool:
    """Tell whether a channel's weights are in one place, and few."""
    conv = geometry(node)
    channels = result(node, "y" if node.op == "QConv" else "error").shape[3]
    return conv.split is None and math.prod(conv.kernel) <= LARGEST_AREA and channels < LARGEST_PITCH


def _shapes(
    image: Sequence[int],
    taps: tuple[int, int],
    strides: tuple[int, int],
    kernel: tuple[int, int],
    out_hw: tuple[Index, int],
    phase_hw: tuple[Index, int],
    bands: Bands,
) -> tuple[Expr, Expr, Expr]:
    cut = (bands.strip, bands.band, bands.deep, bands.across, bands.vectors, *bands.phases, bands.places)
    return (
        struct("tt_image_of", image),
        struct("tt_taps_of", (*taps, *strides, *kernel)),
        struct("tt_bands_of", (*out_hw, *phase_hw, *cut)),
    )


def _in_bands(
    inputs: Sequence[te.Tensor],
    block: RowBlock | None,
    shape: Sequence[Index],
    bands: Bands,
    body: Callable[[Buffer, Buffer, Sequence[Buffer]], Stmt],
) -> te.Tensor:
    """Return an int8 output that one call writes; body: (output, scratch, inputs, for rows with their table) -> the
    call."""
    scratch = tirx.decl_buffer((bands.scratch_bytes,), "int8", "bands")

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), body(y, scratch, given))

    return written([*inputs, *([block.row_at] if block else [])], shape, "int8", make)
