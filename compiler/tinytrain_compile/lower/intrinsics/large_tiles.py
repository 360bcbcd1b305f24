"""Sixteen sums of products at a time: the algebra of tt_dot_4x4 (tt_large_tiles.h) for each form of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

from tvm.tirx import Buffer, Expr, address_of, call_extern

from tinytrain_compile.lower.intrinsics.tensor import ARRAY, Factor, Index, Operand, define, first_of


@dataclass(frozen=True)
class LargeTile:
    """Extents and pitches of tt_dot_4x4, in the order of its operands.

    low, high: rows that are not 0, counted as those of the operand of int16.
    """

    low: int
    high: int
    rows: int
    taps: int
    run: int
    a_row: int
    a_tap: int
    a_next: int
    b_row: int
    b_tap: int
    b_next: int
    b_step: int

    def define(self, a: Factor, b: Factor, start: tuple[int, ...]) -> str:
        """Name sum[i, j] += a[i, ..] b[j, ..] over rows, taps and elements of a run; start: index of the first of b."""
        reduced = (self.rows, self.taps, self.run)
        numbers = [getattr(self, field.name) for field in fields(self)]

        def element(x: Buffer, y: Buffer, _c: Buffer, *given: Expr) -> tuple[Sequence[Index], Expr]:
            i, j, *rest = given
            left = iter(rest)
            at = (i, j, *(next(left) if extent > 1 else 0 for extent in reduced))  # TVM drops loops of one turn
            return (i, j), x[a.at(*at)].astype("int32") * y[b.at(*at)].astype("int32")

        def call(x: Buffer, y: Buffer, c: Buffer) -> Expr:
            return call_extern("int32", "tt_dot_4x4", first_of(c), first_of(x), address_of(y[start]), 0, *numbers)

        extents = (4, 4, *(extent for extent in reduced if extent > 1))
        operands = {"a": a.operand, "b": b.operand, "c": Operand((4, 4), scope=ARRAY)}
        name = "_".join(map(str, ("tt_dot_4x4", len(b.operand.shape), *start, *numbers)))
        return define(name, operands, "SS" + "R" * (len(extents) - 2), extents, element, call, accumulates=True)


@cache
def dot_maps(tile: LargeTile) -> str:
    """Name sum[i, j] += a[row, i, k] b[row, k, j]: neighbouring maps of int16, and channels of an int8 image."""
    a = Operand((tile.rows, 4, tile.run), "int16", (tile.a_row, tile.a_next, 1))
    b = Operand((tile.rows, tile.run, 4), "int8", (tile.b_row, tile.b_step, 1))
    return tile.define(
        Factor(a, lambda i, _j, r, _t, k: (r, i, k)), Factor(b, lambda _i, j, r, _t, k: (r, k, j)), (0, 0, 0)
    )


@cache
def dot_runs(tile: LargeTile) -> str:
    """Name sum[i, j] += a[row, i a_next + k] b[j, row, k]: neighbouring pixels, and channels of a convolution."""
    a = Operand((tile.rows, 3 * tile.a_next + tile.run), "int16", (tile.a_row, 1))
    b = Operand((4, tile.rows, tile.run), "int8", (tile.b_next, tile.b_row, 1))
    at = Factor(a, lambda i, _j, r, _t, k: (r, i * tile.a_next + k))
    return tile.define(at, Factor(b, lambda _i, j, r, _t, k: (j, r, k)), (0, 0, 0))


@cache
def dot_rows(parts: int, run: int, pitch: int, columns: bool) -> str:
    """Name sum[i, j] += a[i, k] b[j, k] over parts of `run` elements, or of b[k, j] if the rows of b are columns.

    pitch: elements from a line of b to the next.
    """
    terms, step, following = parts * run, *((pitch, 1) if columns else (1, pitch))
    tile = LargeTile(0, parts, parts, 1, run, run, run, terms, run * step, run * step, following, step)
    a, b = Operand((4, terms), "int16"), Operand((terms, 4) if columns else (4, terms), "int8", (pitch, 1))
    at = Factor(b, lambda _i, j, r, _t, k: (r * run + k, j) if columns else (j, r * run + k))
    return tile.define(Factor(a, lambda i, _j, r, _t, k: (i, r * run + k)), at, (0, 0))


@cache
def dot_turned(tile: LargeTile) -> str:
    """Name sum[i, j] += a[row, (i + tap) run + k] b[k, turned row, turned tap, j]: the same of a data gradient."""
    row, tap = tile.rows - 1, tile.taps - 1
    a = Operand((tile.rows, (3 + tile.taps) * tile.run), "int16", (tile.a_row, 1))
    b = Operand((tile.run, tile.rows, tile.taps, 4), "int8", (tile.b_step, -tile.b_row, -tile.b_tap, 1))
    at = Factor(a, lambda i, _j, r, t, k: (r, i * tile.run + t * tile.run + k))
    return tile.define(at, Factor(b, lambda _i, j, r, t, k: (k, row - r, tap - t, j)), (0, row, tap, 0))
