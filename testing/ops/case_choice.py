"""Random cases of comparisons, masks, the larger of two and the largest of many."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, make, normal, positive, spaced
from testing.ops.case_pointwise import BROADCASTS
from tinytrain_compile.ops.choice import ReduceMaxAttrs


def _apart(rng: Rng, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Two operands of which no element of one is near any of the other."""
    first = spaced(rng, (int(np.prod(a)) + int(np.prod(b)),))
    return first[: int(np.prod(a))].reshape(a), first[int(np.prod(a)) :].reshape(b)


def _bits(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.integers(0, 2, shape), np.uint8)


def _compared(op: str) -> None:
    @generator(op, len(BROADCASTS) + (0 if op in ("Maximum", "Minimum") else 2))
    def _case(rng: Rng, index: int) -> Case:
        if index < len(BROADCASTS) or op in ("Maximum", "Minimum"):
            return make(op, _apart(rng, *BROADCASTS[index % len(BROADCASTS)]))
        return make(
            op, tuple(np.asarray(rng.integers(-2, 3, shape), np.int32) for shape in BROADCASTS[index - len(BROADCASTS)])
        )


def _logic(op: str) -> None:
    @generator(op, len(BROADCASTS))
    def _case(rng: Rng, index: int) -> Case:
        shapes = BROADCASTS[index][: 1 if op == "Not" else 2]
        return make(op, tuple(_bits(rng, shape) for shape in shapes))


for _op in ("Maximum", "Minimum", "Greater", "GreaterOrEqual", "Equal"):
    _compared(_op)
for _op in ("And", "Or", "Xor", "Not"):
    _logic(_op)


@generator("Power", len(BROADCASTS))
def _power(rng: Rng, index: int) -> Case:
    a, b = BROADCASTS[index]
    return make("Power", (positive(rng, a), normal(rng, b) * 2))


def _power_gradient(op: str) -> None:
    @generator(op, len(BROADCASTS))
    def _case(rng: Rng, index: int) -> Case:
        a, b = BROADCASTS[index]
        base, exponent = np.rint(np.abs(normal(rng, a))), 1 + np.rint(np.abs(normal(rng, b)))
        if index % 2:
            base, exponent = positive(rng, a), normal(rng, b) * 2
        return make(op, (normal(rng, np.broadcast_shapes(a, b)), base, exponent))


for _op in ("PowerGradBase", "PowerGradExponent"):
    _power_gradient(_op)


@generator("MaximumGrad", len(BROADCASTS))
def _share(rng: Rng, index: int) -> Case:
    a, b = BROADCASTS[index]
    rounded = [np.rint(normal(rng, shape)) for shape in (a, b)]
    return make("MaximumGrad", (normal(rng, np.broadcast_shapes(a, b)), *rounded))


@generator("Where", len(BROADCASTS))
def _where(rng: Rng, index: int) -> Case:
    a, b = BROADCASTS[index]
    condition = (np.broadcast_shapes(a, b), a, b)[index % 3]
    return make("Where", (_bits(rng, condition), normal(rng, a), normal(rng, b)))


REDUCED: tuple[tuple[tuple[int, ...], ReduceMaxAttrs], ...] = (
    ((1, 4, 5, 3), ReduceMaxAttrs((1, 2))),
    ((1, 4, 5, 3), ReduceMaxAttrs((3,), True)),
    ((2, 7), ReduceMaxAttrs((1,))),
    ((2, 3, 4), ReduceMaxAttrs((0, 2), True)),
    ((6,), ReduceMaxAttrs((0,))),
    ((2, 1, 3), ReduceMaxAttrs((1,))),
)


@generator("ReduceMax", len(REDUCED))
def _reduce_max(rng: Rng, index: int) -> Case:
    shape, attrs = REDUCED[index]
    return make("ReduceMax", (spaced(rng, shape),), attrs)


@generator("ReduceMaxGrad", len(REDUCED))
def _reduce_max_grad(rng: Rng, index: int) -> Case:
    shape, attrs = REDUCED[index]
    x = np.rint(normal(rng, shape))
    y = (np.min if attrs.smallest else np.max)(x, axis=attrs.axes, keepdims=True)
    return make("ReduceMaxGrad", (normal(rng, y.shape), x, y), attrs)
