"""The integer arithmetic against plain Python integers and fractions, and what the integer ops refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from testing.ops.case_quantised import KINDS, factors, geometry, qconv, qconv_grad_input, qconv_sum, qconv_update
from testing.ops.cases import Case, cases_of
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops import infer, op_def, run_node
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.exponents import first_exponent, needed_exponent, probe_exponent, update_exponent
from tinytrain_compile.ops.int8.pointwise import QAddAttrs, QRescaleAttrs, QuantAttrs
from tinytrain_compile.ops.int8.steps import (
    FINE_BITS,
    ROW_BITS,
    moved_weight,
    rounded_rows,
    row_moves,
    split_rate,
    step_size,
)
from tinytrain_compile.ops.int8.update import QSumAttrs, QUpdateAttrs

EDGES = (0, 1, -1, 2, -2, 3, -3, 127, -128, 2**30, -(2**30), 2**30 + 1, fx.INT32_MAX, fx.INT32_MAX - 1, fx.INT32_MIN)
MULTIPLIERS = (0, 1, 2**30, 2**30 + 1, 0x5A82799A, fx.INT32_MAX)


def clamp(value: int, low: int = fx.INT32_MIN, high: int = fx.INT32_MAX) -> int:
    return min(max(value, low), high)


def ties_away(value: Fraction) -> int:
    whole = math.floor(abs(value) + Fraction(1, 2))
    return whole if value >= 0 else -whole


def half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def some_words(rng: np.random.Generator, count: int) -> list[int]:
    """Edges and words of every size."""
    sizes = rng.integers(1, 32, count)
    words = [int(rng.integers(-(2 ** int(n)), 2 ** int(n))) for n in sizes]
    return [clamp(word) for word in words] + list(EDGES)


def test_shifts_equal_exact_arithmetic() -> None:
    for value in some_words(np.random.default_rng(1), 200):
        for bits in range(40):
            n = min(bits, 31)
            assert int(fx.shift_left(value, bits)) == clamp(value << n)
            assert int(fx.shift_right(value, bits)) == ties_away(Fraction(value, 2**n))
            assert int(fx.shift(value, -bits)) == ties_away(Fraction(value, 2**n))
            assert int(fx.shift(value, bits)) == clamp(value << n)


def test_requantise_is_the_published_formula() -> None:
    """A doubling high multiply rounded half up, then a rounding division; a left shift that saturates comes first."""
    rng = np.random.default_rng(2)
    for value in some_words(rng, 60):
        for multiplier in MULTIPLIERS:
            for shift in (-40, -32, -31, -30, -17, -2, -1, 0, 1, 2, 10, 30, 31, 40):
                lifted = clamp(value << min(shift, 31)) if shift > 0 else value
                product = half_up(Fraction(2 * lifted * multiplier, 2**32))
                expected = ties_away(Fraction(product, 2 ** min(-shift, 31))) if shift < 0 else product
                assert int(fx.requantise(value, multiplier, shift)) == expected


def test_scaled_rounds_once_and_saturates() -> None:
    rng = np.random.default_rng(3)
    for value in some_words(rng, 60):
        for multiplier in MULTIPLIERS:
            for exponent in (-90, -62, -61, -40, -31, -8, -1, 0, 1, 8, 31, 60):
                exact = half_up(Fraction(value * multiplier) * Fraction(2) ** max(exponent, -62))
                expected = clamp(exact) if exponent <= 0 else clamp(clamp(value * multiplier) << min(exponent, 31))
                assert int(fx.scaled(value, multiplier, exponent)) == expected


def test_split_factor_is_close_and_normal() -> None:
    rng = np.random.default_rng(4)
    for factor in (*np.exp(rng.uniform(-60, 60, 2000)).tolist(), 1.0, 0.5, 1 - 2.0**-53, 2.0**-100):
        multiplier, shift = fx.split_factor(factor)
        assert 2**30 <= multiplier < 2**31
        assert abs(multiplier * 2.0 ** (shift - 31) - factor) <= factor * 2.0**-31
    assert (
        fx.split_factor(0.0)
        == fx.split_factor(-1.0)
        == fx.split_factor(math.inf)
        == fx.split_factor(math.nan)
        == (0, 0)
    )


def test_requantised_accumulators_are_close_to_the_real_product() -> None:
    rng = np.random.default_rng(5)
    acc = rng.integers(-(2**26), 2**26, 4000)
    factor = np.exp(rng.uniform(-14, 0, 4000))
    multiplier, shift = fx.split_factors(factor)
    assert float(np.abs(fx.requantise(acc, multiplier, shift) - acc * factor).max()) <= 1.0


def test_learning_rates_are_split_exactly() -> None:
    rng = np.random.default_rng(6)
    for bits in rng.integers(0x00800000, 0x7F800000, 2000):
        rate = np.asarray(bits, np.uint32).view(np.float32)
        multiplier, shift = (int(n) for n in split_rate(np.float32(rate)))
        assert Fraction(multiplier) * Fraction(2) ** (shift - 31) == Fraction(float(rate))
    for useless in (0.0, -0.1, np.inf, -np.inf, np.nan, 1e-40):
        assert split_rate(np.float32(useless)).tolist() == [0, 0]


def test_stochastic_rounding_has_no_bias() -> None:
    """A step of a hundredth of a weight moves 100,000 weights by a hundredth on average; no step at all moves none."""
    count = 100_000
    w = np.full(count, 5, np.int8)
    one = (np.asarray(1 << 30), np.asarray(-30))
    for fraction in (1, 3, 100, 255):
        random = fx.noise_bytes(12345, 678, count)
        moved = moved_weight(w, np.full(count, fraction), one, random, 127).astype(np.float64)
        p = fraction / 256
        assert set(np.unique(moved)) <= {4.0, 5.0}
        assert abs(float((5 - moved).mean()) - p) < 3 * math.sqrt(p * (1 - p) / count) + 1e-9
    assert (moved_weight(w, np.zeros(count, np.int64), one, fx.noise_bytes(1, 2, count), 127) == 5).all()
    top = moved_weight(np.asarray([127], np.int8), np.asarray([-256]), one, np.asarray([0]), 127)
    assert top.tolist() == [127]


def of_rows(state: int, salt: int, count: int) -> fx.Ints:
    return fx.noise_of_rows(state, salt, 1, count)[0]


@pytest.mark.parametrize("noise", [fx.noise_bytes, of_rows])
def test_noise_is_uniform_and_independent(noise: Callable[[int, int, int], fx.Ints]) -> None:
    """Between weights near each other, and between one update and the next; a sum over a filter is no noisier."""
    for seed in range(5):
        state = int(np.random.default_rng(seed).integers(0, 2**32))
        after = int(op_def("NoiseTick").reference((np.asarray(state, np.uint32),), op_def("NoiseTick").attrs())[0])
        first, second = noise(state, 99, 65536), noise(after, 99, 65536)
        for lane in (first, *(first[k::4] for k in range(4))):
            expected = lane.size / 256
            assert float((np.square(np.bincount(lane, minlength=256) - expected) / expected).sum()) < 400
        assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.03
        for lag in (*range(1, 33), 48, 64, 96):
            assert abs(float(np.corrcoef(first[:-lag], first[lag:])[0, 1])) < 0.05, lag
        filters = (first[: 65536 // 27 * 27].reshape(-1, 27) - 127.5).sum(axis=1)
        assert 0.8 < float(filters.var()) / (27 * (256**2 - 1) / 12) < 1.25


def test_every_row_begins_with_a_word_of_noise() -> None:
    rows = fx.noise_of_rows(7, 8, 3, 6)
    assert rows.tolist() == fx.noise_of_rows(7, 8, 1, 24)[0].reshape(3, 8)[:, :6].tolist()


@pytest.mark.parametrize(("bits", "rounding"), [(ROW_BITS, 1 / 1024), (FINE_BITS, 2.0**-26)])
def test_a_dense_layers_step_is_its_gradient_times_the_rate(bits: int, rounding: float) -> None:
    """Against products of real numbers: within what the row's step and the move are rounded by, however far."""
    rng = np.random.default_rng(5)
    x, g = rng.integers(-128, 128, (1, 1, 1, 40)), rng.integers(-127, 128, (1, 1, 1, 9))
    multiplier, shift = fx.split_factors(rng.uniform(1e3, 1e4, 9))
    rate, p = np.asarray(split_rate(np.float32(1e-6))), np.asarray([-6, 0])
    factor = multiplier * 2.0 ** (shift - 31.0) * float(np.float32(1e-6)) * 2.0**-6 * 256
    wanted = (factor * g.ravel())[:, None] * (x.ravel() + 5)
    moves = row_moves(x, g, -5, (multiplier, shift, rate, p), bits)[:, 0, 0, :]
    assert np.abs(wanted).max() > 100
    assert (np.abs(moves - wanted) <= 0.5 + np.abs(x.ravel() + 5) * rounding + 1e-6).all()
    huge = row_moves(x, g, -5, (multiplier, shift + 12, rate, p), bits)[:, 0, 0, :]
    assert np.abs(huge).max() > 256 * 256
    assert (np.abs(huge - 4096 * wanted) <= 0.5 + np.abs(x.ravel() + 5) * rounding + 4e-3).all()


