"""Rows that only some builds have: each is written by its module, which is imported for nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import run
from tinytrain_compile.report import rows

ENDS = ("_pieces", "_remarks", "_lines", "_json")


@pytest.mark.parametrize("name", rows.ROWS)
def test_the_module_of_a_row_offers_something_for_it(name: str) -> None:
    module = import_module(f"{rows.__name__}.{rows.ROWS[name][0]}")
    assert [end for end in ENDS if hasattr(module, f"{name}{end}")] != []


def test_no_module_offers_what_no_row_asks_for() -> None:
    for module in {module for module, _ in rows.ROWS.values()}:
        made = import_module(f"{rows.__name__}.{module}")
        own = {name for name, one in vars(made).items() if getattr(one, "__module__", "") == made.__name__}
        named = {name.rpartition("_")[0] for name in own if name.endswith(ENDS) and not name.startswith("_")}
        assert named <= set(rows.ROWS), module


def test_rows_that_a_build_does_not_have_are_not_imported() -> None:
    modules = ("data", "text", "pages.html")
    code = f"import sys; import {', '.join(f'tinytrain_compile.report.{name}' for name in modules)}; " + (
        "print([name for name in sys.modules if name.startswith('tinytrain_compile.report.rows.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("flags", ["--slices on", "--features on", "--runtime replay=9,monitor,store"])
def test_a_dry_run_reports_the_parts_of_a_project(flags: str, tmp_path: Path) -> None:
    """It has planned, but no C: what only the C tells is left out."""
    model = write(models.mlp(), tmp_path)
    run(model, "--update", "last:1", *flags.split(), "--dry-run").check_success()
