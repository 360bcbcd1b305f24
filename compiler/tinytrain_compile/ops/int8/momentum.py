"""Momentum of integer parameters: velocities are int8, with one exponent per tensor that follows their peak.

v = momentum v + G / N, with G the integer gradient sum of N samples; the step is taken with the whole sum, and what is
kept of v is rounded stochastically. A velocity q of channel o stands for q 2**(e - h), in units of G 2**p, where
h = shift[o] >> 1: so q 2**e is the gradient of the real parameter to a factor of 2; one exponent suits all channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import OpDef, op_def, register
from tinytrain_compile.ops.int8.conv import (
    BACKWARD,
    QConvUpdateAttrs,
    channel_sum_bound,
    weight_gradient,
)
from tinytrain_compile.ops.int8.steps import updated_weight
from tinytrain_compile.ops.int8.update import channel_sums
from tinytrain_compile.ops.int8.update_fine import expect_fraction, updated_fine
from tinytrain_compile.ops.names import Named, named
from tinytrain_compile.ops.owned import Owned

VELOCITY_START = -6
"""Exponent of a velocity before anything is known: it holds gradients below 2, and tells how large others are."""
UNKNOWN = -1
"""In place of a velocity's quiet count: its exponent is not known yet."""


def new_exponent() -> Array:
    """State of a velocity's exponent: {exponent to store with, quiet updates, exponent that it is stored with}."""
    return np.asarray([VELOCITY_START, UNKNOWN, VELOCITY_START], np.int32)


def moved_velocity(
    velocity: Array, gradient: Any, rate: Array, state: Array, unit: Any, random: Any
) -> tuple[Array, Array, Array]:
    """(total, velocity, magnitudes for the peak) of int64 arrays (tt_momentum).

    rate: (.., .., momentum N as multiplier and shift, 1 / N likewise); state: (exponent to store with, quiet, exponent
    that velocity is stored with); unit: of the gradient, p + h.
    """
    kept = fx.scaled(velocity, int(rate[2]), int(rate[3]) - 31 + int(state[2]) - unit)
    total = fx.saturate(np.asarray(gradient, np.int64) + kept)
    fine = fx.scaled(total, int(rate[4]), int(rate[5]) - 31 + unit - int(state[0]) + 8)
    fine = np.clip(fine, -(1 << 30), 1 << 30)
    magnitudes = np.maximum((np.abs(fine) + 255) >> 8, total != 0)
    return total, np.clip((fine + random) >> 8, -127, 127).astype(np.int8), magnitudes


