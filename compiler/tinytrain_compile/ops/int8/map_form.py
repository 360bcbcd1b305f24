"""Depthwise QConvs in steps of one whose maps are copied (tt_depthwise.h): with 3x3 taps, and with dilated ones."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.int8.conv_form import forward_depthwise, geometry, is_spread, short_ends
from tinytrain_compile.ops.int8.tiles import DEPTHWISE_BYTES, DOT_TERMS
from tinytrain_compile.ops.names import operand, result

TAPS, TILE, REACH = 3, 2, 4095
"""Taps along each axis; outputs of a tile; the largest offset of an instruction, in bytes."""
_WIDE, _LARGEST_STEP = 2, 510
"""Bytes of an element in scratch; most elements that a load moves on by."""
_TILE, _HALF, _LAST, _ROW, _LINE, _CELL, _CLEAR = 67, 38, 36, 30, 20, 4.5, 20
"""Instructions of a tile, of one of one row, of one of one column, of a row of tiles, and to widen a row and an element
of the image; of a column, to clear its border."""
_TILES, _END, _TURN, _MAP = ((TILE, TILE), (2 * TILE, 1)), 8, 15, 30
"""Tiles of larger windows; instructions of the end of an output of theirs, of a tile besides its columns, and of a map."""
_MOST_TAPS, _RUN, _LINE_TAP = 16, 4, 6.5
"""Most taps of a layer of one row; its outputs that are computed together, and instructions of a tap of theirs."""
_LEAST, _USED = 24, 0.72
"""Outputs from which on this form pays, and the part of whole tiles that they are at least without dilation."""
_ROOM = DEPTHWISE_BYTES // 2
"""Bytes of scratch that a layer without dilation may take even if the plan of other cores needs less."""


@dataclass(frozen=True)
class Axis:
    """tt_axis of tt_depthwise.h."""

    image: int
    out: int
    image_step: int
    out_step: int
    pad: int
    maps: int

    @property
    def parts(self) -> list[int]:
        """Output elements of each interleaved map."""
        return [-(-(self.out - part) // self.maps) for part in range(self.maps)]

    @property
    def tiles(self) -> int:
        """Tiles of all maps."""
        return sum(-(-part // TILE) for part in self.parts)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the struct."""
        return (self.image, self.out, self.image_step, self.out_step, self.pad, self.maps)


