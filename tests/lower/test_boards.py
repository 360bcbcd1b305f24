"""Integer kernels on random shapes give their reference's bytes on real instruction sets: many kernels in one image."""

from __future__ import annotations

import pytest
from benchmarks.board import measure

from tests.e2e.marks import needs_qemu
from tests.ops.random_structure import RANDOM, random_cases

CASES = 5
BOARDS = ("cortex-m0plus", "cortex-m7", "cortex-m55")
"""Scalar code, DSP instructions, and the core with vectors."""
OPS = ("QConv", "QConvGradInput", "QConvUpdate", "QConvSum")


def check_on_board(target: str, cases_per_op: int, first: int = 0) -> int:
    """Compare `cases_per_op` random cases of every op, from number `first` on; the number of kernels that ran."""
    cases = [case for op in OPS for case in random_cases(op, first + cases_per_op)[first:]]
    for case, found in zip(cases, measure(cases, target), strict=True):
        assert found.equal, f"{target}: {case}"
        assert found.instructions > 0
    return len(cases)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", BOARDS)
def test_random_kernels_on_a_board(target: str) -> None:
    assert set(OPS) <= set(RANDOM)
    assert check_on_board(target, CASES) == CASES * len(OPS)
