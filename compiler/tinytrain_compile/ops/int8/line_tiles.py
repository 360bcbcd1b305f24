"""How a dense convolution of few channels is cut whose windows are runs: what a row of the output reads, by columns."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ops.int8.tiles import DOT_TERMS, DenseTiles

MOST_BLOCKS = 7
"""Blocks of DOT_TERMS products for which one helper call computes a row of tiles (TT_BLOCKS of tt_dsp_tiles.h)."""
_WIDE, _WORD, _ON, _TILE = 2, 4, 8, 2


@dataclass(frozen=True)
class LineTiles:
    """taps: rows of a window; run: elements under a row of taps; apart: elements of a line between windows.

    scratch_bytes: of a line, two windows, the weights and what the ends of sums read.
    """

    taps: int
    run: int
    apart: int
    length: int
    scratch_bytes: int

    @property
    def blocks(self) -> int:
        """Products of a sum, in blocks of DOT_TERMS."""
        return -(-self.taps * self.run // DOT_TERMS)


def line_tiles(width: int, outputs: int, apart: int, run: int, words: int, rows: DenseTiles) -> LineTiles | None:
    """The form, if it has fewer products than `rows`, in no more memory. words: that the ends read of a channel."""
    terms = -(-rows.taps * run // DOT_TERMS) * DOT_TERMS
    if rows.tile != (_TILE, _TILE) or terms > MOST_BLOCKS * DOT_TERMS or terms >= rows.taps * rows.run:
        return None
    length = -(-((width - 1) * apart + terms) // rows.taps) * rows.taps
    sizes = (length, _TILE * terms, outputs * terms)
    scratch = sum(-(-_WIDE * size // _ON) * _ON for size in sizes) + _WORD * words * outputs
    return LineTiles(rows.taps, run, apart, length, scratch) if scratch <= rows.scratch_bytes else None
