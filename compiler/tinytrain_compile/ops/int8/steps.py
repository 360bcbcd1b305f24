"""The arithmetic of integer updates in numpy: gradients, momentum, and the step of a weight.

Two stores of a weight: an int8 that noise rounds, or an int8 and a fraction of 8 bits (--weight-store q8.8): v / 256
units with v = 256 w + fraction. So w is v rounded to the nearest unit (half up), and kernels read w as usual.

Velocities are int8, with one exponent per tensor that follows their peak: v = momentum v + G / N, with G the integer
gradient sum of N samples. The step uses the unrounded sum; the stored v is rounded stochastically. A velocity q of
channel o stands for q 2**(e - h), in units of G 2**p, where h = shift[o] >> 1: so q 2**e is the gradient of the real
parameter to a factor of 2, and one exponent suits all channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.exact import F32

ROW_BITS, FINE_BITS, ROW_LIMIT = 9, 25, 32767
"""Fraction bits of a row's step, in 1/256 of a weight per unit of an input: the step has 16 bits if noise rounds
weights, 32 if they have fractions; the largest magnitude in 16 bits."""
SIGN_LIMIT = 8191
"""Largest step by a sign in 1/256 of a weight: times 4 it has 16 bits."""
VELOCITY_START = -6
"""Exponent of a velocity at first: it holds gradients below 2, and shows how large others are."""
UNKNOWN = -1
"""Quiet count of a velocity whose exponent is not known yet."""


def step_size(multiplier: Array, shift: Array, rate: Array, p: Array, fraction_bits: int) -> tuple[Any, Any]:
    """Return fx.scaled's factor per channel: its constant times rate times 2**p, with `fraction_bits` of fraction."""
    exponent = shift.astype(np.int64) + int(rate[1]) + int(p[0]) + fraction_bits - 31
    return fx.high_multiply(multiplier, int(rate[0])), exponent


def updated_weight(w: Array, gradient: Any, scale: tuple[Array, ...], noise: Array, salt: Array, limit: int) -> Array:
    """Return int8 weights after a step that noise rounds; `scale` = (multiplier, shift, rate, p), see step_size."""
    random = fx.noise_bytes(noise, salt, w.size).reshape(w.shape)
    return moved_weight(w, gradient, weight_steps(w, scale), random, limit)


def weight_steps(w: Array, scale: tuple[Array, ...]) -> tuple[Any, Any]:
    """Return step_size of every channel, in 1/256 of a weight, in a shape that broadcasts to the weight's."""
    multiplier, exponent = step_size(*scale, fraction_bits=8)
    per_channel = (-1,) + (1,) * (w.ndim - 1)
    return multiplier.reshape(per_channel), exponent.reshape(per_channel)


def moved_weight(w: Array, gradient: Any, step: tuple[Any, Any], random: Any, limit: Any) -> Array:
    """Return int8 weights less gradient times step (in 1/256 of one), rounded by a random byte (tt_moved_weight)."""
    noisy = (w.astype(np.int64) << 8) - moves_of(gradient, step) + random
    return np.clip(noisy >> 8, -limit, limit).astype(np.int8)


def moves_of(gradient: Any, step: tuple[Any, Any]) -> Any:
    """Return gradient times step, in 1/256 of a weight, clamped to 65,536 units: no int8 moves further."""
    return np.clip(fx.scaled(gradient, *step), -(1 << 24), 1 << 24)


# ---- a dense layer of one sample: its gradient is a column (errors) times a row (inputs) ----------------------------


def row_moves(x: Array, g: Array, x_zero: int, scale: tuple[Array, ...], bits: int) -> Any:
    """Return the moves of all weights (outputs, 1, 1, inputs), in 1/256 of a weight: a row's step times the inputs.

    bits: ROW_BITS or FINE_BITS. A step beyond its limit moves like any other gradient; it is not limited.
    """
    multiplier, exponent = (one[:, None] for one in step_size(*scale, fraction_bits=8))
    errors, inputs = g.reshape(-1, 1).astype(np.int64), x.reshape(-1).astype(np.int64) - x_zero
    steps = fx.scaled(errors, multiplier, exponent + bits)
    large = np.abs(steps) > ROW_LIMIT << (bits - ROW_BITS)
    short = (steps * inputs + (1 << (bits - 1))) >> bits
    return np.where(large, moves_of(errors * inputs, (multiplier, exponent)), short)[:, None, None, :]


