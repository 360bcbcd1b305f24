"""Small helpers that several op families share: operand checks, layout rules, the gradient of a one-output node."""

from __future__ import annotations

from collections.abc import Iterable

from tinytrain_compile.ir.types import DType, Layout, TensorType, Value
from tinytrain_compile.ops.base import NonDifferentiable

BACKWARD = NonDifferentiable("a backward op: training differentiates once")
"""The reason that most *Grad ops share."""


class WrongTypeError(ValueError):
    """An operator on operands of types that it does not compute with."""


def expect_float(op: str, *values: Value) -> None:
    """Raise WrongTypeError unless every value is float32."""
    _expect("float32", "float32", op, values)


def expect_integers(op: str, *values: Value) -> None:
    """Raise WrongTypeError unless every value is int32."""
    _expect("int32", "integers", op, values)


def expect_indices(op: str, index: Value) -> None:
    """Raise WrongTypeError unless a value may be an index."""
    _expect("int32", "int32 indices", op, (index,))


def expect_truth(op: str, *values: Value) -> None:
    """Raise WrongTypeError unless every value is uint8."""
    _expect("uint8", "truth values", op, values)


def _expect(dtype: DType, what: str, op: str, values: Iterable[Value]) -> None:
    for value in values:
        if value.dtype != dtype:
            raise WrongTypeError(f"{op} needs {what}, {value.name!r} is {value.dtype}")


def expect_same_shape(op: str, *values: Value) -> None:
    """Raise ValueError unless all values have the shape of the first."""
    for value in values[1:]:
        if value.shape != values[0].shape:
            raise ValueError(f"{op} needs equal shapes, got {values[0].shape} and {value.shape}")


def kept_layout(value: Value, rank: int) -> Layout:
    """The layout of an output of this rank that keeps the axes of `value`."""
    return value.layout if rank == 4 and len(value.shape) == 4 else ""


def like(value: Value) -> tuple[TensorType, ...]:
    """One output of the same type as `value`."""
    return (TensorType(value.shape, value.dtype, kept_layout(value, len(value.shape))),)


def only(gradients: tuple[Value | None, ...]) -> Value:
    """The gradient of the only differentiable output of a node (output 0)."""
    if gradients[0] is None or any(gradient is not None for gradient in gradients[1:]):
        raise ValueError("expected a gradient of output 0 and of no other")
    return gradients[0]
