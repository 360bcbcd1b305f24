"""Softmax cross entropy of int8 logits, in integers: sums of a table of exponentials, its error, and the loss.

With d = largest logit - logit, a group of classes has the sum S = sum of e(d), where e(d) = exp(-scale d) 2**bits is a
table. The gradient of a class is (e(d) - [label] S) / S; the loss is ln(S / 2**bits) + scale d(label).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import operator
from tinytrain_compile.ops.int8.error import BACKWARD, error_infer, finish_error
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.owned import ErrorState

TABLE = 256
"""Entries of the table of exponentials: one for every distance between two int8 numbers."""
RATIO_BITS, LOG_BITS = 30, 24
"""Fraction bits of an inverse sum (the most with which 1 fits an int32), and of a binary logarithm."""
DISTANCE_BITS = 22
"""Left shift of a distance before it is scaled."""
LOSSES = {
    "QSoftmaxLoss": "cross-entropy",
    "QWeightedSoftmaxLoss": "cross-entropy",
    "QMeanSquaredError": "mse",
    "QSigmoidCrossEntropy": "bce",
}
"""Losses in integers, whose only float32 is assembled from bits, and their names on the command line."""
LOSS_NAMES = {"MeanSquaredError": "mse", "SigmoidCrossEntropy": "bce", **LOSSES}
LN2 = fx.split_factor(math.log(2.0))
LEAST_LOSS_BITS = 12
"""Fraction bits of a loss; with fewer it is better computed in float32."""


@dataclass(frozen=True)
class SoftmaxSumAttrs(Attrs):
    """axis: axis of the classes; bits: fraction bits of the table."""

    axis: int
    bits: int


@dataclass(frozen=True)
class QLossAttrs(NllAttrs):
    """As NllAttrs, with the table's bits; a term has loss_bits of fraction.

    distance: factor from (largest - logit) 2**DISTANCE_BITS to a term; total: from the sum of all terms to the loss.
    """

    bits: int = 0
    loss_bits: int = 0
    distance: tuple[int, int] = (0, 0)
    total: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class QLossErrorAttrs(NllAttrs):
    """As NllAttrs, with the table's bits; probe: see ErrorAttrs."""

    bits: int = 0
    probe: int = 0


