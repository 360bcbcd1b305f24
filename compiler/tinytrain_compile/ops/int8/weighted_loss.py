"""Cross entropy of int8 logits in integers with weighted labels: class weights, ignored labels of a mean.

As in int8/loss.py, with an integer weight per label and the divisor of the mean, which the labels decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import operator
from tinytrain_compile.ops.int8.error import BACKWARD, error_infer, expect_dtypes, finish_error
from tinytrain_compile.ops.int8.loss import (
    RATIO_BITS,
    QLossAttrs,
    QLossErrorAttrs,
    check_operands,
    counted,
    error_parts,
    loss_terms,
)
from tinytrain_compile.ops.int8.targets import wide_float
from tinytrain_compile.ops.names import Named, named
from tinytrain_compile.ops.owned import ErrorState

MOST_RATIOS = 1 << 16
"""Most classes times groups; with more, the factors of an error would lose too many bits, and float32 is better."""


@dataclass(frozen=True)
class LabelWeightAttrs(Attrs):
    """ignore_index: a label that does not count. divisor: of the sum; 0: the sum of the weights."""

    ignore_index: int | None = None
    divisor: int = 0


def weight_bits(groups: int) -> int:
    """Return fraction bits of a weight (at most 1) with which the weights of all labels add up to at most 2**30."""
    return 30 - (groups - 1).bit_length()


def weight_probe(bits: int) -> int:
    """Return the smallest exponent, relative to EXPONENT_START, that shifts no gradient (at most 1) to the left."""
    return 2 - bits - fx.EXPONENT_START


def class_weights(weights: Array, groups: int) -> Array:
    """Return weights >= 0 relative to the largest, as integers of weight_bits."""
    return np.rint(weights.astype(np.float64) / weights.max() * 2.0 ** weight_bits(groups)).astype(np.int32)


def quotient_float(value: int, divisor: int, multiplier: int, shift: int) -> np.float32:
    """Return the float32 of value / divisor times a factor; |value| < 2**62, divisor > 0 (tt_quotient_float)."""
    spare = 62 - abs(value).bit_length()
    quotient = (abs(value) << spare) // divisor
    return wide_float(-quotient if value < 0 else quotient, multiplier, shift - spare)


# ---- QLabelWeight: (labels, weights) -> (weight of each label, divisor) --------------------------------------------


def _weight_infer(inputs: tuple[Value, ...], _attrs: LabelWeightAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QLabelWeight", inputs, ("int32", "int32"))
    labels, weights = inputs
    if len(weights.shape) != 1:
        raise ValueError(f"QLabelWeight: weights {weights.type}")
    return TensorType(labels.shape, "int32"), TensorType((), "int32")


def _label_weight(arrays: tuple[Array, ...], attrs: LabelWeightAttrs) -> tuple[Array, ...]:
    labels, weights = arrays
    counts = counted(labels, attrs.ignore_index, weights.size)
    found = np.where(counts, weights[np.where(counts, labels, 0)], 0).astype(np.int32)
    return found, np.asarray(attrs.divisor or int(found.astype(np.int64).sum()) or 1, np.int32)


operator(
    "QLabelWeight",
    "Weight of every label, 0 if it does not count, and what the loss divides by; operands (labels, weights).",
    _weight_infer,
    _label_weight,
    BACKWARD,
    LabelWeightAttrs,
    inputs=("labels", "weights"),
    outputs=("weight", "divisor"),
)


# ---- QWeightedSoftmaxLoss: (logits, labels, largest, sum, weight, divisor) -> loss ---------------------------------


def _check(op: str, o: Named[Value], attrs: QLossAttrs | QLossErrorAttrs) -> None:
    check_operands(op, o.several("logits", "labels", "largest", "sum"), attrs)
    more = o.several("weight", "divisor")
    if [(v.dtype, v.shape) for v in more] != [("int32", o["labels"].shape), ("int32", ())]:
        raise ValueError(f"{op}: weight and divisor {[str(v.type) for v in more]}")


def _loss_infer(inputs: tuple[Value, ...], attrs: QLossAttrs) -> tuple[TensorType, ...]:
    _check("QWeightedSoftmaxLoss", named("QWeightedSoftmaxLoss", inputs, attrs), attrs)
    return (TensorType(()),)


def _loss(arrays: tuple[Array, ...], attrs: QLossAttrs) -> tuple[Array, ...]:
    *plain, weight, divisor = arrays
    terms = loss_terms(tuple(plain), attrs)
    total = int((terms.astype(np.int64) * weight.reshape(terms.shape)).sum())
    return (np.asarray(quotient_float(total, int(divisor), *attrs.total), np.float32),)


operator(
    "QWeightedSoftmaxLoss",
    "QSoftmaxLoss of weighted labels; operands (logits, labels, largest, sum, weight, divisor).",
    _loss_infer,
    _loss,
    BACKWARD,
    QLossAttrs,
    inputs=("logits", "labels", "largest", "sum", "weight", "divisor"),
    outputs=("loss",),
)


# ---- QWeightedSoftmaxError: (peak, p_out, logits, labels, largest, sum, table, weight, divisor) -> (e, peak') ------


def _error_infer(inputs: tuple[Value, ...], attrs: QLossErrorAttrs) -> tuple[TensorType, ...]:
    o = named("QWeightedSoftmaxError", inputs, attrs)
    _check("QWeightedSoftmaxError", o, attrs)
    return error_infer("QWeightedSoftmaxError", o["logits"].type, inputs, attrs)


def _error(arrays: tuple[Array, ...], attrs: QLossErrorAttrs) -> tuple[Array, ...]:
    peak, p_out, *plain, weight, divisor = arrays
    above, inverse, counts = error_parts(tuple(plain), attrs)
    factor = fx.high_multiply(inverse, (weight.astype(np.int64).reshape(inverse.shape) << RATIO_BITS) // divisor)
    values = np.where(counts, fx.requantise(above, factor, 2 - attrs.bits - int(p_out[0])), 0)
    return finish_error(values.reshape(plain[0].shape), peak)


operator(
    "QWeightedSoftmaxError",
    "QSoftmaxError of weighted labels; operands (peak, p_out, logits, labels, largest, sum, table, weight, divisor).",
    _error_infer,
    _error,
    BACKWARD,
    QLossErrorAttrs,
    inputs=("peak", "p_out", "logits", "labels", "largest", "sum", "table", "weight", "divisor"),
    outputs=("error", "peak"),
    error=ErrorState(),
)
