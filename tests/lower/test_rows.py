"""Kernels of a few rows give, call by call, the bytes of the whole map."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from benchmarks.board import measure
from benchmarks.layers import rows_layer

from tests.e2e.marks import needs_qemu
from tests.lower.banded import banded
from tests.lower.sanitised import SCALAR, VECTORS, run_sanitised
from tests.lower.test_boards import fuzz_cases
from tests.ops.case import Case
from tests.ops.random_structure import random_cases
from tinytrain_compile.lower.kernels import Features, features_of
from tinytrain_compile.lower.streams.functions import TABLE
from tinytrain_compile.lower.streams.kernels import POINTWISE, NoRowsError, band_spec
from tinytrain_compile.target import load_target

OPS = ("QConv", "QConvGradInput", *POINTWISE)
CASES = 8
"""Of every operator; some have no kernel of a few rows."""
BOARDS = ("cortex-m0plus", "cortex-m7", "cortex-m55")


def row_cases(cases_per_op: int, first: int = 0, features: Features = SCALAR) -> list[Case]:
    """Those of the cases that have a kernel of a few rows."""
    return [case for case in fuzz_cases(cases_per_op, first, OPS) if _has_rows(case, features)]


def _has_rows(case: Case, features: Features) -> bool:
    try:
        band_spec(case.node(), features)
    except NoRowsError:
        return False
    return True


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("features", [SCALAR, VECTORS], ids=["scalar", "vectors"])
def test_rows_from_a_ring_are_those_of_the_map(features: Features, step: int, tmp_path: Path) -> None:
    cases = row_cases(CASES, features=features)
    assert {case.op for case in cases} == set(OPS)
    run_sanitised(cases, tmp_path, features=features, make=partial(banded, step=step, ring=True))


def test_what_is_kept_of_channels_belongs_to_the_rows(tmp_path: Path) -> None:
    """One vector of channels: no loop over channels is left, and their factors are loaded where the function starts."""
    four = [c for c in row_cases(30, features=VECTORS) if c.op == "ErrorScale" and c.node().outputs[0].shape[3] == 4]
    assert four
    run_sanitised(four, tmp_path, features=VECTORS, make=partial(banded, step=1))


def test_strides_that_do_not_divide_the_image(tmp_path: Path) -> None:
    """There are zeros between the rows of an error, which the table says."""
    cases = [case for case in random_cases("QConvGradInput", 120)[110:] if _has_rows(case, SCALAR)]
    odd = [c for c in cases if c.attrs.conv.groups > 1 and c.attrs.input_hw[0] % c.attrs.conv.strides[0]]  # type: ignore[attr-defined]
    assert odd
    run_sanitised(odd, tmp_path, make=partial(banded, step=1, ring=True))


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", BOARDS)
def test_rows_on_a_board(target: str) -> None:
    assert check_rows_on_board(target, CASES) > 2 * len(OPS)


def check_rows_on_board(target: str, cases_per_op: int, first: int = 0) -> int:
    """Compare cases of every op, two rows a call from a ring buffer; the number of kernels that ran."""
    cases = row_cases(cases_per_op, first, features_of(load_target(target).features, True))
    if not cases:
        return 0
    for case, found in zip(cases, measure(cases, target, make=partial(banded, step=2, ring=True)), strict=True):
        assert found.equal, f"{target}: {case}"
    return len(cases)


def test_a_wrong_row_is_seen(tmp_path: Path) -> None:
    """Of the convolutions with windows: a table that is off by one row; of products: rows that are not counted."""
    cases = [case for case in row_cases(CASES) if case.op == "QConv"]
    for old, new in ((f"{TABLE}[", f"{TABLE}[1 + "), ("< count", "< 0 * count")):
        with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
            run_sanitised(cases, tmp_path, partial(_changed, old=old, new=new), make=partial(banded, step=1))


def _changed(text: str, old: str, new: str) -> str:
    return text.replace(old, new)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m7"])
def test_calls_of_four_pixels_cost_what_the_map_does(target: str) -> None:
    case = rows_layer(16, 4).case()
    (whole,), (parts,) = measure([case], target), measure([case], target, make=partial(banded, step=1))
    assert parts.equal
    assert parts.instructions < 1.05 * whole.instructions
