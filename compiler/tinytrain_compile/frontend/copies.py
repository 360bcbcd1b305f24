"""Initializers that are another one again, with axes of size 1 added or left out.

Exporters compute what follows from constants and write the result as a weight of its own: 0 W + b, the first step of an
unrolled cell, is a second b. Trained on its own it would drift away from the first.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinytrain_compile.ir.types import Array

FEWEST = 4
"""Elements below which equal numbers may be chance."""


def copies(constants: Mapping[str, Array]) -> dict[str, str]:
    """Name of a copy -> the first weight with its elements, which has fewer axes. Copies in one shape are weights of
    their own: layers may start alike. So are tables of one number."""
    found: dict[str, str] = {}
    known: dict[tuple[object, ...], list[str]] = {}
    for name, array in sorted(constants.items(), key=lambda item: item[1].ndim):
        if array.dtype.kind != "f" or array.size < FEWEST or bool(np.all(array == array.reshape(-1)[0])):
            continue
        dims = tuple(dim for dim in array.shape if dim > 1)
        same = known.setdefault((dims, array.dtype.str, array.tobytes()), [])
        if same and constants[same[0]].ndim < array.ndim and len(same) == 1:
            found[name] = same[0]
        else:
            same.append(name)
    return found
