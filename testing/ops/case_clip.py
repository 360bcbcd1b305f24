"""Random cases of what clips gradients by their norm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from testing.ops import case_quantised
from testing.ops.case import GENERATORS, Case, Rng, generator, make
from testing.ops.case_quantised import GEOMETRIES, KINDS, momentum_factors, steps, words
from tinytrain_compile.ir.types import NO_ATTRS
from tinytrain_compile.ops.clip import ClipAttrs, SquareTotalAttrs
from tinytrain_compile.ops.fixed_point import INT32_MAX, INT32_MIN
from tinytrain_compile.ops.int8.update import QUpdateAttrs

__all__ = ["case_quantised"]

SHAPES = ((7,), (1,), (5, 3), (9, 16), (6, 3, 3, 2), (4, 1, 1, 1))
FACTORS = (1.0, 0.3, 1e-6, 0.0)
SOME = 8
"""Cases of an update with squares: its loops are those of the one without."""
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


@generator("QRowSquares", 6)
def _integer_rows(rng: Rng, index: int) -> Case:
    shape = ((4, 3, 3, 2), (7,), (5, 1, 1, 9), (1,), (2, 1, 1, 300), (3, 3))[index % 6]
    return make("QRowSquares", (words(rng, shape, index % KINDS, 20000),))


def _sums(rng: Rng, channels: int, index: int) -> np.ndarray:
    """Pairs of words: nothing, little, and nearly all of 63 bits."""
    high = (0, int(rng.integers(0, 1000)), INT32_MAX)[index % 3]
    low = rng.integers(0 if high == 0 else INT32_MIN, (2, 5000, INT32_MAX)[index % 3], channels)
    return np.stack([low, np.full(channels, high)], axis=1).astype(np.int32)


@generator("QSquareTotal", 8)
def _integer_total(rng: Rng, index: int) -> Case:
    channels = (1, 5, 8)[index % 3]
    multiplier, shift, _, p = steps(rng, channels, index % KINDS)
    operands = (np.asarray(0.7), _sums(rng, channels, index), multiplier, shift, p)
    return make("QSquareTotal", operands, SquareTotalAttrs(fresh=index % 2 == 0), (0,))


@generator("QClipRate", 2 * len(FACTORS))
def _clip_rate(rng: Rng, index: int) -> Case:
    scale = steps(rng, 3, index % 2)
    rate = (scale if index % 2 else momentum_factors(rng, 0, scale))[2]
    return make("QClipRate", (rate, np.asarray(FACTORS[index // 2 % len(FACTORS)])), NO_ATTRS, ())


def _squared(name: str) -> None:
    make_plain, _ = GENERATORS[name.removesuffix("Squared")]

    @generator(name, SOME)
    def _case(rng: Rng, index: int) -> Case:
        place = index * 3 % len(GEOMETRIES) + (len(GEOMETRIES) if index % 2 else 0)
        plain = make_plain(rng, place)
        rows = _sums(rng, plain.inputs[0].shape[0], index % 2)
        assert isinstance(plain.attrs, QUpdateAttrs)
        return make("QUpdate", (*plain.arrays, rows), replace(plain.attrs, squares=True), images=(1, 2))


for _name in ("QConvUpdateSquared", "QConvUpdateFineSquared", "QConvMomentumSquared", "QConvMomentumFineSquared"):
    _squared(_name)
