"""Files of LiteRT from the command to the board."""

from __future__ import annotations

import shutil
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.command import FILE, HERE, STEP, run
from tests.e2e.marks import needs_qemu
from tests.frontend import tflite_nets as nets
from tests.frontend.test_tflite import WINDOWS, wake_word

SPOTTER = (1, 12, 8, 1)


def spotter(folder: Path, kind: str) -> Path:
    recipe = nets.NEAR["spotter"]
    ranges = None if kind == "float32" else nets.measured(recipe, SPOTTER)
    (folder / "net.tflite").write_bytes(nets.written(recipe, ranges, "uint8" if kind == "uint8" else "int8"))
    return folder / "net.tflite"


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("kind", ["int8", "uint8", "float32"])
def test_a_stateless_file_trains_on_a_board(kind: str, tmp_path: Path) -> None:
    model = spotter(tmp_path, kind)
    random = np.random.default_rng(0)
    x, y = random.standard_normal((8, *SPOTTER[1:])).astype(np.float32), random.integers(0, 4, 8)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    options = ("--target", "cortex-m4", "--data", tmp_path / "data.npz", "-o", tmp_path / "out")
    done = run(model, *options).check_success()
    assert {FILE, HERE, STEP} < {*done.agreed}
    assert "PASS" in done.out
    assert ("int8, because the model is quantised" in done.out) == (kind != "float32")


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "update"), [*zip(WINDOWS, cycle(("head", "all")), strict=False)])
def test_wake_words_train_on_a_board(name: str, update: str, tmp_path: Path) -> None:
    model = tmp_path / "word.tflite"
    shutil.copy(wake_word(name), model)
    options = ("--target", "cortex-m4", "--update", update, "--head", "int8", "-o", tmp_path / "out")
    done = run(model, *options).check_success()
    assert {FILE, HERE, STEP} < {*done.agreed}
    assert f"1x{WINDOWS[name]}x40 -> 1x1" in done.out
