"""examples/keywords: the firmware gets used to a speaker in QEMU, and the recipe on the desk computes its bytes."""

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

KEYWORDS = ROOT / "examples" / "keywords"
SPEAKER = "it+Alicia"


@pytest.fixture
def modules() -> tuple[ModuleType, ModuleType, ModuleType]:
    """make_data, speakers, recipe."""
    made, speakers, recipe = modules_of(KEYWORDS, "make_data", "speakers", "recipe")
    return made, speakers, recipe


@pytest.mark.qemu
@needs_qemu
def test_two_epochs_in_qemu_are_those_of_the_twin(
    tmp_path: Path, modules: tuple[ModuleType, ModuleType, ModuleType]
) -> None:
    _, speakers, recipe = modules
    command = [sys.executable, str(KEYWORDS / "run.py"), "--speaker", SPEAKER, "--epochs", "2", "--work", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^equal      yes: ", done.stdout, re.MULTILINE)
    new, old = ([float(n) for n in re.findall(rf"{who} +([0-9.]+) %", done.stdout)] for who in ("speaker", "speakers"))
    parts = speakers.parts_of(SPEAKER)
    with recipe.compiled(parts.pool).twin() as twin:
        found = recipe.adapt(twin, parts, 2, recipe.RATE, recipe.REPLAYED)
        assert twin.instance.save() == (tmp_path / "qemu" / "trained.bin").read_bytes()
    assert (new[0], old[0]) == pytest.approx(found.before, abs=0.051)
    assert (new[2], old[2]) == pytest.approx(found.after, abs=0.051)
    assert new[2] > new[0] + 20
    assert old[2] > old[0] - 6


def test_speakers_that_choose_and_that_judge_are_others(modules: tuple[ModuleType, ModuleType, ModuleType]) -> None:
    made, speakers, _ = modules
    groups = (made.BASE, made.OLD_DEVELOPMENT, made.OLD_REPORT, made.DEVELOPMENT, made.REPORT)
    names = [name.rpartition("+")[2] for group in groups for name in group]
    assert len(names) == len(set(names)) == 44 + 10 + 10 + 8 + 8
    known = set[bytes]()
    for speaker in (*made.DEVELOPMENT, *made.REPORT):
        parts = speakers.parts_of(speaker)
        assert np.array_equal(np.bincount(parts.own.y), np.full(10, made.OWN))
        samples = {x.tobytes() for part in (parts.own, parts.test) for x in part.x}
        assert len(samples) == len(parts.own.x) + len(parts.test.x)
        assert not samples & known
        known |= samples


@pytest.mark.slow
def test_the_page_shows_what_the_commands_print() -> None:
    check_page("examples/keywords/README.md")
