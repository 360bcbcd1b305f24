"""Images that come row by row: the same bytes as with the image in the arena, on the host and on boards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import run, tree
from tests.e2e.marks import needs_qemu
from tests.e2e.test_watched_plans import bundle_of, outcome
from tests.quantize import lines, nets
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.verify.run import RunResult

LAYERS = 5


def run_of(train: TrainGraph, made: chain.Project, folder: Path, mode: str) -> RunResult:
    bundle = bundle_of(train, made.plan, made.kernels, mode == "debug")
    result = outcome(train, bundle, folder, mode)
    assert result.status == "ok"
    return result


@pytest.mark.parametrize("seed", lines.SEEDS)
def test_the_same_bytes_by_rows(seed: int, tmp_path: Path) -> None:
    """Watched: each row that comes is a call around which dead bytes are poisoned, under AddressSanitizer."""
    core = ("cortex-m7", "cortex-m55", "cortex-m0plus")[seed % 3]
    train = lines.train_of(seed, 1 + seed % 2)
    graph = lines.lined(train) if seed < 4 else lines.longest(train, LAYERS)
    whole = run_of(train, lines.project(train, train.graph, core), tmp_path / "whole", "host")
    assert chain.same(run_of(train, lines.project(train, graph, core), tmp_path / "rows", "debug"), whole)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_bytes_in_float32(seed: int, tmp_path: Path) -> None:
    train = lines.float_train(seed)
    whole = run_of(train, lines.project(train, train.graph), tmp_path / "whole", "host")
    made = lines.project(train, lines.longest(train, LAYERS))
    assert made.bundle.interface.input_dtype == "float32"
    assert chain.same(run_of(train, made, tmp_path / "rows", "debug"), whole)


@pytest.mark.parametrize("seed", lines.SEEDS[:3])
def test_bytes_of_a_camera(seed: int, tmp_path: Path) -> None:
    """They are 128 more than the int8 of the same pixels, pushed or asked for."""
    train = lines.train_of(seed)
    made = lines.project(train, lines.longest(train, LAYERS, as_bytes=True))
    whole = lines.project(train, train.graph)
    header, other = (project.bundle.files["net_train.h"] for project in (made, whole))
    zeros = [int(text.split("_INPUT_ZERO (")[1].split(")")[0]) for text in (header, other)]
    assert zeros[0] == zeros[1] + 128 and "uint8_t values[NET_ROW_ELEMENTS]" in header
    assert chain.same(run_of(train, made, tmp_path / "rows", "debug"), run_of(train, whole, tmp_path / "whole", "host"))


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("core", ["cortex-m0plus", "cortex-m7", "cortex-m55"])
def test_the_same_bytes_on_a_board(core: str) -> None:
    """Reference, host and board agree over ten steps; the reference knows nothing of rows."""
    train = lines.train_of(5)
    assert chain.check(lines.project(train, lines.longest(train, LAYERS), core), core, steps=10).result == "pass"


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A float network, samples with and without labels; the command runs there."""
    model = nets.cnn()
    write(model, tmp_path)
    x = nets.calibration(model)
    np.savez(tmp_path / "xy.npz", x=x, y=np.arange(len(x)) % 5)
    np.savez(tmp_path / "x.npz", x=x)
    write(models.mlp(), tmp_path, "flat.onnx")
    np.savez(tmp_path / "flat.npz", x=np.random.default_rng(0).standard_normal((8, 12)), y=np.arange(8) % 4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


INT8 = ("--quant", "int8", "--calib", "xy.npz", "--input-lines")


def test_auto_leaves_the_first_layer_alone(folder: Path) -> None:
    text = run("net.onnx", *INT8, "--verify-steps", "2").check_success().out
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["verify"]["result"] == "pass"
    assert [layer["layer"] for layer in report["update"]] == ["deep/Conv", "point/Conv", "last/Conv", "fc/Gemm"]
    assert report["plan"]["streams"]["input_lines"] is True
    header = (folder / "out" / "net_train.h").read_text()
    assert "net_push_rows" in header and "NET_INPUT_ROWS 8u" in header
    assert "worst case without callbacks" in " ".join(text.split())


@pytest.mark.parametrize("flags", ["--optimise memory", "--optimise time", "--memory sram2=8KB"])
def test_beside_other_options(flags: str, folder: Path) -> None:
    """The reference knows nothing of rows; a lock of the plan gives the same code again."""
    run("net.onnx", *INT8, "--verify", "none").check_success()
    arena = json.loads((folder / "out" / "report.json").read_text())["memory"]["arena_bytes"]
    tight = ("--arena", str(arena - 64)) if "--memory" in flags else ()
    run("net.onnx", *INT8, *flags.split(), *tight, "--verify", "host", "-o", "made").check_success()
    report = json.loads((folder / "made" / "report.json").read_text())
    assert report["verify"]["result"] == "pass" and report["plan"]["streams"]["input_lines"] is True
    assert not tight or report["memory"]["arena_bytes"] <= arena - 64
    kept = (*flags.split(), *tight) if tight else ()
    run("net.onnx", *INT8, *kept, "--lock", "made/plan.json", "--verify", "none", "-o", "again").check_success()
    old, new = tree(folder / "made"), tree(folder / "again")
    assert [path for path in old if path.endswith((".c", ".h")) and old[path] != new[path]] == []


def test_samples_of_a_step_one_after_the_other(folder: Path) -> None:
    """--micro-batch 1 is what rows have anyway."""
    run("net.onnx", *INT8, "--batch", "2", "--micro-batch", "1", "--verify", "host", "-o", "made").check_success()
    report = json.loads((folder / "made" / "report.json").read_text())
    assert report["verify"]["result"] == "pass" and report["plan"]["streams"]["input_lines"] is True


def test_a_lock_of_a_whole_image_is_refused(folder: Path) -> None:
    """And one of rows where the image is to come as a whole."""
    whole = (*INT8[:4], "--update", "last:4", "--verify", "none")
    for made, locked in ((whole, (*whole, "--input-lines")), ((*whole, "--input-lines"), whole)):
        run("net.onnx", *made, "-o", "first").check_success()
        run("net.onnx", *locked, "--lock", "first/plan.json", "-o", "no").check_error("E0106", 2)
        assert not (folder / "no").exists()
        shutil.rmtree(folder / "first")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--update all", "trains a layer that reads the image"),
        ("--calib x.npz", "compute errors twice"),
        ("--stream off", "is not possible with --stream off"),
        ("--input-layout chw", "add --input-layout hwc, or leave --input-lines out"),
        ("--batch 4 --micro-batch 2", "is not possible with --micro-batch"),
        ("--batch 4 --micro-batch auto", "is not possible with --micro-batch"),
        ("--cycles", "is not possible with --cycles"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_needs_the_whole_image_is_refused(flags: str, says: str) -> None:
    assert says in run("net.onnx", *INT8, *flags.split(), "--dry-run").check_error("E0113", 2).err


def test_an_image_that_no_stream_takes_is_refused_before_it_is_computed_twice(tmp_path: Path) -> None:
    """Its mean is subtracted first, and every layer is trained, so that second runs want the image again."""
    net = models.Network("centred", "float[1, 2, 8, 8] x", "float[1, 3] y", seed=3)
    net.node("mean", "m = ReduceMean <axes = [2, 3]> (x)")
    x = net.relu(net.conv("first", net.node("centre", "c = Sub (x, m)"), (4, 2, 3, 3), "pads = [1, 1, 1, 1]"))
    x = net.relu(net.conv("second", x, (4, 4, 3, 3), "pads = [1, 1, 1, 1]"))
    net.node("pool", f"p = GlobalAveragePool ({x})")
    net.node("flat", "f = Flatten (p)")
    net.node("logits", f"y = Identity ({net.dense('fc', 'f', 4, 3)})")
    path, flags = write(net.model(), tmp_path), ("--input-lines", "--update", "all", "--remat", "min", "--dry-run")
    assert "cannot be computed row by row" in run(path, *flags).check_error("E0113", 2).err


@pytest.mark.usefixtures("folder")
def test_an_input_that_is_no_image_is_refused() -> None:
    flags = ("--input-lines", "--dry-run")
    int8 = ("--quant", "int8", "--calib", "flat.npz", *flags)
    assert "cannot be computed row by row" in run("flat.onnx", *int8).check_error("E0113", 2).err
    assert "cannot be computed row by row" in run("flat.onnx", *flags).check_error("E0113", 2).err
    camera = run("net.onnx", *flags, "--input-type", "uint8").check_error("E0113", 2).err
    assert "--input-type: has no meaning for --quant fp32" in camera
    assert (
        "--input-type: is about --input-lines" in run("net.onnx", *INT8[:4], "--input-type", "uint8", "--dry-run").err
    )
