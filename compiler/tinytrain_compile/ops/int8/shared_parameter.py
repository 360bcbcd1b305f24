"""Integer ops of parameters that several layers share: the bias in each layer's unit, and the sum of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OpDef, register
from tinytrain_compile.ops.int8.conv import BACKWARD
from tinytrain_compile.ops.int8.error import expect_dtypes


@dataclass(frozen=True)
class GradientAddAttrs(Attrs):
    """lift: fraction bits of the result, by which its exponent is lower; lifted: those of the first operand."""

    lift: int = 0
    lifted: int = 0


def _bias_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_dtypes("QSharedBias", inputs, ("int32", "int32", "int8"))
    bias, *_ = inputs
    if len({value.shape for value in inputs}) != 1 or len(bias.shape) != 1:
        raise ValueError(f"QSharedBias: shapes {[value.shape for value in inputs]}")
    return (bias.type,)


register(
    OpDef(
        "QSharedBias",
        "A bias in the unit of one of the layers that share it; operands (b, multiplier, shift), one per channel.",
        _bias_infer,
        lambda arrays, _attrs: (fx.requantise(*arrays).astype(np.int32),),
        BACKWARD,
        inputs=("bias", "multiplier", "shift"),
        outputs=("unit_bias",),
    )
)


def _add_infer(inputs: tuple[Value, ...], attrs: GradientAddAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QGradientAdd", inputs, ("int32",) * 4 + ("int32", "int8") * 2)
    a, b, p_a, p_b, *factors = inputs
    if a.shape != b.shape or not a.shape or any(value.shape != a.shape[:1] for value in factors):
        raise ValueError(f"QGradientAdd: shapes {[value.shape for value in inputs]}")
    if len(p_a.shape) != 1 or len(p_b.shape) != 1 or not 0 <= attrs.lifted <= attrs.lift <= 16:
        raise ValueError(f"QGradientAdd: exponents {p_a.shape} and {p_b.shape}, {attrs}")
    return (a.type, TensorType((1,), "int32"))


def _added(arrays: tuple[Array, ...], attrs: GradientAddAttrs) -> tuple[Array, ...]:
    a, b, p_a, p_b, multiplier_a, shift_a, multiplier_b, shift_b = arrays
    exponent = max(int(p_a[0]) + attrs.lifted, int(p_b[0])) - attrs.lift
    first = _term(a, multiplier_a, shift_a, int(p_a[0]) - exponent)
    second = _term(b, multiplier_b, shift_b, int(p_b[0]) - exponent)
    return fx.saturate(first + second).astype(np.int32), np.asarray([exponent], np.int32)


def _term(sums: Array, multiplier: Array, shift: Array, up: int) -> Any:
    per_channel = (-1,) + (1,) * (sums.ndim - 1)
    exponent = shift.astype(np.int64) - 31 + up
    return fx.scaled(sums, multiplier.reshape(per_channel), exponent.reshape(per_channel))


register(
    OpDef(
        "QGradientAdd",
        "The sum of two gradients of one parameter, each times a factor per channel, at the larger of their exponents "
        "less the lift; operands (a, b, p_a, p_b, multiplier of a, shift of a, multiplier of b, shift of b).",
        _add_infer,
        _added,
        BACKWARD,
        GradientAddAttrs,
        inputs=("a", "b", "p_a", "p_b", "multiplier_a", "shift_a", "multiplier_b", "shift_b"),
        outputs=("total", "exponent"),
        reuses=("a", "b"),
    )
)
