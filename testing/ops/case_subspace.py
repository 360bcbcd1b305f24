"""Random cases of what low-rank copies of activations are made of."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, make, normal
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.int8.subspace import QModeAttrs, QModeInt8Attrs, rows_in_int8
from tinytrain_compile.ops.subspace import GroupAttrs, ModeAttrs

MODES = (
    ((2, 5, 4, 6), 3, 2),
    ((2, 5, 4, 6), 1, 4),
    ((3, 5, 4, 7), 2, 3),
    ((4, 3, 3, 2), 0, 4),
    ((6, 13), 1, 5),
    ((7, 9), 0, 1),
    ((1, 8, 8, 12), 3, 7),
    ((1, 3, 5, 13), 3, 11),
)
"""(shape, axis, rank)."""


def subspace(rng: Rng, rank: int, length: int) -> np.ndarray:
    """Orthonormal rows."""
    return np.ascontiguousarray(np.linalg.qr(normal(rng, (length, rank)))[0].T)


@generator("SubspacePower", len(MODES))
def _power(rng: Rng, index: int) -> Case:
    shape, axis, rank = MODES[index]
    return make("SubspacePower", (normal(rng, shape), subspace(rng, rank, shape[axis])), ModeAttrs(axis))


@generator("ModeProduct", 2 * len(MODES))
def _mode(rng: Rng, index: int) -> Case:
    shape, axis, rank = MODES[index // 2]
    expand = index % 2 == 1
    u = subspace(rng, rank, shape[axis])
    if expand:
        shape = (*shape[:axis], rank, *shape[axis + 1 :])
    return make("ModeProduct", (normal(rng, shape), u), ModeAttrs(axis, expand))


WEIGHTS = (
    ((6, 3, 3, 2), 5, 1),
    ((8, 3, 3, 3), 8, 8),
    ((6, 1, 1, 4), 9, 3),
    ((5, 2), 7, 1),
    ((12, 1, 1, 4), 16, 1),
    ((4, 1, 3, 1), 6, 2),
)
"""(shape of the gradient in the subspace, channels, groups)."""


@generator("SubspaceGradWeight", len(WEIGHTS))
def _weight(rng: Rng, index: int) -> Case:
    shape, channels, groups = WEIGHTS[index]
    return make("SubspaceGradWeight", (normal(rng, shape), subspace(rng, shape[-1], channels)), GroupAttrs(groups))


def _dependent(rng: Rng) -> np.ndarray:
    """Rows of which the second and the last lie in the span of others."""
    rows = normal(rng, (4, 6))
    rows[1], rows[3] = 2.0 * rows[0], rows[0] - 3.0 * rows[2]
    return rows


@generator("Orthonormalize", 6)
def _orthonormalize(rng: Rng, index: int) -> Case:
    shapes = ((3, 8), (5, 5), (1, 4), (7, 12))
    rows = normal(rng, shapes[index]) if index < len(shapes) else (_dependent(rng), np.zeros((2, 5)))[index % 2]
    return make("Orthonormalize", (rows,))


@generator("KeepSubspace", 5)
def _keep(rng: Rng, index: int) -> Case:
    shape = ((2, 6), (1, 1), (5, 5), (3, 40), (4, 7))[index]
    return make("KeepSubspace", (normal(rng, shape), normal(rng, shape)))


# ---- of int8 activations --------------------------------------------------------------------------------------------


def _integers(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-128, 128, shape).astype(np.int8)


@generator("QSubspacePower", len(MODES))
def _qpower(rng: Rng, index: int) -> Case:
    shape, axis, rank = MODES[index]
    zero = (-128, 0, 5)[index % 3]
    operands = (_integers(rng, shape), subspace(rng, rank, shape[axis]))
    return make("QSubspacePower", operands, QModeAttrs(axis, zero=zero), differentiable=())


@generator("QModeProduct", len(MODES))
def _qmode(rng: Rng, index: int) -> Case:
    shape, axis, rank = MODES[index]
    zero = (-128, 0, 5)[index % 3]
    operands = (_integers(rng, shape), subspace(rng, rank, shape[axis]))
    return make("QModeProduct", operands, QModeAttrs(axis, zero=zero), differentiable=())


@generator("QModeExpand", len(MODES))
def _qexpand(rng: Rng, index: int) -> Case:
    """Values of which some are clamped."""
    shape, axis, rank = MODES[index % len(MODES)]
    zero = (-128, 0, 5)[index % 3]
    core = 120.0 * normal(rng, (*shape[:axis], rank, *shape[axis + 1 :]))
    operands = (core, subspace(rng, rank, shape[axis]))
    return make("QModeExpand", operands, QModeAttrs(axis, True, zero=zero), differentiable=())


@generator("QModeProductInt8", 2 * len(MODES))
def _qalong(rng: Rng, index: int) -> Case:
    """Into a subspace and back; factors of rows from those that lose next to nothing to those that clamp most."""
    shape, axis, rank = MODES[index // 2 % len(MODES)]
    matrix, scales = rows_in_int8(subspace(rng, rank, shape[axis]).astype(np.float64))
    if index % 2:
        matrix, scales = rows_in_int8((matrix * scales[:, None]).T)
        shape = (*shape[:axis], rank, *shape[axis + 1 :])
    factors = fx.split_factors(scales * rng.uniform(0.1, 3.0, len(scales)) * (index % 5 != 4))
    attrs = QModeInt8Attrs(
        axis, (-128, 0, 5)[index % 3], (0, 7)[index // 2 % 2], *((-127, 127), (-128, 127))[index % 2]
    )
    return make("QModeProductInt8", (_integers(rng, shape), matrix, *factors), attrs, differentiable=())
