"""Which tests `make test` runs, what tests cost, and the reports about both."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from testing import tiers
from testing.places import ROOT
from testing.tiers import Costs

TESTS = ROOT / "tests"


def test_what_stays_is_told_by_number_and_by_name() -> None:
    names = [f"tests/a/test_b.py::test_c[{case}]" for case in ("x", "y", "x-y")]
    assert tiers.later_ones(names, {}) == set()
    assert tiers.later_ones(names, {"a/test_b.py": 1}) == set(names[1:])
    assert tiers.later_ones(names, {"a/test_b.py": 2}) == {names[1]}
    assert tiers.later_ones(names, {"a/test_b.py": 0, "a/test_b.py::test_c": ["x"]}) == {names[1]}
    assert tiers.later_ones(names, {"a/test_b.py::test_d": 0}) == set()


def test_every_entry_names_a_test() -> None:
    """A test that was renamed would otherwise change its tier."""
    missing: list[str] = []
    for entry in tiers.read_tiers():
        file, _, test = entry.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8") if (TESTS / file).is_file() else ""
        missing += [] if text and (not test or re.search(rf"^def {test}\(", text, re.MULTILINE)) else [entry]
    assert missing == []


def test_what_every_file_costs_is_recorded() -> None:
    """`make durations` records it, or `pytest --record-durations tests/new_file.py`."""
    files = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    assert files - tiers.read_costs().keys() == set()


def test_cheap_files_come_first_and_unknown_ones_last() -> None:
    costs: Costs = {"a.py": {"test_a": (9.0, 3)}, "b.py": {"test_b": (4.0, 2)}}
    names = ["tests/new.py::test_n", "tests/a.py::test_a[1]", "tests/b.py::test_b[1]", "tests/b.py::test_b[2]"]
    assert tiers.in_order(names, costs) == [2, 3, 1, 0]
    assert tiers.in_order(names, costs, dear_first=True) == [0, 1, 2, 3]
    assert tiers.in_order(names, costs, turned=2) == [2, 3, 0, 1]
    assert tiers.in_order(names, costs, turned=9) == [0, 1, 2, 3]


def test_folders_that_are_named_come_first() -> None:
    costs: Costs = {"plan/a.py": {"test_a": (9.0, 3)}, "emit/b.py": {"test_b": (4.0, 2)}, "c.py": {"test_c": (1.0, 1)}}
    names = ["tests/c.py::test_c", "tests/emit/b.py::test_b", "tests/plan/a.py::test_a"]
    assert tiers.in_order(names, costs, ("plan", "emit")) == [2, 1, 0]


def test_a_slow_test_and_an_unknown_file_are_seen() -> None:
    costs: Costs = {"a.py": {"test_a": (9.0, 3)}}
    assert tiers.remarks({"tests/a.py::test_a[1]": 5.0}, costs) == []
    (said,) = tiers.remarks({"tests/a.py::test_a[1]": 7.0}, costs)
    assert said.startswith("a.py::test_a: 7.0 CPU seconds, recorded are 3.0")
    assert len(tiers.remarks({"tests/new.py::test_n": 0.1, "tests/a.py::test_new": 7.0}, costs)) == 2


def test_costs_are_written_as_they_are_read(tmp_path: Path) -> None:
    costs = tiers.measured({"tests/a/b.py::test_c[1]": 1.5, "tests/a/b.py::test_c[2]": 2.5, "tests/d.py::test_e": 0.0})
    assert costs == {"a/b.py": {"test_c": (4.0, 2)}, "d.py": {"test_e": (0.0, 1)}}
    tiers.write_costs(costs, tmp_path / "costs.json")
    assert tiers.read_costs(tmp_path / "costs.json") == costs


@pytest.mark.parametrize("script", [("sizes.py",), ("plant_faults.py", "--check")], ids=" ".join)
def test_scripts_about_this_repository_run(script: tuple[str, ...]) -> None:
    """Large functions are listed; every planted fault has one place."""
    name, *flags = script
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / name), *flags], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= (32 if flags else 1)
