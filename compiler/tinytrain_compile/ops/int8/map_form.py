"""Depthwise 3x3 QConvs in steps of one whose maps are copied (tt_depthwise.h): their cut."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.int8.conv_form import forward_depthwise, geometry, is_spread, short_ends
from tinytrain_compile.ops.int8.gather_form import map_of
from tinytrain_compile.ops.names import result

TAPS, TILE, REACH = 3, 2, 4095
"""Taps along each axis; outputs of a tile; the largest offset of an instruction, in bytes."""
_WIDE, _LARGEST_STEP = 2, 510
"""Bytes of an element in scratch; most elements that a load moves on by."""
_TILE, _HALF, _LAST, _ROW, _LINE, _CELL, _CLEAR = 67, 38, 36, 30, 20, 4.5, 20
"""Instructions of a tile, of one of one row, of one of one column, of a row of tiles, and to widen a row and an element
of the image; of a column, to clear its border."""
_LEAST, _USED = 24, 0.72
"""Outputs from which on this form pays, and the part of whole tiles that they are at least without dilation."""


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
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the struct."""
        return (self.image, self.out, self.image_step, self.out_step, self.pad, self.maps)


@dataclass(frozen=True)
class PairedMaps:
    """Cut of a layer for tt_depthwise_pairs.

    Maps are interleaved along `down` only. turned: the columns of the layer are taken for rows. strip: output rows of a
    map whose inputs are in scratch together. own: whether every map has its own place there, so that its border is
    cleared once.
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


def axes_of(node: Node) -> tuple[Axis, Axis]:
    """Return the axes (rows, columns) of the image that a layer's windows read, and of what it writes."""
    conv, ((_, height, width, channels), (_, high, wide, _), (top, left)) = geometry(node), map_of(node)
    rows = Axis(height, high, width * channels, wide * channels, top, conv.dilations[0])
    return rows, Axis(width, wide, channels, channels, left, conv.dilations[1])


def _ways(node: Node) -> list[PairedMaps]:
    """Return all ways to cut a layer.

    A map that its output may overwrite is copied as the plan has it, or more of it at a time.
    """
    conv, (_, high, wide, _) = geometry(node), result(node, "y").shape
    if conv.kernel != (TAPS, TAPS) or conv.strides != (1, 1) or conv.split is not None or not short_ends(node):
        return []
    rows, columns = axes_of(node)
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
