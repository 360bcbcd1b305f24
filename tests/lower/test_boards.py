"""Integer kernels on random shapes give their reference's bytes on real instruction sets: many kernels in one image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.board import measure

from tests.e2e.marks import needs_qemu
from tests.lower.sanitised import run_sanitised
from tests.ops.case import Case
from tests.ops.cases import cases_of
from tests.ops.random_structure import RANDOM, random_cases

CASES = 5
BOARDS = ("cortex-m0plus", "cortex-m7", "cortex-m55")
"""Scalar code, DSP instructions, and the core with vectors."""
CONVOLUTIONS = (
    "QConv",
    "QConvGradInput",
    "QConvUpdate",
    "QConvUpdateFine",
    "QConvMomentum",
    "QConvMomentumFine",
    "QConvSum",
)
"""Operators with random shapes."""
OTHERS = ("QAdd", "QRescale", "ErrorScale", "ErrorAdd", "QClipMask", "QBiasUpdate", "QWeightApply")
"""Operators with the shapes of their tests, then random ones."""
OPS = (*CONVOLUTIONS, *OTHERS)


def fuzz_cases(cases_per_op: int, first: int = 0, ops: Sequence[str] = OPS) -> list[Case]:
    """Cases `first` to `first + cases_per_op` of every operator."""
    wanted = first + cases_per_op
    made = [random_cases(op, wanted) if op in CONVOLUTIONS else cases_of(op, wanted) for op in ops]
    return [case for cases in made for case in cases[first:]]


def check_on_board(target: str, cases_per_op: int, first: int = 0, ops: Sequence[str] = OPS) -> int:
    """Compare `cases_per_op` cases of every op, from number `first` on; the number of kernels that ran."""
    cases = fuzz_cases(cases_per_op, first, ops)
    for case, found in zip(cases, measure(cases, target), strict=True):
        assert found.equal, f"{target}: {case}"
        assert found.instructions > 0
    return len(cases)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", BOARDS)
def test_random_kernels_on_a_board(target: str) -> None:
    assert set(CONVOLUTIONS) <= set(RANDOM)
    assert check_on_board(target, CASES) == CASES * len(OPS)


def test_random_kernels_stay_inside_their_operands(tmp_path: Path) -> None:
    run_sanitised(fuzz_cases(CASES // 2), tmp_path)


def test_an_access_outside_and_a_wrong_result_are_seen(tmp_path: Path) -> None:
    case = random_cases("QConv", 1)[0]
    for shift in (("y[", "y[1000 + "), ("y[", "y[0 * "), ("x[", "x[-1 + ")):
        with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
            run_sanitised([case], tmp_path, lambda source, shift=shift: source.replace(*shift))
