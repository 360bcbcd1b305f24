"""Integer updates of what is not a convolution weight: biases, sums, exponents, noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OpDef, register
from tinytrain_compile.ops.int8.conv import BACKWARD, channel_sum_bound, step_size, updated_weight
from tinytrain_compile.ops.int8.error import expect_dtypes


@dataclass(frozen=True)
class QWeightApplyAttrs(Attrs):
    """limit: largest weight magnitude."""

    limit: int = 127


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


def _bias_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_dtypes("QBiasUpdate", inputs, ("int32", "int8", "int32", "int8", "int32", "int32"))
    _expect_sums("QBiasUpdate", *inputs[:2])
    return (inputs[0].type,)


def _moved_bias(bias: Array, sums: Array, scale: tuple[Array, ...]) -> Array:
    multiplier, exponent = step_size(*scale, fraction_bits=0)
    return fx.saturate(bias.astype(np.int64) - fx.scaled(sums, multiplier, exponent)).astype(np.int32)


register(
    OpDef(
        "QBiasUpdate",
        "Bias gradient and update in one: b -= step times the sum of g; operands (b, g, multiplier, shift, rate, p).",
        _bias_infer,
        lambda a, _attrs: (_moved_bias(a[0], channel_sums(a[1]), (a[2], a[3], a[4], a[5])),),
        BACKWARD,
        accumulator=lambda inputs, _attrs: channel_sum_bound(inputs[1]),
        inputs=("bias", "g", "multiplier", "shift", "rate", "p"),
        outputs=("bias",),
    )
)


def _bias_sum_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_dtypes("QBiasSum", inputs, ("int32", "int8"))
    _expect_sums("QBiasSum", *inputs)
    return (inputs[0].type,)


register(
    OpDef(
        "QBiasSum",
        "Adds the sums of g over all pixels to the running sum, saturating; operands (sum, g).",
        _bias_sum_infer,
        lambda a, _attrs: (fx.saturate(a[0].astype(np.int64) + channel_sums(a[1])).astype(np.int32),),
        BACKWARD,
        accumulator=lambda inputs, _attrs: channel_sum_bound(inputs[1]),
        inputs=("sum", "g"),
        outputs=("sum",),
    )
)


def _bias_apply_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_dtypes("QBiasApply", inputs, ("int32", "int32", "int32", "int8", "int32", "int32"))
    return (inputs[0].type,)


register(
    OpDef(
        "QBiasApply",
        "b -= step times the accumulated sum; operands (b, sum, multiplier, shift, rate, p).",
        _bias_apply_infer,
        lambda a, _attrs: (_moved_bias(a[0], a[1], (a[2], a[3], a[4], a[5])),),
        BACKWARD,
        inputs=("bias", "sum", "multiplier", "shift", "rate", "p"),
        outputs=("bias",),
    )
)


def _apply_infer(inputs: tuple[Value, ...], _attrs: QWeightApplyAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QWeightApply", inputs, ("int8", "int32", "int32", "int8") + ("int32",) * 4)
    if inputs[0].shape != inputs[1].shape:
        raise ValueError(f"QWeightApply: weight {inputs[0].shape}, sum {inputs[1].shape}")
    return (inputs[0].type,)


register(
    OpDef(
        "QWeightApply",
        "w -= step times the accumulated gradient, with noise; (w, sum, multiplier, shift, rate, p, noise, salt).",
        _apply_infer,
        lambda a, attrs: (updated_weight(a[0], a[1], (a[2], a[3], a[4], a[5]), a[6], a[7], attrs.limit),),
        BACKWARD,
        QWeightApplyAttrs,
        inputs=("w", "sum", "multiplier", "shift", "rate", "p", "noise", "salt"),
        outputs=("w",),
    )
)


def settle(state: Array, peak: Array, float_peak: bool) -> Array:
    """Exponent state after a peak: up at once; down by one after QUIET_APPLIES small ones; 0 changes nothing.

    A third element, of a velocity, becomes the exponent before; then a quiet count of -1 lets the exponent become what
    the peak asks for, also downwards, until a peak above 1 has told it for certain.
    """
    if state.size == 3 and state[1] < 0 and int(peak) != 0:
        limit = fx.EXPONENT_LIMIT
        found = min(max(needed_exponent(int(peak), int(state[0]), False), -limit), limit)
        return np.asarray([found, 0 if int(peak) > 1 else -1, state[0]], np.int32)
    if state.size == 3:
        return np.asarray([*settle(state[:2], peak, float_peak), state[0]], np.int32)
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


def _tick_infer(inputs: tuple[Value, ...], _attrs: ExponentAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("ExponentUpdate", inputs, ("int32", "int32"))
    return (inputs[0].type, inputs[1].type)


register(
    OpDef(
        "ExponentUpdate",
        "Delayed exponent of an error or a velocity: follows the peak of what was gathered, then clears it; operands "
        "(state, peak).",
        _tick_infer,
        lambda a, attrs: (settle(a[0], a[1], attrs.float_peak), np.zeros((), np.int32)),
        BACKWARD,
        ExponentAttrs,
        inputs=("state", "peak"),
        outputs=("state", "peak"),
    )
)
register(
    OpDef(
        "NoiseTick",
        "Next state of the rounding noise: one step of x = 1664525 x + 1013904223 mod 2**32.",
        lambda inputs, _attrs: (inputs[0].type,),
        lambda a, _attrs: (np.asarray((int(a[0]) * 1664525 + 1013904223) & 0xFFFFFFFF, np.uint32).view(np.int32),),
        BACKWARD,
        inputs=("state",),
        outputs=("state",),
    )
)


_READ = {
    "QConvGradInput": 1,
    "ErrorScale": 1,
    "ErrorAdd": 2,
    "QuantizeError": 0,
    "QSoftmaxError": 0,
    "QWeightedSoftmaxError": 0,
    "QMeanSquaredErrorGrad": 0,
    "QSigmoidCrossEntropyGrad": 0,
    "QMaxPoolGrad": 1,
}
ERROR_OPS = tuple(_READ)
"""Ops that make an error: operands (peak, p_out, exponents of the errors read ..., rest)."""


def error_exponents(nodes: Iterable[Node]) -> list[str]:
    """Names of the states that hold the exponents of errors; velocities have exponents of their own."""
    return [node.inputs[1].name for node in nodes if node.op in ERROR_OPS]


def error_ops(nodes: Iterable[Node]) -> dict[str, str]:
    """Which op makes each error, by the name of its exponent."""
    return {node.inputs[1].name: node.op for node in nodes if node.op in ERROR_OPS}


def exponents_read(op: str) -> int:
    """How many exponents of other errors an error op reads, behind its own."""
    return _READ[op]


def probe_exponent(read: list[int], above: int) -> int:
    """An exponent with which the op cannot overflow: that of the largest error read, plus the node's constant."""
    limit = fx.EXPONENT_LIMIT
    return min(max(max(read, default=fx.EXPONENT_START) + above, -limit), limit)


def settled_exponent(exponent: int, peak: int, float_peak: bool) -> int:
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
