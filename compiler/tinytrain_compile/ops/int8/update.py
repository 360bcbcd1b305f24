"""Integer updates of what is not a convolution weight: biases, sums, exponents, noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OpDef, register
from tinytrain_compile.ops.int8.conv import (
    BACKWARD,
    QWeightApplyAttrs,
    as_weight,
    channel_sum_bound,
)
from tinytrain_compile.ops.int8.error import error_operands, expect_dtypes
from tinytrain_compile.ops.int8.rows import RowSumAttrs, row_sum_attrs, rows_of_sum
from tinytrain_compile.ops.int8.steps import step_size, updated_weight
from tinytrain_compile.ops.owned import Owned


@dataclass(frozen=True)
class ExponentAttrs(Attrs):
    """float_peak: the peak is the bit pattern of a float32 magnitude, not a count of units of 2**exponent."""

    float_peak: bool = False


def _expect_sums(op: str, channels: Value, g: Value) -> None:
    """The sums of g over its pixels are one per channel."""
    if channels.shape != g.shape[-1:]:
        raise ValueError(f"{op}: {channels.shape} is not one per channel of {g.shape}")


def channel_sums(g: Array) -> Array:
    """int32 sums of an error over everything but channels (the last axis)."""
    return g.astype(np.int64).sum(axis=tuple(range(g.ndim - 1))).astype(np.int32)


def _sum_bound(inputs: tuple[Value, ...], _attrs: Attrs) -> int:
    _, g, *_ = inputs
    return channel_sum_bound(g)


def _bias_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_dtypes("QBiasUpdate", inputs, ("int32", "int8", "int32", "int8", "int32", "int32"))
    bias, g, *_ = inputs
    _expect_sums("QBiasUpdate", bias, g)
    return (bias.type,)


def _moved_bias(bias: Array, sums: Array, scale: tuple[Array, ...]) -> Array:
    multiplier, exponent = step_size(*scale, fraction_bits=0)
    return fx.saturate(bias.astype(np.int64) - fx.scaled(sums, multiplier, exponent)).astype(np.int32)


def _bias_update(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    bias, g, *scale = arrays
    return (_moved_bias(bias, channel_sums(g), tuple(scale)),)


def _bias_sum(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    total, g = arrays
    return (fx.saturate(total.astype(np.int64) + channel_sums(g)).astype(np.int32),)


def _bias_apply(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    bias, sums, *scale = arrays
    return (_moved_bias(bias, sums, tuple(scale)),)


register(
    OpDef(
        "QBiasUpdate",
        "Bias gradient and update in one: b -= step times the sum of g; operands (b, g, multiplier, shift, rate, p).",
        _bias_infer,
        _bias_update,
        BACKWARD,
        accumulator=_sum_bound,
        rows=rows_of_sum("g", add="QBiasSum", apply="QBiasApply"),
        inputs=("bias", "g", "multiplier", "shift", "rate", "p"),
        outputs=("bias",),
        owned=Owned({"bias": "PARAMETER"}, "integer"),
    )
)


def _bias_sum_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_dtypes("QBiasSum", inputs, ("int32", "int8"))
    total, g = inputs
    _expect_sums("QBiasSum", total, g)
    return (total.type,)


register(
    OpDef(
        "QBiasSum",
        "Adds the sums of g over all pixels to the running sum, saturating; operands (sum, g).",
        _bias_sum_infer,
        _bias_sum,
        BACKWARD,
        accumulator=_sum_bound,
        rows=rows_of_sum("g", add="QBiasSum", apply="QSumAdd", attrs=row_sum_attrs),
        inputs=("sum", "g"),
        outputs=("sum",),
        owned=Owned({"sum": "SUM"}, "integer"),
    )
)


def _sum_add_infer(inputs: tuple[Value, ...], _attrs: RowSumAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QSumAdd", inputs, ("int32", "int32"))
    running, rows = inputs
    if running.shape != rows.shape:
        raise ValueError(f"QSumAdd: running sum {running.shape}, sum over rows {rows.shape}")
    return (running.type,)


def _sum_add(arrays: tuple[Array, ...], attrs: RowSumAttrs) -> tuple[Array, ...]:
    running, rows = arrays
    return (fx.saturate(running.astype(np.int64) + as_weight(rows, attrs.by_rows)).astype(np.int32),)


register(
    OpDef(
        "QSumAdd",
        "Adds what was summed over the rows of one sample to the running sum, saturating; operands (sum, rows).",
        _sum_add_infer,
        _sum_add,
        BACKWARD,
        RowSumAttrs,
        inputs=("sum", "rows"),
        outputs=("sum",),
        owned=Owned({"sum": "SUM"}, "integer"),
    )
)


def _bias_apply_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_dtypes("QBiasApply", inputs, ("int32", "int32", "int32", "int8", "int32", "int32"))
    bias, *_ = inputs
    return (bias.type,)


register(
    OpDef(
        "QBiasApply",
        "b -= step times the accumulated sum; operands (b, sum, multiplier, shift, rate, p).",
        _bias_apply_infer,
        _bias_apply,
        BACKWARD,
        inputs=("bias", "sum", "multiplier", "shift", "rate", "p"),
        outputs=("bias",),
        owned=Owned({"bias": "PARAMETER"}, "integer"),
    )
)


def _apply_infer(inputs: tuple[Value, ...], _attrs: QWeightApplyAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QWeightApply", inputs, ("int8", "int32", "int32", "int8") + ("int32",) * 4)
    w, total, *_ = inputs
    if w.shape != total.shape:
        raise ValueError(f"QWeightApply: weight {w.shape}, sum {total.shape}")
    return (w.type,)


def _apply(arrays: tuple[Array, ...], attrs: QWeightApplyAttrs) -> tuple[Array, ...]:
    w, total, *scale, noise, salt = arrays
    return (updated_weight(w, as_weight(total, attrs.by_rows), tuple(scale), noise, salt, attrs.limit),)


Q_WEIGHT_APPLY = register(
    OpDef(
        "QWeightApply",
        "w -= step times the accumulated gradient, with noise; (w, sum, multiplier, shift, rate, p, noise, salt).",
        _apply_infer,
        _apply,
        BACKWARD,
        QWeightApplyAttrs,
        inputs=("w", "sum", "multiplier", "shift", "rate", "p", "noise", "salt"),
        outputs=("w",),
        owned=Owned({"w": "PARAMETER"}, "integer"),
    )
)


def update_exponent(state: Array, peak: Array, float_peak: bool) -> Array:
    """Exponent state after a peak: up at once; down by one after QUIET_APPLIES small ones; 0 changes nothing.

    A third element, of a velocity, becomes the exponent before; then a quiet count of -1 lets the exponent become what
    the peak asks for, also downwards, until a peak above 1 has told it for certain.
    """
    if state.size == 3 and state[1] < 0 and int(peak) != 0:
        limit = fx.EXPONENT_LIMIT
        found = min(max(needed_exponent(int(peak), int(state[0]), False), -limit), limit)
        return np.asarray([found, 0 if int(peak) > 1 else -1, state[0]], np.int32)
    if state.size == 3:
        return np.asarray([*update_exponent(state[:2], peak, float_peak), state[0]], np.int32)
    exponent, quiet = int(state[0]), int(state[1])
    if int(peak) == 0:
        return state
    spare = needed_exponent(int(peak), exponent, float_peak) - exponent
    if spare >= 0:
        exponent, quiet = exponent + spare, 0
    elif quiet + 1 == fx.QUIET_APPLIES:
        exponent, quiet = exponent - 1, 0
    else:
        quiet += 1
    limit = fx.EXPONENT_LIMIT
    return np.asarray([min(max(exponent, -limit), limit), quiet], np.int32)


def needed_exponent(peak: int, exponent: int, float_peak: bool) -> int:
    """Smallest exponent with which the peak would stay within ERROR_TARGET."""
    if not float_peak:
        return exponent + fx.needed_bits(peak)
    # magnitude = (1 + m / 2**23) 2**e <= 63 2**p  <=>  p >= e - 5, or e - 4 where 1.m exceeds 63 / 32
    biased, mantissa = peak >> 23, peak & 0x7FFFFF
    return biased - 127 - 5 + int(mantissa > 0x7C0000)


def _same_type(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (state,) = inputs
    return (state.type,)


def _settled(arrays: tuple[Array, ...], attrs: ExponentAttrs) -> tuple[Array, ...]:
    state, peak = arrays
    return update_exponent(state, peak, attrs.float_peak), np.zeros((), np.int32)


def _next_noise(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    (state,) = arrays
    return (np.asarray((int(state) * 1664525 + 1013904223) & 0xFFFFFFFF, np.uint32).view(np.int32),)


def _tick_infer(inputs: tuple[Value, ...], _attrs: ExponentAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("ExponentUpdate", inputs, ("int32", "int32"))
    state, peak = inputs
    return (state.type, peak.type)


register(
    OpDef(
        "ExponentUpdate",
        "Delayed exponent of an error or a velocity: follows the peak of what was gathered, then clears it; operands "
        "(state, peak).",
        _tick_infer,
        _settled,
        BACKWARD,
        ExponentAttrs,
        inputs=("state", "peak"),
        outputs=("state", "peak"),
        owned=Owned({"state": "EXPONENT", "peak": "SUM"}, "integer"),
    )
)
register(
    OpDef(
        "NoiseTick",
        "Next state of the rounding noise: one step of x = 1664525 x + 1013904223 mod 2**32.",
        _same_type,
        _next_noise,
        BACKWARD,
        inputs=("state",),
        outputs=("state",),
        owned=Owned({"state": "ANY"}, "integer"),
    )
)


def error_exponents(nodes: Iterable[Node]) -> list[str]:
    """Names of the states that hold the exponents of errors; velocities have exponents of their own."""
    return list(error_ops(nodes))


def error_ops(nodes: Iterable[Node]) -> dict[str, str]:
    """Which op makes each error, by the name of its exponent."""
    found = ((node.op, error_operands(node)) for node in nodes)
    return {error.exponent.name: op for op, error in found if error is not None}


def probe_exponent(read: list[int], above: int) -> int:
    """An exponent with which the op cannot overflow: that of the largest error read, plus the node's constant."""
    limit = fx.EXPONENT_LIMIT
    return min(max(max(read, default=fx.EXPONENT_START) + above, -limit), limit)


def first_exponent(exponent: int, peak: int, float_peak: bool) -> int:
    """The exponent that a peak asks for, found with `exponent`; the start value if nothing was seen."""
    if peak == 0:
        return fx.EXPONENT_START
    limit = fx.EXPONENT_LIMIT
    return min(max(needed_exponent(peak, exponent, float_peak), -limit), limit)


def split_rate(rate: np.float32, samples: int = 1) -> Array:
    """A learning rate over `samples` as (multiplier, shift), rounded down; (0, 0) unless positive, finite, normal."""
    if not (np.isfinite(rate) and rate >= np.float32(2.0**-126)):
        return np.zeros(2, np.int32)
    multiplier, shift = fx.split_factor(float(rate))
    spare = (samples - 1).bit_length()
    quotient = (multiplier << spare) // samples
    if quotient >= 1 << 31:
        quotient, spare = (multiplier << (spare - 1)) // samples, spare - 1
    return np.asarray((quotient, shift - spare), np.int32)


def multiply_rate(rate: Array, samples: int) -> Array:
    """A split rate times `samples`, rounded down."""
    product, shift = int(rate[0]) * samples, int(rate[1])
    spare = max(product.bit_length() - 31, 0)
    return np.asarray((product >> spare, shift + spare), np.int32)
