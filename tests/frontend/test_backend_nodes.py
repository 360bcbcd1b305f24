"""Every single-node case of onnx.backend.test for the listed operators gives the standard's result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks.backend_cases import expanded_cases, listed_cases, numpy_inputs, numpy_outputs, skip_reason
from tests.frontend.models import run_imported, write
from tinytrain_compile.frontend import FrontendOptions, load_model

CASES = listed_cases()
ROUNDED = ("test_averagepool_2d_ceil_last_window_starts_on_pad",)
"""Cases whose expected values are written with four digits: the standard's own tolerance holds."""
RUNNABLE = [name for name, case in CASES.items() if not skip_reason(case)]
EXPANDED = expanded_cases()
"""Of the operators whose function bodies consist of operators that the frontend knows."""


def outputs_of(case: Any, folder: Path) -> list[np.ndarray]:
    """Import a case with all inputs but the first as weights, and run it."""
    inputs = numpy_inputs(case)
    names = [value.name for value in case.model.graph.input]
    constants = {name: np.asarray(array) for name, array in zip(names[1:], inputs[1:], strict=True)}
    path = write(case.model, folder)
    imported = load_model(path, FrontendOptions(constant_inputs=constants, any_batch=True))
    return run_imported(imported, np.asarray(inputs[0]) if inputs else None)


def check(name: str, case: Any, folder: Path) -> None:
    """Same number of outputs, same shapes, equal values."""
    expected = numpy_outputs(case)
    found = outputs_of(case, folder)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == np.shape(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=case.rtol if name in ROUNDED else 1e-4, atol=1e-5)


@pytest.mark.parametrize("name", RUNNABLE)
def test_case(name: str, tmp_path: Path) -> None:
    check(name, CASES[name], tmp_path)


@pytest.mark.parametrize("name", EXPANDED)
def test_expanded_case(name: str, tmp_path: Path) -> None:
    check(name, EXPANDED[name], tmp_path)


def test_at_least_650_cases_are_in_scope(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = Counter(reason for case in CASES.values() if (reason := skip_reason(case)))
    with capsys.disabled():
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
        print(f"\nonnx.backend.test: {len(RUNNABLE)} cases of {len(CASES)} run; skipped: {counts}")
        print(f"function bodies: {len(EXPANDED)} run")
    assert len(RUNNABLE) >= 650
    assert len(RUNNABLE) + skipped.total() == len(CASES)
    assert len(EXPANDED) >= 70
