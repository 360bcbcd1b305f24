"""Float operators that can be computed a few rows of a map at a time, and operators whose bytes need not move.

Integer operators are in int8/rows.py. The bytes of a Concat may be its inputs', and those of a Slice a run of its
input.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from tinytrain_compile.ir.types import Node, Value


@dataclass(frozen=True)
class RowSum:
    """An update that sums over rows: `add` adds one row of its maps to `total`, `apply` makes the results from the
    total.

    total: int32, begins as 0. add: a node on maps of one row each. apply: a node with the update's results.
    """

    total: Value
    add: Node
    apply: Node


@dataclass(frozen=True)
class RowForm:
    """One row of a node's result, or of the map that it sums. maps: the inputs that are read by rows; others are read
    whole.

    Row r reads `reach` rows of its first map from row r step - pad on, as far as they exist, and others' row r.
    scratch_bytes: most working memory on any core; its first kept_bytes hold what is prepared once. windows: whether
    the kernel finds the rows through a table; else the rows of a call are contiguous. apart: one in this many of these
    rows is a row of the first map; the others are zeros. unit: rows of the result, from a multiple of it on, that are
    computed together; all the above counts them as one row. sum: the node's result is not a map but a sum over the rows
    of its last map.
    """

    maps: tuple[int, ...]
    reach: int = 1
    step: int = 1
    pad: int = 0
    kept_bytes: int = 0
    scratch_bytes: int = 0
    windows: bool = False
    apart: int = 1
    unit: int = 1
    sum: RowSum | None = None

    def reads(self, first: int, rows: int, height: int) -> range:
        """Return the rows of the first map, of this height, that rows [first, first + rows) of the result need."""
        low, many = first // self.unit * self.step - self.pad, rows // self.unit
        high = low + (many - 1) * self.step + self.reach
        return range(max(-(-low // self.apart), 0), min(-(-high // self.apart), height))

    def reads_of(self, place: int, first: int, rows: int, height: int) -> range:
        """Return the rows of any map that these rows need; place: index in `maps`."""
        return range(first, first + rows) if place and self.windows else self.reads(first, rows, height)

    def height(self, node: Node) -> int:
        """Return how many rows a node has: of its result, or of the map that it sums."""
        return (node.outputs[0] if self.sum is None else node.inputs[self.maps[-1]]).shape[1]


def row_pitch(value: Value) -> int:
    """Return the bytes from one row of a map to the next."""
    return value.size_bytes // value.shape[1]


LEAST = 4
"""Elements of a vector of floats, on cores that have vectors."""


def few_elements(along: int, rows: int) -> bool:
    """Tell whether one row has too few elements for a vector but all rows together fill one: roundings would differ."""
    return along < LEAST <= along * rows


def element_rows(node: Node) -> RowForm | None:
    """Return the rows of an operator that works element by element, if operands are different maps of the result's
    shape.

    Rows of a mask must begin at a byte; rows of a map must fill a vector if the whole map does.
    """
    shape = node.outputs[0].shape
    if any(value.shape != shape for value in node.inputs) or len(set(node.inputs)) < len(node.inputs):
        return None
    if few_elements(shape[2] * shape[3], shape[1]):
        return None
    bits = any(value.dtype == "bits" for value in (*node.inputs, *node.outputs))
    return None if bits and shape[2] * shape[3] % 8 else RowForm(tuple(range(len(node.inputs))))


def slice_rows(node: Node) -> RowForm | None:
    """Return the rows of a slice of every row of a map; None if it is a view."""
    (x,), y = node.inputs, node.outputs[0]
    attrs: Any = node.attrs
    if x.dtype == "bits" or x.shape[:2] != y.shape[:2] or (y.shape[1] > 1 and attrs.steps[1] != 1):
        return None
    return None if cut_starts(node, attrs.starts, attrs.steps, attrs.sizes) else RowForm((0,))


def window_rows(
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
    scratch_bytes: int = 0,
) -> RowForm:
    """Return the rows of an operator that reads its first operand in windows."""
    reach = (kernel[0] - 1) * dilations[0] + 1
    return RowForm((0,), reach, strides[0], pads[0], scratch_bytes=scratch_bytes, windows=True)


def run_starts(node: Node, axis: int) -> tuple[int, ...] | None:
    """Return the first byte of each input along an axis; None unless every axis before it has extent 1."""
    if math.prod(node.outputs[0].shape[:axis]) != 1:
        return None
    *before, _ = node.inputs
    return (0, *itertools.accumulate(value.size_bytes for value in before))


def cut_starts(
    node: Node, starts: tuple[int, ...], steps: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the first byte of a slice's input relative to the slice (0 or less); None unless the slice is one run of
    bytes: one index of every axis before the one that is cut, all of every axis after it."""
    x = node.inputs[0]
    cut = next((axis for axis, size in enumerate(sizes) if size > 1), len(sizes))
    whole = sizes[cut + 1 :] == x.shape[cut + 1 :]
    forward = all(step == 1 for step, size in zip(steps, sizes, strict=True) if size > 1)
    if not whole or not forward:
        return None
    place = 0
    for start, dim in zip(starts, x.shape, strict=True):
        place = place * dim + start
    return (-place * (x.size_bytes // x.elements),)
