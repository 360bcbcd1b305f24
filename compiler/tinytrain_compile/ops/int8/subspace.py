"""Low-rank copies of int8 activations, and back to int8 in the activation's own format; errors into their subspaces.

Subspaces that follow are float32. Everything is in integer steps of the activation (q - zero) or of the error, so that
no scale is needed: subspaces have none, and the way back rounds to the same steps. With full ranks it gives the
original integers. Fixed subspaces are int8 with a scale for each row, and the copy that is kept is int8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import NonDifferentiable, op_def, operator, traits
from tinytrain_compile.ops.exact import F32
from tinytrain_compile.ops.int8.error import BACKWARD, expect_dtypes
from tinytrain_compile.ops.int8.pointwise import quantised
from tinytrain_compile.ops.names import kept_layout, named, operand
from tinytrain_compile.ops.subspace import (
    ModeAttrs,
    expect_subspace,
    mode_form,
    mode_macs,
    mode_type,
    power_macs,
    power_scratch,
)

_FORWARD = NonDifferentiable(
    "copies of activations, and errors in their subspaces, are read by gradients of weights alone"
)


@dataclass(frozen=True)
class QModeAttrs(ModeAttrs):
    """zero: of the int8 activation, whose elements count as q - zero; 0 of an error."""

    zero: int = 0


def _steps(q: Array, attrs: QModeAttrs) -> Array:
    return (q.astype(np.int64) - attrs.zero).astype(F32)


def _in_float(op: str, arrays: tuple[Array, ...], attrs: ModeAttrs) -> Array:
    """Return the result of the float32 operator on these, in the order of the generated code."""
    exact = op_def(op).exact
    assert exact is not None
    return exact(arrays, attrs)[0]


def _power_infer(inputs: tuple[Value, ...], attrs: QModeAttrs) -> tuple[TensorType, ...]:
    x, u = inputs
    expect_dtypes("QSubspacePower", inputs, ("int8", "float32"))
    expect_subspace("QSubspacePower", u, mode_form(x.shape, attrs.axis)[1], 1)
    return (TensorType(u.shape),)


def _power(arrays: tuple[Array, ...], attrs: QModeAttrs) -> tuple[Array, ...]:
    x, u = arrays
    return (_in_float("SubspacePower", (_steps(x, attrs), u), attrs),)


operator(
    "QSubspacePower",
    "SubspacePower of an int8 activation, whose elements count as q - zero.",
    _power_infer,
    _power,
    _FORWARD,
    QModeAttrs,
    scratch=power_scratch,
    macs=power_macs,
    inputs=("x", "u"),
    outputs=("p",),
)


def _mode_infer(inputs: tuple[Value, ...], attrs: QModeAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QModeProduct", inputs, ("int8", "float32"))
    return (mode_type("QModeProduct", inputs, attrs, "float32"),)


def _mode(arrays: tuple[Array, ...], attrs: QModeAttrs) -> tuple[Array, ...]:
    x, u = arrays
    return (_in_float("ModeProduct", (_steps(x, attrs), u), attrs),)


operator(
    "QModeProduct",
    "Every fibre of an int8 activation or error along an axis into a subspace: y[k] = sum_c u[k,c] (x[c] - zero).",
    _mode_infer,
    _mode,
    _FORWARD,
    QModeAttrs,
    macs=mode_macs,
    inputs=("x", "u"),
    traits=traits("own_unit"),
)


def _expand_infer(inputs: tuple[Value, ...], attrs: QModeAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QModeExpand", inputs, ("float32", "float32"))
    return (mode_type("QModeExpand", inputs, attrs, "int8"),)


def _expand(arrays: tuple[Array, ...], attrs: QModeAttrs) -> tuple[Array, ...]:
    y = _in_float("ModeProduct", arrays, attrs)
    return (quantised(y, 1.0, attrs.zero, -128, 127).astype(np.int8),)


operator(
    "QModeExpand",
    "Back from a subspace to int8: y[c] = round(sum_k u[k,c] x[k]) + zero, ties to even, clamped.",
    _expand_infer,
    _expand,
    BACKWARD,
    QModeAttrs,
    macs=mode_macs,
    inputs=("x", "u"),
)


# ---- fixed subspaces ------------------------------------------------------------------------------------------------

LARGEST = 127
"""Largest magnitude of an int8 number of a matrix or of a core."""


NOTHING = 1e-9
"""Share of the largest number below which others are rounding errors of float64."""


def rows_in_int8(matrix: Array) -> tuple[Array, Array]:
    """Return (int8 numbers, float64 scale of each row) of a matrix[rows, length]; a negligible row becomes zeros."""
    peaks = np.abs(matrix).max(axis=1)
    scales = in_steps(peaks, NOTHING)
    return np.rint(matrix / scales[:, None]).astype(np.int8), scales


def in_steps(peaks: Array, nothing: float) -> Array:
    """Return a step for each peak that makes it the largest int8 number. A peak of at most the share `nothing` of the
    largest gets the step of the largest, so that it rounds to 0. If all peaks are 0, the step is 1."""
    largest = peaks.max() or float(LARGEST)
    return np.where(peaks > nothing * largest, peaks, largest) / LARGEST


@dataclass(frozen=True)
class QModeInt8Attrs(Attrs):
    """axis: along which fibres are multiplied; zero points of x and y; y is clamped to [low, high]."""

    axis: int
    x_zero: int
    y_zero: int
    low: int = -128
    high: int = 127


def _along_infer(inputs: tuple[Value, ...], attrs: QModeInt8Attrs) -> tuple[TensorType, ...]:
    x, matrix, multiplier, shift = inputs
    expect_dtypes("QModeProductInt8", inputs, ("int8", "int8", "int32", "int8"))
    _, length, _ = mode_form(x.shape, attrs.axis)
    if len(matrix.shape) != 2 or matrix.shape[1] != length:
        raise ValueError(f"QModeProductInt8: a matrix {matrix.shape} does not belong to an axis of {length}")
    rows = matrix.shape[0]
    if multiplier.shape != (rows,) or shift.shape != (rows,):
        raise ValueError(f"QModeProductInt8: factors {multiplier.shape}, {shift.shape} of {rows} rows")
    shape = (*x.shape[: attrs.axis], rows, *x.shape[attrs.axis + 1 :])
    return (TensorType(shape, "int8", kept_layout(x, len(shape))),)


def _along(arrays: tuple[Array, ...], attrs: QModeInt8Attrs) -> tuple[Array, ...]:
    o = named("QModeProductInt8", arrays)
    fibres = np.moveaxis(o["x"].astype(np.int64) - attrs.x_zero, attrs.axis, -1)
    y = fx.requantise(fibres @ o["matrix"].astype(np.int64).T, o["multiplier"], o["shift"]) + attrs.y_zero
    return (np.ascontiguousarray(np.moveaxis(fx.saturate(y, attrs.low, attrs.high), -1, attrs.axis)).astype(np.int8),)


def _along_macs(node: Node) -> int:
    return operand(node, "x").elements * operand(node, "matrix").shape[0]


operator(
    "QModeProductInt8",
    "Every fibre of an int8 tensor along an axis times an int8 matrix: int32 sums of matrix[k,c] (x[c] - x_zero),"
    " requantised by a factor for each row k, plus y_zero, clamped.",
    _along_infer,
    _along,
    BACKWARD,
    QModeInt8Attrs,
    macs=_along_macs,
    inputs=("x", "matrix", "multiplier", "shift"),
)