def test_a_dense_layers_noise_has_no_bias() -> None:
    """Over 4,096 words of noise: small steps, and some of more than 16 bits."""
    rng = np.random.default_rng(6)
    count, w = 4096, np.asarray([0, -3, 5, 90], np.int8).repeat(5).reshape(4, 1, 1, 5)
    x, g = np.asarray([-128, -5, 1, 60, 127]).reshape(1, 1, 1, 5), np.asarray([-127, 9, 100, -1]).reshape(1, 1, 1, 4)
    multiplier, shift = fx.split_factors(np.asarray([2.3e-5, 2.9e-6, 5.3e-7, 1.5e-4]) * 2.0**20)
    scale = multiplier, shift, np.asarray(split_rate(np.float32(2.0**-12))), np.asarray([0, 0])
    states = rng.integers(0, 2**32, count)
    moves = row_moves(x, g, -5, scale, ROW_BITS)
    mean = (
        sum(
            rounded_rows(w, moves, fx.noise_of_rows(state, 3, *w.reshape(len(w), -1).shape), 127).astype(np.float64)
            for state in states
        )
        / count
    )
    factor = multiplier * 2.0 ** (shift - 31.0) * 2.0**-12
    exact = w - ((factor * g.ravel())[:, None] * (x.ravel() + 5)).reshape(w.shape)
    assert np.abs(exact - w).max() > 64 and np.abs(exact).max() < 127 and (np.abs(exact - w) < 0.5).any()
    assert np.abs(mean - exact).max() < 0.75 / 256 + 4 * 0.5 / np.sqrt(count)


