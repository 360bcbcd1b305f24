"""Register tiles of float products on vectors: the axis of the lanes, the number of rows and of vectors."""

from __future__ import annotations

from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.context import KernelContext

REGISTERS = 8
"""Vector registers of a core."""
_GATHER, _TURN = 3, 3
"""Instructions for a vector whose lanes are apart in memory, and for a turn of the loop."""


def vector_tiles(
    extents: tuple[int, int], context: KernelContext, apart: tuple[bool, bool], most: int = REGISTERS
) -> tuple[tuple[int, int], int]:
    """Return (rows, columns) of a tile of sums of products of two factors, and the axis (0 or 1) that its lanes go
    along.

    apart: whether neighbours along an axis are apart in memory, in the factor that has it. most: rows, if lanes are
    columns.
    """
    axis = 1 if extents[1] >= LANES else 0
    across, along = _best(extents[1 - axis], extents[axis], apart[axis], most if axis else REGISTERS)
    return ((across, along * LANES) if axis else (along * LANES, across)), axis


def _best(rows: int, columns: int, gathered: bool, most: int) -> tuple[int, int]:
    """Return (rows, vectors) with the fewest instructions of those whose sums and factors fit the registers."""
    room, enough = REGISTERS - gathered, -(-columns // LANES)
    shapes = [(r, v) for r in range(1, min(rows, most) + 1) for v in range(1, enough + 1) if (r + 1) * v <= room]
    return min(shapes, key=lambda shape: (_instructions(rows, enough, shape, gathered), shape))


def _instructions(rows: int, vectors: int, shape: tuple[int, int], gathered: bool) -> int:
    """Count instructions for one term of every sum: in full tiles, and in the rest of both axes."""

    def tile(r: int, v: int) -> int:
        return r + v * (_GATHER if gathered else 1) + r * v + _TURN if r and v else 0

    def strip(v: int) -> int:
        return rows // shape[0] * tile(shape[0], v) + tile(rows % shape[0], v)

    return vectors // shape[1] * strip(shape[1]) + strip(vectors % shape[1])
