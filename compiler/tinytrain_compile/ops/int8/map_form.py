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
"""Bytes of an element in scratch; most elements from column to column."""
_TILE, _HALF, _LAST, _ROW, _LINE, _CELL, _CLEAR = 66, 37, 36, 30, 20, 4.5, 20
"""Instructions of a tile, of one of one row, of one of one column, of a row of tiles, and to widen a row and an element
of the image; of a column, to clear its border."""
_LEAST, _LEAST_DILATED, _LEAST_SMALL, _USED, _USED_SMALL = 24, 14, 4, 0.72, 0.3
"""Outputs of a map, on average, from which on this form pays, and the part of whole tiles that they are at least.
Small: of dilated maps, if scratch is there anyway. 3x3 7x7x16 with dilation 2 takes 30,882 instead of 44,587
instructions on a Cortex-M7."""
_ROOM = DEPTHWISE_BYTES // 2
"""Bytes of scratch that this form may take even if the plan of other cores needs less."""


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

    turned: its columns are taken for rows. strip: output rows whose inputs are in scratch together. own: whether every
    interleaved map has its own place there, so that its border is cleared once.
    """

    down: Axis
    across: Axis
    turned: bool
    strip: int
    own: bool

    @property
    def elements(self) -> int:
        """Elements of the image of a map."""
        rows, columns = (self.strip + TAPS) // 2 * 2, max(self.across.parts) + TAPS - 1
        return rows * columns

    @property
    def scratch_elements(self) -> int:
        """Elements of all images in scratch."""
        return self.elements * (self.down.maps * self.across.maps if self.own else 1)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of these."""
        return _WIDE * self.scratch_elements

    @property
    def fits(self) -> bool:
        """Tell if all numbers fit into instructions, and each row has a tile."""
        step = self.across.maps * self.across.out_step
        return min(self.across.parts) >= TILE and 2 * step <= REACH and self.strip + TAPS <= _LARGEST_STEP

    @property
    def cost(self) -> float:
        """Estimated instructions of a channel."""
        total = 0.0
        for tall in self.down.parts:
            strips = [min(self.strip, tall - begin) for begin in range(0, tall, self.strip)]
            for wide in self.across.parts:
                tiles = wide // TILE * _TILE + wide % TILE * _LAST
                for high in strips:
                    total += high // TILE * (tiles + _ROW) + high % TILE * (-(-wide // TILE) * _HALF + _ROW)
                    total += (high + TAPS - 1) * (_LINE + _CELL * wide) + (0 if self.own else _CLEAR * wide)
        return total


def paired_maps(node: Node, room: int, small: bool = False) -> PairedMaps | None:
    """Return the cheapest way in `room` bytes of scratch, None if there is none or the maps are too small.

    small: dilated maps may be, if another form has that scratch.
    """
    ways = [way for way in _ways(node, small) if way.scratch_bytes <= room]
    return min(ways, key=lambda way: (way.cost, way.turned, way.strip), default=None)


def map_room(node: Node) -> int:
    """Return the bytes of scratch that a depthwise QConv is given, so that these forms can compute it."""
    least = forward_depthwise(node).scratch_bytes
    way = paired_maps(node, max(least, _ROOM)) or spread_maps(node, max(least, DEPTHWISE_BYTES))
    return max(least, way.scratch_bytes if way else 0)


@dataclass(frozen=True)
class SpreadMaps:
    """Cut of a layer for tt_depthwise_spread.

    window: tt_window of tt_depthwise.h; own: see PairedMaps.
    """

    down: Axis
    across: Axis
    window: tuple[int, int, int, int]
    own: bool

    @property
    def tile(self) -> int:
        """Outputs of a column that are computed together."""
        return max(1, min(DOT_TERMS, *self.down.parts))

    @property
    def elements(self) -> int:
        """Elements of the image of a map."""
        tall, flat, _, _ = self.window
        return (max(self.down.parts) + -(-tall // 2) * 2 - 1) * (max(self.across.parts) + flat - 1)

    @property
    def scratch_elements(self) -> int:
        """Elements of the taps and of all images in scratch."""
        tall, flat, _, _ = self.window
        return -(-tall // 2) * 2 * flat + self.elements * (self.down.maps * self.across.maps if self.own else 1)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of these."""
        return _WIDE * self.scratch_elements


def spread_maps(node: Node, room: int) -> SpreadMaps | None:
    """Cut a layer whose dilation does not divide its map's columns, their border or those of the output.

    None for others, and if `room` bytes are too few.
    """
    conv, (rows, across) = geometry(node), _axes(node)
    if not _uneven(node) or conv.split is not None:
        return None
    window = (conv.kernel[1], conv.kernel[0], 1, conv.kernel[1])
    ways = [SpreadMaps(across, rows, window, own) for own in (True, False)]
    return next((way for way in ways if way.scratch_bytes <= room), None)


def _uneven(node: Node) -> bool:
    """Tell whether a layer's dilation does not divide its map's columns, their border or those of the output."""
    across = _axes(node)[1]
    even = all(number % across.maps == 0 for number in (across.image, across.out, across.pad))
    return is_spread(node) and not even


def _axes(node: Node) -> tuple[Axis, Axis]:
    """Return the axes of a layer: (rows, columns)."""
    conv, (_, height, width, channels) = geometry(node), operand(node, "x").shape
    _, high, wide, _ = result(node, "y").shape
    rows = Axis(height, high, width * channels, wide * channels, conv.pads[0], conv.dilations[0])
    return rows, Axis(width, wide, channels, channels, conv.pads[1], conv.dilations[1])


def _ways(node: Node, small: bool) -> list[PairedMaps]:
    """Return all ways to cut a layer; small: see paired_maps.

    A map that its output may overwrite is copied as the plan has it, or more of it at a time.
    """
    conv, (_, high, wide, _) = geometry(node), result(node, "y").shape
    if conv.kernel != (TAPS, TAPS) or conv.strides != (1, 1) or conv.split is not None or not short_ends(node):
        return []
    rows, columns = _axes(node)
    maps, outputs, dilated = rows.maps * columns.maps, high * wide, is_spread(node)
    used = outputs / (TILE * TILE * rows.tiles * columns.tiles)
    enough = outputs >= maps * (_LEAST_DILATED if dilated else _LEAST) and used >= _USED
    if not enough and not (small and dilated and outputs >= maps * _LEAST_SMALL and used >= _USED_SMALL):
        return []
    own, ways = forward_depthwise(node).strip, list[PairedMaps]()
    for turned, (down, across) in enumerate(((rows, columns), (columns, rows))):
        whole = max(down.parts)
        strips = {whole, *range(TILE, whole, TILE)}
        if not dilated:
            strips = {whole} if turned else {strip for strip in strips if strip % own == 0}
        ways += [PairedMaps(down, across, turned == 1, strip, False) for strip in sorted(strips)]
        if maps > 1:
            ways.append(PairedMaps(down, across, turned == 1, whole, True))
    return [way for way in ways if way.fits]
