"""Samples of a model with several data inputs: one array of records, a field for each input.

An array of samples of one input is that input's array. So code that chooses, joins and counts samples does not depend
on the number of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tinytrain_compile.ir.types import Array, Value


def packed(arrays: Mapping[str, Array]) -> Array:
    """Return samples as one array: records with these fields, or the only array itself."""
    first, *others = arrays.values()
    if not others:
        return first
    found = np.empty(len(first), np.dtype([(name, array.dtype, array.shape[1:]) for name, array in arrays.items()]))
    for name, array in arrays.items():
        found[name] = array
    return found


def parts(x: Array) -> tuple[Array, ...]:
    """Return the array of each input."""
    names = x.dtype.names
    return (x,) if names is None else tuple(x[name] for name in names)


def feeds(x: Array, inputs: Sequence[Value]) -> dict[str, Array]:
    """Return the contents of these inputs in a call with all of these samples."""
    return {value.name: part.reshape(value.shape) for value, part in zip(inputs, parts(x), strict=True)}


def in_calls(x: Array, inputs: Sequence[Value], together: int) -> Array:
    """Return samples by call: each element of the first axis has the samples of one call."""
    return x.reshape(-1, together) if x.dtype.names is not None else x.reshape(-1, *inputs[0].shape)


def is_finite(x: Array) -> bool:
    """Tell whether all numbers of samples are finite."""
    return all(bool(np.isfinite(part).all()) for part in parts(x))
