"""examples/own: its program trains whatever model, and what it learns is what a twin of the same calls does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tinytrain_compile as tt
from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tests.examples.folders import modules_of
from tinytrain_compile.data.own_data import old_parts
from tinytrain_compile.parts.replay.twin import Reservoir
from tinytrain_compile.parts.schedule.twin import Schedule

OWN = ROOT / "examples" / "own"
DIGITS = ROOT / "examples" / "digits"
(own_run,) = modules_of(OWN, "run")


def python(script: Path, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def values_model(path: Path) -> None:
    """y = x W + b of three values, for a loss on values."""
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((5, 3)).astype(np.float32), "w")
    b = numpy_helper.from_array(np.zeros(3, np.float32), "b")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c]) for n, c in (("x", 5), ("y", 3))]
    graph = helper.make_graph([helper.make_node("Gemm", ["x", "w", "b"], ["y"])], "values", ends[:1], ends[1:], [w, b])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.qemu
@needs_qemu
def test_a_model_of_values_trains_on_the_board_as_its_twin_does(tmp_path: Path) -> None:
    """In batches of several calls; without a test set, so that one is split off; back in the file it is what it was."""
    model, rng = tmp_path / "values.onnx", np.random.default_rng(1)
    values_model(model)
    x = rng.standard_normal((45, 5)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=x[:, :3] * 2)
    options = {"loss": "mse", "lr": 0.05, "batch": 4, "micro_batch": 2, "verify": "none", "epochs": 3}
    compiled = tt.compile(model, **options, runtime="schedule")
    compiled.save(tmp_path / "out")
    done = python(OWN / "run.py", model, "--data", "own.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(found) for found in re.findall(r"epoch +\d+   loss ([0-9.]+)", done.stdout)]
    assert len(losses) == 3 and losses[2] < losses[0]
    assert "9 of 45 samples are kept" in done.stdout and re.search(r"^equal      yes: ", done.stdout, re.MULTILINE)
    with compiled.twin() as twin:
        rest = [row for row in range(45) if not (np.load(tmp_path / "own" / "judged.npz")["x"] == x[row]).all(1).any()]
        order = np.asarray(rest)[np.random.default_rng(0).permutation(36)]
        falling = Schedule("cosine", 0.05, every=27)
        for update in range(27):
            some = order[update % 9 * 4 : update % 9 * 4 + 4]
            twin.train_step(x[some], x[some, :3] * 2, lr=falling.rate_of(update))
        assert twin.instance.save() == (tmp_path / "own" / "trained.bin").read_bytes()
    checkpoint = ["--checkpoint", "own/trained.bin", "-o", "trained.onnx"]
    command = [sys.executable, "-m", "tinytrain_compile", "export", "values.onnx", *checkpoint]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    judged = python(OWN / "judge.py", "trained.onnx", cwd=tmp_path)
    found = re.search(r"9 test samples, mean squared error (\S+); largest difference to the board (\S+)", judged.stdout)
    assert found is not None, judged.stdout + judged.stderr
    assert float(found[2]) < 1e-5
    learned = re.search(r"learned    9 test samples: loss (\S+) -> loss (\S+)", done.stdout)
    assert learned is not None and float(found[1]) == pytest.approx(float(learned[2]), rel=1e-3)


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("board", ["cortex-m0plus", "a file of the user's"])
def test_the_twin_is_of_the_core_of_the_project(board: str, tmp_path: Path) -> None:
    """On cores without a fused multiply-add float32 numbers are others than on the default target."""
    model, rng = tmp_path / "values.onnx", np.random.default_rng(4)
    values_model(model)
    x = rng.standard_normal((20, 5)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x[:12], y=x[:12, :3] * 2, x_test=x[12:], y_test=x[12:, :3] * 2)
    target, flags = board, ()
    if board != "cortex-m0plus":
        text = (ROOT / "targets" / "boards" / "rpi-pico.toml").read_text(encoding="utf-8")
        (tmp_path / "mine.toml").write_text(text.replace('"rpi-pico"', '"mine"'), encoding="utf-8")
        target, flags = str(tmp_path / "mine.toml"), ("--target", "mine.toml")
    options = {"loss": "mse", "lr": 0.05, "verify": "none", "epochs": 1, "target": target}
    tt.compile(model, **options).save(tmp_path / "out")
    done = python(OWN / "run.py", model, "--data", "own.npz", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^equal      yes: ", done.stdout, re.MULTILINE)


def test_the_program_of_an_int8_model_learns(tmp_path: Path) -> None:
    options = {"quant": "int8", "calib": DIGITS / "calib.npz", "batch": 4, "clip_norm": 1.0, "lr": 0.1, "epochs": 1}
    tt.compile(DIGITS / "digits.onnx", update="head", verify="none", **options).save(tmp_path / "out")
    own = ("--data", DIGITS / "data.npz", "--calib", DIGITS / "calib.npz", "--host")
    done = python(OWN / "run.py", DIGITS / "digits.onnx", *own, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"accuracy ([0-9.]+) %.* -> accuracy ([0-9.]+) %", done.stdout)
    assert found is not None and float(found[2]) > float(found[1]) + 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"update": "last:2", "input_lines": True, "runtime": "replay=3"},
            r"replay     none: main.c has no loop for it(?s:.*)memory     arena [\d,]+ B \+ replay 780 B, all of",
        ),
        ({"update": "all", "arena": "20KB", "memory": ["sram2=64KB"]}, r"arena [\d,]+ B \+ sram2 [\d,]+ B, all of"),
    ],
    ids=["rows", "two memories"],
)
def test_the_program_takes_rows_and_two_memories(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    """To the end: it infers, saves, and nothing is outside of a memory; the checkpoint is that of a twin's calls."""
    compiled = tt.compile(DIGITS / "digits.onnx", verify="none", epochs=1, lr=0.02, **options)
    compiled.save(tmp_path / "out")
    with np.load(DIGITS / "data.npz") as data:
        some = {name: data[name][:40] for name in ("x", "y", "x_test", "y_test")}
    np.savez(tmp_path / "own.npz", **some, x_old=some["x"], y_old=some["y"])
    done = python(OWN / "run.py", DIGITS / "digits.onnx", "--data", "own.npz", "--host", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(said, done.stdout), done.stdout
    with compiled.twin() as twin:
        for index in np.random.default_rng(0).permutation(40).tolist():
            twin.train_step(some["x"][index : index + 1], some["y"][index : index + 1])
        assert twin.instance.save() == (tmp_path / "own" / "trained.bin").read_bytes()


def test_the_program_of_an_autoencoder_is_judged_by_what_it_should_repeat(tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((30, 5)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x[:10], x_test=x[10:], y_test=np.repeat([0, 1], 10))
    arrays = own_run.own_arrays(tmp_path / "own.npz", 0)
    assert np.array_equal(arrays["y"], x[:10])
    assert np.array_equal(arrays["x_test"], x[10:20]) and np.array_equal(arrays["y_test"], x[10:20])


def test_what_is_missing_is_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((12, 5), np.float32), y=np.zeros((12, 3), np.float32))
    values_model(tmp_path / "values.onnx")
    done = python(OWN / "run.py", "values.onnx", "--data", "own.npz", cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "with --project" in done.stderr


@pytest.mark.qemu
@needs_qemu
def test_old_samples_are_replayed_as_a_reservoir_on_the_desk_does(tmp_path: Path) -> None:
    """One after each new one, in batches; those of finetune, and no others."""
    model, rng = tmp_path / "values.onnx", np.random.default_rng(3)
    values_model(model)
    x = rng.standard_normal((23, 5)).astype(np.float32)
    y = np.concatenate([x[:11, :3], -x[11:, :3]])  # 11 new samples and 12 old ones
    own = {"x": x[:11], "y": y[:11], "x_test": x[:2], "y_test": y[:2], "x_old": x[11:], "y_old": y[11:]}
    np.savez(tmp_path / "own.npz", **own)
    options = {"loss": "mse", "lr": 0.05, "batch": 3, "verify": "none", "epochs": 2, "runtime": "replay=4"}
    compiled = tt.compile(model, **options)
    compiled.save(tmp_path / "out")
    done = python(OWN / "run.py", model, "--data", "own.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replay     4 old samples, one after each new one; 128 B beside the arena" in done.stdout
    assert re.search(r"^memory     arena [\d,]+ B \+ replay 128 B, all of", done.stdout, re.MULTILINE)
    old = old_parts(12, 4)[0]
    past, order = Reservoir[int](4, 1), np.random.default_rng(0).permutation(11).tolist()
    for index in old.tolist():
        past.add(11 + index)
    drawn = list[int]()
    with compiled.twin() as twin:
        for _ in range(2):  # 22 samples are 7 batches
            fresh = iter(order)
            for _ in range(7):
                some = [past.draw() if past.due() else next(fresh) for _ in range(3)]
                twin.train_step(x[some], y[some])
                drawn += some
        assert twin.instance.save() == (tmp_path / "own" / "trained.bin").read_bytes()
    assert {index - 11 for index in drawn if index >= 11} == set(old.tolist())
    assert sum(index >= 11 for index in drawn) == 21


@pytest.mark.qemu
@needs_qemu
def test_own_samples_are_kept_as_a_reservoir_on_the_desk_keeps_them(tmp_path: Path) -> None:
    """Two after each new one, where the file has no old ones."""
    model, x = tmp_path / "values.onnx", np.random.default_rng(4).standard_normal((10, 5)).astype(np.float32)
    values_model(model)
    np.savez(tmp_path / "own.npz", x=x, y=x[:, :3], x_test=x[:2], y_test=x[:2, :3])
    compiled = tt.compile(model, loss="mse", lr=0.05, verify="none", epochs=3, runtime="replay=4")
    compiled.save(tmp_path / "out")
    done = python(OWN / "run.py", model, "--data", "own.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replay     4 own samples, two after each new one; 128 B beside the arena" in done.stdout
    kept, order = Reservoir[int](4, 1), np.random.default_rng(0).permutation(10).tolist()
    kept.mix(1, 2)
    with compiled.twin() as twin:
        for _ in range(3):
            fresh = iter(order)
            for _ in range(28):  # 10 new ones, and 18 kept ones in the first pass
                if kept.due():
                    index = kept.draw()
                else:
                    index = next(fresh)
                    kept.add(index)
                twin.train_step(x[index : index + 1], x[index : index + 1, :3])
        assert twin.instance.save() == (tmp_path / "own" / "trained.bin").read_bytes()