def test_exponents_follow_peaks() -> None:
    for peak in (1, 2, 62, 63, 64, 126, 127, 1000, 2**20, fx.INT32_MAX):
        p = needed_exponent(peak, 3, False)
        assert Fraction(peak) * Fraction(2) ** 3 <= fx.ERROR_TARGET * Fraction(2) ** p
        assert Fraction(peak) * Fraction(2) ** 3 > fx.ERROR_TARGET * Fraction(2) ** (p - 1) or p == 3 - 6
    for magnitude in (1e-30, 0.49, 1.0, 62.9999, 63.0, 63.0001, 64.0, 3e38):
        value = np.float32(magnitude)
        p = needed_exponent(int(value.view(np.int32)), 0, True)
        assert fx.ERROR_TARGET * Fraction(2) ** (p - 1) < Fraction(float(value)) <= fx.ERROR_TARGET * Fraction(2) ** p


def test_exponents_rise_at_once_and_fall_slowly() -> None:
    state = np.asarray([-7, 0], np.int32)
    state = update_exponent(state, np.asarray(1000, np.int32), False)
    assert state.tolist() == [-3, 0]
    for quiet in range(1, fx.QUIET_APPLIES):
        state = update_exponent(state, np.asarray(5, np.int32), False)
        assert state.tolist() == [-3, quiet]
    assert update_exponent(state, np.asarray(0, np.int32), False).tolist() == [-3, fx.QUIET_APPLIES - 1]
    assert update_exponent(state, np.asarray(40, np.int32), False).tolist() == [-3, 0]
    assert update_exponent(state, np.asarray(5, np.int32), False).tolist() == [-4, 0]
    assert update_exponent(np.asarray([99, 0], np.int32), np.asarray(2**30, np.int32), False).tolist() == [100, 0]


