"""MaxPool, its index and its gradient on int8: kernels equal references, and these equal the float ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.ops.case_qpool import OVERLAPPING, int8_cases
from tests.lower.kernel_harness import build, compare, run
from tinytrain_compile.ops import OPS, infer, run_node
from tinytrain_compile.ops.pool import PoolGradAttrs

MOVES = ("MaxPool", "MaxPoolIndex", "MaxPoolGrad")


@pytest.mark.parametrize("op", MOVES)
def test_kernel_equals_reference(op: str, tmp_path: Path) -> None:
    cases = int8_cases(op)
    assert len(cases) >= 9
    for built in build(cases, tmp_path, fpu=False):
        compare(built, run(built))


@pytest.mark.parametrize("op", MOVES)
def test_reference_is_that_of_the_same_floats(op: str) -> None:
    for case in int8_cases(op):
        (got,) = run_node(case.node(), case.arrays, exact=True)
        floats = tuple(a.astype(np.float32) if a.dtype == np.int8 else a for a in case.arrays)
        (wanted,) = OPS[op].reference(floats, case.attrs)
        np.testing.assert_array_equal(got, wanted)


def test_the_first_of_equal_elements_wins_and_never_padding(tmp_path: Path) -> None:
    """A window of lowest numbers in the corner of a padded image: tap 0 is padding, the first real one is taken."""
    shape, attrs = next((s, a) for s, a in OVERLAPPING if a.pads == (1, 1, 1, 1))
    case = next(c for c in int8_cases("MaxPoolIndex") if c.attrs == attrs)
    lowest = replace(case, arrays=(np.full(shape, -128, np.int8),))
    (built,) = build([lowest], tmp_path, fpu=True)
    (index,) = run(built)
    assert (index[0, 0, 0] == attrs.kernel[1] + 1).all()


def test_an_int8_gradient_with_overlap_is_refused() -> None:
    shape, attrs = OVERLAPPING[0]
    case = next(c for c in int8_cases("MaxPoolIndex") if c.attrs == attrs)
    index = case.node().outputs[0]
    with pytest.raises(ValueError, match="overlap"):
        infer("MaxPoolGrad", (replace(index, dtype="int8"), index), PoolGradAttrs(attrs, (shape[1], shape[2])))
