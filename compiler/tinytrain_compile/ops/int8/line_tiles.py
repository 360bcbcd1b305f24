"""How a dense convolution of few channels is cut whose windows are runs: what a row of the output reads, by columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinytrain_compile.ops.int8.tiles import DOT_TERMS, DenseTiles

MOST_BLOCKS = 7
"""Blocks of DOT_TERMS products for which one helper call computes a row of tiles (TT_BLOCKS of tt_dsp_tiles.h)."""
_WIDE, _WORD, _ON, _TILE = 2, 4, 8, 2


@dataclass(frozen=True)
class LineTiles:
    """taps: rows of a window; run: elements under a row of taps; apart: elements of a line between windows.

    width: output pixels for which a line is copied; length: of it; kept_bytes: of the weights and what the ends of sums
    read.
    """

    taps: int
    run: int
    apart: int
    width: int
    kept_bytes: int

    @property
    def blocks(self) -> int:
        """Products of a sum, in blocks of DOT_TERMS."""
        return -(-self.taps * self.run // DOT_TERMS)

    @property
    def length(self) -> int:
        """Elements of a line: whole columns of taps."""
        return -(-((self.width - 1) * self.apart + DOT_TERMS * self.blocks) // self.taps) * self.taps

    @property
    def scratch_bytes(self) -> int:
        """Of what is kept, a line and two windows."""
        return self.kept_bytes + _words(self.length) + _words(_TILE * DOT_TERMS * self.blocks)

    def of_halves(self, size: int) -> LineTiles | None:
        """The same with lines of half a row; None where this much scratch does not hold it, or a row has no halves."""
        half = replace(self, width=self.width // 2)
        return half if self.width % (2 * _TILE) == 0 and half.scratch_bytes <= size else None


def _words(elements: int) -> int:
    """Bytes of so many elements of int16, on 8 bytes."""
    return -(-_WIDE * elements // _ON) * _ON


def line_tiles(width: int, outputs: int, apart: int, run: int, words: int, rows: DenseTiles) -> LineTiles | None:
    """The form, if it has fewer products than `rows`, in no more memory. words: that the ends read of a channel."""
    terms = -(-rows.taps * run // DOT_TERMS) * DOT_TERMS
    if rows.tile != (_TILE, _TILE) or terms > MOST_BLOCKS * DOT_TERMS or terms >= rows.taps * rows.run:
        return None
    form = LineTiles(rows.taps, run, apart, width, _words(outputs * terms) + _WORD * words * outputs)
    return form if form.scratch_bytes <= rows.scratch_bytes else None
