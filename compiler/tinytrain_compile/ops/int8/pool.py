"""The int8 error of a MaxPool whose windows overlap: a sum, hence an error with an exponent of its own.

MaxPool, MaxPoolIndex, and MaxPoolGrad without overlap only move int8 numbers: ops/pool.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import operator
from tinytrain_compile.ops.int8.error import BACKWARD, error_infer, finish_error
from tinytrain_compile.ops.int8.pointwise import LIFT
from tinytrain_compile.ops.owned import ErrorState
from tinytrain_compile.ops.pool import PoolGradAttrs, index_gradient, max_pool_grad


@dataclass(frozen=True)
class QMaxPoolGradAttrs(PoolGradAttrs):
    """probe: see ErrorAttrs."""

    probe: int = 0


def sum_bound(attrs: PoolGradAttrs) -> int:
    """Return the largest magnitude of a lifted sum: an element may win in as many windows as a window has taps."""
    return (128 * math.prod(attrs.pool.kernel)) << LIFT


def _infer(inputs: tuple[Value, ...], attrs: QMaxPoolGradAttrs) -> tuple[TensorType, ...]:
    _, _, _, g, index = inputs
    (kind,) = index_gradient("QMaxPoolGrad", g, index, attrs)
    if kind.dtype != "int8":
        raise ValueError(f"QMaxPoolGrad: error {g.type}")
    return error_infer("QMaxPoolGrad", kind, inputs, attrs)


def _grad(arrays: tuple[Array, ...], attrs: QMaxPoolGradAttrs) -> tuple[Array, ...]:
    peak, p_out, p_in, g, index = arrays
    (total,) = max_pool_grad((g.astype(np.int64), index), attrs)
    values = fx.shift(total << LIFT, int(p_in[0]) - int(p_out[0]) - LIFT)
    return finish_error(values, peak)


operator(
    "QMaxPoolGrad",
    "int8 error of a MaxPool: sums over the windows that an element won; operands (peak, p_out, p_in, g, index).",
    _infer,
    _grad,
    BACKWARD,
    QMaxPoolGradAttrs,
    accumulator=lambda _inputs, attrs: sum_bound(attrs),
    inputs=("peak", "p_out", "p_in", "g", "index"),
    outputs=("error", "peak"),
    error=ErrorState(("p_in",)),
)
