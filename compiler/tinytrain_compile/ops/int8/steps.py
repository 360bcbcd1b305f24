"""How far integer weights move in one step: by any gradient, and by the gradient of a dense layer's one sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops import fixed_point as fx

ROW_BITS, FINE_BITS, ROW_LIMIT = 9, 25, 32767
"""Bits of fraction of a row's step, in 1/256 of a weight for every unit of an input: it has 16 bits where noise rounds
weights, 32 where they have fractions; the largest magnitude in 16 bits."""


def step_size(multiplier: Array, shift: Array, rate: Array, p: Array, fraction_bits: int) -> tuple[Any, Any]:
    """Per-channel (multiplier, exponent) for fx.scaled: channel constant times rate times 2**p, with fraction bits."""
    exponent = shift.astype(np.int64) + int(rate[1]) + int(p[0]) + fraction_bits - 31
    return fx.high_multiply(multiplier, int(rate[0])), exponent


def updated_weight(w: Array, gradient: Any, scale: tuple[Array, ...], noise: Array, salt: Array, limit: int) -> Array:
    """int8 weights after one step with stochastic rounding; `scale` = (multiplier, shift, rate, p), see step_size."""
    random = fx.noise_bytes(noise, salt, w.size).reshape(w.shape)
    return moved_weight(w, gradient, weight_steps(w, scale), random, limit)


def weight_steps(w: Array, scale: tuple[Array, ...]) -> tuple[Any, Any]:
    """step_size of every channel, in 1/256 of a weight, in a shape that goes with the weight's."""
    multiplier, exponent = step_size(*scale, fraction_bits=8)
    per_channel = (-1,) + (1,) * (w.ndim - 1)
    return multiplier.reshape(per_channel), exponent.reshape(per_channel)


def moved_weight(w: Array, gradient: Any, step: tuple[Any, Any], random: Any, limit: Any) -> Array:
    """int8 weights less gradient times step (in 1/256 of a weight), rounded by a random byte (tt_moved_weight)."""
    noisy = (w.astype(np.int64) << 8) - moves_of(gradient, step) + random
    return np.clip(noisy >> 8, -limit, limit).astype(np.int8)


def moves_of(gradient: Any, step: tuple[Any, Any]) -> Any:
    """Gradient times step, in 1/256 of a weight."""
    return np.clip(fx.scaled(gradient, *step), -(1 << 24), 1 << 24)


# ---- a dense layer of one sample: its gradient is a column (errors) times a row (inputs) ----------------------------


def row_moves(x: Array, g: Array, x_zero: int, scale: tuple[Array, ...], bits: int) -> Any:
    """Moves of all weights (outputs, 1, 1, inputs), in 1/256 of a weight: a row's step times the inputs.

    bits: ROW_BITS or FINE_BITS. A step beyond its limit moves as any gradient does: nothing is held back.
    """
    multiplier, exponent = (one[:, None] for one in step_size(*scale, fraction_bits=8))
    errors, inputs = g.reshape(-1, 1).astype(np.int64), x.reshape(-1).astype(np.int64) - x_zero
    steps = fx.scaled(errors, multiplier, exponent + bits)
    large = np.abs(steps) > ROW_LIMIT << (bits - ROW_BITS)
    short = (steps * inputs + (1 << (bits - 1))) >> bits
    return np.where(large, moves_of(errors * inputs, (multiplier, exponent)), short)[:, None, None, :]


def rounded_rows(w: Array, moves: Any, noise: Array, salt: Array, limit: int) -> Array:
    """int8 weights less their moves, with stochastic rounding; a word of noise serves four weights of a row."""
    random = fx.noise_of_rows(noise, salt, w.shape[0], w.shape[-1]).reshape(w.shape)
    return np.clip((w.astype(np.int64) * 256 - moves + random) >> 8, -limit, limit).astype(np.int8)