@dataclass(frozen=True)
class PairedMaps:
    """Cut of a layer for tt_depthwise_pairs.

    Maps are interleaved along `down` only. turned: the columns of the layer are taken for rows. strip: output rows of a map
    whose inputs are in scratch together. own: whether every map has its own place there, so that its border is cleared
    once.
    """

    down: Axis
    across: Axis
    turned: bool
    strip: int
    own: bool

    @property
    def rows(self) -> int:
        """Elements of a column of the image of a map."""
        return (self.strip + TAPS) // 2 * 2

    @property
    def elements(self) -> int:
        """Elements of the image of a map."""
        return self.rows * (self.across.out + (TAPS - 1) * self.across.maps)

    @property
    def scratch_elements(self) -> int:
        """Elements of all images in scratch."""
        return self.elements * (self.down.maps if self.own else 1)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of these."""
        return _WIDE * self.scratch_elements

    @property
    def fits(self) -> bool:
        """Tell if all numbers fit into instructions, and each row has a tile."""
        far = (2 * self.across.maps - 1) * self.rows
        return self.across.out >= TILE and 2 * self.across.out_step <= REACH and far <= _LARGEST_STEP

    @property
    def cost(self) -> float:
        """Estimated instructions of a channel."""
        total, wide = 0.0, self.across.out
        tiles, halves = wide // TILE * _TILE + wide % TILE * _LAST, -(-wide // TILE) * _HALF
        for tall in self.down.parts:
            for begin in range(0, tall, self.strip):
                high = min(self.strip, tall - begin)
                total += high // TILE * (tiles + _ROW) + high % TILE * (halves + _ROW)
                total += (high + TAPS - 1) * (_LINE + _CELL * wide) + (0 if self.own else _CLEAR * wide)
        return total


def paired_maps(node: Node, room: int) -> PairedMaps | None:
    """Return the cheapest way in `room` bytes of scratch, None if there is none or the map is too small."""
    ways = [way for way in _ways(node) if way.scratch_bytes <= room]
    return min(ways, key=lambda way: (way.cost, way.turned, way.strip), default=None)


def map_room(node: Node) -> int:
    """Return the bytes of scratch that a depthwise QConv is given, so that these forms can compute it."""
    least = forward_depthwise(node).scratch_bytes
    room = max(least, DEPTHWISE_BYTES if is_spread(node) else _ROOM)
    way = paired_maps(node, room) or spread_maps(node, room)
    return max(least, way.scratch_bytes if way else 0)


@dataclass(frozen=True)
class SpreadMaps:
    """Cut of a layer for tt_depthwise_spread.

    window: tt_window of tt_depthwise.h; tile: outputs along both axes that are computed together; own: see PairedMaps.
    """

    down: Axis
    across: Axis
    window: tuple[int, int, int, int]
    tile: tuple[int, int]
    own: bool

    @property
    def elements(self) -> int:
        """Elements of the image of a map."""
        high, wide = self.tile
        rows = -(-max(self.down.parts) // high) * high + self.window[0] // 2 * 2
        return rows * (self.across.image + 2 * (wide - 1))

    @property
    def scratch_elements(self) -> int:
        """Elements of the taps and of all images in scratch."""
        tall, flat, _, _ = self.window
        return 4 * (tall // 2 + 1) * flat + self.elements * (self.down.maps if self.own else 1)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of these."""
        return _WIDE * self.scratch_elements

    @property
    def columns(self) -> int:
        """Columns of taps that meet the image, of all tiles of a row."""
        wide, flat, across = self.tile[1], self.window[1], self.across
        places = (q + s * across.maps - across.pad for q in range(0, across.out, wide) for s in range(flat))
        return sum(-wide < place < across.image for place in places)

    @property
    def cost(self) -> float:
        """Estimated instructions of a channel."""
        (high, wide), words = self.tile, self.window[0] // 2 + 1
        column = high * wide / 2 * (self.window[0] + 1) + words + wide * (words + high // 2 - 1) + 4
        rows = sum(-(-part // high) for part in self.down.parts)
        lines = min(self.down.image, self.across.image * self.down.maps)
        ends = _END * self.down.out * self.across.out + _TURN * rows * -(-self.across.out // wide)
        return rows * self.columns * column + ends + lines * _LINE + self.down.maps * _MAP


def spread_maps(node: Node, room: int) -> SpreadMaps | None:
    """Return the cheapest cut of a dilated layer in `room` bytes of scratch; None for others, and if it has no room."""
    conv, axes = geometry(node), _axes(node)
    if not is_spread(node) or conv.split is not None:
        return None
    (tall, flat), ways = conv.kernel, list[SpreadMaps]()
    for (down, across), window in ((axes, (tall, flat, flat, 1)), (axes[::-1], (flat, tall, 1, flat))):
        ways += [SpreadMaps(down, across, window, tile, own) for tile in _TILES for own in (True, False)]
    return min((way for way in ways if way.scratch_bytes <= room), key=lambda way: (way.cost, not way.own), default=None)


@dataclass(frozen=True)
class LineMap:
    """A layer for tt_depthwise_line."""

    axis: Axis
    taps: int

    @property
    def elements(self) -> int:
        """Elements of scratch."""
        return self.axis.out + (self.taps - 1) * self.axis.maps + 1

    @property
    def cost(self) -> float:
        """Estimated instructions of a channel."""
        return -(-self.axis.out // _RUN) * (_LINE_TAP * self.taps + 3) + _END * self.axis.out


def line_map(node: Node, room: int) -> LineMap | None:
    """Return the cut of a dilated layer of one row or one column; None for others, and if maps cost less."""
    conv = geometry(node)
    if not is_spread(node) or conv.split is not None:
        return None
    for axis, other, taps, flat in zip(_axes(node), _axes(node)[::-1], conv.kernel, conv.kernel[::-1], strict=True):
        if other.image == other.out == flat == 1 and taps <= _MOST_TAPS:
            line, maps = LineMap(axis, taps), spread_maps(node, room)
            return line if maps is None or line.cost <= maps.cost else None
    return None


def _axes(node: Node) -> tuple[Axis, Axis]:
    """Return the axes of a layer: (rows, columns)."""
    conv, (_, height, width, channels) = geometry(node), operand(node, "x").shape
    _, high, wide, _ = result(node, "y").shape
    rows = Axis(height, high, width * channels, wide * channels, conv.pads[0], conv.dilations[0])
    return rows, Axis(width, wide, channels, channels, conv.pads[1], conv.dilations[1])


def _ways(node: Node) -> list[PairedMaps]:
    """Return all ways to cut a layer.

    A map that its output may overwrite is copied as the plan has it, or more of it at a time.
    """
    conv, (_, high, wide, _) = geometry(node), result(node, "y").shape
    if conv.kernel != (TAPS, TAPS) or conv.strides != (1, 1) or conv.split is not None or not short_ends(node):
        return []
    rows, columns = _axes(node)
    dilated = is_spread(node)
    used = high * wide / (TILE * TILE * -(-high // TILE) * -(-wide // TILE))
    if high * wide < _LEAST or (used < _USED and not dilated):
        return []
    own, ways = forward_depthwise(node).strip, list[PairedMaps]()
    for turned, (down, across) in enumerate(((rows, columns), (columns, rows))):
        whole = max(down.parts)
        strips = {whole, *range(TILE, whole, TILE)}
        if not dilated:
            strips = {whole} if turned else {strip for strip in strips if strip % own == 0}
        ways += [PairedMaps(down, across, turned == 1, strip, False) for strip in sorted(strips)]
        if down.maps > 1:
            ways.append(PairedMaps(down, across, turned == 1, whole, True))
    return [way for way in ways if way.fits]