def test_first_exponents() -> None:
    assert probe_exponent([], 0) == fx.EXPONENT_START
    assert probe_exponent([3, -9], 5) == 8
    assert probe_exponent([90], 50) == fx.EXPONENT_LIMIT
    assert first_exponent(4, 0, False) == fx.EXPONENT_START
    assert first_exponent(4, 1, False) == 4 - 5
    assert first_exponent(4, 127, False) == 4 + 2


def test_the_step_is_constant_times_rate_times_exponent() -> None:
    multiplier, shift = fx.split_factors([0.3, 700.0, 1e-6])
    rate = np.asarray(fx.split_factor(0.05), np.int32)
    m, exponent = step_size(multiplier, shift, rate, np.asarray([-4, 0], np.int32), 8)
    np.testing.assert_allclose(m * 2.0**exponent, np.asarray([0.3, 700.0, 1e-6]) * 0.05 * 2.0**-4 * 256, rtol=1e-8)


# ---- what the ops make of it ----------------------------------------------------------------------------------------


def bound_holds(case: Case) -> None:
    node = case.node()
    bound = op_def(node.op).accumulator(node.inputs, node.attrs)
    assert 0 < bound <= fx.INT32_MAX
    if node.op == "QConv":
        conv: ConvAttrs = node.attrs.conv  # type: ignore[attr-defined]
        parts = 2 if conv.split else 1
        x = np.full(node.inputs[0].shape, -128.0)
        worst = op_def("Conv").reference(
            (x - 127, *(np.full(v.shape, -128.0) for v in node.inputs[1 : 1 + parts])), replace(conv, bias=False)
        )[0]
        assert float(np.abs(worst).max()) <= bound


@pytest.mark.parametrize("make_case", [qconv, qconv_update, qconv_sum])
def test_accumulators_stay_within_their_bound(make_case: object) -> None:
    for index in range(12):
        rng = np.random.default_rng([7, index])
        bound_holds(make_case(rng, geometry(rng, False), index % KINDS))  # type: ignore[operator]


def test_error_accumulators_stay_within_their_bound() -> None:
    for index in range(12):
        rng = np.random.default_rng([8, index])
        bound_holds(qconv_grad_input(rng, geometry(rng, True), index % KINDS, MaskAttrs()))


def v(*shape: int, dtype: str = "int8") -> Value:
    return Value("v", shape, dtype, "NHWC" if len(shape) == 4 else "")  # type: ignore[arg-type]


WIDE = 66_000


def test_sums_that_could_overflow_are_refused() -> None:
    conv, c, e = ConvAttrs((1, 1), bias=True), v(1, dtype="int32"), v(1)
    with pytest.raises(ValueError, match="int32 sums can reach"):
        infer("QConv", (v(1, 1, 1, WIDE), v(1, 1, 1, WIDE), c, c, e), QConvAttrs(conv, 0, 0))
    fits = WIDE - 500
    infer("QConv", (v(1, 1, 1, fits), v(1, 1, 1, fits), c, c, e), QConvAttrs(conv, 0, 0))
    plain = ConvAttrs((1, 1))
    p, scalar, wide = v(2, dtype="int32"), v(dtype="int32"), 132_000
    grad = QConvGradInputAttrs(plain, (1, 1), 0)
    with pytest.raises(ValueError, match="int32 sums can reach"):
        infer("QConvGradInput", (scalar, p, p, v(1, 1, 1, wide), c, e, v(wide, 1, 1, 1)), grad)
    pixels = (v(1, 300, 220, 1), v(1, 300, 220, 1))
    with pytest.raises(ValueError, match="int32 sums can reach"):
        infer("QSum", (v(1, 1, 1, 1, dtype="int32"), *pixels), QSumAttrs("product", conv=plain))
    with pytest.raises(ValueError, match="int32 sums can reach"):
        infer("QUpdate", (v(1, 1, 1, 1), *pixels, c, e, p, p, scalar, scalar), QUpdateAttrs("product", conv=plain))
    with pytest.raises(ValueError, match="int32 sums can reach"):
        infer("QRescale", (v(1, 3000, 3000, 1),), QRescaleAttrs((1, 2), 0, 0, (1 << 30, 0)))
    with pytest.raises(ValueError, match="int32 sums can reach"):
        infer("QSum", (c, v(1, 5000, 5000, 1)), QSumAttrs("errors"))


