"""examples/vibration: the firmware finds its thresholds and trains in QEMU as the recipe on the desk does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tests.examples.folders import modules_of
from tests.examples.pages import check_page

VIBRATION = ROOT / "examples" / "vibration"
MACHINE = 103
NUMBERS = r"threshold +([0-9.]+) +false alarms +([0-9.]+) % +faults found +([0-9.]+) %"


@pytest.fixture
def modules() -> tuple[ModuleType, ModuleType]:
    """make_data, recipe."""
    made, recipe = modules_of(VIBRATION, "make_data", "recipe")
    return made, recipe


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_qemu_alarms_and_trains_as_the_twin_does(
    quant: str, tmp_path: Path, modules: tuple[ModuleType, ModuleType]
) -> None:
    made, recipe = modules
    command = [sys.executable, str(VIBRATION / "run.py"), "--machine", str(MACHINE)]
    command += ["--epochs", "3", "--quant", quant]
    done = subprocess.run([*command, "--work", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^equal      yes: ", done.stdout, re.MULTILINE)
    printed = [tuple(map(float, found)) for found in re.findall(NUMBERS, done.stdout)]
    parts = made.parts_of(MACHINE)
    with recipe.compiled(quant=quant).twin() as twin:
        factory = recipe.factory_threshold(twin)
        found = recipe.adapt(twin, parts, factory, 3)
        assert twin.instance.save() == (tmp_path / "qemu" / "trained.bin").read_bytes()
    ways = (found.factory, found.percentile, found.sigma, found.retrained)
    assert [line[1:] for line in printed] == [pytest.approx((way.false_alarms, way.found), abs=0.051) for way in ways]
    assert printed[0][0] == pytest.approx(factory, abs=0.00051)


def test_a_threshold_and_an_area_by_hand(modules: tuple[ModuleType, ModuleType]) -> None:
    _, recipe = modules
    errors, y = np.array([1, 2, 3, 2, 4, 5], np.float32), np.array([0, 0, 0, 1, 1, 1])
    found = recipe.verdict(errors, y, 2.5)
    assert (found.false_alarms, found.found) == pytest.approx((100 / 3, 200 / 3))
    assert recipe.area(errors, y) == pytest.approx((1 + 0.5 + 3 + 3) / 9)


def test_machines_that_choose_and_that_judge_are_others(modules: tuple[ModuleType, ModuleType]) -> None:
    made, _ = modules
    numbers = [*made.BASE, *made.DEVELOPMENT, *made.REPORT]
    assert len(numbers) == len(set(numbers))
    one, other = (made.stored(made.raw(number, "own", 3)) for number in (made.REPORT[0], made.REPORT[1]))
    assert not np.array_equal(one, other)
    assert np.array_equal(one, made.stored(made.raw(made.REPORT[0], "own", 3)))


@pytest.mark.slow
def test_the_page_shows_what_the_commands_print() -> None:
    check_page("examples/vibration/README.md")
