"""Integers in a graph: token ids, positions, lengths, their sources, and the operators that compute with them.

They are int32, and sums that leave int32 wrap around. Nothing here has a gradient: integers are piecewise constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, DType, TensorType, Value
from tinytrain_compile.ops.base import ELEMENTWISE, NonDifferentiable, operator
from tinytrain_compile.ops.choice import broadcast_type
from tinytrain_compile.ops.names import WrongTypeError, expect_integers, kept_layout

WHOLE = NonDifferentiable("integers are piecewise constant", flat=True)
_LOW, _HIGH = -(2**31), 2**31
"""Range of int32, including the first and excluding the second; both are exact in float32."""


@dataclass(frozen=True)
class CastAttrs(Attrs):
    """to: float32 or int32."""

    to: DType


def _infer_cast(inputs: tuple[Value, ...], attrs: CastAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    if attrs.to not in ("float32", "int32") or x.dtype not in ("float32", "int32", "uint8"):
        raise WrongTypeError(f"Cast does not make {attrs.to} of {x.dtype}")
    return (TensorType(x.shape, attrs.to, kept_layout(x, len(x.shape))),)


def _cast(arrays: tuple[Array, ...], attrs: CastAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    if attrs.to == "int32" and x.dtype.kind == "f":
        inside = np.where((x >= _LOW) & (x < _HIGH), x, 0).astype(np.int32)
        return (np.where(x >= _HIGH, _HIGH - 1, np.where(x < _LOW, _LOW, inside)).astype(np.int32),)
    return (x.astype(attrs.to),)


operator(
    "Cast",
    "Numbers in another type; real ones lose their fraction, stay within int32, and NaN becomes 0.",
    _infer_cast,
    _cast,
    WHOLE,
    CastAttrs,
    inputs=("x",),
    traits=ELEMENTWISE,
)


def _infer_integers(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_integers("integer arithmetic", *inputs)
    return broadcast_type(inputs, "int32")


def _arithmetic(name: str, doc: str, function: Callable[[Any, Any], Any]) -> None:
    def reference(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
        a, b = (array.astype(np.uint32) for array in arrays)
        return (np.asarray(function(a, b), np.uint32).astype(np.int32),)

    operator(
        name,
        doc,
        _infer_integers,
        reference,
        WHOLE,
        inputs=("a", "b"),
        reuses=("a", "b"),
        traits=ELEMENTWISE,
    )


_arithmetic("IntegerAdd", "a + b of integers.", lambda a, b: a + b)
_arithmetic("IntegerSub", "a - b of integers.", lambda a, b: a - b)
_arithmetic("IntegerMul", "a * b of integers.", lambda a, b: a * b)
