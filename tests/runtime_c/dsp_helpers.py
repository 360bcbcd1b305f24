"""The helpers of tt_dsp.h: how C calls each, its numpy twin, and the arguments to compare them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.runtime_c.fixed_point_helpers import (
    EXPONENT,
    INT8,
    MULTIPLIER,
    PEAK,
    SHIFT,
    WORD,
    Argument,
    Helper,
    between,
)
from tests.runtime_c.fixed_point_helpers import aligned as _aligned
from tests.runtime_c.fixed_point_helpers import error as _error
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.int8.steps import moved_weight

WIDE = between(-383, 383, -383, -128, 0, 1, 383)
"""int16 that kernels multiply: bytes less a zero point."""
SUM = between(-(1 << 20), 1 << 20)
DOWN = between(-31, -1, -31, -30, -8, -1)
NORMAL = Argument((1 << 30, (1 << 30) + 1, 0x5A82799A, 2**31 - 2, 2**31 - 1), MULTIPLIER.draw)
"""Multipliers of factors that are not 0."""
FACTOR = replace(NORMAL, edges=(0, *NORMAL.edges))
PITCH = 3


def _requantised(zero: int, low: int, high: int, above: bool = False) -> Any:
    def twin(acc: Any, bias: Any, multiplier: Any, shift: Any) -> Sequence[Any]:
        scaled = fx.requantise(fx.saturate(acc + bias), multiplier, shift)
        scaled = np.where((scaled == 0) & (acc + bias > 0), 1, scaled) if above else scaled
        return (np.clip(scaled + zero, low, high),)

    return twin


def _requantise(name: str, zero: int, low: int, high: int, down: bool, above: bool = False) -> Helper:
    how, operands = ("_kept", "tt_factor(a2), -a3") if down else ("", "tt_factor(a2), tt_down(a2, a3)")
    body = f"y0 = tt_requantise8{how}{'_above' if above else ''}(a0, a1, {operands}, {zero}, {low}, {high});"
    ranges = (WORD, WORD, NORMAL, DOWN) if down else (WORD, WORD, FACTOR, SHIFT)
    return Helper(name, body, ranges, _requantised(zero, low, high, above))


SUM_14, FEW = between(-(1 << 14), 1 << 14), between(-9, 1, -1, 0)
"""Sums and shifts of results that a byte holds, often beside a half: there a second rounding is seen."""


def _once(acc: Any, multiplier: Any, shift: Any) -> Sequence[Any]:
    return (fx.requantise_once(acc, multiplier, shift),)


def _once_wide(acc: Any, bias: Any, multiplier: Any, shift: Any) -> Sequence[Any]:
    return (np.clip(fx.requantise_once(fx.saturate(acc + bias), multiplier, shift) + 12, -128, 127),)


ONCE_WIDE = "y0 = tt_requantise8_once(a0, a1, tt_factor(a2), tt_down(a2, a3), 12, -128, 127, false);"


def _requantise_once(name: str, zero: int, low: int, high: int, above: bool = False) -> Helper:
    def twin(acc: Any, bias: Any, multiplier: Any, shift: Any) -> Sequence[Any]:
        scaled = fx.requantise_once(fx.saturate(acc + bias), multiplier, shift)
        return (np.clip((fx.above(scaled, acc + bias) if above else scaled) + zero, low, high),)

    numbers = f"{zero}, {low}, {high}, {str(above).lower()}"
    body = f"y0 = tt_requantise8_once(a0, a1, tt_factor(a2), tt_down(a2, a3), {numbers});"
    return Helper(name, body, (SUM_14, SUM_14, FACTOR, FEW), twin)


def _halved_above(value: Any) -> Sequence[Any]:
    return (fx.above(fx.shift_right(value, 8), value),)


INT20 = between(-(1 << 20), 1 << 20)
HALVED = between(-(1 << 30), 1 << 30, -384, -129, -128, -127, -1, 0, 1, 127, 128, 129, 384)


def _halve8(zero: int, low: int, high: int) -> Helper:
    def twin(value: Any) -> Sequence[Any]:
        return (np.clip(fx.shift_right(value, 8) + zero, low, high),)

    near = between(-40000, 40000, -(1 << 30), 1 << 30, -384, -128, -1, 0, 1, 127, 128, 384)
    return Helper(f"halve8_{zero + 128}", f"y0 = tt_halve8(a0, 8, {zero}, {low}, {high});", (near,), twin)


LIFTS = between(-200, 200, -200, -9, -8, 0, 14, 15, 200)


def _rescaled_error(keep: Any, acc: Any, multiplier: Any, shift: Any, peak: Any) -> Sequence[Any]:
    value = np.where(keep != 0, fx.requantise(acc, multiplier, shift), 0)
    return _error(value, peak)


def _row(seed: Any, count: int) -> list[Any]:
    """int16 made from a word: the same in C (ROW) and here."""
    return [((seed >> (i % 13)) * (i + 3) & 511) - 255 for i in range(count)]


ROW = "(int16_t)((int32_t)((uint32_t)(a{} >> (k % 13)) * (uint32_t)(k + 3) & 511u) - 255)"


def _dots(blocks: int, zero: bool = False) -> Helper:
    count = 8 * blocks
    first = "(void)a2;" if zero else "y0 = a2; y1 = 1; y2 = -a2; y3 = 0;"
    body = (
        f"_Alignas(8) int16_t a[{count}]; _Alignas(8) int16_t b[{count}]; {first}"
        f"for (int32_t k = 0; k < {count}; k++) {{ a[k] = {ROW.format(0)}; b[k] = {ROW.format(1)}; }}"
        f"tt_dot_2x2(&y0, &y1, &y2, &y3, a, b, {blocks});"
    )

    def twin(left: Any, right: Any, start: Any) -> Sequence[Any]:
        a, b = _row(left, count), _row(right, count)

        def dot(p: int, q: int) -> Any:
            return sum(a[8 * s + 4 * p + k] * b[8 * s + 4 * q + k] for s in range(blocks) for k in range(4))

        one, start = (0, 0 * start) if zero else (1, start)
        return start + dot(0, 0), one + dot(0, 1), -start + dot(1, 0), dot(1, 1)

    return Helper(f"dot_2x2_{blocks}", body, (WORD, WORD, SUM), twin, 4)


def _direct(pixels: int, channels: int, blocks: int) -> Helper:
    """Of 2x2, 1x4 or 1x1 sums: a as widened rows, whose four elements are in the order SPREAD, b as int8."""
    pitch, wide = 4 * blocks + 1, 4 * blocks * pixels
    size, sums = (channels - 1) * pitch + 4 * blocks, pixels * channels
    name = f"dot_direct_{pixels}x{channels}"
    call = f"tt_{name}(&y0, &y1, &y2, &y3, a, b, {pitch}, {blocks});"
    body = (
        f"_Alignas(8) int16_t a[{wide}]; int8_t b[{size}]; y0 = a2; {'y1 = 1; y2 = -a2; y3 = 0;' if sums > 1 else ''}"
        f"for (int32_t k = 0; k < {wide}; k++) {{ a[k] = {ROW.format(0)}; }}"
        f"for (int32_t k = 0; k < {size}; k++) {{ b[k] = (int8_t)({ROW.format(1)} / 3); }}"
        + (call if sums > 1 else f"y0 = tt_dot_direct(y0, a, b, {blocks});")
    )

    def twin(left: Any, right: Any, start: Any) -> Sequence[Any]:
        a, b = _row(left, wide), [np.sign(v) * (abs(v) // 3) for v in _row(right, size)]

        def dot(p: int, q: int) -> Any:
            places = [(s, k) for s in range(blocks) for k in range(4)]
            return sum(a[4 * (pixels * s + p) + k] * b[q * pitch + 4 * s + SPREAD[k]] for s, k in places)

        firsts = (start, 1, -start, 0)[:sums]
        return [first + dot(*divmod(index, channels)) for index, first in enumerate(firsts)]

    return Helper(f"{name}_{blocks}", body, (WORD, WORD, SUM), twin, sums)


def _columns(blocks: int) -> Helper:
    """Of 1x4 sums: a as a widened row, b as columns of int8."""
    pitch = 5
    size, length = (4 * blocks - 1) * pitch + 4, 4 * blocks
    body = (
        f"_Alignas(8) int16_t a[{length}]; int8_t b[{size}]; y0 = a2; y1 = 1; y2 = -a2; y3 = 0;"
        f"for (int32_t k = 0; k < {length}; k++) {{ a[k] = {ROW.format(0)}; }}"
        f"for (int32_t k = 0; k < {size}; k++) {{ b[k] = (int8_t)({ROW.format(1)} / 3); }}"
        f"tt_dot_columns_1x4(&y0, &y1, &y2, &y3, a, b, {pitch}, {blocks});"
    )

    def twin(left: Any, right: Any, start: Any) -> Sequence[Any]:
        a, b = _row(left, length), [np.sign(v) * (abs(v) // 3) for v in _row(right, size)]

        def dot(column: int) -> Any:
            places = [(s, k) for s in range(blocks) for k in range(4)]
            return sum(a[4 * s + k] * b[(4 * s + SPREAD[k]) * pitch + column] for s, k in places)

        return [first + dot(column) for column, first in enumerate((start, 1, -start, 0))]

    return Helper(f"dot_columns_1x4_{blocks}", body, (WORD, WORD, SUM), twin, 4)


def _sum_columns(rows: int) -> Helper:
    """Of columns of int8: more rows than halves of words have room for, too."""
    pitch = 5
    size = (rows - 1) * pitch + 4
    body = (
        f"int8_t b[{size}]; y0 = a1; y1 = 1; y2 = -a1; y3 = 0;"
        f"for (int32_t k = 0; k < {size}; k++) {{ b[k] = (int8_t)((a0 >> (k % 13)) | 64); }}"
        f"tt_sum_columns(&y0, &y1, &y2, &y3, b, {rows}, {pitch});"
    )

    def twin(left: Any, start: Any) -> Sequence[Any]:
        b = [((left >> (k % 13)) | 64).astype(np.int8).astype(np.int64) for k in range(size)]
        sums = [sum(b[row * pitch + column] for row in range(rows)) for column in range(4)]
        return [first + total for first, total in zip((start, 1, -start, 0), sums, strict=True)]

    return Helper(f"sum_columns_{rows}", body, (WORD, SUM), twin, 4)


def _windows(rows: int, run: int, apart: int, in_turn: bool = False) -> Helper:
    """in_turn: rows of the two windows of b follow each other in turn."""
    pitch = -(-(apart + run) // 2) * 2
    sizes = rows * pitch, 2 * rows * run
    behind, b_pitch = (run, 2 * run) if in_turn else (rows * run, run)
    body = (
        f"_Alignas(4) int16_t a[{sizes[0]}]; _Alignas(4) int16_t b[{sizes[1]}]; y0 = a2; y1 = 1; y2 = -a2; y3 = 0;"
        f"for (int32_t k = 0; k < {sizes[0]}; k++) {{ a[k] = {ROW.format(0)}; }}"
        f"for (int32_t k = 0; k < {sizes[1]}; k++) {{ b[k] = {ROW.format(1)}; }}"
        f"tt_dot_windows(&y0, &y1, &y2, &y3, a, b, {rows}, {run}, {pitch}, {apart}, {behind});"
    )

    def twin(left: Any, right: Any, start: Any) -> Sequence[Any]:
        a, b = _row(left, sizes[0]), _row(right, sizes[1])

        def dot(p: int, q: int) -> Any:
            places = [(row, k) for row in range(rows) for k in range(run)]
            return sum(a[row * pitch + p * apart + k] * b[q * behind + row * b_pitch + k] for row, k in places)

        return start + dot(0, 0), 1 + dot(0, 1), -start + dot(1, 0), dot(1, 1)

    return Helper(f"dot_windows_{rows}_{run}_{apart}{'_in_turn' * in_turn}", body, (WORD, WORD, SUM), twin, 4)


def _passed(low: int, high: int) -> Helper:
    body = f"const int32_t both[2] = {{a0, a1}}; y0 = tt_passed8((const int8_t *)both, {low}, {high});"

    def twin(first: Any, second: Any) -> Sequence[Any]:
        values = [*_bytes(first), *_bytes(second)]
        return (sum(((v > low) & (v < high)).astype(np.int64) << i for i, v in enumerate(values)),)

    return Helper(f"passed8_{low + 128}_{high + 128}", body, (WORD, WORD), twin)


def _bytes(word: Any) -> list[Any]:
    return [(((word >> (8 * i)) & 255) ^ 128) - 128 for i in range(4)]


def _two(columns: bool, blocks: int, pitch: int) -> Helper:
    """Two rows or columns for tt_dot_2x2: four sums over all elements, each times a number of its place."""
    size, wide = (4 * blocks - 1) * pitch + 2 if columns else pitch + 4 * blocks, 8 * blocks
    name = "gather_two" if columns else "widen_two"
    body = (
        f"int8_t from[{size}]; _Alignas(8) int16_t to[{wide}]; int32_t sums[4] = {{0}};"
        f"for (int32_t k = 0; k < {size}; k++) {{ from[k] = (int8_t)({ROW.format(0)} / 3); }}"
        f"tt_{name}(to, from, {pitch}, a1, {blocks});"
        f"for (int32_t k = 0; k < {wide}; k++) {{ sums[k % 4] += to[k] * (k * k + 7 * k + 1); }}"
        "y0 = sums[0]; y1 = sums[1]; y2 = sums[2]; y3 = sums[3];"
    )

    def twin(word: Any, offset: Any) -> Sequence[Any]:
        values = [np.sign(v) * (abs(v) // 3) + offset for v in _row(word, size)]
        places = [(4 * s + k, p) for s in range(blocks) for p in range(2) for k in SPREAD]
        to = [values[k * pitch + p if columns else p * pitch + k] for k, p in places]
        return [sum(to[k] * (k * k + 7 * k + 1) for k in range(q, wide, 4)) for q in range(4)]

    return Helper(f"{name}_{blocks}", body, (WORD, between(-128, 128)), twin, 4)


SPREAD = (0, 2, 1, 3)
"""The order of four widened bytes."""
FOUR = "y0 = to[0]; y1 = to[1]; y2 = to[2]; y3 = to[3];"


def _spread(word: Any, offset: Any) -> Sequence[Any]:
    return [_bytes(word)[i] + offset for i in SPREAD]


GATHER = (
    f"_Alignas(8) int16_t to[4]; int8_t from[{3 * PITCH + 1}] = {{0}};"
    f"for (int32_t k = 0; k < 4; k++) {{ memcpy(from + k * {PITCH}, (const char *)&a0 + k, 1); }}"
    f"tt_gather4(to, from, {PITCH}, a1); {FOUR}"
)

DSP_HELPERS = (
    *(_columns(blocks) for blocks in (2, 3)),
    *(_sum_columns(rows) for rows in (1, 16, 300)),
    *(_direct(*tile, blocks) for tile in ((2, 2), (1, 4), (4, 1), (1, 1)) for blocks in (2, 3, 7, 9, 12, 13)),
    Helper("quick_add", "y0 = tt_quick_add(a0, a1);", (WORD, WORD), lambda a, b: (fx.saturate(a + b),)),
    Helper("halve", "y0 = tt_halve(a0, 8);", (WORD,), lambda a: (fx.shift_right(a, 8),)),
    Helper("halve_once", "y0 = tt_halve(a0, 1);", (WORD,), lambda a: (fx.shift_right(a, 1),)),
    Helper(
        "upper",
        "y0 = tt_upper(a0, a1, a2);",
        (HALVED, INT20, NORMAL),
        lambda s, x, m: (s + ((x * m + (1 << 31)) >> 32),),
    ),
    Helper("quick_halve", "y0 = tt_quick_halve(a0, 8, 0);", (HALVED,), lambda a: (fx.shift_right(a, 8),)),
    *(_halve8(*limits) for limits in ((12, -128, 127), (-128, -128, 100), (-5, -5, 127), (3, -20, 60))),
    Helper("rescale", "y0 = tt_rescale(a0, a1, a2);", (WORD, FACTOR, SHIFT), lambda a, m, s: (fx.requantise(a, m, s),)),
    _requantise("requantise8", -128, -128, 127, down=False),
    _requantise("requantise8_kept", -128, -128, 127, down=True),
    _requantise("requantise8_kept_12", 12, -128, 127, down=True),
    _requantise("requantise8_kept_m5", -5, -128, 127, down=True),
    _requantise("requantise8_bounds", 37, -5, 60, down=True),
    _requantise("requantise8_from", 37, -5, 127, down=True),
    _requantise("requantise8_to", -37, -128, 60, down=True),
    Helper("requantise_once", "y0 = tt_requantise_once(a0, a1, a2);", (WORD, FACTOR, SHIFT), _once),
    _requantise_once("requantise8_once", -5, -128, 127),
    _requantise_once("requantise8_once_bounds", 37, -5, 60),
    _requantise_once("requantise8_once_above", -128, -128, 127, above=True),
    Helper("requantise8_once_wide", ONCE_WIDE, (WORD, WORD, FACTOR, SHIFT), _once_wide),
    _requantise("requantise8_above", -128, -128, 127, down=False, above=True),
    _requantise("requantise8_above_to", -5, -5, 60, down=False, above=True),
    _requantise("requantise8_kept_above", -128, -128, 127, down=True, above=True),
    _requantise("requantise8_kept_above_to", -128, -128, 60, down=True, above=True),
    _requantise("requantise8_kept_above_from", -5, -5, 127, down=True, above=True),
    _requantise("requantise8_kept_above_bounds", -5, -5, 60, down=True, above=True),
    Helper(
        "above", "y0 = tt_above(a0, a1);", (between(-2, 2, 0), WORD), lambda y, s: (np.where((y == 0) & (s > 0), 1, y),)
    ),
    Helper("halve_above", "y0 = tt_halve_above(a0, 8);", (between(-400, 400, -128, 0, 1, 127, 128),), _halved_above),
    Helper(
        "rescale_above",
        "y0 = tt_rescale_above(a0, a1, a2);",
        (WORD, FACTOR, SHIFT),
        lambda a, m, s: (fx.above(fx.requantise(a, m, s), a),),
    ),
    Helper(
        "rescaled_error",
        "y1 = a4; y0 = tt_rescaled_error(a0 != 0, a1, tt_factor(a2), tt_down(a2, a3), &y1);",
        (between(0, 3), WORD, FACTOR, between(-328, 328, -32, -31, -1, 0, 1), PEAK),
        _rescaled_error,
        2,
    ),
    Helper("lifted", "y0 = tt_lifted(a0, a1, tt_lift(a1));", (INT8, LIFTS), lambda e, p: _aligned(e, p)),
    Helper(
        "summed_error",
        "y1 = a2; y0 = tt_summed_error(a0 != 0, a1, 8, &y1);",
        (between(0, 3), HALVED, PEAK),
        lambda keep, total, seen: _error(np.where(keep != 0, fx.shift_right(total, 8), 0), seen),
        2,
    ),
    Helper(
        "quick_move",
        "y0 = tt_quick_move(a0, a1, a2, a3, a4, 127, 8);",
        (INT8, between(-(1 << 23) + 1, (1 << 23) - 1), FACTOR, EXPONENT, between(0, 255, 0, 255)),
        lambda w, g, m, e, noise: (moved_weight(w, g, (m, e), noise, 127),),
    ),
    Helper(
        "quick_move_any",
        "y0 = tt_quick_move(a0, a1, a2, a3, a4, 100, 0);",
        (INT8, WORD, FACTOR, EXPONENT, between(0, 255, 0, 255)),
        lambda w, g, m, e, noise: (moved_weight(w, g, (m, e), noise, 100),),
    ),
    *(_passed(low, high) for low, high in ((-128, 127), (-128, -127), (-3, 100), (126, 127), (-1, 0))),
    Helper(
        "dot2",
        "const int16_t a[3] = {7, (int16_t)a1, (int16_t)a2}; const int16_t b[3] = {9, (int16_t)a2, (int16_t)a1};"
        "y0 = tt_dot2(a0, a + 1, b + 1);",
        (SUM, WIDE, WIDE),
        lambda acc, p, q: (acc + 2 * p * q,),
    ),
    Helper(
        "dot4",
        "_Alignas(8) const int16_t a[4] = {(int16_t)a1, (int16_t)a2, 3, (int16_t)-a1};"
        "_Alignas(8) const int16_t b[4] = {(int16_t)a2, -5, (int16_t)a1, 11}; y0 = tt_dot4(a0, a, b);",
        (SUM, WIDE, WIDE),
        lambda acc, p, q: (acc + p * q - 5 * q + 3 * p - 11 * p,),
    ),
    *(_dots(blocks) for blocks in (1, 2, 3, 4, 7, 8, 11)),
    _dots(6, zero=True),
    *(_windows(*sizes) for sizes in ((3, 10, 6), (2, 14, 3), (1, 4, 1), (1, 16, 4))),
    *(_windows(*sizes, in_turn=True) for sizes in ((3, 10, 6), (2, 12, 3))),
    Helper(
        "widen4",
        f"_Alignas(8) int16_t to[4]; tt_widen4(to, (const int8_t *)(const void *)&a0, a1); {FOUR}",
        (WORD, between(-128, 128)),
        _spread,
        4,
    ),
    Helper("gather4", GATHER, (WORD, between(-128, 128)), _spread, 4),
    *(_two(columns, *sizes) for columns in (False, True) for sizes in ((1, 5), (2, 9), (5, 7), (10, 5))),
)
