"""Random cases of integers, and of elements chosen by their place along an axis."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, make, normal, spaced
from testing.ops.case_pointwise import BROADCASTS
from tinytrain_compile.ops.integers import CastAttrs
from tinytrain_compile.ops.selection import CumSumAttrs, TakeAlongAttrs, TopAttrs

SHAPES: tuple[tuple[int, ...], ...] = ((1, 5), (2, 3, 4), (7,), (1, 2, 3, 9), (4, 1), (1, 16))
SUMS: tuple[tuple[tuple[int, ...], CumSumAttrs], ...] = (
    ((1, 5), CumSumAttrs(1)),
    ((2, 3, 4), CumSumAttrs(1, exclusive=True)),
    ((2, 3, 4), CumSumAttrs(2, reverse=True)),
    ((7,), CumSumAttrs(0, exclusive=True, reverse=True)),
    ((1, 2, 3, 9), CumSumAttrs(2)),
    ((3, 6), CumSumAttrs(1)),
)


def _integers(rng: Rng, shape: tuple[int, ...], most: int = 9) -> np.ndarray:
    return np.asarray(rng.integers(-most, most + 1, shape), np.int32)


def _arithmetic(op: str) -> None:
    @generator(op, len(BROADCASTS))
    def _case(rng: Rng, index: int) -> Case:
        most = 9 if index % 2 else 2**31 - 1  # which wraps around
        return make(op, tuple(_integers(rng, shape, most) for shape in BROADCASTS[index]))


for _op in ("IntegerAdd", "IntegerSub", "IntegerMul"):
    _arithmetic(_op)


@generator("Cast", len(SHAPES))
def _cast(rng: Rng, index: int) -> Case:
    shape = SHAPES[index]
    if index % 3 == 0:
        return make("Cast", (_integers(rng, shape, 1 << 30),), CastAttrs("float32"))
    if index % 3 == 1:
        x = np.float32(normal(rng, shape) * 10.0 ** rng.integers(0, 12, shape))
        return make("Cast", (x.astype(np.float64),), CastAttrs("int32"), ())
    return make("Cast", (np.asarray(rng.integers(0, 2, shape), np.uint8),), CastAttrs("int32"))


@generator("CumSum", len(SUMS))
def _cumsum(rng: Rng, index: int) -> Case:
    shape, attrs = SUMS[index]
    return make("CumSum", (normal(rng, shape),), attrs)


@generator("TopIndices", len(SHAPES))
def _top(rng: Rng, index: int) -> Case:
    shape = SHAPES[index]
    x = spaced(rng, shape) if index % 2 else np.rint(normal(rng, shape))  # equal ones
    return make("TopIndices", (x,), TopAttrs(1 + index % shape[-1], index % 3 == 2))


@generator("TakeAlong", len(SHAPES))
def _take(rng: Rng, index: int) -> Case:
    shape = SHAPES[index]
    chosen = _integers(rng, (*shape[:-1], 1 + index), shape[-1])  # some outside
    return make("TakeAlong", (normal(rng, shape), chosen), TakeAlongAttrs(shape[-1]))


@generator("TakeAlongGrad", len(SHAPES))
def _take_grad(rng: Rng, index: int) -> Case:
    shape = SHAPES[index]
    chosen = _integers(rng, shape, 5)
    return make("TakeAlongGrad", (normal(rng, shape), chosen), TakeAlongAttrs(4))
