"""mse and bce of int8 outputs against float32 targets, in integers: differences in fixed point, their error, the loss.

A target becomes an integer by its bits. With y the stored output, z its zero point and s its scale, mse takes the
difference ((y - z) 2**bits - target / s 2**bits), bce sigmoid(s (y - z)) 2**bits - target 2**bits, by a table.
A NaN target does not count; one out of range counts as the nearest number in range (TARGET_LIMIT).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import Trait, operator, traits
from tinytrain_compile.ops.int8.error import BACKWARD, error_infer, expect_dtypes, finish_error
from tinytrain_compile.ops.int8.loss import DISTANCE_BITS, LN2, LOG_BITS, TABLE, binary_log, scaled_float
from tinytrain_compile.ops.owned import ErrorState

NOT_A_TARGET = fx.INT32_MIN
TARGET_LIMIT = 1 << 30
"""Integer of a NaN target, and the largest magnitude of any other target (TT_TARGET_LIMIT)."""
SIGMOID_BITS = 28
"""Fraction bits of a probability, a sigmoid or a target of bce: targets reach to +-4."""
REACH_BITS = 13
"""Bits of the range of an mse difference: 2**13 units of the output, 32 times the range of int8."""
LEAST_BITS = 8
"""Fraction bits of a difference; with fewer, mse is better computed in float32."""


@dataclass(frozen=True)
class TargetAttrs(Attrs):
    """zero: of the outputs; bits: fraction bits of a difference, +-limit; target: factor to these units."""

    zero: int
    bits: int
    target: tuple[int, int]
    limit: int = fx.INT32_MAX


@dataclass(frozen=True)
class TargetLossAttrs(TargetAttrs):
    """total: factor from the sum of all terms to the loss; distance, loss_bits (bce): see QLossAttrs."""

    total: tuple[int, int] = (0, 0)
    distance: tuple[int, int] = (0, 0)
    loss_bits: int = 0


@dataclass(frozen=True)
class TargetErrorAttrs(TargetAttrs):
    """probe: see ErrorAttrs."""

    probe: int = 0


def difference_bits(count: int) -> int:
    """Return the fraction bits of an mse difference with which `count` squares add up in an int64."""
    return min(30, (63 - count.bit_length()) // 2) - REACH_BITS


def probe(bits: int) -> int:
    """Return the smallest exponent, relative to EXPONENT_START, that shifts no difference to the left."""
    return -bits - fx.EXPONENT_START


def sigmoids(scale: float) -> Array:
    """Return sigmoid(scale d) 2**SIGMOID_BITS, rounded, for d = 0 to 255."""
    return np.rint(2.0**SIGMOID_BITS / (1.0 + np.exp(-scale * np.arange(TABLE, dtype=np.float64)))).astype(np.int32)


def fixed(values: Array, multiplier: int, shift: int) -> Array:
    """Return float32 numbers times a factor, as integers, ties away from zero; denormals count as 0 (tt_fixed)."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.int64)
    exponent, mantissa = (bits >> 23) & 255, (bits & 0x7FFFFF) | 0x800000
    right = 181 - shift - exponent
    product = np.where(exponent == 0, 0, mantissa * multiplier)
    n = np.clip(right, 1, 62)
    magnitude = np.where(right < 1, TARGET_LIMIT, np.minimum((product + (np.int64(1) << (n - 1))) >> n, TARGET_LIMIT))
    magnitude = np.where(product == 0, 0, np.where(exponent == 255, TARGET_LIMIT, magnitude))
    signed = np.where(bits >> 31 != 0, -magnitude, magnitude)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, NOT_A_TARGET, signed)


def wide_float(value: int, multiplier: int, shift: int) -> np.float32:
    """Return scaled_float of an int64, cut to 31 bits first (tt_wide_float)."""
    spare = max(abs(value).bit_length() - 31, 0)
    cut = abs(value) >> spare
    return scaled_float(-cut if value < 0 else cut, multiplier, shift + spare)


def differences(values: Any, targets: Array, attrs: TargetAttrs) -> Array:
    """Return values less targets in fixed point, within +-limit; 0 if a target is NaN (tt_difference)."""
    wanted = fixed(targets, *attrs.target)
    return np.where(wanted == NOT_A_TARGET, 0, fx.saturate(values - wanted, -attrs.limit, attrs.limit))


def _lifted(outputs: Array, attrs: TargetAttrs) -> Any:
    return (outputs.astype(np.int64) - attrs.zero) << attrs.bits


def _sigmoid(outputs: Array, table: Array, attrs: TargetAttrs) -> Any:
    distance = outputs.astype(np.int64) - attrs.zero
    entry = table.astype(np.int64)[np.abs(distance)]
    return np.where(distance < 0, (1 << SIGMOID_BITS) - entry, entry)


