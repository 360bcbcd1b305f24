"""Random cases of interpolation along an axis."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, make, normal
from tinytrain_compile.ops.resize import ResizeAttrs, tables

RESIZED: tuple[tuple[tuple[int, ...], ResizeAttrs], ...] = (
    ((1, 4, 5, 3), ResizeAttrs(1, 4, 8, 2.0, "linear")),
    ((1, 4, 5, 3), ResizeAttrs(2, 5, 9, 1.8, "linear", "align_corners")),
    ((1, 8, 2, 3), ResizeAttrs(1, 4, 8, 2.0, "linear", transposed=True)),
    ((2, 6), ResizeAttrs(1, 6, 4, 2 / 3, "nearest", "asymmetric", "floor")),
    ((2, 4), ResizeAttrs(1, 6, 4, 2 / 3, "nearest", "asymmetric", "floor", transposed=True)),
    ((1, 5, 4), ResizeAttrs(1, 5, 7, 1.4, "cubic", "pytorch_half_pixel")),
    ((3, 5), ResizeAttrs(1, 5, 12, 2.4, "cubic", "half_pixel", exclude_outside=True)),
    ((2, 9), ResizeAttrs(1, 9, 4, 4 / 9, "linear", antialias=True)),
    ((1, 3, 1, 2), ResizeAttrs(1, 3, 7, 7 / 3, "nearest")),
)


@generator("Resize", len(RESIZED))
def _resize(rng: Rng, index: int) -> Case:
    shape, attrs = RESIZED[index]
    first, weights = tables(attrs)
    return make("Resize", (normal(rng, shape), first, weights.astype(np.float64)), attrs, differentiable=(0,))
