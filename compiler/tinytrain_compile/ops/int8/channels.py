"""Scores of channels, of integers."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops.base import operator
from tinytrain_compile.ops.int8.error import expect_dtypes
from tinytrain_compile.ops.int8.pointwise import exponent_factor
from tinytrain_compile.ops.names import BACKWARD

_LARGEST = 128**2
"""Largest square of an int8."""


def _infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_dtypes("QScoreChannels", inputs, ("int8", "int32", "float32"))
    x, _, unit = inputs
    if unit.shape != x.shape[-1:]:
        raise ValueError(f"QScoreChannels: units {unit.shape} of {x.shape}")
    return (TensorType(unit.shape),)


def _score(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    x, p, unit = arrays
    squares = np.square(x.astype(np.int32).reshape(-1, x.shape[-1])).sum(axis=0, dtype=np.int32)
    return (squares.astype(np.float32) * exponent_factor(2 * int(p[0])) * unit,)


def _bound(inputs: tuple[Value, ...], _attrs: Attrs) -> int:
    x, *_ = inputs
    return x.elements // x.shape[-1] * _LARGEST


operator(
    "QScoreChannels",
    "ScoreChannels of int8: squares of x 2**p, times a unit for each channel.",
    _infer,
    _score,
    BACKWARD,
    accumulator=_bound,
    inputs=("x", "p", "unit"),
)
