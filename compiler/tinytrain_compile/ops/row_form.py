"""What the planner knows of an operator that can be computed a few rows of a map at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir.types import Value


@dataclass(frozen=True)
class RowForm:
    """One row of a node's result. maps: the inputs that are read by rows; all others are read as a whole.

    Row r reads the rows r step - pad and on, `reach` of them, of its maps, as far as these have them.
    scratch_bytes: working memory at most, on any core, of which the first kept_bytes hold what is prepared once.
    windows: whether the kernel finds the rows through a table; else those of a call lie one behind the other.
    """

    maps: tuple[int, ...]
    reach: int = 1
    step: int = 1
    pad: int = 0
    kept_bytes: int = 0
    scratch_bytes: int = 0
    windows: bool = False

    def reads(self, first: int, rows: int, height: int) -> range:
        """The rows of a map of this height that rows [first, first + rows) of the result need."""
        low = first * self.step - self.pad
        return range(max(low, 0), min(low + (rows - 1) * self.step + self.reach, height))


def row_pitch(value: Value) -> int:
    """Bytes from one row of a map to the next."""
    return value.size_bytes // value.shape[1]