def rounded_rows(w: Array, moves: Any, noise: Any, limit: int) -> Array:
    """Return int8 weights less their moves, rounded by a byte of noise each."""
    random = noise.reshape(w.shape)
    return np.clip((w.astype(np.int64) * 256 - moves + random) >> 8, -limit, limit).astype(np.int8)


# ---- the same with a velocity ---------------------------------------------------------------------------------------


def velocity_rows(
    x: Array, g: Array, x_zero: int, velocity: Array, scale: tuple[Array, ...], state: Array, random: Any, signed: bool
) -> tuple[Any, Array, int]:
    """Return (moves of all weights in 1/256 of one, velocities, the peak) of a dense layer of one sample.

    signed: moves are a step times a sign. Sums are velocities with 7 fraction bits, for a move within +-128. A row
    whose sums have more than 16 bits, or whose step is that of a weight, moves like other gradients (`large`).
    """
    multiplier, shift, rate, p = scale
    errors, inputs = g.reshape(-1, 1).astype(np.int64), x.reshape(-1).astype(np.int64) - x_zero
    q, store = velocity.reshape(len(errors), -1).astype(np.int64), int(state[0])
    unit = (int(p[0]) + (shift.astype(np.int64) >> (0 if signed else 1)))[:, None]
    share, places = int(rate[4]), int(rate[5])
    by = fx.scaled(errors << 22, share, places - 31 + unit - store + 10)
    size, exponent = (one[:, None] for one in step_size(multiplier, shift, rate, np.zeros_like(p) if signed else p, 8))
    part, largest = (by * (inputs << 7)) >> 16, int(np.abs(inputs).max(initial=0))

    def kept(at: int) -> int:
        factor = fx.high_multiply(int(rate[at]), share)
        return int(fx.scaled(factor, 1, int(rate[at + 1]) + places + int(state[2]) - store))

    def beyond(factor: int) -> Any:
        sums = ((np.abs(by) >> 9) + 1) * largest + ((factor >> 8) + 1) * 127 + (1 << 16)
        return (sums > fx.INT32_MAX) | (np.abs(by) >= fx.INT32_MAX) | (factor == fx.INT32_MAX)

    fine = (part + ((kept(2) * (q << 8)) >> 16) + (1 << 15)) >> 16
    large = beyond(kept(2))
    if signed:
        ahead = kept(6)
        step = fx.scaled(np.ones_like(size), size, exponent)
        moves = step * np.sign(part + ((ahead * (q << 8)) >> 16))
        large = large | beyond(ahead) | (step > SIGN_LIMIT)
    else:
        samples = min((1 << 61) // max(share, 1 << 30), fx.INT32_MAX)
        product = fx.high_multiply(size, samples)
        step = fx.scaled(product, 1, exponent - places - unit + store + 25)
        large = large | (step == fx.INT32_MAX)
        moves = ((step * np.clip(2 * fine, -(1 << 15), (1 << 15) - 1) >> 16) + (1 << 15)) >> 16
    total, after, magnitudes = moved_velocity(q, errors * inputs, rate, state, unit, random)
    sums = sign_ahead(q, errors * inputs, rate, state, unit) if signed else total
    moves = np.where(large, moves_of(sums, (size, exponent)), moves)
    short = np.clip((2 * fine + random) >> 8, -127, 127)
    after = np.where(large, after, short).astype(np.int8)
    seen = int(np.where(large, 0, short ^ (short >> 63)).max(initial=0))
    some = bool((~large & ((errors * inputs != 0) | (q != 0))).any())
    peak = max(int(np.where(large, magnitudes, 0).max(initial=0)), 1 << max(seen.bit_length() - 1, 0) if some else 0)
    return moves.reshape(velocity.shape), after.reshape(velocity.shape), min(peak, fx.INT32_MAX)


# ---- weights with 8 fraction bits ----------------------------------------------------------------------------------


def moved_fine(w: Array, fraction: Array, gradient: Any, step: tuple[Any, Any], limit: Any) -> tuple[Array, Array]:
    """Return (weights, fractions) less gradient times step (in 1/256 of a weight), within +-limit (tt_moved_fine)."""
    return less_moves(w, fraction, moves_of(gradient, step), limit)


def less_moves(w: Array, fraction: Array, moves: Any, limit: Any) -> tuple[Array, Array]:
    """Return (weights, fractions) less moves in 1/256 of a weight, within +-limit."""
    bound = np.asarray(limit, np.int64) * 256
    v = np.clip(w.astype(np.int64) * 256 + fraction - moves, -bound, bound)
    rounded = (v + 128) >> 8
    return rounded.astype(np.int8), (v - rounded * 256).astype(np.int8)


# ---- gradients ------------------------------------------------------------------------------------------------------


def channel_sums(g: Array) -> Array:
    """Return the int32 sums of an error over everything but channels (the last axis)."""
    return g.astype(np.int64).sum(axis=tuple(range(g.ndim - 1))).astype(np.int32)


def rounded_gradient(g: Array) -> Array:
    """Round float32 to the nearest int32, ties to even, saturating; 0 for NaN (tt_rounded)."""
    x, limit = g.astype(F32), F32(2.0**31)  # beyond every int32
    near = np.where(np.abs(x) < limit, np.rint(x), F32(0)).astype(np.int32)
    return np.where(x >= limit, np.int32(fx.INT32_MAX), np.where(x <= -limit, np.int32(fx.INT32_MIN), near))


def new_exponent() -> Array:
    """Return a velocity's exponent state: {exponent to store with, quiet updates, exponent that it is stored with}."""
    return np.asarray([VELOCITY_START, UNKNOWN, VELOCITY_START], np.int32)


def moved_velocity(
    velocity: Array, gradient: Any, rate: Array, state: Array, unit: Any, random: Any
) -> tuple[Array, Array, Array]:
    """Return (total, velocity, magnitudes for the peak) of int64 arrays (tt_momentum).

    rate: (.., .., momentum N as multiplier and shift, 1 / N likewise); state: (exponent to store with, quiet, exponent
    that velocity is stored with); unit: of the gradient, p + h.
    """
    kept = fx.scaled(velocity, int(rate[2]), int(rate[3]) - 31 + int(state[2]) - unit)
    total = fx.saturate(np.asarray(gradient, np.int64) + kept)
    fine = fx.scaled(total, int(rate[4]), int(rate[5]) - 31 + unit - int(state[0]) + 8)
    fine = np.clip(fine, -(1 << 30), 1 << 30)
    magnitudes = np.maximum((np.abs(fine) + 255) >> 8, total != 0)
    return total, np.clip((fine + random) >> 8, -127, 127).astype(np.int8), magnitudes


def sign_ahead(velocity: Array, gradient: Any, rate: Array, state: Array, unit: Any) -> Any:
    """Return the sign of gradients plus velocity times the last factor of the rate (tt_sign_momentum); see above."""
    ahead = fx.scaled(velocity, int(rate[6]), int(rate[7]) - 31 + int(state[2]) - unit)
    return np.sign(np.asarray(gradient, np.int64) + ahead)


# ---- rates ----------------------------------------------------------------------------------------------------------


def split_rate(rate: np.float32, samples: int = 1) -> Array:
    """Return a rate over `samples` as (multiplier, shift), rounded down; (0, 0) unless positive, finite, normal."""
    if not (np.isfinite(rate) and rate >= np.float32(2.0**-126)):
        return np.zeros(2, np.int32)
    multiplier, shift = fx.split_factor(float(rate))
    spare = (samples - 1).bit_length()
    quotient = (multiplier << spare) // samples
    if quotient >= 1 << 31:
        quotient, spare = (multiplier << (spare - 1)) // samples, spare - 1
    return np.asarray((quotient, shift - spare), np.int32)


def multiply_rate(rate: Array, samples: int) -> Array:
    """Return a split rate times `samples`, rounded down."""
    product, shift = int(rate[0]) * samples, int(rate[1])
    spare = max(product.bit_length() - 31, 0)
    return np.asarray((product >> spare, shift + spare), np.int32)
