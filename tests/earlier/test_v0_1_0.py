"""Files that 0.1.0 wrote are read, or refused with one clear line (docs/upgrading.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tinytrain_compile as tt
from tests.e2e.command import run
from tests.emit.test_generated_c import needs_gcc
from tinytrain_compile.errors import CompileError

HERE = Path(__file__).parent / "v0_1_0"
NET, DATA = HERE / "net.onnx", HERE / "data.npz"
OPTIONS = {
    "sgd": {},
    "momentum": {"optimizer": "momentum", "momentum": 0.9},
    "adam": {"optimizer": "adam"},
    "int8": {"quant": "int8", "calib": DATA},
}
SAME = 1e-6
"""Largest difference of an output: a checkpoint computes what it computed under 0.1.0."""
LOSSES = {"sgd": SAME, "momentum": SAME, "int8": 0.01}
"""Largest difference of a loss while training continues: int8 rounds updates with other noise (docs/int8.md)."""


def compiled(name: str) -> tt.Compiled:
    return tt.compile(NET, data=DATA, lr=0.05, verify="none", **OPTIONS[name])


@needs_gcc
@pytest.mark.parametrize("name", LOSSES)
def test_a_checkpoint_is_read_and_training_continues(name: str) -> None:
    expected = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))[name]
    with np.load(DATA) as data:
        x, y = data["x"], data["y"]
    with compiled(name).twin() as twin:
        before = twin.predict(x[16:20])
        twin.load(HERE / f"{name}.ckpt")
        after = twin.predict(x[16:20])
        losses = [twin.train_step(x[i : i + 1], y[i : i + 1]) for i in range(20, 24)]
    assert np.abs(after - expected["outputs"]).max() <= SAME
    assert np.abs(before - expected["outputs"]).max() > 0.1, "it was the checkpoint that did it"
    assert np.abs(np.array(losses) - expected["losses"]).max() <= LOSSES[name]


@needs_gcc
def test_a_checkpoint_of_adam_is_refused_and_the_device_keeps_its_weights() -> None:
    """Moments are divided by 1 - beta^t now, which was kept as beta^t."""
    with compiled("adam").twin() as twin:
        before = twin.state_dict()
        with pytest.raises(CompileError, match="of another model"):
            twin.load(HERE / "adam.ckpt")
        after = twin.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@needs_gcc
def test_export_asks_for_a_new_project_and_takes_the_old_checkpoint_then(tmp_path: Path) -> None:
    flags = ("export", NET, "--checkpoint", HERE / "sgd.ckpt", "-o", tmp_path / "t.onnx")
    found = run(*flags, "--project", HERE / "project").check_error("E0105", 2)
    assert "records no options" in found.err and "compile again" in found.err and found.err.count("\n") == 1
    run(NET, "--data", DATA, "--lr", "0.05", "--verify", "none", "-o", tmp_path / "new").check_success()
    assert "learned" in run(*flags, "--project", tmp_path / "new").check_success().out


def test_a_lock_is_refused_and_says_what_to_do() -> None:
    found = run(NET, "--lock", HERE / "project" / "plan.json", "--dry-run").check_error("E0106", 2)
    assert "does not fit" in found.err and "compile without --lock" in found.err and found.err.count("\n") == 1


def test_a_target_file_names_the_key_that_is_new() -> None:
    found = run(NET, "--target", HERE / "board.toml", "--dry-run").check_error("E0103", 2)
    assert "is missing" in found.err and "compare with the files in targets/" in found.err
    assert found.err.count("\n") == 1


def test_an_output_folder_is_replaced_and_only_what_0_1_0_wrote_goes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(HERE / "project", out)
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    run(NET, "--verify", "none", "-o", out).check_success()
    assert json.loads((out / "manifest.json").read_text())["tinytrain_compile"] == tt.__version__
    assert (out / "notes.txt").read_text() == "mine" and (out / "net_train.c").exists()
