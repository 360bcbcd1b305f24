"""Updates of a dense layer's weights of one sample: every way that a row takes gives the reference's bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.boards import measure
from testing.ops import case_quantised as quantised
from testing.ops.case import Case, make
from tests.lower import kernel_harness
from tests.lower.kernel_harness import build, compare, run
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv_form import is_rank_one
from tinytrain_compile.ops.int8.steps import ROW_BITS, row_moves

SHAPES = ((24, 9), (37, 6), (3, 5), (64, 1))
"""Inputs, outputs: whole words or not."""
SCALES = (-60, -40, -32, -25, -18, -7, 20)
"""Exponents of a step: no weight moves, some do, all do, far beyond the limit."""
HEADER = "tt_dense_update.h"


def case(fine: bool, inputs: int, outputs: int, exponent: int) -> Case:
    """With some gradients that are 0, and shifts that differ from row to row."""
    rng = np.random.default_rng([inputs, outputs, exponent + 100, fine])
    new = quantised.qconv_update_fine if fine else quantised.qconv_update
    made = new(rng, ((1, 1, 1, inputs), outputs, ConvAttrs((1, 1))), 0)
    w, x, g, multiplier, _, rate, p, *rest = made.arrays
    g = np.where(rng.random(g.shape) < 0.3, 0, g).astype(np.int8)
    shift = rng.integers(-3, 4, multiplier.shape).astype(np.int8)
    scaled = np.asarray([rate[0], exponent - int(p[0])], np.int32)
    return replace(made, arrays=(w, x, g, multiplier, shift, scaled, p, *rest))


def with_squares(plain: Case) -> Case:
    """The same update that adds up squares."""
    rows = np.arange(2 * plain.arrays[0].shape[0], dtype=np.int32).reshape(-1, 2)
    return make(plain.op, (*plain.arrays, rows), replace(plain.attrs, squares=True))  # type: ignore[call-arg]


def with_limit(plain: Case, limit: int) -> Case:
    """The same update of weights within a smaller limit."""
    w, *rest = plain.arrays
    held = np.clip(w, -limit, limit).astype(np.int8)
    return replace(plain, arrays=(held, *rest), attrs=replace(plain.attrs, limit=limit))  # type: ignore[call-arg]


PLAIN = [case(fine, *shape, exponent) for fine in (False, True) for shape in SHAPES for exponent in SCALES]
CASES = [*PLAIN, *map(with_squares, PLAIN[::5]), *(with_limit(case(True, 64, 3, e), 40) for e in (-25, -7, 20))]
"""At last of weights within a limit that vectors have no room beside."""


def test_rows_go_all_ways() -> None:
    """Rest, move by some, and by more than a step of 16 bits can: the cases have rows of each."""
    assert all(is_rank_one(made.node()) for made in CASES)
    assert all(row_form(made.node()) is None for made in PLAIN), "a sum over rows is another definition"
    found = [
        np.abs(row_moves(made.arrays[1], made.arrays[2], 0, made.arrays[3:7], ROW_BITS)).max(axis=3) for made in CASES
    ]
    largest = np.concatenate([moves.ravel() for moves in found])
    assert (largest == 0).sum() > 50
    assert ((largest > 0) & (largest < 256)).sum() > 20
    assert ((largest > 256) & (largest < 64 * 256)).sum() > 5
    assert (largest > 64 * 256).sum() > 20


def check_on_host(folder: Path) -> None:
    for built in build(CASES, folder, fpu=True):
        compare(built, run(built))


def test_the_host_gives_the_bytes_of_the_reference(tmp_path: Path) -> None:
    check_on_host(tmp_path)


@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m3", "cortex-m7", "cortex-m55"])
def test_cores_give_the_bytes_of_the_reference(target: str) -> None:
    found = measure(CASES, target)
    assert all(one.equal for one in found)


@pytest.mark.parametrize(
    ("code", "mutant"),
    [
        ("upper * largest <", "upper <"),
        ("step < -most || step > most", "false"),
        ("row->g * (row->x[i] >> TT_LIFT)", "row->g * row->x[i]"),
        ("rests && row->w[i] < row->limit &&", "rests && row->w[i] <= row->limit &&"),
        ("row->x[i] >> 16) + (1 << 15)", "row->x[i] >> 16)"),
        ("p, TT_FINE_BITS)", "p, TT_ROW_BITS)"),
        ("word += (uint32_t)words * TT_GOLDEN)", "word += (uint32_t)words)"),
        ("mixed ^ mixed >> 16", "mixed"),
        ("squares += (x[i] >> TT_LIFT)", "squares += x[i]"),
    ],
)
def test_a_wrong_helper_is_noticed(code: str, mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_harness.mutate(HEADER, code, mutant, tmp_path, monkeypatch)
    with pytest.raises(AssertionError):
        check_on_host(tmp_path)
