"""Random cases of MaxPool on int8: many equal elements, and many at -128 (a ReLU's zero), also beside padding."""

from __future__ import annotations

import itertools

import numpy as np

from testing.ops.case import Case, Rng, generator, make
from testing.ops.case_quantised import KINDS, bytes_of, exponent, peak
from testing.ops.case_structure import POOLS, _output_shape
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.int8.pool import QMaxPoolGradAttrs
from tinytrain_compile.ops.pool import PoolAttrs, PoolGradAttrs, overlap

OVERLAPPING = (
    *((shape, attrs) for shape, attrs in POOLS if overlap(attrs)),
    ((1, 6, 6, 5), PoolAttrs((3, 3), (2, 2), (1, 1, 1, 1), output_hw=(3, 3))),
    ((1, 5, 7, 4), PoolAttrs((3, 3), (1, 1), (1, 1, 1, 1), output_hw=(5, 7))),
    ((1, 7, 7, 2), PoolAttrs((2, 3), (2, 2), (0, 0, 0, 0), output_hw=(3, 3))),
    ((1, 9, 8, 3), PoolAttrs((2, 2), (1, 2), (0, 0, 0, 0), (3, 3), (6, 3))),
)
APART = (
    *((shape, attrs) for shape, attrs in POOLS if not overlap(attrs)),
    ((1, 6, 4, 5), PoolAttrs((2, 2), (2, 2), (0, 0, 0, 0), output_hw=(3, 2))),
    ((1, 5, 5, 3), PoolAttrs((2, 2), (3, 3), (1, 1, 0, 0), output_hw=(2, 2))),
    ((1, 5, 4, 3), PoolAttrs((5, 4), (1, 1), (0, 0, 0, 0), output_hw=(1, 1))),
)


def image(rng: Rng, shape: tuple[int, ...], index: int) -> np.ndarray:
    """int8: of all values, of three, all the lowest."""
    if index % 3 == 0:
        return bytes_of(rng, shape, 0)
    return (rng.integers(-1, 2, shape) * 127 - 1 if index % 3 == 1 else np.full(shape, -128)).astype(np.int8)


def winners(rng: Rng, shape: tuple[int, ...], attrs: PoolAttrs, index: int) -> np.ndarray:
    """Which taps won in some image."""
    return OPS["MaxPoolIndex"].reference((image(rng, shape, index),), attrs)[0]


def int8_cases(op: str, count: int | None = None) -> list[Case]:
    """Cases of MaxPool, MaxPoolIndex or MaxPoolGrad on int8: so many, or three of each shape."""
    cases: list[Case] = []
    shapes = (*OVERLAPPING, *APART)
    for index in range(3 * len(shapes)) if count is None else itertools.count():
        if len(cases) == count:
            break
        shape, attrs = shapes[index % len(shapes)]
        rng = np.random.default_rng([len(op), index])
        if op != "MaxPoolGrad":
            cases.append(make(op, (image(rng, shape, index // 4),), attrs, images=(0,)))
        elif not overlap(attrs):
            g = bytes_of(rng, _output_shape(shape, attrs), 0, -127)
            kind = PoolGradAttrs(attrs, (shape[1], shape[2]))
            cases.append(make(op, (g, winners(rng, shape, attrs, index)), kind, images=(0, 1)))
    return cases


@generator("QMaxPoolGrad", 3 * len(OVERLAPPING))
def _qmax_pool_grad(rng: Rng, index: int) -> Case:
    (shape, attrs), kind = OVERLAPPING[index % len(OVERLAPPING)], index % KINDS if index >= len(OVERLAPPING) else 0
    exponents = (exponent(rng, kind), exponent(rng, kind))
    g = bytes_of(rng, _output_shape(shape, attrs), kind, -127)
    operands = (peak(rng, kind), *exponents, g, winners(rng, shape, attrs, index))
    return make("QMaxPoolGrad", operands, QMaxPoolGradAttrs(attrs, (shape[1], shape[2]), -12), images=(3, 4))
