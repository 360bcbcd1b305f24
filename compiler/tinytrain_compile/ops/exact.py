"""Building blocks of exact references: numpy that repeats generated float32 C to the bit.

numpy's own sum, mean and matrix product add in blocks; here everything is added one after the other, from zero.
Elements that a kernel skips may be added as +0: a sum that started at +0 is never -0, so no bit changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

F32 = np.float32
LOWEST = np.finfo(np.float32).min
"""First value of a kernel's running maximum."""

Tensor = Any
"""A float32 array or scalar: numpy makes scalars of arrays without axes."""


def scaled(x: Tensor, factor: float) -> Tensor:
    """Return x times a constant of the kernel. TVM folds a product with 0 to 0, whatever the sign (or NaN) of x."""
    return np.zeros_like(x) if factor == 0.0 else x * F32(factor)


def shifted(x: Tensor, addend: float) -> Tensor:
    """Return x plus a constant of the kernel. TVM drops a zero, which would turn -0 into +0."""
    return x if addend == 0.0 else x + F32(addend)


def clamp(x: Tensor, low: float, high: float) -> Tensor:
    """Return x clamped to bounds; infinite bounds are not tested; -0 and NaN pass a bound of 0."""
    if math.isfinite(low):
        x = np.where(x < F32(low), F32(low), x)
    if math.isfinite(high):
        x = np.where(x > F32(high), F32(high), x)
    return x


def sequential_sum(terms: Tensor) -> Tensor:
    """Return the sum over the first axis, one term after the other."""
    total = np.zeros(terms.shape[1:], F32)
    for term in terms:
        total = total + term
    return total


def _members(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the elements of each group (over `axes`, in memory order) along a new first axis."""
    front = np.moveaxis(x, axes, range(len(axes)))
    return front.reshape(math.prod(front.shape[: len(axes)]), *front.shape[len(axes) :])


def sum_over(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return sums over groups, in memory order; the axes stay as 1."""
    return np.expand_dims(sequential_sum(_members(x, axes)), tuple(axes))


def largest_of(parts: Tensor, inside: Tensor = True) -> Tensor:
    """Return the maximum over the first axis: of equal elements the first; a NaN never wins."""
    best = np.full(parts.shape[1:], LOWEST, F32)
    where = np.broadcast_to(inside, parts.shape)
    for index in range(len(parts)):
        best = np.where(where[index] & (parts[index] > best), parts[index], best)
    return best


def max_over(x: Tensor, axis: int) -> Tensor:
    """Return maxima along an axis, which stays as 1."""
    return np.expand_dims(largest_of(np.moveaxis(x, axis, 0)), axis)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left[..., m, k] times right[..., k, n]: every element one sum over k."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), F32)
    for k in range(left.shape[-1]):
        total = total + left[..., k, None] * right[..., k, None, :]
    return total
