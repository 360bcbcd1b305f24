"""The integer helpers of tt_fixed.h and tt_qloss.h: how C calls each, its numpy twin, and what to compare them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.int8 import loss as int8_loss
from tinytrain_compile.ops.int8.exponents import first_exponent, probe_exponent, update_exponent
from tinytrain_compile.ops.int8.pointwise import ErrorUnitAttrs, QuantAttrs, exponent_factor, round_even
from tinytrain_compile.ops.int8.steps import (
    moved_fine,
    moved_velocity,
    moved_weight,
    multiply_rate,
    rounded_gradient,
    sign_ahead,
    split_rate,
)

Words = np.ndarray
Rng = np.random.Generator


@dataclass(frozen=True)
class Argument:
    """Values that are tried in every combination, and random ones."""

    edges: tuple[int, ...]
    draw: Callable[[Rng, int], Words]


Values = Sequence[Any]
Twin = (
    Callable[[Any], Values]
    | Callable[[Any, Any], Values]
    | Callable[[Any, Any, Any], Values]
    | Callable[[Any, Any, Any, Any], Values]
    | Callable[[Any, Any, Any, Any, Any], Values]
    | Callable[[Any, Any, Any, Any, Any, Any], Values]
    | Callable[[Any, Any, Any, Any, Any, Any, Any], Values]
    | Callable[[Any, Any, Any, Any, Any, Any, Any, Any, Any], Values]
)
"""By number of arguments, so that those of lambdas have a type."""


@dataclass(frozen=True)
class Helper:
    """body: C that makes y0, y1 ... of a0, a1 ...; twin: the same on arrays (or, if `scalar`, on ints).

    long: the twin takes long, so that there are fewer samples.
    """

    name: str
    body: str
    arguments: tuple[Argument, ...]
    twin: Twin
    outputs: int = 1
    scalar: bool = False
    long: bool = False

    def samples(self, rng: Rng, count: int) -> Words:
        """Arguments x samples: all combinations of edges, then random ones."""
        edges = np.array(list(product(*(a.edges for a in self.arguments))), np.int64).T
        drawn = np.stack([np.asarray(a.draw(rng, count), np.int64) for a in self.arguments])
        return np.concatenate([edges, drawn], axis=1).astype(np.int32)

    def expected(self, x: Words) -> Words:
        """Outputs x samples, by the twin."""
        if self.scalar:
            results = np.array([self.twin(*(int(v) for v in column)) for column in x.T], np.int64).T
        else:
            results = np.stack([np.asarray(r, np.int64) for r in self.twin(*x.astype(np.int64))])
        return results.reshape(self.outputs, x.shape[1]).astype(np.int32)

    def function(self) -> str:
        """C: void map_NAME(const int32_t *x, int32_t *y, size_t n)."""
        loads = " ".join(f"const int32_t a{i} = x[{i}u * n + i];" for i in range(len(self.arguments)))
        clears = " ".join(f"int32_t y{i} = 0;" for i in range(self.outputs))
        stores = " ".join(f"y[{i}u * n + i] = y{i};" for i in range(self.outputs))
        head = f"void map_{self.name}(const int32_t *x, int32_t *y, size_t n)"
        return f"{head};\n{head}\n{{\n for (size_t i = 0; i < n; i++) {{ {loads} {clears} {self.body} {stores} }}\n}}\n"


# ---- arguments ------------------------------------------------------------------------------------------------------


def _words(rng: Rng, count: int) -> Words:
    """Words of every size, not only large ones."""
    return rng.integers(-(2**31), 2**31, count) >> rng.integers(0, 31, count)


def between(low: int, high: int, *edges: int) -> Argument:
    """Integers of a range, both ends included; by default the ends and their neighbours are tried in combination."""
    near = (low, low + 1, 0, high - 1, high)
    return Argument(
        edges or tuple(sorted({n for n in near if low <= n <= high})), lambda r, n: r.integers(low, high + 1, n)
    )


WORD = Argument(
    (0, 1, -1, 2, 3, -3, 1 << 30, -(1 << 30), (1 << 30) + 1, 0x55555555, 2**31 - 2, 2**31 - 1, -(2**31) + 1, -(2**31)),
    _words,
)
MULTIPLIER = Argument(
    (0, 1, 1 << 30, (1 << 30) + 1, 0x5A82799A, 2**31 - 2, 2**31 - 1),
    lambda rng, count: rng.integers(1 << 30, 1 << 31, count),
)
SHIFT = between(-40, 40, -40, -32, -31, -30, -16, -2, -1, 0, 1, 2, 10, 30, 31, 32)
BITS = between(0, 40, 0, 1, 2, 8, 30, 31, 32, 40)
EXPONENT = between(-100, 40, -100, -63, -62, -61, -33, -32, -31, -8, -1, 0, 1, 30, 31, 32)
INT8 = between(-128, 127)
LOW, HIGH = between(-128, 0, -128, 0), between(1, 127, 1, 127)
STATE = between(-100, 100, -100, -99, -7, 0, 99, 100)
ABOVE = between(-60, 60, -60, 0, 60)
QUIET = between(0, 7, 0, 6, 7)
LIMIT = between(1, 127, 1, 64, 127)
FLAG = between(0, 1)
SUM = Argument(
    (1, 2, 3, 255, 1 << 20, (1 << 20) + 1, 1 << 30, 2**31 - 1),
    lambda rng, count: np.maximum(np.abs(_words(rng, count)), 1),
)
PEAK = Argument(
    (0, 1, 2, 3, 31, 62, 63, 64, 126, 127, 63 << 20, (63 << 20) + 1, (63 << 25) + 1, 2**31 - 1),
    lambda rng, count: np.abs(_words(rng, count)) & 0x7FFFFFFF,
)
EDGE_TEXT = "0 -0 inf -inf nan 1 -1 0.5 -0.5 1.5 2.5 -2.5 126.5 127.5 -127.5 -128.5 1023.5 1024 -1024 -1025 1e-45 3e38"
EDGE_FLOATS = np.array(EDGE_TEXT.split(), np.float32)


def _floats(rng: Rng, count: int) -> Words:
    """Bit patterns: any, of ordinary size, and ties."""
    ordinary = (rng.standard_normal(count) * 100).astype(np.float32)
    ties = (rng.integers(-3000, 3000, count) / 2).astype(np.float32)
    patterns = rng.integers(-(2**31), 2**31, count)
    kind = rng.integers(0, 3, count)
    return np.where(kind == 0, patterns, np.where(kind == 1, ordinary.view(np.int32), ties.view(np.int32)))


FLOAT = Argument(tuple(int(n) for n in EDGE_FLOATS.view(np.int32)), _floats)
POSITIVE_BITS = Argument(tuple(int(n) for n in np.abs(EDGE_FLOATS[~np.isnan(EDGE_FLOATS)]).view(np.int32)), PEAK.draw)


# ---- twins that are parts of an op's reference ----------------------------------------------------------------------


def real(bits: Any) -> Words:
    return np.asarray(bits, np.int64).astype(np.uint32).view(np.float32)


def _bits(values: Any) -> Words:
    return np.asarray(values, np.float32).view(np.int32)


def error(value: Words, peak: Words) -> Sequence[Any]:
    return np.clip(value, -127, 127), np.maximum(np.minimum(np.abs(value), fx.INT32_MAX), peak)


def aligned(error: Words, exponent: Words) -> Sequence[Any]:
    return (np.clip(fx.shift(error << 16, exponent - 8), -(1 << 29), 1 << 29),)


def _noise(state: int, salt: int, index: int) -> Sequence[Any]:
    return (int(fx.noise_bytes(state, salt, index + 1)[-1]),)


def _next_noise(state: int) -> Sequence[Any]:
    definition = op_def("NoiseTick")
    return (int(definition.reference((np.asarray(state, np.int32),), definition.attrs())[0]),)


SCALE, UNIT = 0.037, 0.0123


def _quantise(bits: Words, zero: Words, low: Words, high: Words) -> Sequence[Any]:
    """By the op, for every zero point; low and high are applied afterwards, which gives the same."""
    x, result = real(bits), np.empty(bits.shape, np.int64)
    for z in np.unique(zero):
        chosen = zero == z
        result[chosen] = op_def("Quantize").reference((x[chosen],), QuantAttrs(SCALE, int(z)))[0]
    return (np.clip(result, low, high),)


def _quantise_error(bits: Words, exponent: Words, peak: Words) -> Sequence[Any]:
    errors, peaks = np.empty(bits.shape, np.int64), np.empty(bits.shape, np.int64)
    reference = op_def("QuantizeError").reference
    for p in np.unique(exponent):
        chosen = exponent == p
        state = np.asarray([p, 0], np.int32)
        with np.errstate(all="ignore"):
            errors[chosen] = reference((np.asarray(0, np.int32), state, real(bits[chosen])), ErrorUnitAttrs(UNIT))[0]
    with np.errstate(all="ignore"):
        product_ = real(bits) * np.float32(1.0 / UNIT)
    magnitude = np.where(np.isnan(product_), np.float32(0), np.abs(product_)).astype(np.float32).view(np.int32)
    peaks = np.maximum(magnitude, peak)
    return errors, peaks


def _settle(exponent: int, quiet: int, peak: int, float_peak: int) -> Sequence[Any]:
    state = update_exponent(np.asarray([exponent, quiet], np.int32), np.asarray(peak, np.int32), bool(float_peak))
    return (*(int(n) for n in state), 0)


def _momentum(
    velocity: int, gradient: int, peak: int, m: int, n: int, after: int, before: int, unit: int, noise: int
) -> Sequence[Any]:
    rate, state = np.asarray([0, 0, m, 1, 1 << 30, n], np.int64), np.asarray([after, 0, before], np.int64)
    total, stored, magnitude = moved_velocity(np.asarray(velocity), gradient, rate, state, unit, noise)
    return int(total), int(stored), max(peak, int(magnitude))


def _sign_momentum(
    velocity: int, gradient: int, peak: int, m: int, ahead: int, after: int, before: int, unit: int, noise: int
) -> Sequence[Any]:
    rate, state = np.asarray([0, 0, m, 1, 1 << 30, -3, m, ahead], np.int64), np.asarray([after, 0, before], np.int64)
    sign = sign_ahead(np.asarray(velocity), gradient, rate, state, unit)
    _, stored, magnitude = moved_velocity(np.asarray(velocity), gradient, rate, state, unit, noise)
    return int(sign), int(stored), max(peak, int(magnitude))


def _probe(a: int, b: int, above: int) -> Sequence[Any]:
    return probe_exponent([a, b], above), 0, probe_exponent([a], above), probe_exponent([], above)


def _first_exponent(exponent: int, peak: int, float_peak: int) -> Sequence[Any]:
    return first_exponent(exponent, peak, bool(float_peak)), 0, 0


def _cross_entropy(total: Words, bits: Words, distance: Words, m: Words, e: Words, loss_bits: Words) -> Sequence[Any]:
    above = int8_loss.binary_log(total) - (bits << int8_loss.LOG_BITS)
    log_part = fx.requantise(above, int8_loss.LN2[0], loss_bits + int8_loss.LN2[1] - int8_loss.LOG_BITS)
    return (log_part + fx.requantise(distance << int8_loss.DISTANCE_BITS, m, e),)


INVERSE_SCALE, INVERSE_UNIT = (float(np.float32(1.0 / value)) for value in (SCALE, UNIT))
PROBES = """int32_t s[2] = {5, 5}, r[2] = {a0, 1}, q[2] = {a1, 2}; tt_probe2(s, r, q, a2); y0 = s[0]; y1 = s[1];
 tt_probe1(s, r, a2); y2 = s[0]; tt_probe0(s, a2); y3 = s[0];"""

HELPERS = (
    Helper("add", "y0 = tt_add(a0, a1);", (WORD, WORD), lambda a, b: (fx.saturate(a + b),)),
    Helper("subtract", "y0 = tt_subtract(a0, a1);", (WORD, WORD), lambda a, b: (fx.saturate(a - b),)),
    Helper("shift_left", "y0 = tt_shift_left(a0, a1);", (WORD, BITS), lambda a, n: (fx.shift_left(a, n),)),
    Helper("shift_right", "y0 = tt_shift_right(a0, a1);", (WORD, BITS), lambda a, n: (fx.shift_right(a, n),)),
    Helper("shift", "y0 = tt_shift(a0, a1);", (WORD, SHIFT), lambda a, e: (fx.shift(a, e),)),
    Helper(
        "high_multiply", "y0 = tt_high_multiply(a0, a1);", (WORD, MULTIPLIER), lambda a, m: (fx.high_multiply(a, m),)
    ),
    Helper(
        "requantise",
        "y0 = tt_requantise(a0, a1, a2);",
        (WORD, MULTIPLIER, SHIFT),
        lambda a, m, e: (fx.requantise(a, m, e),),
    ),
    Helper(
        "scaled", "y0 = tt_scaled(a0, a1, a2);", (WORD, MULTIPLIER, EXPONENT), lambda a, m, e: (fx.scaled(a, m, e),)
    ),
    Helper(
        "saturate8",
        "y0 = tt_saturate8(a0, a1, a2, a3);",
        (WORD, INT8, LOW, HIGH),
        lambda a, zero, low, high: (np.clip(a + zero, low, high),),
    ),
    Helper("error", "y1 = a1; y0 = tt_error(a0, &y1);", (WORD, PEAK), error, 2),
    Helper("passes", "y0 = tt_passes(a0, a1, a2) ? 1 : 0;", (INT8, INT8, INT8), lambda a, b, c: ((a > b) & (a < c),)),
    Helper("aligned", "y0 = tt_aligned(a0, a1);", (INT8, between(-200, 200, -200, -40, -8, 0, 8, 30, 200)), aligned),
    Helper("noise", "y0 = tt_noise(a0, a1, a2);", (WORD, WORD, between(0, 300)), _noise, scalar=True),
    Helper(
        "noise_seed",
        "y0 = tt_noise(tt_noise_seed(a0, a1), 0, a2);",
        (WORD, WORD, between(0, 300)),
        _noise,
        scalar=True,
    ),
    Helper("next_noise", "y0 = tt_next_noise(a0);", (WORD,), _next_noise, scalar=True),
    Helper(
        "moved_weight",
        "y0 = tt_moved_weight(a0, a1, a2, a3, a4, a5);",
        (INT8, WORD, MULTIPLIER, between(-80, 20, -80, -62, -31, 0, 20), between(0, 255, 0, 255), LIMIT),
        lambda w, g, m, e, noise, limit: (moved_weight(w, g, (m, e), noise, limit),),
    ),
    Helper(
        "moved_fine",
        "int8_t f = (int8_t)a5; y0 = tt_moved_fine(&f, a0, a1, a2, a3, a4); y1 = f;",
        (INT8, WORD, MULTIPLIER, between(-80, 20, -80, -62, -31, 0, 20), LIMIT, INT8),
        lambda w, g, m, e, limit, fraction: moved_fine(w, fraction, g, (m, e), limit),
        2,
    ),
    Helper(
        "rounded_near",
        "y0 = tt_clamp(tt_rounded_near(tt_from_bits((uint32_t)a0)), -1000, 1000);",
        (FLOAT,),
        lambda x: (round_even(np.clip(np.nan_to_num(real(x), nan=0.0), -1000, 1000).astype(np.float32)),),
    ),
    Helper("rounded", "y0 = tt_rounded(tt_from_bits((uint32_t)a0));", (FLOAT,), lambda x: (rounded_gradient(real(x)),)),
    Helper(
        "quantise",
        f"y0 = tt_quantise(tt_from_bits((uint32_t)a0), {INVERSE_SCALE!r}f, a1, a2, a3);",
        (FLOAT, INT8, LOW, HIGH),
        _quantise,
    ),
    Helper(
        "exponent_factor",
        "y0 = (int32_t)tt_bits(tt_exponent_factor(a0));",
        (between(-300, 300, -300, -127, -126, -125, 0, 126, 127, 128, 300),),
        lambda e: (_bits(exponent_factor(e)),),
        scalar=True,
    ),
    Helper(
        "quantise_error",
        f"const float f = tt_exponent_factor(-a1); y1 = a2;"
        f"y0 = tt_quantise_error(tt_from_bits((uint32_t)a0), {INVERSE_UNIT!r}f, f, tt_error_edge(a1), &y1);",
        (FLOAT, between(-130, 130, -130, -100, -7, 0, 100, 130), POSITIVE_BITS),
        _quantise_error,
        2,
    ),
    Helper(
        "update_exponent",
        "int32_t s[2] = {a0, a1}; y2 = tt_update_exponent(s, a2, a3 != 0); y0 = s[0]; y1 = s[1];",
        (STATE, QUIET, PEAK, FLAG),
        _settle,
        3,
        scalar=True,
    ),
    Helper(
        "update_stored_exponent",
        "int32_t s[3] = {a0, a1, 5}; y3 = tt_update_stored_exponent(s, a2); y0 = s[0]; y1 = s[1]; y2 = s[2];",
        (STATE, between(-1, 7, -1, 0, 6, 7), PEAK),
        lambda exponent, quiet, peak: (
            *update_exponent(np.asarray([exponent, quiet, 5]), np.asarray(peak), False).tolist(),
            0,
        ),
        4,
        scalar=True,
    ),
    Helper(
        "momentum",
        "int8_t v = (int8_t)a0; const int32_t rate[6] = {0, 0, a3, 1, 1 << 30, a4}, s[3] = {a5, 0, a6}; y2 = a2;"
        "y0 = tt_momentum(&v, a1, &y2, rate, s, a7, a8); y1 = v;",
        (
            *(between(-127, 127, -127, 0, 127), WORD, between(0, 9, 0, 9), between(1 << 30, 2**31 - 1, 0, 2**31 - 1)),
            *(between(-8, 1, -3, 1), between(-100, 100, -100, 0, 100), between(-100, 100, -100, 0, 100)),
            *(between(-160, 160, -160, 0, 160), between(0, 255, 0, 255)),
        ),
        _momentum,
        3,
        scalar=True,
    ),
    Helper(
        "sign_momentum",
        "int8_t v = (int8_t)a0; const int32_t rate[8] = {0, 0, a3, 1, 1 << 30, -3, a3, a4};"
        "const int32_t s[3] = {a5, 0, a6}; y2 = a2;"
        "y0 = tt_sign_momentum(&v, a1, &y2, rate, s, a7, a8); y1 = v;",
        (
            *(between(-127, 127, -127, 0, 127), WORD, between(0, 9, 0, 9), between(1 << 30, 2**31 - 1, 0, 2**31 - 1)),
            *(between(-8, 9, -3, 4), between(-100, 100, -100, 0, 100), between(-100, 100, -100, 0, 100)),
            *(between(-160, 160, -160, 0, 160), between(0, 255, 0, 255)),
        ),
        _sign_momentum,
        3,
        scalar=True,
    ),
    Helper("probe", PROBES, (STATE, STATE, ABOVE), _probe, 4, scalar=True),
    Helper(
        "first_exponent",
        "int32_t s[2] = {a0, 3}; int32_t p = a1; tt_first_exponent(s, &p, a2 != 0); y0 = s[0]; y1 = s[1]; y2 = p;",
        (STATE, PEAK, FLAG),
        _first_exponent,
        3,
        scalar=True,
    ),
    Helper(
        "split_rate",
        "int32_t s[2] = {5, 5}; tt_split_rate(s, tt_from_bits((uint32_t)a0), (uint32_t)a1); y0 = s[0]; y1 = s[1];",
        (FLOAT, between(1, 100_000, 1, 2, 3, 8, 9, 1000, 65_535)),
        lambda bits, samples: split_rate(np.float32(real(bits)), samples).tolist(),
        2,
        scalar=True,
    ),
    Helper(
        "multiply_rate",
        "int32_t s[2] = {a0, a1}; tt_multiply_rate(s, (uint32_t)a2); y0 = s[0]; y1 = s[1];",
        (between(1 << 30, 2**31 - 1), between(-200, 200), between(1, 1 << 20, 1, 2, 3, 255)),
        lambda m, shift, samples: multiply_rate(np.asarray([m, shift]), int(samples)).tolist(),
        2,
        scalar=True,
    ),
    Helper("binary_log", "y0 = tt_binary_log(a0);", (SUM,), lambda a: (int8_loss.binary_log(a),)),
    Helper(
        "ratio",
        "const int32_t low = a0 < a1 ? a0 : a1; y0 = tt_ratio(low, a0 < a1 ? a1 : a0);",
        (SUM, SUM),
        lambda a, b: (int(int8_loss.ratio(min(a, b), np.asarray(max(a, b)))),),
        scalar=True,
    ),
    Helper(
        "cross_entropy",
        "y0 = tt_cross_entropy(a0, a1, a2, a3, a4, a5);",
        (SUM, between(0, 30), between(0, 255, 0, 255), MULTIPLIER, between(-24, 0), between(12, 24)),
        _cross_entropy,
    ),
    Helper(
        "scaled_float",
        "y0 = (int32_t)tt_bits(tt_scaled_float(a0, a1, a2));",
        (WORD, MULTIPLIER, between(-90, 90, -90, -31, 0, 90)),
        lambda a, m, e: (int(np.float32(int8_loss.scaled_float(a, m, e)).view(np.int32)),),
        scalar=True,
    ),
    Helper(
        "is_finite",
        "y0 = tt_is_finite(tt_from_bits((uint32_t)a0)) ? 1 : 0;",
        (FLOAT,),
        lambda x: (np.isfinite(real(x)),),
    ),
)
