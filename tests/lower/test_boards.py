"""Integer kernels on random shapes give their reference's bytes on real instruction sets: many kernels in one image."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.kernels.fuzz import CONVOLUTIONS, OTHERS, check_on_board, fuzz_cases
from testing.kernels.sanitised import run_sanitised
from testing.ops.cases import cases_of
from testing.ops.random_structure import random_cases
from tests.e2e.marks import needs_qemu

CASES = 5
BOARDS = ("cortex-m0plus", "cortex-m7", "cortex-m55")
"""Scalar code, DSP instructions, and the core with vectors."""


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", BOARDS)
def test_random_kernels_on_a_board(target: str) -> None:
    assert check_on_board(target, CASES, ops=CONVOLUTIONS) == CASES * len(CONVOLUTIONS)
    assert check_on_board(target, CASES // 2, ops=OTHERS) == CASES // 2 * len(OTHERS)


def test_random_kernels_stay_inside_their_operands(tmp_path: Path) -> None:
    run_sanitised(fuzz_cases(CASES // 2), tmp_path)


@pytest.mark.parametrize(
    ("op", "code"), [("QConv", "8_above("), ("QConv", "_kept_above("), ("QAdd", "_above("), ("QRescale", "_above(")]
)
def test_a_positive_sum_that_becomes_zero_is_seen(op: str, code: str, tmp_path: Path) -> None:
    cases = [case for case in cases_of(op) if case.attrs.above]  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="differs"):
        run_sanitised(cases, tmp_path, lambda source: source.replace(code, code.replace("_above", "")))


def test_an_access_outside_and_a_wrong_result_are_seen(tmp_path: Path) -> None:
    case = next(case for case in random_cases("QConv", 8) if case.attrs.conv.split)  # loops, and no one call
    for shift in (("y[", "y[1000 + "), ("y[", "y[0 * "), ("x[", "x[-1 + ")):
        with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
            run_sanitised([case], tmp_path, lambda source, shift=shift: source.replace(*shift))
