"""Updates with momentum of a dense layer by one sample: every way that a row takes gives the reference's bytes.

What a velocity keeps, and that rounding has no bias, is tested on the reference.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.boards import measure
from testing.ops import case_quantised as quantised
from testing.ops.case import Case, make
from tests.e2e.marks import needs_qemu
from tests.lower import kernel_harness
from tests.lower.kernel_harness import build, compare, run
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv_form import is_rank_one
from tinytrain_compile.ops.int8.steps import rounded_rows, split_rate, velocity_rows
from tinytrain_compile.ops.int8.update import Momentum

HEADER = "tt_dense_momentum.h"
SHAPES = ((24, 9), (37, 6), (3, 5), (64, 1))
"""Inputs, outputs: whole words or not."""
EXPONENTS = (-30, -9, 0, 6, 14)
"""By how many bits the unit of velocities is above that of gradients: sums that 16 bits do not hold, to small ones."""
FACTORS = {"sum": (0.9, 1.0), "sign": (99.0, 0.01, 9.0)}
"""Momentum N, 1 / N, and for a sign what is ahead (Lion's usual decay rates)."""


def case(
    inputs: int, outputs: int, up: int, fine: bool = False, momentum: Momentum = "sum", rate: int = -4, more: int = 0
) -> Case:
    """Some errors are 0. up: see EXPONENTS; rate: exponent of the step; more: by which the exponent has just risen."""
    rng = np.random.default_rng([inputs, outputs, up + 100, fine, rate + 100])
    made = quantised.qconv_momentum(rng, ((1, 1, 1, inputs), outputs, ConvAttrs((1, 1))), 0, fine, momentum)
    w, x, g, multiplier, _, _, p, velocity, peak, _, *rest = made.arrays
    g = np.where(rng.random(g.shape) < 0.3, 0, g).astype(np.int8)
    shift = rng.integers(-14, -9, multiplier.shape).astype(np.int8)
    velocity = (velocity >> rng.integers(0, 8)).astype(np.int8)
    unit = int(p[0]) - (6 if momentum == "sum" else 12)
    step = np.asarray([1 << 30, rate - (int(p[0]) if momentum == "sum" else -2)])
    factors = [split_rate(np.float32(factor)) for factor in FACTORS[momentum]]
    state = np.asarray([unit + up, 0, unit + up - more], np.int32)
    rates = np.concatenate([step, *factors]).astype(np.int32)
    return replace(made, arrays=(w, x, g, multiplier, shift, rates, p, velocity, peak, state, *rest))


def still(one: Case) -> Case:
    """The same without any gradient, of velocities that are all 0: its peak stays what it was."""
    arrays = list(one.arrays)
    arrays[2], arrays[7], arrays[8] = np.zeros_like(arrays[2]), np.zeros_like(arrays[7]), np.asarray(0, np.int32)
    return replace(one, arrays=tuple(arrays))


def fast(one: Case) -> Case:
    """The same with large errors and velocities."""
    arrays = list(one.arrays)
    arrays[2], arrays[7] = np.full_like(arrays[2], 120), np.full_like(arrays[7], 120)
    return replace(one, arrays=tuple(arrays))


def with_squares(plain: Case) -> Case:
    """The same update that adds up squares."""
    rows = np.arange(2 * plain.arrays[0].shape[0], dtype=np.int32).reshape(-1, 2)
    return make(plain.op, (*plain.arrays, rows), replace(plain.attrs, squares=True))  # type: ignore[call-arg]


KINDS: tuple[tuple[bool, Momentum], ...] = ((False, "sum"), (True, "sum"), (False, "sign"), (True, "sign"))
PLAIN = [case(*shape, up, *kind) for kind in KINDS for shape in SHAPES for up in EXPONENTS]
OTHER = [
    case(37, 6, 9, *kind, rate=rate, more=more)
    for kind in KINDS
    for rate, more in ((-40, 0), (9, 0), (20, 0), (-4, 3), (-4, -2))
]
BEYOND = [fast(case(37, 6, 9, *kind)) for kind in KINDS]
"""Some sums are velocities beyond 128, and still have 16 bits."""
CASES = [*PLAIN, *OTHER, *BEYOND, *map(with_squares, PLAIN[3::9]), *(still(one) for one in PLAIN[2::20])]


def found(one: Case) -> tuple[np.ndarray, np.ndarray, int]:
    """Moves, velocities and peak of the reference, with noise of the middle."""
    _, x, g, multiplier, shift, rate, p, velocity, _, state, *_ = one.arrays
    signed = one.attrs.momentum == "sign"  # type: ignore[attr-defined]
    return velocity_rows(x, g, 0, velocity, (multiplier, shift, rate, p), state, 128, signed)


def test_the_cases_go_all_ways() -> None:
    assert all(is_rank_one(one.node()) for one in CASES)
    peaks = np.asarray([found(one)[2] for one in PLAIN])
    assert (peaks > 127).any() and ((peaks > 8) & (peaks < 128)).sum() > 10 and (peaks < 8).any()
    assert {found(one)[2] for one in CASES[-4:]} == {0}


def check_on_host(folder: Path) -> None:
    for built in build(CASES, folder, fpu=True):
        compare(built, run(built))


def test_the_host_gives_the_bytes_of_the_reference(tmp_path: Path) -> None:
    check_on_host(tmp_path)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m55"])
def test_cores_give_the_bytes_of_the_reference(target: str) -> None:
    assert all(one.equal for one in measure(CASES, target))


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7", "cortex-m55"])
def test_a_weight_takes_few_instructions(target: str) -> None:
    """The limit that a row of 128 has beyond one of 784 is what a row takes by itself."""
    cases = [case(128, 64, 11), case(784, 100, 11)]
    cases = [replace(one, attrs=replace(one.attrs, limit=127)) for one in cases]  # type: ignore[call-arg]
    short, long = measure(cases, target)
    assert long.instructions / long.macs <= 14
    assert short.instructions / short.macs <= 15


def test_sums_are_velocity_and_gradient() -> None:
    """Against real numbers: v = 0.9 v + g, and moves by the step times v; both to 3 units of a sum's last bit."""
    one = case(37, 6, 9)
    _, x, g, multiplier, shift, rate, p, velocity, _, state, *_ = one.arrays
    moves, after, _ = found(one)
    unit = 2.0 ** (int(p[0]) + (shift.astype(int) >> 1) - int(state[0]))[:, None]
    old = velocity.reshape(6, 37).astype(float)
    real = 0.9 * old + g.reshape(6, 1).astype(float) * x.reshape(37) * unit
    assert np.abs(real).max() < 127
    assert np.abs(after.reshape(6, 37) - real).max() < 0.5 + 3 / 128
    step = multiplier * 2.0 ** (shift.astype(float) - 31) * 2.0 ** float(rate[1] + p[0] - 1 + 8)
    exact = step[:, None] * real / unit
    assert np.abs(exact).max() > 4
    assert np.abs(moves.reshape(6, 37) - exact).max() < 1 + np.abs(exact).max() * 2.0**-9


def test_noise_of_weights_and_velocities_has_no_bias() -> None:
    """Over 2,048 states: both kinds, of words that follow from one another."""
    one, count = case(37, 6, 9), 2048
    _, x, g, multiplier, shift, rate, p, velocity, _, state, *_ = one.arrays
    scale = multiplier, shift, rate, p
    kept, moved = np.zeros((6, 37)), np.zeros((6, 37))
    w = np.zeros((6, 1, 1, 37), np.int8)
    for number in np.random.default_rng(6).integers(0, 2**32, count):
        noise, random = fx.noise_of_velocities(number, 3, 6, 37)
        moves, after, _ = velocity_rows(x, g, 0, velocity, scale, state, random, False)
        kept += after.reshape(6, 37) / count
        moved += rounded_rows(w, moves, noise, 127).reshape(6, 37) / count
    unit = 2.0 ** (int(p[0]) + (shift.astype(int) >> 1) - int(state[0]))[:, None]
    real = 0.9 * velocity.reshape(6, 37) + g.reshape(6, 1).astype(float) * x.reshape(37) * unit
    assert np.abs(kept - real).max() < 1 / 128 + 4 * 0.5 / np.sqrt(count)
    assert np.abs(moved + moves.reshape(6, 37) / 256).max() < 4 * 0.5 / np.sqrt(count)


@pytest.mark.parametrize(
    ("code", "mutant"),
    [
        ("tt_part(by->kept, old * 256)", "tt_part(by->kept, old * 255)"),
        ("+ (1 << 15)) >> 16;\n        const int32_t ahead", ") >> 16;\n        const int32_t ahead"),
        ("tt_byte_of(word, i + 2)) >> 8", "tt_byte_of(word, i)) >> 8"),
        ("word ^= word << 13", "word ^= word << 12"),
        ("sums > INT32_MAX", "false"),
        (": INT32_MAX - 1);", ": INT32_MAX);"),
        ("tt_clamp(fine * 2, INT16_MIN, INT16_MAX)", "fine * 2"),
        ("state[2] - state[0];", "0;"),
        ("rate[7] - 31 + state[2]", "rate[7] + state[2]"),
        ("(1 << (27 - TT_SIGN_BITS)) - 1", "INT32_MAX - 1"),
        ("magnitude >= INT32_MAX", "false"),
        ("int32_t found = moved ? 1 : 0;", "int32_t found = 1;"),
        ("(moved < 0 ? ~moved : moved)", "(moved < 0 ? ~moved : moved * 2)"),
    ],
)
def test_a_wrong_helper_is_noticed(code: str, mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_harness.mutate(HEADER, code, mutant, tmp_path, monkeypatch)
    with pytest.raises(AssertionError):
        check_on_host(tmp_path)
