"""Depthwise layers with dilated windows whose taps are gathered from a copy of the image (tt_mve_taps.h): its cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.int8.conv_form import geometry
from tinytrain_compile.ops.names import operand, result

LANES, FOUR = 16, 4
"""Taps of a gather; outputs that are computed together."""
MOST_VECTORS, LARGEST_PLACE, LARGEST_LISTED = 4, 255, 65535
"""TT_MOST_TAPS16 of tt_mve_taps.h; places of taps are bytes, those of windows 16 bits."""


_LIST_ROW, _LIST_EIGHT, _VECTOR, _STRIP, _ODD = 20, 13, 24, 45, 30
"""Instructions of a row of a list, and of eight places in it; of each vector of a channel's taps; of a strip, and if
its outputs are not whole fours."""
_EIGHT, _ROW, _EIGHT_OF_ROW, _BORDER_ROW = 5, 15, 5, 20
"""Instructions of eight elements that are copied by a list; of a row that is copied without one, and of eight of its
elements; of a row of the border."""
_FOUR, _NEXT, _WINDOWS = 13.5, 4, 12
"""Instructions of four outputs and their ends, of reading addresses from the list, and of 16 taps of four windows. All
were fitted to 220 layers, whose instructions they give within 8 % but for one in a hundred."""


@dataclass(frozen=True)
class Copied:
    """tt_copied and tt_listed of tt_mve_taps.h."""

    high: int
    wide: int
    strip: int
    rows: int
    before: int
    pitch: int
    size: int
    vectors: int
    windows: int
    elements: int
    first: int
    places: int

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the taps' places, of the lists, and of the copy."""
        return LANES * self.vectors + 2 * self.places + self.size

    @property
    def numbers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers of the two structs."""
        rows = (self.high, self.wide, self.strip, self.rows)
        return (*rows, self.before, self.pitch, self.size, self.vectors), (
            self.windows,
            self.elements,
            self.first,
            self.places,
        )


Shape = tuple[int, ...]


def map_of(node: Node) -> tuple[Shape, Shape, tuple[int, int]]:
    """Return the shapes of the image that windows read and of the output, and the border (rows, columns) before it."""
    conv = geometry(node)
    if node.op == "QConv":
        return operand(node, "x").shape, result(node, "y").shape, conv.pads[:2]
    before = [(conv.kernel[axis] - 1) * conv.dilations[axis] - conv.pads[axis] for axis in (0, 1)]
    return operand(node, "g").shape, result(node, "error").shape, (before[0], before[1])


def _cuts(node: Node) -> list[Copied]:
    """Return all ways to cut a layer, none if its taps are too many or too far apart."""
    conv, ((_, height, width, _), (_, high, wide, _), (top, left)) = geometry(node), map_of(node)
    reach, step = (conv.kernel[1] - 1) * conv.dilations[1], conv.strides[1]
    behind = max(0, (wide - 1) * step + reach - left - (width - 1))
    before = max(left, behind)
    pitch, vectors = before + width, -(-math.prod(conv.kernel) // LANES)
    if vectors > MOST_VECTORS or (conv.kernel[0] - 1) * pitch + reach > LARGEST_PLACE:
        return []
    shared, cuts = wide == width and conv.strides == (1, 1), list[Copied]()
    for strip in sorted({-(-high // strips) for strips in range(1, high + 1)}):
        rows = (strip - 1) * conv.strides[0] + (conv.kernel[0] - 1) * conv.dilations[0] + 1
        filled = min(rows, top + height)  # after which there is border only
        size = rows * pitch + behind + step * max(0, FOUR - wide) * (high == 1)
        windows = strip if high > 1 else 0
        lists = [(windows, 0, 0, max(windows * wide, FOUR) if windows else 0)]
        if windows and shared:
            lists.append((max(filled, strip), filled, 0, max(filled * width, strip * wide, FOUR)))
        elif windows:
            lists.append((windows, filled, lists[0][3], lists[0][3] + filled * width))
        cuts += [Copied(high, wide, strip, rows, before, pitch, size, vectors, *of) for of in lists]
    least = 1 if node.op == "QConv" else FOUR
    return [cut for cut in cuts if cut.size <= LARGEST_LISTED and cut.strip * wide >= least]


def cost_of(node: Node, cut: Copied) -> float:
    """Estimate the instructions of a channel."""
    conv, ((_, height, width, _), _, (top, _)) = geometry(node), map_of(node)
    strips, eights = -(-cut.high // cut.strip), -(-width // 8)
    begin = [min(i * cut.strip, cut.high - cut.strip) * conv.strides[0] - top for i in range(strips)]
    inside = sum(max(0, min(height, first + cut.rows) - max(first, 0)) for first in begin)
    copied = inside * (_ROW + _EIGHT_OF_ROW * eights)
    if cut.elements:
        copied = _EIGHT * -(-inside * width // 8)
    border = _BORDER_ROW * (strips * cut.rows - inside) if strips > 1 else 0
    fours = -(-cut.strip * cut.wide // FOUR) * (_FOUR + _NEXT * (cut.windows > 0) + _WINDOWS * cut.vectors)
    strip = _STRIP + _ODD * (cut.strip * cut.wide % FOUR > 0) + fours
    return _VECTOR * cut.vectors + copied + border + strips * strip


def _lists_cost(node: Node, cut: Copied) -> float:
    """Estimate the instructions of a call that fill the lists, for each channel."""
    count, _, width, channels = map_of(node)[0]
    rows = cut.windows + (cut.elements if cut.first else 0)
    return rows * (_LIST_ROW + _LIST_EIGHT * -(-width // 8)) / (count * channels)


def gathered_windows(node: Node, room: int) -> Copied | None:
    """Return the cheapest copy in `room` bytes, None if there is none."""
    cuts = [cut for cut in _cuts(node) if cut.scratch_bytes <= room]
    return min(cuts, key=lambda cut: (cost_of(node, cut) + _lists_cost(node, cut), cut.scratch_bytes), default=None)
