"""Depthwise layers with dilated windows whose maps are copied (tt_spread.h), QConvs and data gradients: their cut."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.int8.conv_form import forward_depthwise, geometry, is_spread, spreads_error
from tinytrain_compile.ops.int8.map_form import Axis, axes_of, paired_maps
from tinytrain_compile.ops.int8.tiles import DEPTHWISE_BYTES

_WIDE = 2
"""Bytes of an element in scratch."""
_TILES = ((2, 2), (4, 1))
"""Outputs along both axes that are computed together."""
_MOST_TAPS, _RUN = 16, 4
"""Most taps of a layer of one row, and its outputs that are computed together."""
_END, _TURN, _MAP, _LINE, _LINE_TAP, _LINE_TURN = 8, 15, 30, 20, 6.5, 3
"""Instructions on a Cortex-M7: of the end of an output, of a tile besides its taps, of a map, of a line that is
widened; of a tap of four outputs of one row, and of these besides their taps."""
_ROOM = DEPTHWISE_BYTES // 2
"""Bytes of scratch that a layer without dilation may take even if the plan of other cores needs less."""


@dataclass(frozen=True)
class SpreadMaps:
    """Cut of a layer for tt_depthwise_spread.

    window: tt_window of tt_spread.h; tile: outputs along both axes that are computed together; own: see PairedMaps.
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


def _is_taken(node: Node) -> bool:
    """Tell whether a layer is dilated, in steps of one, and its weight in one part."""
    before = min(axis.pad for axis in axes_of(node))
    return (is_spread(node) or spreads_error(node)) and geometry(node).split is None and before >= 0


def has_even_maps(node: Node) -> bool:
    """Tell whether a layer's dilation divides its columns, their border and those of its output, into few wide maps."""
    across = axes_of(node)[1]
    even = all(number % across.maps == 0 for number in (across.image, across.out, across.pad))
    return even and across.out >= 2 * across.maps**2


def spread_maps(node: Node, room: int) -> SpreadMaps | None:
    """Return the cheapest cut of a dilated layer in `room` bytes of scratch; None for others, and if it has no room."""
    if not _is_taken(node):
        return None
    (rows, columns), (tall, flat) = axes_of(node), geometry(node).kernel
    on = 1 if node.op == "QConv" else -1  # a data gradient has its taps backwards
    turns = ((rows, columns, (tall, flat, on * flat, on)), (columns, rows, (flat, tall, on, on * flat)))
    ways = [SpreadMaps(*turn, tile, own) for turn in turns for tile in _TILES for own in (True, False)]
    fitting = [way for way in ways if way.scratch_bytes <= room]
    return min(fitting, key=lambda way: (way.cost, not way.own), default=None)


@dataclass(frozen=True)
class LineMap:
    """A layer for tt_depthwise_line."""

    axis: Axis
    taps: int

    @property
    def scratch_elements(self) -> int:
        """Elements of scratch."""
        return self.axis.out + (self.taps - 1) * self.axis.maps + 1

    @property
    def is_short(self) -> bool:
        """Tell whether maps would have fewer than two tiles: then lines are faster even without products in pairs."""
        return self.axis.out < 2 * _RUN * self.axis.maps

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch."""
        return _WIDE * self.scratch_elements

    @property
    def cost(self) -> float:
        """Estimated instructions of a channel."""
        return -(-self.axis.out // _RUN) * (_LINE_TAP * self.taps + _LINE_TURN) + _END * self.axis.out


def line_map(node: Node, room: int) -> LineMap | None:
    """Return the cut of a dilated layer of one row or one column.

    None for others, if it has no room, and if maps cost less.
    """
    if not _is_taken(node):
        return None
    axes, kernel, maps = axes_of(node), geometry(node).kernel, spread_maps(node, room)
    for axis, other, taps, flat in zip(axes, axes[::-1], kernel, kernel[::-1], strict=True):
        line = LineMap(axis, taps)
        if other.image == other.out == flat == 1 and taps <= _MOST_TAPS and line.scratch_bytes <= room:
            return line if maps is None or line.cost <= maps.cost else None
    return None


def map_room(node: Node) -> int:
    """Return the bytes of scratch of a depthwise QConv or of a dilated data gradient, whatever computes it."""
    least = forward_depthwise(node).scratch_bytes
    room = max(least, _ROOM if node.op == "QConv" and not is_spread(node) else DEPTHWISE_BYTES)
    pairs = paired_maps(node, room) if node.op == "QConv" else None
    ways = [pairs] if pairs else [line_map(node, room), spread_maps(node, room)]
    return max([least, *(way.scratch_bytes for way in ways if way)])