def test_a_quantised_convolution_is_close_to_the_real_one() -> None:
    rng = np.random.default_rng(9)
    conv = ConvAttrs((3, 3), (2, 2), (1, 1, 0, 1), bias=True)
    x, w = rng.integers(-128, 128, (1, 7, 9, 5)).astype(np.int8), rng.integers(-127, 128, (6, 3, 3, 5)).astype(np.int8)
    sx, sy, sw = 0.02, 0.05, rng.uniform(0.001, 0.01, 6)
    bias = rng.integers(-5000, 5000, 6).astype(np.int32)
    multiplier, shift = fx.split_factors(sx * sw / sy)
    got = op_def("QConv").reference((x, w, bias, multiplier, shift), QConvAttrs(conv, -11, 7))[0]
    real = op_def("Conv").reference(((x + 11.0) * sx, w * sw[:, None, None, None], bias * sx * sw), conv)[0]
    inside = np.clip(real / sy + 7, -128, 127)
    assert float(np.abs(got - inside).max()) <= 1.01


def test_a_sum_of_different_scales_is_close_to_the_real_one() -> None:
    rng = np.random.default_rng(10)
    a, b = (rng.integers(-128, 128, 5000).astype(np.int8) for _ in range(2))
    (sa, za), (sb, zb), (sy, zy) = (0.013, 4), (0.4, -100), (0.41, -3)
    factor = tuple(fx.split_factor(s / sy * 2.0 ** (8 - 20)) for s in (sa, sb))
    got = op_def("QAdd").reference((a, b), QAddAttrs(za, zb, zy, factor[0], factor[1]))[0]
    real = ((a - float(za)) * sa + (b - float(zb)) * sb) / sy + zy
    assert float(np.abs(got - np.clip(real, -128, 127)).max()) <= 0.51


def test_quantise_rounds_to_even_and_dequantise_undoes_it() -> None:
    attrs = QuantAttrs(0.5, 3)
    x = np.asarray([0.25, 0.75, 1.25, -0.25, -0.75, 1e9, -1e9, np.inf, -np.inf, 60.0])
    q = op_def("Quantize").reference((x.astype(np.float32),), attrs)[0]
    assert q.tolist() == [3, 5, 5, 3, 1, 127, -128, 127, -128, 123]
    back = op_def("Dequantize").reference((q,), attrs)[0]
    assert back.dtype == np.float32
    assert back.tolist()[:5] == [0.0, 1.0, 1.0, 0.0, -1.0]


def test_masks_of_both_kinds_zero_the_same_elements() -> None:
    case = cases_of("QConvGradInput")[1]
    clamp = case.attrs.mask  # type: ignore[attr-defined]
    assert clamp.kind == "value"
    value, peak = run_node(case.node(), case.arrays)
    mask = case.arrays[-1]
    stopped = (mask <= clamp.low) | (mask >= clamp.high)
    assert stopped.any() and not stopped.all()
    assert (value[stopped] == 0).all() and (value[~stopped] != 0).any()
    packed = np.packbits(~stopped.ravel(), bitorder="little")
    attrs = replace(case.attrs, mask=MaskAttrs("bits"))  # type: ignore[type-var]
    again = op_def("QConvGradInput").reference((*case.arrays[:-1], packed), attrs)
    assert (again[0] == value).all() and int(again[1]) == int(peak)


def test_cases_reach_both_ends_of_factors() -> None:
    """The kernel tests' own data: shifts from -31 to +10, multipliers at both ends."""
    drawn = [factors(np.random.default_rng(index), 20, 1, 1.0) for index in range(40)]
    shifts = np.concatenate([shift for _, shift in drawn])
    multipliers = np.concatenate([multiplier for multiplier, _ in drawn])
    assert (int(shifts.min()), int(shifts.max())) == (-31, 10)
    assert {0, 1 << 30, fx.INT32_MAX} <= set(multipliers.tolist())
