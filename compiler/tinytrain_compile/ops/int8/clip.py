"""Clipping of integer gradients: exact sums of squares per output channel, their total as a float32, a clipped rate.

A channel's sum is 64 bits, as two words, the low one first: no order of additions changes it. The square of a gradient
G of channel o, in real units, is G**2 2**(2 p) c[o], with the constant c that the update multiplies G by.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import operator
from tinytrain_compile.ops.clip import CLIPPING, SquareTotalAttrs
from tinytrain_compile.ops.int8.steps import split_rate
from tinytrain_compile.ops.int8.targets import wide_float
from tinytrain_compile.ops.owned import Owned

WORDS = 2
"""Number of int32 that hold a sum of 64 bits."""
_LEAST_SHIFT, _MOST_SHIFT = -180, 60
"""Limits of a shift: with these, and 63 bits, the result is a normal float32 far from both ends."""


def square_limit(row: int) -> int:
    """Return the largest magnitude for which a sum of `row` squares fits into an int64."""
    return min(math.isqrt(((1 << 63) - 1) // row), fx.INT32_MAX)


def row_sums(g: Any) -> Any:
    """Return int64 sums of the squares of each row."""
    rows = np.asarray(g, np.int64).reshape(g.shape[0], -1)
    limit = square_limit(rows.shape[1])
    return (np.clip(rows, -limit, limit) ** 2).sum(axis=1)


def words_of(sums: Any) -> Array:
    """Return int64 numbers as pairs of int32."""
    return np.ascontiguousarray(np.asarray(sums, "<i8")).view("<i4").astype(np.int32).reshape(-1, WORDS)


def sums_of(rows: Array) -> Any:
    """Return int64 numbers from pairs of int32."""
    return np.ascontiguousarray(rows.astype("<i4")).view("<i8").reshape(-1)


def squares_of(total: int, multiplier: int, shift: int) -> np.float32:
    """Return a row's sum in real units (tt_squares_of)."""
    if total == 0:
        return np.float32(0.0)
    spare = 63 - total.bit_length()
    return wide_float(total << spare, multiplier, min(max(shift - spare, _LEAST_SHIFT), _MOST_SHIFT))


def _expect(op: str, values: tuple[Value, ...], *kinds: tuple[tuple[int, ...], str]) -> None:
    if tuple((value.shape, value.dtype) for value in values) != kinds:
        raise ValueError(f"{op} takes {kinds}, got {[(value.shape, value.dtype) for value in values]}")


def _rows_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (g,) = inputs
    _expect("QRowSquares", inputs, (g.shape, "int32"))
    return (TensorType((g.shape[0], WORDS), "int32"),)


operator(
    "QRowSquares",
    "The squares of each output channel of an int32 gradient, added up in 64 bits.",
    _rows_infer,
    lambda arrays, _attrs: (words_of(row_sums(*arrays)),),
    CLIPPING,
    inputs=("g",),
    outputs=("rows",),
)


def _total_infer(inputs: tuple[Value, ...], _attrs: SquareTotalAttrs) -> tuple[TensorType, ...]:
    total, rows, _, _, p = inputs
    channels = rows.shape[:1]
    kinds = (((), "float32"), ((*channels, WORDS), "int32"), (channels, "int32"), (channels, "int8"))
    _expect("QSquareTotal", inputs, *kinds, (p.shape, "int32"))
    return (total.type,)


def _total(arrays: tuple[Array, ...], attrs: SquareTotalAttrs) -> tuple[Array, ...]:
    total, rows, multiplier, shift, p = arrays
    added = np.float32(0.0)
    for words, m, s in zip(sums_of(rows).tolist(), multiplier.tolist(), shift.tolist(), strict=True):
        added = np.float32(added + squares_of(words, m, s + 2 * int(p[0])))
    return (np.asarray(added if attrs.fresh else np.float32(total) + added, total.dtype),)


operator(
    "QSquareTotal",
    "total += the sums of an integer gradient's squares in real units, or becomes that; operands (total, rows, "
    "multiplier, shift, p).",
    _total_infer,
    _total,
    CLIPPING,
    SquareTotalAttrs,
    inputs=("total", "rows", "multiplier", "shift", "p"),
    outputs=("total",),
    owned=Owned({"total": "ANY"}, "integer"),
)


def _rate_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    rate, _ = inputs
    _expect("QClipRate", inputs, (rate.shape, "int32"), ((), "float32"))
    return (rate.type,)


def _clip_rate(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    rate, factor = arrays
    result = rate.copy()
    inverse = np.float32(1.0) / np.float32(factor)
    for place in range(0, rate.size, 2):
        multiplier, shift = split_rate(inverse if place == 2 else np.float32(factor))
        result[place : place + 2] = (int(fx.high_multiply(rate[place], int(multiplier))), rate[place + 1] + shift)
    return (result,)


operator(
    "QClipRate",
    "The rate of an update of clipped gradients: learning rate and 1 / samples times a factor, momentum over it; "
    "operands (rate, factor).",
    _rate_infer,
    _clip_rate,
    CLIPPING,
    inputs=("rate", "factor"),
)
