"""Delayed exponents of errors and velocities, and the noise that rounds weights: state that advances once per
update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import operator
from tinytrain_compile.ops.int8.error import BACKWARD, expect_dtypes
from tinytrain_compile.ops.owned import Owned


@dataclass(frozen=True)
class ExponentAttrs(Attrs):
    """float_peak: the peak is the bit pattern of a float32 magnitude, not a count of units of 2**exponent."""

    float_peak: bool = False


def update_exponent(state: Array, peak: Array, float_peak: bool) -> Array:
    """Return an exponent after a peak: up at once; down by one after QUIET_APPLIES small ones; 0 changes nothing.

    A velocity has a third element, which becomes the old exponent. With it, a quiet count of -1 lets the exponent
    follow the peak, also downwards, until a peak above 1 settles it.
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
    """Return the smallest exponent with which the peak would stay within ERROR_TARGET."""
    if not float_peak:
        return exponent + fx.needed_bits(peak)
    # magnitude = (1 + m / 2**23) 2**e <= 63 2**p <=> p >= e - 5, or e - 4 if 1.m exceeds 63 / 32
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


operator(
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
operator(
    "NoiseTick",
    "Next state of the rounding noise: one step of x = 1664525 x + 1013904223 mod 2**32.",
    _same_type,
    _next_noise,
    BACKWARD,
    inputs=("state",),
    outputs=("state",),
    owned=Owned({"state": "ANY"}, "integer"),
)


def probe_exponent(read: list[int], above: int) -> int:
    """Return an exponent with which no op overflows: that of the largest error read, plus the node's constant."""
    limit = fx.EXPONENT_LIMIT
    return min(max(max(read, default=fx.EXPONENT_START) + above, -limit), limit)


def first_exponent(exponent: int, peak: int, float_peak: bool) -> int:
    """Return the exponent needed for a peak measured with `exponent`; the start value if there was no peak."""
    if peak == 0:
        return fx.EXPONENT_START
    limit = fx.EXPONENT_LIMIT
    return min(max(needed_exponent(peak, exponent, float_peak), -limit), limit)