def _error(values: Array, peak: Array, p_out: Array, attrs: TargetErrorAttrs) -> tuple[Array, ...]:
    return finish_error(fx.shift(values, -attrs.bits - int(p_out[0])), peak)


def _check(op: str, inputs: tuple[Value, ...], tables: int) -> None:
    expect_dtypes(op, inputs, ("int8", "float32") + ("int32",) * tables)
    y, target, *others = inputs
    if y.shape != target.shape or any(v.shape != (TABLE,) for v in others):
        raise ValueError(f"{op}: {[str(v.type) for v in inputs]}")


def _loss_infer(op: str, tables: int) -> Any:
    def infer(inputs: tuple[Value, ...], _attrs: TargetLossAttrs) -> tuple[TensorType, ...]:
        _check(op, inputs, tables)
        return (TensorType(()),)

    return infer


def _grad_infer(op: str, tables: int) -> Any:
    def infer(inputs: tuple[Value, ...], attrs: TargetErrorAttrs) -> tuple[TensorType, ...]:
        _, _, *values = inputs
        _check(op, tuple(values), tables)
        return error_infer(op, values[0].type, inputs, attrs)

    return infer


# ---- mse: QMeanSquaredError (outputs, targets) -> loss; ...Grad (peak, p_out, outputs, targets) -> (e, peak') ------


def _mse(arrays: tuple[Array, ...], attrs: TargetLossAttrs) -> tuple[Array, ...]:
    outputs, targets = arrays
    squares = (int(d) * int(d) for d in differences(_lifted(outputs, attrs), targets, attrs).ravel())
    return (np.asarray(wide_float(sum(squares), *attrs.total), np.float32),)


def _mse_grad(arrays: tuple[Array, ...], attrs: TargetErrorAttrs) -> tuple[Array, ...]:
    peak, p_out, outputs, targets = arrays
    return _error(differences(_lifted(outputs, attrs), targets, attrs), peak, p_out, attrs)


# ---- bce: QSigmoidCrossEntropy (logits, targets, table) -> loss; ...Grad (peak, p_out, ...) -> (e, peak') ----------


def bce_terms(logits: Array, targets: Array, table: Array, attrs: TargetLossAttrs) -> Array:
    """Return binary cross entropy of every logit with loss_bits of fraction: |z| (1 - t) or |z| t, less ln(sigmoid
    |z|)."""
    distance, wanted = logits.astype(np.int64) - attrs.zero, fixed(targets, *attrs.target)
    weight = np.where(distance > 0, (1 << SIGMOID_BITS) - wanted, wanted)
    far = fx.requantise(np.abs(distance) << DISTANCE_BITS, *attrs.distance)
    above = (SIGMOID_BITS << LOG_BITS) - binary_log(table.astype(np.int64)[np.abs(distance)])
    log_part = fx.requantise(above, LN2[0], LN2[1] + attrs.loss_bits - LOG_BITS)
    return np.where(wanted == NOT_A_TARGET, 0, fx.saturate(fx.scaled(far, weight, -SIGMOID_BITS) + log_part))


def _bce(arrays: tuple[Array, ...], attrs: TargetLossAttrs) -> tuple[Array, ...]:
    logits, targets, table = arrays
    return (np.asarray(wide_float(int(bce_terms(logits, targets, table, attrs).sum()), *attrs.total), np.float32),)


def _bce_grad(arrays: tuple[Array, ...], attrs: TargetErrorAttrs) -> tuple[Array, ...]:
    peak, p_out, logits, targets, table = arrays
    return _error(differences(_sigmoid(logits, table, attrs), targets, attrs), peak, p_out, attrs)


def _register(name: str, doc: str, tables: int, loss: Any, grad: Any, *kinds: Trait) -> None:
    names = ("y", "target", "table")[: 2 + tables]
    operands = ", ".join(("outputs", "targets", "table")[: 2 + tables])
    operator(
        name,
        f"{doc} of int8 outputs and float32 targets in fixed point, as float32; operands ({operands}).",
        _loss_infer(name, tables),
        loss,
        BACKWARD,
        TargetLossAttrs,
        inputs=names,
        outputs=("loss",),
        traits=traits(*kinds),
    )
    operator(
        f"{name}Grad",
        f"Error of the outputs of a {name}: operands (peak, p_out, {operands}).",
        _grad_infer(f"{name}Grad", tables),
        grad,
        BACKWARD,
        TargetErrorAttrs,
        inputs=("peak", "p_out", *names),
        outputs=("error", "peak"),
        error=ErrorState(),
        traits=traits(*kinds),
    )


_register("QMeanSquaredError", "mean((y - t) ** 2)", 0, _mse, _mse_grad)
_register("QSigmoidCrossEntropy", "Binary cross entropy", 1, _bce, _bce_grad, "binary_loss")
