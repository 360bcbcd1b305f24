"""Fixed subspaces in int8 networks: the steps of what is kept, by samples, and what rounding makes of a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tinytrain_compile.ir.activations import LowRank, inward, outward
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.int8.subspace import LARGEST, NOTHING, in_steps, rows_in_int8

MARGIN = 1.25
"""Of the largest numbers of the samples: other samples have larger ones, and what is beyond is clamped."""


def along(x: Array, matrix: Array, axis: int) -> Array:
    """Every fibre of x along an axis times a matrix[rows, length]."""
    return np.moveaxis(np.tensordot(x, matrix, (axis, 1)), -1, axis)


def measured_steps(
    seen: Sequence[Array], bases: Mapping[int, Array]
) -> tuple[dict[int, tuple[float, ...]], dict[int, float]]:
    """LowRank.steps and LowRank.wide, by the largest numbers of activations that samples gave, in float64."""
    shape, reduced = seen[0].shape, {axis: len(basis) for axis, basis in bases.items()}
    steps, wide = dict[int, tuple[float, ...]](), dict[int, float]()
    for axis in inward(reduced, shape):
        products = [along(x, bases[axis], axis) for x in seen]
        peaks = np.max(
            [np.abs(np.moveaxis(x, axis, 0)).reshape(reduced[axis], -1).max(axis=1) for x in products], axis=0
        )
        found = in_steps(MARGIN * peaks, NOTHING)
        steps[axis] = tuple(float(step) for step in found)
        seen = [x / _spread(found, axis, x.ndim) for x in products]
    for axis in outward(reduced, shape)[:-1]:
        seen = [along(x, _way_back(bases[axis], steps[axis]), axis) for x in seen]
        peak = np.max([np.abs(x).max() for x in seen], keepdims=True)
        wide[axis] = float(in_steps(MARGIN * peak, NOTHING)[0])
    return steps, wide


def through_int8(x: Array, how: LowRank) -> Array:
    """x as its copy in int8 has it, but for rounding to the activation's own format; float64."""
    shape, reduced, unit = x.shape, how.reduced(x.shape), 1.0
    for axis in inward(reduced, shape):
        x = _rounded(along(x, _as_int8(how.bases[axis]), axis) / _spread(how.steps[axis], axis, x.ndim))
    for axis in outward(reduced, shape):
        x = along(x * unit, _as_int8(_way_back(how.bases[axis], how.steps[axis])), axis)
        unit = how.wide.get(axis, 1.0)
        x = _rounded(x / unit) if axis in how.wide else x
    return x


def _way_back(basis: Array, steps: Sequence[float]) -> Array:
    return (basis * np.asarray(steps)[:, None]).T


def _as_int8(matrix: Array) -> Array:
    numbers, scales = rows_in_int8(matrix)
    return numbers * scales[:, None]


def _rounded(x: Array) -> Array:
    return np.clip(np.rint(x), -LARGEST, LARGEST)


def _spread(steps: Sequence[float] | Array, axis: int, dimensions: int) -> Array:
    """Steps along an axis, to divide by."""
    return np.asarray(steps).reshape(*(-1 if axis == place else 1 for place in range(dimensions)))
