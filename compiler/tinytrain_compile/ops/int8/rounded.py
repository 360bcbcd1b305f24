"""Integer updates by a weight gradient that was computed in float32, from a low-rank copy of an int8 activation.

The gradient counts in steps of the activation times units of the error, as int32 sums of exact gradients do. Rounded to
int32 it is one of these, and everything behind it is as there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OpDef, register
from tinytrain_compile.ops.exact import F32
from tinytrain_compile.ops.fixed_point import INT32_MAX, INT32_MIN
from tinytrain_compile.ops.int8.conv import BACKWARD, QWeightApplyAttrs
from tinytrain_compile.ops.int8.error import expect_dtypes
from tinytrain_compile.ops.int8.update import Q_WEIGHT_APPLY
from tinytrain_compile.ops.int8.update_fine import Q_WEIGHT_APPLY_FINE
from tinytrain_compile.ops.owned import Owned

LIMIT = np.float32(2.0**31)
"""Of what an int32 holds."""


def rounded(g: Array) -> Array:
    """float32 to the nearest int32, ties to even, saturating; 0 for what is no number (tt_rounded)."""
    x = g.astype(F32)
    near = np.where(np.abs(x) < LIMIT, np.rint(x), F32(0)).astype(np.int32)
    return np.where(x >= LIMIT, np.int32(INT32_MAX), np.where(x <= -LIMIT, np.int32(INT32_MIN), near))


def _expect_gradient(op: str, parameter: Value, g: Value) -> None:
    """A float32 gradient of this shape."""
    if (g.shape, g.dtype) != (parameter.shape, "float32"):
        raise ValueError(f"{op}: gradient {g.shape} {g.dtype} of {parameter.shape}")


def _gradient_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (g,) = inputs
    expect_dtypes("QRoundGradient", inputs, ("float32",))
    return (TensorType(g.shape, "int32"),)


register(
    OpDef(
        "QRoundGradient",
        "A float32 gradient of an int8 weight, rounded to int32.",
        _gradient_infer,
        lambda arrays, _attrs: (rounded(*arrays),),
        BACKWARD,
        inputs=("g",),
        outputs=("sum",),
    )
)


def _sum_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    total, g = inputs
    expect_dtypes("QRoundedSum", inputs, ("int32", "float32"))
    _expect_gradient("QRoundedSum", total, g)
    return (total.type,)


def _sum(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    total, g = arrays
    return (fx.saturate(total.astype(np.int64) + rounded(g)).astype(np.int32),)


Q_ROUNDED_SUM = register(
    OpDef(
        "QRoundedSum",
        "Adds a float32 gradient of an int8 weight, rounded to int32, to the running sum, saturating; operands (sum, "
        "g).",
        _sum_infer,
        _sum,
        BACKWARD,
        inputs=("sum", "g"),
        outputs=("sum",),
        owned=Owned({"sum": "SUM"}, "integer"),
    )
)


def _on_rounded(op: str, base: OpDef, doc: str) -> OpDef:
    """An update by a sum, on what a float32 gradient in its place is rounded to."""

    def infer(inputs: tuple[Value, ...], attrs: QWeightApplyAttrs) -> tuple[TensorType, ...]:
        w, g, *rest = inputs
        _expect_gradient(op, w, g)
        return base.infer((w, replace(g, dtype="int32"), *rest), attrs)

    def reference(arrays: tuple[Array, ...], attrs: QWeightApplyAttrs) -> tuple[Array, ...]:
        w, g, *rest = arrays
        return base.reference((w, rounded(g), *rest), attrs)

    inputs = tuple("g" if name == "sum" else name for name in base.inputs)
    made = OpDef(op, doc, infer, reference, BACKWARD, QWeightApplyAttrs, inputs=inputs, outputs=base.outputs)
    return register(replace(made, owned=base.owned))


Q_ROUNDED_UPDATE = _on_rounded(
    "QRoundedUpdate",
    Q_WEIGHT_APPLY,
    "w -= step times a float32 gradient, rounded to int32, with noise; operands (w, g, multiplier, shift, rate, p, "
    "noise, salt).",
)
Q_ROUNDED_UPDATE_FINE = _on_rounded(
    "QRoundedUpdateFine",
    Q_WEIGHT_APPLY_FINE,
    "QRoundedUpdate of a weight with 8 fraction bits; operands (w, g, multiplier, shift, rate, p, fraction).",
)
