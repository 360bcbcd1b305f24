"""Traces that a computation leaves in its results: what the numbers of a table alone say of where they come from."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.types import Array

FEW = 4
"""Fewer different numbers than this may agree by chance."""
_CLOSE = 1e-5
"""Largest distance of lengths, means and sums from 1 or 0 in float32: a hundred times the error of numpy (at most
1.0e-7 for 16 to 65,536 numbers), since exporters compute in other orders."""


def is_flat(array: Array) -> bool:
    """Tell whether all elements are one number."""
    return bool((array == array.reshape(-1)[0]).all())


def is_varied(array: Array) -> bool:
    """Tell whether more than half of the elements differ from each other, as in what was drawn or learned."""
    return 2 * len(np.unique(array)) > array.size and len(np.unique(array)) >= FEW


def repeats(array: Array) -> bool:
    """Tell whether a table of varied numbers holds many of them several times; zeros do not count (masks).

    A few of thousands of random float32 numbers are equal by chance.
    """
    kept = array[array != 0]
    different = len(np.unique(kept))
    return different >= FEW and 4 * different <= 3 * kept.size


def is_scaled(array: Array) -> bool:
    """Tell whether the vectors along some axes have the length 1, or the mean 0 and deviation 1, or are shares of 1."""
    table = np.squeeze(array.astype(np.float64))
    return table.size >= 2 * FEW and any(_is_scaled(table, axes) for axes in _axes(table.ndim))


def _axes(rank: int) -> list[tuple[int, ...]]:
    """Return all sets of axes but the empty one."""
    return list(chain.from_iterable(combinations(range(rank), count) for count in range(1, rank + 1)))


def _is_scaled(table: NDArray[np.float64], axes: tuple[int, ...]) -> bool:
    lengths = np.sqrt((table * table).sum(axis=axes))
    count = table.size // max(lengths.size, 1)
    if lengths.size < 2 or count < 2:
        return False
    unit = bool((np.abs(lengths - 1) < _CLOSE).all())
    mean, deviation = table.mean(axis=axes), table.std(axis=axes)
    standard = bool((np.abs(mean) < _CLOSE).all()) and bool((np.abs(deviation - 1) < 2e-3).all())
    shares = bool((table > 0).all()) and bool((np.abs(table.sum(axis=axes) - 1) < _CLOSE).all())
    return unit or standard or shares


def is_grid(array: Array) -> bool:
    """Tell whether numbers go up or down evenly along every axis: coordinates, positions."""
    table = np.squeeze(array.astype(np.float64))
    if table.size < FEW or is_flat(table):
        return False
    size = float(np.abs(table).max())
    long = [axis for axis in range(table.ndim) if table.shape[axis] > 2]
    return bool(long) and all(bool((np.abs(np.diff(table, 2, axis)) < 1e-5 * size).all()) for axis in long)


def is_broadcast(array: Array) -> bool:
    """Tell whether a table is the sum or the product of two smaller ones, each without one of the axes."""
    table = np.squeeze(array.astype(np.float64))
    pairs = combinations([axis for axis in range(table.ndim) if table.shape[axis] >= FEW], 2)
    logs = np.log(table) if bool((table > 0).all()) else None
    return any(_adds_up(one, pair) for pair in pairs for one in (table, logs) if one is not None)


def _adds_up(table: NDArray[np.float64], axes: tuple[int, int]) -> bool:
    mixed = np.diff(np.diff(table, axis=axes[0]), axis=axes[1])
    moving = min(float(np.ptp(table, axis=axis).max()) for axis in axes)
    return moving > 0 and bool((np.abs(mixed) < 1e-5 * np.abs(table).max()).all())


def has_few_numbers(array: Array) -> bool:
    """Tell whether a table holds few different numbers, as a filter does that somebody has written down."""
    kept = array[array != 0]
    return kept.size >= 2 * FEW and 2 <= len(np.unique(kept)) <= kept.size // 2
