"""Clipping by the norm of a gradient: sums of its squares, and the factor that keeps it below a norm.

Squares are added row by row (the first axis of a parameter) and rows one after another: an order that no tile of a
kernel changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops.base import NonDifferentiable, operator, traits
from tinytrain_compile.ops.names import named
from tinytrain_compile.ops.owned import Owned

CLIPPING = NonDifferentiable("clipping is not part of the differentiated function")
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class SquareTotalAttrs(Attrs):
    """fresh: the total restarts from 0."""

    fresh: bool = False


@dataclass(frozen=True)
class ClipAttrs(Attrs):
    """norm: largest norm of a gradient after clipping. scaled: whether an operand holds a factor that multiplies the
    gradient anyway."""

    norm: float
    scaled: bool = False


def _expect_scalars(op: str, *values: Value) -> None:
    if any(value.shape != () or value.dtype != "float32" for value in values):
        raise ValueError(f"{op}: {[(value.shape, value.dtype) for value in values]} are not float32 scalars")


def _rows_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (g,) = inputs
    if g.shape == () or g.dtype != "float32":
        raise ValueError(f"RowSquares takes float32 rows, got {g.dtype} {g.shape}")
    return (TensorType(g.shape[:1], "float32"),)


def row_squares(g: Array) -> Array:
    """Return per row the sum of its squares, one after another."""
    return np.add.accumulate((g * g).reshape(g.shape[0], -1), axis=1)[:, -1]


def added_squares(rows: Array, g: Array) -> Array:
    """Return rows plus the squares of each row, one after another: of zeros, `row_squares`."""
    squares = (g * g).reshape(g.shape[0], -1)
    return np.add.accumulate(np.concatenate([rows[:, None], squares], axis=1), axis=1)[:, -1]


ROW_SQUARES = operator(
    "RowSquares",
    "The squares of each row of g, added up; a vector has rows of one element.",
    _rows_infer,
    lambda arrays, _attrs: (row_squares(*arrays),),
    CLIPPING,
    inputs=("g",),
    outputs=("rows",),
    traits=traits("gradient_sum", "squares"),
)


def _total_infer(inputs: tuple[Value, ...], _attrs: SquareTotalAttrs) -> tuple[TensorType, ...]:
    total, rows = inputs
    _expect_scalars("SquareTotal", total)
    if len(rows.shape) != 1 or rows.dtype != "float32":
        raise ValueError(f"SquareTotal: rows are {rows.dtype} {rows.shape}")
    return (total.type,)


def _total(arrays: tuple[Array, ...], attrs: SquareTotalAttrs) -> tuple[Array, ...]:
    total, rows = arrays
    added = np.add.accumulate(np.concatenate([np.zeros_like(rows[:1]), rows]))[-1]
    return (np.asarray(added if attrs.fresh else total + added, total.dtype),)


operator(
    "SquareTotal",
    "total += the sum of rows, or becomes that; operands (total, rows).",
    _total_infer,
    _total,
    CLIPPING,
    SquareTotalAttrs,
    inputs=("total", "rows"),
    outputs=("total",),
    owned=Owned({"total": "ANY"}, "sum"),  # squares of a NaN gradient are NaN
    traits=traits("totals"),
)


def _factor_infer(inputs: tuple[Value, ...], _attrs: ClipAttrs) -> tuple[TensorType, ...]:
    _expect_scalars("ClipFactor", *inputs)
    return (inputs[0].type,)


def _factor(arrays: tuple[Array, ...], attrs: ClipAttrs) -> tuple[Array, ...]:
    o = named("ClipFactor", arrays, attrs)
    squares, scale = o["squares"], o.get("scale")
    one = squares.dtype.type
    norm = np.sqrt(squares) if scale is None else np.sqrt(squares) * scale
    if not squares <= one(LARGEST):
        return (np.zeros_like(squares),)
    return (np.asarray(one(attrs.norm) / norm if norm > one(attrs.norm) else 1.0, squares.dtype),)


operator(
    "ClipFactor",
    "min(1, norm / (sqrt(squares) scale)), 0 where squares are no finite number; operands (squares, [scale]).",
    _factor_infer,
    _factor,
    CLIPPING,
    ClipAttrs,
    inputs=("squares", "scale?"),
    present=lambda attrs: ("scale",) if attrs.scaled else (),
)
