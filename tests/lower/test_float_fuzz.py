"""Float kernels on random shapes: a few of what `benchmarks fuzz --floats` runs, and what it must see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testing.kernels.boards import measure
from testing.kernels.float_fuzz import CONTEXTS, check_floats_on_board, check_floats_on_host, float_cases
from testing.kernels.sanitised import on_host, run_sanitised
from testing.ops.random_structure import NARROW
from tests.e2e.marks import needs_qemu

OPS = ("MaxPool", "AveragePoolGrad", "Clip", "Tanh", "NormalizeGrad", "MatMul", "GemmGradWeightAdamUpdate")


def test_the_host_gives_the_bytes_of_the_exact_references() -> None:
    assert check_floats_on_host(1, NARROW, OPS) == len(CONTEXTS) * len(OPS)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("target", "rules"), [("cortex-m0plus", 1), ("cortex-m7", 2), ("cortex-m55", 2)])
def test_boards_round_as_the_references_and_fuse_as_the_host(target: str, rules: int) -> None:
    assert check_floats_on_board(target, 1, NARROW + 1, OPS) == rules * len(OPS)


def test_a_wrong_result_and_a_wrong_order_are_seen(tmp_path: Path) -> None:
    (clip,), (product,) = (float_cases(1, NARROW, [op]) for op in ("Clip", "MatMul"))
    for case, code, wrong in ((clip, "x[0], ", "x[0], 0.5f + "), (product, "acc_0 = 0.0f", "acc_0 = 1e-7f")):
        with pytest.raises(AssertionError, match="differs"):
            run_sanitised([case], tmp_path, lambda text, a=code, b=wrong: text.replace(a, b), CONTEXTS[0], exact=True)


@needs_qemu
@pytest.mark.qemu
def test_a_core_that_rounds_by_the_other_rule_is_seen(tmp_path: Path) -> None:
    (case,) = float_cases(1, NARROW, ["MatMul"])
    apart = on_host([case], tmp_path, context=CONTEXTS[0])
    (found,) = measure([case], "cortex-m7", expected=apart)
    assert not found.equal
    (found,) = measure([case], "cortex-m7", fuse_multiply_add=False, expected=apart)
    assert found.equal and np.frombuffer(apart[0][0], np.float32).any()
