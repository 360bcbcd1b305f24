"""int8 weights with 8 fraction bits (--weight-store q8.8): two bytes per updated weight, and no noise.

A weight is v / 256 units with v = 256 w + fraction, fraction an int8: w is v rounded to the nearest unit (half up), so
that forward and backward kernels read w as ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OpDef, op_def, register
from tinytrain_compile.ops.int8.conv import (
    BACKWARD,
    QConvUpdateAttrs,
    QWeightApplyAttrs,
    apply_attrs,
    as_weight,
    weight_gradient,
)
from tinytrain_compile.ops.int8.conv_form import is_one_sample
from tinytrain_compile.ops.int8.rows import rows_of_sum
from tinytrain_compile.ops.int8.steps import FINE_BITS, moves_of, row_moves, weight_steps
from tinytrain_compile.ops.owned import Owned


def moved_fine(w: Array, fraction: Array, gradient: Any, step: tuple[Any, Any], limit: Any) -> tuple[Array, Array]:
    """(weights, fractions) less gradient times step (in 1/256 of a weight), within +-limit (tt_moved_fine)."""
    return less_moves(w, fraction, moves_of(gradient, step), limit)


def less_moves(w: Array, fraction: Array, moves: Any, limit: Any) -> tuple[Array, Array]:
    """(weights, fractions) less moves in 1/256 of a weight, within +-limit."""
    bound = np.asarray(limit, np.int64) * 256
    v = np.clip(w.astype(np.int64) * 256 + fraction - moves, -bound, bound)
    rounded = (v + 128) >> 8
    return rounded.astype(np.int8), (v - rounded * 256).astype(np.int8)


def updated_fine(w: Array, fraction: Array, gradient: Any, scale: tuple[Array, ...], limit: int) -> tuple[Array, Array]:
    """(weights, fractions) after one step; `scale` = (multiplier, shift, rate, p), see step_size."""
    return moved_fine(w, fraction, gradient, weight_steps(w, scale), limit)


def expect_fraction(op: str, w: Value, fraction: Value) -> None:
    """A fraction is an int8 tensor like its weight."""
    if (fraction.shape, fraction.dtype) != (w.shape, "int8"):
        raise ValueError(f"{op}: fraction {fraction.shape} {fraction.dtype} of weight {w.shape}")


def _update_infer(inputs: tuple[Value, ...], attrs: QConvUpdateAttrs) -> tuple[TensorType, ...]:
    *plain, rate, p, fraction = inputs
    w = plain[0]
    expect_fraction("QConvUpdateFine", w, fraction)
    noise = (rate, rate)  # any int32: the rest is as in QConvUpdate
    op_def("QConvUpdate").infer((*plain, rate, p, *noise), attrs)
    return (w.type, fraction.type)


def _update(arrays: tuple[Array, ...], attrs: QConvUpdateAttrs) -> tuple[Array, ...]:
    w, x, g, *scale, fraction = arrays
    if is_one_sample(x.shape, attrs.conv):
        moves = row_moves(x, g, attrs.x_zero, tuple(scale), FINE_BITS)
        return less_moves(w, fraction, moves, attrs.limit)
    gradient = fx.saturate(weight_gradient(x, g, attrs.x_zero, attrs.conv))
    return updated_fine(w, fraction, gradient, tuple(scale), attrs.limit)


Q_CONV_UPDATE_FINE = register(
    OpDef(
        "QConvUpdateFine",
        "QConvUpdate of a weight with 8 fraction bits; operands (w, x, g, multiplier, shift, rate, p, fraction).",
        _update_infer,
        _update,
        BACKWARD,
        QConvUpdateAttrs,
        scratch=op_def("QConvUpdate").scratch,
        accumulator=op_def("QConvUpdate").accumulator,
        macs=op_def("QConvUpdate").macs,
        rows=rows_of_sum("x", "g", add="QConvSum", apply="QWeightApplyFine", attrs=apply_attrs),
        inputs=("w", "x", "g", "multiplier", "shift", "rate", "p", "fraction"),
        outputs=("w", "fraction"),
        owned=Owned({"w": "PARAMETER", "fraction": "ANY"}, "integer"),
    )
)


def _apply_infer(inputs: tuple[Value, ...], attrs: QWeightApplyAttrs) -> tuple[TensorType, ...]:
    *plain, rate, p, fraction = inputs
    w = plain[0]
    expect_fraction("QWeightApplyFine", w, fraction)
    op_def("QWeightApply").infer((*plain, rate, p, rate, rate), attrs)
    return (w.type, fraction.type)


def _apply(arrays: tuple[Array, ...], attrs: QWeightApplyAttrs) -> tuple[Array, ...]:
    w, total, *scale, fraction = arrays
    return updated_fine(w, fraction, as_weight(total, attrs.by_rows), tuple(scale), attrs.limit)


Q_WEIGHT_APPLY_FINE = register(
    OpDef(
        "QWeightApplyFine",
        "QWeightApply of a weight with 8 fraction bits; operands (w, sum, multiplier, shift, rate, p, fraction).",
        _apply_infer,
        _apply,
        BACKWARD,
        QWeightApplyAttrs,
        inputs=("w", "sum", "multiplier", "shift", "rate", "p", "fraction"),
        outputs=("w", "fraction"),
        owned=Owned({"w": "PARAMETER", "fraction": "ANY"}, "integer"),
    )
)
