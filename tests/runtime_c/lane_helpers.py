"""The helpers of tt_mve_sums.h and tt_mve.h, as in dsp_helpers.py: four lanes made from one word, y0 to y3 of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.runtime_c.dsp_helpers import FACTOR, LIFTS, NORMAL, PITCH
from tests.runtime_c.fixed_point_helpers import (
    EXPONENT,
    INT8,
    MULTIPLIER,
    PEAK,
    WORD,
    Argument,
    Helper,
    aligned,
    between,
    error,
)
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.int8.steps import moved_weight

NEAR = between(-31, 31, -31, -30, -1, 0, 1, 31)
"""Shifts as vectors take them."""
DOWN = between(-31, -1, -31, -30, -8, -1)
SMALL = between(-(1 << 20), 1 << 20)
LANES = "tt_lanes({0}, {0} >> 1, -({0} >> 2), {0} >> 13)"
WHOLE = "const tt_i32x4 r = {}; y0 = r[0]; y1 = r[1]; y2 = r[2]; y3 = r[3];"
BYTES = "(int8_t)r[0]; y1 = (int8_t)r[1]; y2 = (int8_t)r[2]; y3 = (int8_t)r[3];"


def lanes(word: Any) -> list[Any]:
    """What LANES is in C."""
    return [word, word >> 1, -(word >> 2), word >> 13]


def _each(name: str, call: str, arguments: tuple[Argument, ...], twin: Any, narrow: bool = False) -> Helper:
    """A helper whose first operand is four lanes; twin: of one lane and the other arguments."""
    body = WHOLE.format(call.replace("LANES", LANES.format("a0")))
    if narrow:
        body = body.replace("r[0]; y1 = r[1]; y2 = r[2]; y3 = r[3];", BYTES)
    return Helper(f"{name}_x4", body, arguments, lambda a, *rest: [twin(v, *rest) for v in lanes(a)], 4, long=True)


def _errors(values: list[Any], seen: Any) -> Sequence[Any]:
    """Four errors and the peak after them."""
    found: list[Any] = []
    for value in values:
        one, seen = error(value, seen)
        found.append(one)
    return (*found, seen)


def _peaks(name: str, call: str, arguments: tuple[Argument, ...], twin: Any) -> Helper:
    body = "int32_t peak = a3; " + WHOLE.format(call.replace("LANES", LANES.format("a0"))) + " y4 = peak;"
    return Helper(f"{name}_x4", body, arguments, twin, 5, long=True)


ROW = "(int8_t)(((int32_t)((uint32_t)(a{} >> (k % 13)) * (uint32_t)(k % 99 + 3) & 255u) ^ 128) - 128)"


def _filled(name: str, word: int, count: int, dtype: str = "int8_t") -> str:
    return f"{dtype} {name}[{count}]; for (int32_t k = 0; k < {count}; k++) {{ {name}[k] = {ROW.format(word)}; }} "


def _bytes(word: Any, count: int) -> list[Any]:
    """int8 made from a word: what ROW is in C."""
    return [((((word >> (i % 13)) * (i % 99 + 3)) & 255) ^ 128) - 128 for i in range(count)]


def _dot8(count: int) -> Helper:
    body = _filled("a", 0, count) + _filled("b", 1, 4 * count)
    body += f"y1 = 7; y2 = a0 >> 8; tt_dot8_x4(&y0, &y1, &y2, &y3, a, b, {count});"

    def twin(left: Any, right: Any) -> Sequence[Any]:
        a, b = _bytes(left, count), _bytes(right, 4 * count)
        first = (0, 7, left >> 8, 0)
        return [first[j] + sum(a[k] * b[j * count + k] for k in range(count)) for j in range(4)]

    return Helper(f"dot8_x4_{count}", body, (WORD, WORD), twin, 4, long=True)


def _dot16(count: int, step: int) -> Helper:
    width = 3 * step + count
    body = _filled("a", 0, width, "int16_t") + _filled("b", 1, count, "int16_t")
    body += f"int32_t s[4] = {{0, 0, 0, 0}}; tt_dot16_x4(&s[0], &s[1], &s[2], &s[3], a, b, {step}, {count}); "
    body += f"y0 = s[0]; y1 = s[1]; y2 = s[2]; y3 = s[3]; tt_dot16_x4(&y0, &y1, &y2, &y3, a, b, {step}, {count});"

    def twin(left: Any, right: Any) -> Sequence[Any]:
        a, b = _bytes(left, width), _bytes(right, count)
        return [2 * sum(a[i * step + k] * b[k] for k in range(count)) for i in range(4)]

    return Helper(f"dot16_x4_{count}_{step}", body, (WORD, WORD), twin, 4, long=True)


def _moves(count: int) -> Helper:
    """The last element of each move, and that the one behind it is left alone."""
    last, width = count - 1, (count - 1) * PITCH + 1
    body = _filled("from", 0, width) + f"int8_t to[{count + 1}]; int16_t wide[{count + 1}]; to[{count}] = 77; "
    body += f"tt_copy8(to, from, {count}); y0 = to[{last}]; tt_gather8(to, from, {PITCH}, {count}); y1 = to[{last}]; "
    body += f"wide[{count}] = 55; tt_widen8(wide, from, {PITCH}, {count}, a1); y2 = wide[{last}]; "
    body += f"y3 = to[{count}] + wide[{count}]; y4 = tt_sum8(a1, from, {count});"

    def twin(word: Any, offset: Any) -> Sequence[Any]:
        row = _bytes(word, width)
        return row[last], row[-1], row[-1] + offset, 77 + 55 + 0 * word, offset + sum(row[:count])

    return Helper(f"moves_{count}", body, (WORD, between(-128, 128)), twin, 5, long=True)


def _saturated(low: int, high: int, zero: int) -> Helper:
    name = f"saturate8_{low + 128}_{high + 128}_{zero + 128}"
    call = f"tt_saturate8_x4(LANES, {zero}, {low}, {high})"
    return _each(name, call, (WORD,), lambda v: np.clip(v + zero, low, high), narrow=True)


def _requantised(down: bool, above: bool = False) -> Helper:
    how, shift, multiplier = ("_down", DOWN, NORMAL) if down else ("", NEAR, FACTOR)
    how, low = (f"{how}_above", -7) if above else (how, -100)

    def twin(acc: Any, bias: Any, factor: Any, bits: Any) -> Any:
        scaled = fx.requantise(fx.saturate(acc + bias), factor, bits)
        scaled = np.where((scaled == 0) & (acc + bias > 0), 1, scaled) if above else scaled
        return np.clip(scaled - 7, low, 90)

    call = f"tt_requantise8{how}_x4(LANES, tt_all(a1), tt_all(a2), tt_all(a3), -7, {low}, 90)"
    return _each(f"requantise8{how}", call, (WORD, WORD, multiplier, shift), twin, narrow=True)


def _requantised_once(above: bool) -> Helper:
    """Sums are those of results that a byte holds, often beside a half: there a second rounding is seen."""

    def twin(acc: Any, bias: Any, factor: Any, bits: Any) -> Any:
        scaled = fx.requantise_once(acc + bias, factor, bits)
        return np.clip((fx.above(scaled, acc + bias) if above else scaled) - 7, -100, 90)

    numbers = f"-7, -100, 90, {str(above).lower()}"
    call = f"tt_requantise8_once_x4(LANES >> 17, tt_all(a1), tt_all(a2), tt_all(a3), {numbers})"
    ranges = (WORD, between(-(1 << 13), 1 << 13), FACTOR, between(-9, 1, -1, 0))
    return _each(
        f"requantise8_once{'_above' if above else ''}", call, ranges, lambda v, *of: twin(v >> 17, *of), narrow=True
    )


def _moved_bias(bias: Any, summed: Any, multiplier: Any, exponent: Any) -> Any:
    return fx.saturate(bias - fx.scaled(summed, multiplier, exponent))


def _passed(low: int, high: int) -> Helper:
    body = _filled("from", 0, 8) + f"y0 = tt_passed_x8(from, {low}, {high});"

    def twin(word: Any) -> Sequence[Any]:
        return (sum(((v > low) & (v < high)).astype(np.int64) << i for i, v in enumerate(_bytes(word, 8))),)

    return Helper(f"passed_x8_{low + 128}_{high + 128}", body, (WORD,), twin, long=True)


def _noise(state: Any, salt: Any, index: Any) -> Any:
    mask = (1 << 32) - 1
    word = (state + salt + index * 0x9E3779B1) & mask
    word ^= word >> 15
    return ((word * 1664525 + 1013904223) & mask) >> 24


LANE_HELPERS = (
    *(_dot8(count) for count in (1, 9, 16, 17, 27, 112, 113, 150)),
    *(_dot16(count, step) for count, step in ((3, 1), (5, 2), (8, 1))),
    *(_moves(count) for count in (1, 8, 16, 37)),
    *(_passed(low, high) for low, high in ((-128, 127), (-3, 100), (-128, -127))),
    _each("add", "tt_add_x4(LANES, tt_all(a1))", (WORD, WORD), lambda a, b: fx.saturate(a + b)),
    _each("clamp", "tt_clamp_x4(LANES, -31, 30)", (WORD,), lambda v: np.clip(v, -31, 30)),
    _each("halve", "tt_halve_x4(LANES, 8)", (WORD,), lambda v: fx.shift_right(v, 8)),
    _each("high_multiply", "tt_high_multiply_x4(LANES, a1)", (WORD, MULTIPLIER), fx.high_multiply),
    _each("requantise", "tt_requantise_x4(LANES, tt_all(a1), tt_all(a2))", (WORD, FACTOR, NEAR), fx.requantise),
    _each("rescale_down", "tt_rescale_x4(LANES, a1, -9)", (WORD, FACTOR), lambda v, m: fx.requantise(v, m, -9)),
    _each("rescale_up", "tt_rescale_x4(LANES, a1, 3)", (WORD, FACTOR), lambda v, m: fx.requantise(v, m, 3)),
    *(_saturated(*bounds) for bounds in ((-128, 127, 0), (-128, 127, -128), (-128, 100, 5), (5, 60, -90))),
    _requantised(down=True),
    _requantised(down=False),
    _requantised(down=True, above=True),
    _requantised(down=False, above=True),
    _requantised_once(above=False),
    _requantised_once(above=True),
    _each("halve_above", "tt_halve_above_x4(LANES, 8)", (WORD,), lambda v: fx.above(fx.shift_right(v, 8), v)),
    Helper("bits_x4", WHOLE.format("tt_bits_x4(a0)"), (WORD,), lambda w: [-((w >> i) & 1) for i in range(4)], 4),
    Helper(
        "passes_x4",
        WHOLE.format("tt_passes_x4(tt_lanes(a0, a1, -a0, a1 / 2), -3, 100)"),
        (INT8, INT8),
        lambda a, b: [-((v > -3) & (v < 100)).astype(np.int64) for v in (a, b, -a, np.trunc(b / 2))],
        4,
        long=True,
    ),
    _peaks(
        "rescaled_error",
        "tt_rescaled_error_x4(tt_bits_x4(5), LANES, tt_all(a1), tt_all(a2), &peak)",
        (WORD, FACTOR, NEAR, PEAK),
        lambda w, m, s, seen: _errors([fx.requantise(v, m, s) * (1 - i % 2) for i, v in enumerate(lanes(w))], seen),
    ),
    _peaks(
        "summed_error",
        "tt_summed_error_x4(tt_bits_x4(a1 + 0 * a2), LANES, 8, &peak)",
        (WORD, between(0, 15), INT8, PEAK),
        lambda w, keep, _unused, seen: _errors(
            [fx.shift_right(v, 8) * (keep >> i & 1) for i, v in enumerate(lanes(w))], seen
        ),
    ),
    Helper(
        "lifted_x4",
        WHOLE.format("tt_lifted_x4(tt_lanes(a0, -a0, a0 / 2, 1), a1, tt_lift(a1))"),
        (between(-127, 127), LIFTS),
        lambda e, p: [aligned(v, p)[0] for v in (e, -e, np.trunc(e / 2).astype(np.int64), 1 + 0 * e)],
        4,
        long=True,
    ),
    Helper(
        "noise_x4",
        WHOLE.format("tt_noise_x4(a0, a1, a2)"),
        (WORD, WORD, between(0, 1 << 20)),
        lambda state, salt, index: [_noise(state, salt, index + i) for i in range(4)],
        4,
        long=True,
    ),
    Helper(
        "quick_move_x4",
        WHOLE.format("tt_quick_move_x4(tt_lanes(a0, -a0, a0, 1), tt_all(a1), a2, a3, tt_all(a4), 127, 8)"),
        (between(-127, 127), between(-(1 << 23) + 1, (1 << 23) - 1), FACTOR, EXPONENT, between(0, 255, 0, 255)),
        lambda w, g, m, e, noise: [moved_weight(v, g, (m, e), noise, 127) for v in (w, -w, w, 1 + 0 * w)],
        4,
        long=True,
    ),
    _each(
        "moved_bias",
        "tt_moved_bias_x4(LANES, tt_all(a1), tt_all(a2), tt_lanes(a3, a3, a3, a3))",
        (WORD, SMALL, FACTOR, EXPONENT),
        _moved_bias,
    ),
    _each(
        "moved_bias_by_little",
        "tt_moved_bias_x4(LANES, tt_all(a1), tt_all(a2), tt_lanes(a3, a3, a3, a3))",
        (WORD, between(-(1 << 14), 1 << 14), FACTOR, EXPONENT),
        _moved_bias,
    ),
)
