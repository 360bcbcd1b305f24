"""The whole report fits a terminal of 80 columns: every format of the examples, -v included, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from testing.places import ROOT
from tests.e2e.command import run
from tinytrain_compile.report.layout import WIDTH

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
INT8 = ("--quant", "int8", "--calib", DIGITS.with_name("calib.npz"))
FORMATS: dict[str, tuple[str | Path, ...]] = {"float32": (), "int8": INT8, "int8 head": (*INT8, "--head", "int8")}


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_the_report_fits(options: tuple[str | Path, ...]) -> None:
    done = run(DIGITS, *options, "--arena", "26KB", "-v", "--dry-run").check_success()
    lines = done.out.splitlines()
    assert [line for line in lines if cell_len(line) > WIDTH] == []
    block = lines[: next(at for at, line in enumerate(lines) if line.startswith("layer "))]
    assert len(block) > 10
    assert not any("..." in line for line in block), "nothing is cut in a small model"


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_what_stands_below_an_error_fits(options: tuple[str | Path, ...]) -> None:
    done = run(DIGITS, *options, "--arena", "10KB", "--update", "all", "--dry-run").check_error("E0401", 3)
    lines = done.err.splitlines()[1:]
    assert len(lines) > 12
    assert [line for line in lines if cell_len(line) > WIDTH] == []
    assert not any("..." in line and "ConvGradI...." not in line for line in lines), "only a kernel's name is cut"