def _momentum(
    gradient: Array, velocity: Array, peak: Array, scale: tuple[Array, ...], noise: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """(total, velocity, peak); scale = (shift, rate, p, exponent)."""
    shift, rate, p, exponent = scale
    unit = int(p[0]) + (shift.astype(np.int64) >> 1).reshape(-1, *(1,) * (velocity.ndim - 1))
    random = fx.noise_bytes(*noise, velocity.size).reshape(velocity.shape)
    total, after, magnitudes = moved_velocity(velocity, gradient, rate, exponent, unit, random)
    return total, after, fx.error_peak(magnitudes, peak)


def _expect(op: str, inputs: tuple[Value, ...], parameter: Value) -> None:
    """inputs: (velocity, peak, exponent, rate)."""
    velocity, peak, exponent, rate = inputs
    expect_fraction(op, parameter, velocity)
    if (peak.shape, exponent.shape, rate.shape) != ((), (3,), (6,)):
        raise ValueError(f"{op}: peak {peak.shape}, exponent {exponent.shape}, rate {rate.shape}")
    if any(value.dtype != "int32" for value in (peak, exponent, rate)):
        raise ValueError(f"{op}: peak, exponent and rate are int32")


# ---- QMomentum: (sum, velocity, peak, shift, rate, p, exponent, noise, salt) -> (total, velocity', peak') ----------


def _momentum_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    total, velocity, peak, shift, rate, p, exponent, noise, salt = inputs
    _expect("QMomentum", (velocity, peak, exponent, rate), total)
    if shift.shape != total.shape[:1] or any(v.dtype != "int32" for v in (total, p, noise, salt)):
        raise ValueError(f"QMomentum: shift {shift.shape} of sums {total.shape}")
    return (total.type, velocity.type, peak.type)


def _momentum_of_sums(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    summed, velocity, peak, shift, rate, p, exponent, noise, salt = arrays
    total, after, seen = _momentum(summed, velocity, peak, (shift, rate, p, exponent), (noise, salt))
    return total.astype(np.int32), after, seen


register(
    OpDef(
        "QMomentum",
        "sum += momentum times velocity, which becomes the sum over N, rounded stochastically; operands (sum, "
        "velocity, peak, shift, rate, p, exponent, noise, salt).",
        _momentum_infer,
        _momentum_of_sums,
        BACKWARD,
        inputs=("sum", "velocity", "peak", "shift", "rate", "p", "exponent", "noise", "salt"),
        outputs=("sum", "velocity", "peak"),
        owned=Owned({"sum": "SUM", "velocity": "SYMMETRIC", "peak": "SUM"}, "integer"),
    )
)


# ---- QBiasGradient: (g) -> sums ------------------------------------------------------------------------------------


def _sums_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (g,) = inputs
    if g.dtype != "int8":
        raise ValueError(f"QBiasGradient takes int8, got {g.dtype}")
    return (TensorType(g.shape[-1:], "int32"),)


register(
    OpDef(
        "QBiasGradient",
        "int32 sums of an error over all pixels.",
        _sums_infer,
        lambda arrays, _attrs: (channel_sums(*arrays),),
        BACKWARD,
        accumulator=lambda inputs, _attrs: channel_sum_bound(*inputs),
        inputs=("g",),
        outputs=("sum",),
    )
)


# ---- QConvMomentum and QConvMomentumFine ---------------------------------------------------------------------------


def _conv_infer(op: str, inputs: tuple[Value, ...], attrs: QConvUpdateAttrs) -> tuple[TensorType, ...]:
    o = named(op, inputs, attrs)
    _expect(op, o.several("velocity", "peak", "exponent", "rate"), o["w"])
    op_def("QConvUpdate").infer(o.several(*op_def("QConvUpdate").inputs), attrs)
    return (o["w"].type, o["velocity"].type, o["peak"].type)


def _fine_infer(inputs: tuple[Value, ...], attrs: QConvUpdateAttrs) -> tuple[TensorType, ...]:
    o = named("QConvMomentumFine", inputs, attrs)
    expect_fraction("QConvMomentumFine", o["w"], o["fraction"])
    return (*_conv_infer("QConvMomentumFine", inputs, attrs), o["fraction"].type)


def _conv_total(o: Named[Array], attrs: QConvUpdateAttrs) -> tuple[Array, Array, Array]:
    """(total, velocity, peak)"""
    gradient = fx.saturate(weight_gradient(o["x"], o["g"], attrs.x_zero, attrs.conv))
    scale, noise = o.several("shift", "rate", "p", "exponent"), (o["noise"], o["salt"])
    return _momentum(gradient, o["velocity"], o["peak"], scale, noise)


_SCALE = ("multiplier", "shift", "rate", "p")


def _conv_momentum(arrays: tuple[Array, ...], attrs: QConvUpdateAttrs) -> tuple[Array, ...]:
    o = named("QConvMomentum", arrays, attrs)
    total, velocity, peak = _conv_total(o, attrs)
    w = updated_weight(o["w"], total, o.several(*_SCALE), o["noise"], o["salt_of_w"], attrs.limit)
    return w, velocity, peak


def _conv_momentum_fine(arrays: tuple[Array, ...], attrs: QConvUpdateAttrs) -> tuple[Array, ...]:
    o = named("QConvMomentumFine", arrays, attrs)
    total, velocity, peak = _conv_total(o, attrs)
    w, fraction = updated_fine(o["w"], o["fraction"], total, o.several(*_SCALE), attrs.limit)
    return w, velocity, peak, fraction


Q_CONV_MOMENTUM = register(
    OpDef(
        "QConvMomentum",
        "QConvUpdate with momentum; operands (w, x, g, multiplier, shift, rate, p, velocity, peak, exponent, noise, "
        "salt of the velocity, salt of w).",
        lambda inputs, attrs: _conv_infer("QConvMomentum", inputs, attrs),
        _conv_momentum,
        BACKWARD,
        QConvUpdateAttrs,
        scratch=op_def("QConvUpdate").scratch,
        accumulator=op_def("QConvUpdate").accumulator,
        macs=op_def("QConvUpdate").macs,
        inputs=(
            "w",
            "x",
            "g",
            "multiplier",
            "shift",
            "rate",
            "p",
            "velocity",
            "peak",
            "exponent",
            "noise",
            "salt",
            "salt_of_w",
        ),
        outputs=("w", "velocity", "peak"),
        owned=Owned({"w": "PARAMETER", "velocity": "SYMMETRIC", "peak": "SUM"}, "integer"),
    )
)
Q_CONV_MOMENTUM_FINE = register(
    OpDef(
        "QConvMomentumFine",
        "QConvUpdateFine with momentum; operands (w, x, g, multiplier, shift, rate, p, velocity, peak, exponent, "
        "noise, salt of the velocity, fraction).",
        _fine_infer,
        _conv_momentum_fine,
        BACKWARD,
        QConvUpdateAttrs,
        scratch=op_def("QConvUpdate").scratch,
        accumulator=op_def("QConvUpdate").accumulator,
        macs=op_def("QConvUpdate").macs,
        inputs=(
            "w",
            "x",
            "g",
            "multiplier",
            "shift",
            "rate",
            "p",
            "velocity",
            "peak",
            "exponent",
            "noise",
            "salt",
            "fraction",
        ),
        outputs=("w", "velocity", "peak", "fraction"),
        owned=Owned({"w": "PARAMETER", "velocity": "SYMMETRIC", "peak": "SUM", "fraction": "ANY"}, "integer"),
    )
)
