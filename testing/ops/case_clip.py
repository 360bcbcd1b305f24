"""Random cases of what clips gradients by their norm."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, make
from tinytrain_compile.ir import NO_ATTRS
from tinytrain_compile.ops.clip import ClipAttrs, SquareTotalAttrs

SHAPES = ((7,), (1,), (5, 3), (9, 16), (6, 3, 3, 2), (4, 1, 1, 1))
SQUARES = (0.0, 0.3, 4.0, 1e30, np.inf, np.nan)
"""Below the norm, above it, and what is no number."""


@generator("RowSquares", len(SHAPES))
def _rows(rng: Rng, index: int) -> Case:
    return make("RowSquares", (rng.normal(size=SHAPES[index]),), NO_ATTRS)


@generator("SquareTotal", 5)
def _total(rng: Rng, index: int) -> Case:
    rows = rng.uniform(0.0, 2.0, (1, 5, 64, 9, 2)[index])
    return make("SquareTotal", (np.asarray(0.7), rows), SquareTotalAttrs(fresh=index % 2 == 0))


@generator("ClipFactor", 2 * len(SQUARES))
def _scale(_rng: Rng, index: int) -> Case:
    squares, scaled = SQUARES[index // 2], index % 2 == 1
    operands = (np.asarray(squares), *((np.asarray(0.25),) if scaled else ()))
    return make("ClipFactor", operands, ClipAttrs(0.6, scaled))
