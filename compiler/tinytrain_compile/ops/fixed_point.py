"""Integer arithmetic of the quantised ops, bit for bit as runtime_c/tt_fixed.h computes it.

A real factor f is stored as (multiplier, shift) with f = multiplier * 2**(shift - 31), multiplier in [2**30, 2**31).
`requantise` is CMSIS-NN's double rounding: a doubling high multiply (round half up), then a division by a power of
two with ties away from zero; a positive shift is a saturating left shift before the multiply.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.errors import CompileError

Ints = NDArray[Any]
INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)
"""The ends of int32."""
EXPONENT_START, EXPONENT_LIMIT = -7, 100
"""Exponent of an error before anything is known, and its bound on both sides."""
UNSETTLED = -1
"""Quiet count of an exponent that no step has determined yet."""
GOLDEN = 0x9E3779B1
"""The prime next to 2**32 over the golden ratio (Knuth, The Art of Computer Programming 6.4; TT_GOLDEN): multiples of
it are spread evenly over 32 bits."""
_WORD = np.uint64(0xFFFFFFFF)
ERROR_TARGET = 63
"""Largest magnitude that an error should take with its exponent: 127 less one bit of headroom."""
QUIET_APPLIES = 8
"""Updates in a row with too small errors after which an exponent falls by one."""


def split_factor(factor: float) -> tuple[int, int]:
    """Return (multiplier, shift) of a factor >= 0; (0, 0) for 0. Relative error at most 2**-31."""
    if not factor > 0 or not math.isfinite(factor):
        return 0, 0
    mantissa, exponent = math.frexp(factor)
    multiplier = round(mantissa * 2**31)
    if multiplier == 2**31:
        multiplier, exponent = 2**30, exponent + 1
    return multiplier, exponent


def split_factors(factors: Any) -> tuple[Ints, Ints]:
    """Return `split_factor` of every element, as arrays of int32 and int8; E0307 for a factor outside 2**-128 to
    2**127."""
    pairs = [split_factor(float(f)) for f in np.ravel(factors)]
    if any(not -128 <= shift <= 127 for _, shift in pairs):
        what = "the ranges of a layer's operands and of its result are too far apart"
        raise CompileError("E0307", "--quant int8", what, "look at the weights and the calibration samples")
    return np.asarray([m for m, _ in pairs], np.int32), np.asarray([s for _, s in pairs], np.int8)


def saturate(values: Any, low: int = INT32_MIN, high: int = INT32_MAX) -> Ints:
    """Clamp int64 values."""
    return np.clip(np.asarray(values, np.int64), low, high)


def shift_left(values: Any, bits: Any) -> Ints:
    """Shift int32 values left by 0..31 bits, saturating."""
    return saturate(np.asarray(values, np.int64) << np.minimum(np.asarray(bits, np.int64), 31))


def shift_right(values: Any, bits: Any) -> Ints:
    """Divide int32 values by 2**bits, ties away from zero; bits above 31 count as 31."""
    x = np.asarray(values, np.int64)
    n = np.minimum(np.asarray(bits, np.int64), 31)
    mask = (np.int64(1) << n) - 1
    threshold = (mask >> 1) + (x < 0)
    return (x >> n) + ((x & mask) > threshold)


def shift(values: Any, exponent: Any) -> Ints:
    """Return values * 2**exponent: saturating to the left, rounded to the right."""
    e = np.asarray(exponent, np.int64)
    return np.where(e > 0, shift_left(values, np.maximum(e, 0)), shift_right(values, np.maximum(-e, 0)))


def high_multiply(a: Any, b: Any) -> Ints:
    """Return (2 a b + 2**31) >> 32: the doubling high multiply of two int32, rounded half up."""
    return (np.asarray(a, np.int64) * np.asarray(b, np.int64) + (1 << 30)) >> 31


def requantise(acc: Any, multiplier: Any, exponent: Any) -> Ints:
    """Return acc times the factor (multiplier, exponent), as an int32 in an int64 array."""
    e = np.asarray(exponent, np.int64)
    lifted = np.where(e > 0, shift_left(acc, np.maximum(e, 0)), np.asarray(acc, np.int64))
    product = high_multiply(lifted, multiplier)
    return np.where(e < 0, shift_right(product, np.maximum(-e, 0)), product)


def requantise_once(acc: Any, multiplier: Any, exponent: Any) -> Ints:
    """Return `requantise` with one rounding, half up: acc times the factor, to the nearest."""
    e = np.asarray(exponent, np.int64)
    lifted = np.where(e > 0, shift_left(acc, np.maximum(e, 0)), np.asarray(acc, np.int64))
    down = np.int64(31) - np.clip(e, -31, 0)
    return (lifted * np.asarray(multiplier, np.int64) + (np.int64(1) << (down - 1))) >> down


def above(values: Any, sums: Any) -> Ints:
    """Return rounded sums, but 1 for a positive sum that became 0, which a mask must not take for one stopped by a
    ReLU."""
    y = np.asarray(values, np.int64)
    return np.where((y == 0) & (np.asarray(sums) > 0), 1, y)


def scaled(value: Any, multiplier: Any, exponent: Any) -> Ints:
    """Return value * multiplier * 2**exponent in 64 bits, rounded half up, saturated to int32."""
    product = np.asarray(value, np.int64) * np.asarray(multiplier, np.int64)
    e = np.asarray(exponent, np.int64)
    right = np.clip(-e, 0, 62)
    half = np.where(right > 0, np.int64(1) << np.maximum(right - 1, 0), 0)
    down = (product + half) >> right
    limited = np.clip(down, INT32_MIN, INT32_MAX)
    up = np.clip(e, 0, 31)
    return saturate(np.where(e > 0, limited << up, down))


def error_peak(values: Ints, peak: Ints) -> Ints:
    """Return the larger of a running peak and the largest magnitude (INT32_MAX at most)."""
    largest = min(int(np.abs(values).max(initial=0)), INT32_MAX)
    return np.asarray(max(int(peak), largest), np.int32)


def needed_bits(peak: int) -> int:
    """Return the smallest k with peak <= ERROR_TARGET * 2**k, for peak >= 1 (negative if the range is not used)."""
    k = -6
    while peak > ERROR_TARGET * 2.0**k:
        k += 1
    return k


def noise_bytes(state: Any, salt: Any, count: int) -> Ints:
    """Return one byte of noise per weight: the high byte of an LCG step on the mixed (state + salt + index * odd
    constant).

    Without the mixing, neighbouring weights would get nearly the same byte, and their rounding errors would add up.
    """
    index = np.arange(count, dtype=np.uint64)
    start = np.uint64((int(state) + int(salt)) & 0xFFFFFFFF)
    word = (start + index * np.uint64(GOLDEN)) & np.uint64(0xFFFFFFFF)
    word ^= word >> np.uint64(15)
    word = (word * np.uint64(1664525) + np.uint64(1013904223)) & np.uint64(0xFFFFFFFF)
    return (word >> np.uint64(24)).astype(np.int64)


def noise_of_rows(state: Any, salt: Any, rows: int, count: int) -> Ints:
    """Return noise for rows of `count` weights: one mixed word has bytes for four neighbours, lowest byte first."""
    words = -(-count // 4)
    start = np.uint64((int(state) + int(salt)) & 0xFFFFFFFF)
    word = (start + np.arange(rows * words, dtype=np.uint64) * np.uint64(GOLDEN)) & np.uint64(0xFFFFFFFF)
    word ^= word >> np.uint64(15)
    word = (word * np.uint64(GOLDEN)) & np.uint64(0xFFFFFFFF)
    word ^= word >> np.uint64(16)
    each = (word[:, None] >> (np.arange(4, dtype=np.uint64) * np.uint64(8))) & np.uint64(255)
    return each.reshape(rows, 4 * words)[:, :count].astype(np.int64)


def noise_of_velocities(state: Any, salt: Any, rows: int, count: int) -> tuple[Ints, Ints]:
    """Return noise for the weights and for the velocities of rows: each word has bytes for four of both.

    A row begins with a mixed word; each other one follows from the one before (xorshift).
    """
    first = (
        np.uint64((int(state) + int(salt)) & 0xFFFFFFFF) + np.arange(rows, dtype=np.uint64) * np.uint64(GOLDEN)
    ) & _WORD
    word = ((first ^ first >> np.uint64(15)) * np.uint64(GOLDEN)) & _WORD
    word = (word ^ word >> np.uint64(16)) | np.uint64(1)
    found: list[Any] = []
    for _ in range(-(-count // 4)):
        found += [word >> np.uint64(8 * byte) & np.uint64(255) for byte in range(4)]
        word = word ^ (word << np.uint64(13)) & _WORD
        word = word ^ word >> np.uint64(17)
        word = word ^ (word << np.uint64(5)) & _WORD
    weights = np.stack(found, axis=1).astype(np.int64)
    velocities = weights.reshape(rows, -1, 4)[:, :, [2, 3, 0, 1]].reshape(rows, -1)
    return weights[:, :count], velocities[:, :count]