def table_bits(classes: int) -> int:
    """Return the most fraction bits with which the sum of `classes` table entries, each at most 1, fits an int32."""
    return (fx.INT32_MAX // classes).bit_length() - 1


def probe(bits: int) -> int:
    """Return the smallest exponent, relative to EXPONENT_START, that shifts no gradient (at most 1) to the left."""
    return 1 - bits - fx.EXPONENT_START


def exponentials(scale: float, bits: int) -> Array:
    """Return the table: exp(-scale d) 2**bits, rounded, for d = 0 to 255."""
    return np.rint(np.exp(-scale * np.arange(TABLE, dtype=np.float64)) * 2.0**bits).astype(np.int32)


def loss_fraction_bits(scale: float, classes: int, groups: int) -> int:
    """Return the most fraction bits (at most LOG_BITS) with which the sum of the terms of all groups fits an int32."""
    largest = groups * (255.0 * scale + math.log(classes) + 1.0)
    return min(LOG_BITS, math.floor(math.log2(fx.INT32_MAX / largest)))


def grouped(values: Array, axis: int) -> Array:
    """Return a tensor as (outer, classes, inner)."""
    shape = values.shape
    return values.reshape(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def binary_log(values: Array) -> Array:
    """Return log2 of integers >= 1 with LOG_BITS of fraction, one bit per turn, rounded down (tt_log2)."""
    n = np.frexp(values.astype(np.float64))[1].astype(np.int64) - 1
    m = values.astype(np.uint64) << (31 - n).astype(np.uint64)
    result = n << LOG_BITS
    for place in reversed(range(LOG_BITS)):
        m = (m * m) >> np.uint64(31)
        high = m >> np.uint64(32)
        m >>= high
        result += high.astype(np.int64) << place
    return result


def ratio(numerator: int, divisors: Array) -> Array:
    """Return numerator / divisor with RATIO_BITS of fraction, rounded down; 0 < numerator <= divisor (tt_ratio)."""
    return (np.int64(numerator) << RATIO_BITS) // divisors.astype(np.int64)


def scaled_float(value: int, multiplier: int, shift: int) -> np.float32:
    """Return the float32 nearest to value * multiplier * 2**(shift - 31), ties to even; 0 or normal
    (tt_scaled_float)."""
    product = abs(value) * multiplier
    spare = max(product.bit_length() - 24, 0)
    mantissa = product >> spare
    rest, half = product - (mantissa << spare), (1 << spare) >> 1
    mantissa += int(rest > half or (rest == half > 0 and mantissa % 2 == 1))
    return np.float32(math.ldexp(-mantissa if value < 0 else mantissa, spare + shift - 31))


# ---- QSoftmaxSum: (logits, table) -> (largest, sum), one of each per group -----------------------------------------


def _group_shape(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _sum_infer(inputs: tuple[Value, ...], attrs: SoftmaxSumAttrs) -> tuple[TensorType, ...]:
    logits, table = inputs
    if (logits.dtype, table.dtype, table.shape) != ("int8", "int32", (TABLE,)):
        raise ValueError(f"QSoftmaxSum: logits {logits.type}, table {table.type}")
    shape = _group_shape(logits.shape, attrs.axis)
    return TensorType(shape, "int8"), TensorType(shape, "int32")


def _sum_bound(inputs: tuple[Value, ...], attrs: SoftmaxSumAttrs) -> int:
    logits, _ = inputs
    return logits.shape[attrs.axis] << attrs.bits


def _softmax_sum(arrays: tuple[Array, ...], attrs: SoftmaxSumAttrs) -> tuple[Array, ...]:
    logits, table = arrays
    logits = logits.astype(np.int64)
    largest = logits.max(axis=attrs.axis, keepdims=True)
    summed = table[largest - logits].astype(np.int64).sum(axis=attrs.axis)
    return largest.squeeze(attrs.axis).astype(np.int8), summed.astype(np.int32)


operator(
    "QSoftmaxSum",
    "Largest int8 logit of each group, and the sum of the exponentials below it; operands (logits, table).",
    _sum_infer,
    _softmax_sum,
    BACKWARD,
    SoftmaxSumAttrs,
    accumulator=_sum_bound,
    inputs=("logits", "table"),
    outputs=("largest", "sum"),
)


# ---- QSoftmaxLoss: (logits, labels, largest, sum) -> loss ----------------------------------------------------------


def check_operands(op: str, values: tuple[Value, ...], attrs: NllAttrs) -> None:
    """Raise ValueError unless these are (logits, labels, largest, sum)."""
    logits, *others = values
    shape = _group_shape(logits.shape, attrs.axis)
    dtypes = [v.dtype for v in values]
    if dtypes != ["int8", "int32", "int8", "int32"] or any(v.shape != shape for v in others):
        raise ValueError(f"{op}: {[str(v.type) for v in values]}")


def _loss_infer(inputs: tuple[Value, ...], attrs: QLossAttrs) -> tuple[TensorType, ...]:
    check_operands("QSoftmaxLoss", inputs, attrs)
    return (TensorType(()),)


def counted(labels: Array, ignore_index: int | None, classes: int) -> Array:
    """Return which labels count: those that are a class, and not the ignored one."""
    counts = (labels >= 0) & (labels < classes)
    return counts if ignore_index is None else counts & (labels != ignore_index)


def loss_terms(arrays: tuple[Array, ...], attrs: QLossAttrs) -> Array:
    """Return cross entropy of every group (outer, inner) with loss_bits of fraction; 0 if its label does not count."""
    whole, *per_group = arrays
    logits = grouped(whole, attrs.axis).astype(np.int64)
    labels, largest, summed = (a.reshape(logits.shape[0], logits.shape[2]).astype(np.int64) for a in per_group)
    counts = counted(labels, attrs.ignore_index, logits.shape[1])
    chosen = np.take_along_axis(logits, np.where(counts, labels, 0)[:, None], 1)[:, 0]
    above = binary_log(summed) - (attrs.bits << LOG_BITS)
    log_part = fx.requantise(above, LN2[0], LN2[1] + attrs.loss_bits - LOG_BITS)
    distance_part = fx.requantise((largest - chosen) << DISTANCE_BITS, *attrs.distance)
    return np.where(counts, log_part + distance_part, 0)


def _loss(arrays: tuple[Array, ...], attrs: QLossAttrs) -> tuple[Array, ...]:
    total = int(loss_terms(arrays, attrs).sum())
    return (np.asarray(scaled_float(total, *attrs.total), np.float32),)


operator(
    "QSoftmaxLoss",
    "Cross entropy of int8 logits in fixed point, as float32; operands (logits, labels, largest, sum).",
    _loss_infer,
    _loss,
    BACKWARD,
    QLossAttrs,
    inputs=("logits", "labels", "largest", "sum"),
    outputs=("loss",),
)


# ---- QSoftmaxError: (peak, p_out, logits, labels, largest, sum, table) -> (e, peak') -------------------------------


def _error_infer(inputs: tuple[Value, ...], attrs: QLossErrorAttrs) -> tuple[TensorType, ...]:
    _, _, logits, labels, largest, summed, _ = inputs
    check_operands("QSoftmaxError", (logits, labels, largest, summed), attrs)
    return error_infer("QSoftmaxError", logits.type, inputs, attrs)


def error_parts(arrays: tuple[Array, ...], attrs: QLossErrorAttrs) -> tuple[Any, Array, Array]:
    """Return (numerator of every class, inverse sum and whether the label counts of every group), as (outer, ., inner).

    arrays: logits, labels, largest, sum, table.
    """
    whole, *per_group, table = arrays
    logits, table = grouped(whole, attrs.axis).astype(np.int64), table.astype(np.int64)
    labels, largest, summed = (a.reshape(logits.shape[0], 1, -1).astype(np.int64) for a in per_group)
    counts = counted(labels, attrs.ignore_index, logits.shape[1])
    classes = np.arange(int(logits.shape[1]), dtype=np.int64)
    hits = classes[:, None] == labels
    above = table[largest - logits] - np.where(hits, summed, 0)
    return above, ratio(1 << attrs.bits, summed), counts


def _error(arrays: tuple[Array, ...], attrs: QLossErrorAttrs) -> tuple[Array, ...]:
    peak, p_out, logits, *rest = arrays
    above, inverse, counts = error_parts((logits, *rest), attrs)
    values = fx.requantise(above, inverse, 1 - attrs.bits - int(p_out[0]))
    return finish_error(np.where(counts, values, 0).reshape(logits.shape), peak)


operator(
    "QSoftmaxError",
    "Error of int8 logits: softmax less the label; operands (peak, p_out, logits, labels, largest, sum, table).",
    _error_infer,
    _error,
    BACKWARD,
    QLossErrorAttrs,
    inputs=("peak", "p_out", "logits", "labels", "largest", "sum", "table"),
    outputs=("error", "peak"),
    error=ErrorState(),
)
