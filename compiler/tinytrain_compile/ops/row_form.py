"""What the planner knows of an operator that can be computed a few rows of a map at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir.types import Node, Value


@dataclass(frozen=True)
class RowSum:
    """An update that sums over rows: `add` adds one row of its maps to `total`, `apply` makes the results of the total.

    total: int32, begins as 0. add: a node on maps of one row each. apply: a node that makes what the update makes.
    """

    total: Value
    add: Node
    apply: Node


@dataclass(frozen=True)
class RowForm:
    """One row of a node's result, or of what it sums. maps: the inputs that are read by rows; all others are read as a
    whole.

    Row r reads the rows r step - pad and on, `reach` of them, of its first map, as far as this has them, and row r of
    the others. scratch_bytes: working memory at most, on any core, of which the first kept_bytes hold what is prepared
    once. windows: whether the kernel finds the rows through a table; else those of a call lie one behind the other.
    apart: these rows are counted with zeros between those of the first map: one in so many is a row of it.
    unit: so many rows of the result, which begin at a multiple of it, are one row of all this: they are computed
    together. sum: the node has no map as its result, but sums over the rows of its last map.
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
        """The rows of the first map, of this height, that rows [first, first + rows) of the result need."""
        low, many = first // self.unit * self.step - self.pad, rows // self.unit
        high = low + (many - 1) * self.step + self.reach
        return range(max(-(-low // self.apart), 0), min(-(-high // self.apart), height))

    def reads_of(self, place: int, first: int, rows: int, height: int) -> range:
        """The same of any map: place counts in `maps`."""
        return range(first, first + rows) if place and self.windows else self.reads(first, rows, height)

    def height(self, node: Node) -> int:
        """How many rows a node has: of its result, or of what it sums."""
        return (node.outputs[0] if self.sum is None else node.inputs[self.maps[-1]]).shape[1]


def row_pitch(value: Value) -> int:
    """Bytes from one row of a map to the next."""
    return value.size_bytes // value.shape[1]
