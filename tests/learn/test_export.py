"""`export`: what a device has learned, written back into the model file. onnxruntime is the judge."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.networks import models
from testing.places import ROOT
from tests.e2e.command import run
from tests.learn.exporting import changed, outputs

DIGITS = ROOT / "examples" / "digits"


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in out, and what a device of it has learned: device.bin; its outputs: y.npy."""
    folder = tmp_path_factory.mktemp("device")
    compiled = tt.compile(DIGITS / "digits.onnx", verify="none", update="last:2", optimizer="momentum")
    compiled.save(folder / "out")
    with compiled.twin() as twin, np.load(DIGITS / "data.npz") as data:
        for x, y in zip(data["x"][:50], data["y"][:50], strict=True):
            twin.train_step(x[None], y[None], lr=0.01)
        twin.save(folder / "device.bin")
        np.save(folder / "y.npy", twin.predict(data["x_test"][:20]))
    return folder


def arguments(device: Path, place: Path, **more: Path) -> list[str]:
    given = {"checkpoint": device / "device.bin", "project": device / "out", "out": place, **more}
    return ["export", str(DIGITS / "digits.onnx"), *(text for k, v in given.items() for text in (f"--{k}", str(v)))]


def test_a_device_goes_back_into_its_file(device: Path, tmp_path: Path) -> None:
    out = tmp_path / "trained.onnx"
    said = run(*arguments(device, out)).check_success().out
    assert "numbers of 4 tensors" in said and f"wrote      {out}" in said
    names = {"conv3_w", "conv3_b", "classifier_w", "classifier_b"}
    assert changed(DIGITS / "digits.onnx", out.read_bytes()) == names
    x, wanted = np.load(DIGITS / "data.npz")["x_test"][:20], np.load(device / "y.npy")
    np.testing.assert_allclose(outputs(out.read_bytes(), x), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    again = run(*arguments(device, out))
    assert again.exit_code == 2 and again.error_id == "E0104"
    with tt.compile(out, verify="none", update="last:2").twin() as twin:
        assert twin.predict(x).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: data[:4] + bytes(8) + data[12:],
    ],
    ids=["short", "a bit", "another model"],
)
def test_a_checkpoint_that_is_none_of_it(damage: Callable[[bytes], bytes], device: Path, tmp_path: Path) -> None:
    (tmp_path / "other.bin").write_bytes(damage((device / "device.bin").read_bytes()))
    done = run(*arguments(device, tmp_path / "trained.onnx", checkpoint=tmp_path / "other.bin"))
    done.check_error("E0105", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["other.bin"]


def test_what_is_missing_is_said(device: Path, tmp_path: Path) -> None:
    for more in ({"project": tmp_path}, {"checkpoint": tmp_path / "none.bin"}, {"out": tmp_path / "no" / "file.onnx"}):
        done = run(*arguments(device, tmp_path / "trained.onnx", **more))
        done.check_error(done.error_id, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_project_that_is_not_there_is_named_by_its_option(device: Path, tmp_path: Path) -> None:
    """In this command -o is the ONNX file."""
    way = "give the output folder of that build with --project"
    for project, said in ((tmp_path / "no", "there is no folder"), (device / "device.bin", "device.bin is a file")):
        found = run(*arguments(device, tmp_path / "trained.onnx", project=project)).check_error("E0105", 2)
        assert said in found.err and way in found.err


def test_a_checkpoint_that_is_no_such_file_says_what_to_do_with_it(device: Path, tmp_path: Path) -> None:
    """The way out is about the file; it is about the project only if the checkpoint is of another."""
    erased = tmp_path / "erased.bin"
    erased.write_bytes(bytes(64))
    found = run(*arguments(device, tmp_path / "trained.onnx", checkpoint=erased)).check_error("E0105", 2)
    assert "every byte is 0x00; read it where m_save wrote" in found.err
    whole = (device / "device.bin").read_bytes()
    erased.write_bytes(whole[:4] + bytes(8) + whole[12:])
    found = run(*arguments(device, tmp_path / "trained.onnx", checkpoint=erased)).check_error("E0105", 2)
    assert "; give with --project the folder of the build that saved it, and the model file of that build" in found.err


@pytest.mark.parametrize(
    "report",
    [
        "{",
        "[]",
        '{"options": {}}',
        '{"options": {"dry_run": true}, "scheme": ""}',
        '{"options": {"lr": "fast"}, "scheme": ""}',
        '{"options": {}, "scheme": "layer = 1"}',
    ],
)
def test_a_damaged_report(report: str, device: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report)
    done = run(*arguments(device, tmp_path / "trained.onnx", project=tmp_path))
    done.check_error(done.error_id, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_calibrated_build(tmp_path: Path) -> None:
    """The file with the ranges is named again; real numbers come back, of a float file."""
    calib = {"calib": DIGITS / "calib.npz"}
    compiled = tt.compile(DIGITS / "digits.onnx", verify="none", quant="int8", update="last:2", **calib)
    compiled.save(tmp_path / "out")
    with compiled.twin() as twin, np.load(DIGITS / "data.npz") as data:
        for x, y in zip(data["x"][:50], data["y"][:50], strict=True):
            twin.train_step(x[None], y[None], lr=0.01)
        twin.save(tmp_path / "device.bin")
        x, wanted = data["x_test"], twin.predict(data["x_test"])
    out = tmp_path / "trained.onnx"
    run(*arguments(tmp_path, out)).check_error("E0101", 2)
    assert "float32" in run(*arguments(tmp_path, out, **calib)).check_success().out
    assert (outputs(out.read_bytes(), x).argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.97


def shown(device: Path, out: Path, data: Path, **more: Path) -> dict[str, tuple[float, float]]:
    """Run `export --data`: (of the device, of the file) by name, and the largest difference of both."""
    said = " ".join(run(*arguments(device, out, data=data, **more)).check_success().out.split())
    what, _, rest = said.partition("of data.npz: ")
    numbers = re.findall(r"(accuracy|loss) (\S+?)%? on the device, (\S+?)%? by the file;", rest)
    found = {name: (float(ours), float(theirs)) for name, ours, theirs in numbers}
    difference = re.search(r"outputs differ by up to (\S+) wrote", rest)
    assert difference is not None and f"wrote {out} ({out.stat().st_size:,} B)" in said
    return {**found, what.split(" differ by up to ")[1].partition(" ")[2].strip(): (float(difference[1]), 0.0)}


def test_own_samples_judge_the_file(device: Path, tmp_path: Path) -> None:
    """The first 100 test samples of the file, by the device and by onnx.reference; onnxruntime says the same."""
    out = tmp_path / "trained.onnx"
    found = shown(device, out, DIGITS / "data.npz")
    assert found["first 100 of 497 test samples"][0] < 1e-4
    with np.load(DIGITS / "data.npz") as data:
        right = (outputs(out.read_bytes(), data["x_test"][:100]).argmax(axis=1) == data["y_test"][:100]).mean()
        np.savez(tmp_path / "data.npz", x=data["x"][:9], y=data["y"][:9])
    assert found["accuracy"] == (round(100 * right, 1),) * 2 and found["loss"][0] == found["loss"][1]
    assert "9 samples" in shown(device, tmp_path / "b.onnx", tmp_path / "data.npz")


def test_activations_that_stop_at_their_range_are_not_in_a_float_file(tmp_path: Path) -> None:
    """A network that has learned with saturated activations: 99 % right on the device, 62 % in the file, and `export`
    had not said so. Here the ranges are those of inputs of a twentieth."""
    with np.load(DIGITS / "data.npz") as data:
        x, y, x_test, y_test = data["x"], data["y"], data["x_test"][:100], data["y_test"][:100]
    np.savez(tmp_path / "data.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    np.savez(tmp_path / "calib.npz", x=x[:50] * np.float32(0.05))
    options: dict[str, Any] = {"quant": "int8", "update": "last:2", "calib": tmp_path / "calib.npz"}
    compiled = tt.compile(DIGITS / "digits.onnx", verify="none", **options)
    compiled.save(tmp_path / "out")
    with compiled.twin() as twin:
        for one, label in zip(x[:200], y[:200], strict=True):
            twin.train_step(one[None], label[None], lr=0.01)
        twin.save(tmp_path / "device.bin")
        on_device = twin.evaluate(x_test, y_test)["accuracy"]
    found = shown(tmp_path, tmp_path / "trained.onnx", tmp_path / "data.npz", calib=tmp_path / "calib.npz")
    right = (outputs((tmp_path / "trained.onnx").read_bytes(), x_test).argmax(axis=1) == y_test).mean()
    assert found["accuracy"] == (round(100 * on_device, 1), round(100 * right, 1))
    assert abs(found["accuracy"][0] - found["accuracy"][1]) > 10


@pytest.mark.parametrize("accumulate", ["exact", "inplace"])
def test_a_clipped_build_with_a_batch(accumulate: str, tmp_path: Path) -> None:
    """What --batch and --accumulate are decides whether squares are part of a checkpoint."""
    options: dict[str, Any] = {"batch": 4, "accumulate": accumulate, "clip_norm": 1.0, "update": "head"}
    compiled = tt.compile(DIGITS / "digits.onnx", verify="none", **options)
    compiled.save(tmp_path / "out")
    with compiled.twin() as twin:
        twin.save(tmp_path / "device.bin")
    run(*arguments(tmp_path, tmp_path / "trained.onnx")).check_success()


def test_subspaces_that_decide_what_the_state_is(tmp_path: Path) -> None:
    """A head in float32 that keeps its input in a subspace gets an error of int8, whose exponent is state."""
    net = models.Network("net", "float[1,8] x", "float[1,2] y", seed=2)
    first = net.dense("first", "x", 8, 4)
    joined = net.node("join", f"joined = Mul ({first}, {first})")
    net.node("tail", f"y = Identity ({net.dense('last', joined, 4, 2)})")
    path, random = tmp_path / "net.onnx", np.random.default_rng(0)
    path.write_bytes(net.model().SerializeToString())
    x, y = (random.standard_normal((8, size)).astype(np.float32) for size in (8, 2))
    np.savez(tmp_path / "data.npz", x=x, y=y)
    given = {"calib": tmp_path / "data.npz", "data": tmp_path / "data.npz"}
    options: dict[str, Any] = {"quant": "int8", "head": "fp32", "loss": "mse", "update": "all", "batch": 4}
    compiled = tt.compile(path, verify="none", **options, **given, activations="subspace", rank_error=0.9)
    compiled.save(tmp_path / "out")
    with compiled.twin() as twin:
        twin.save(tmp_path / "device.bin")
    flags = {"checkpoint": tmp_path / "device.bin", "project": tmp_path / "out", "out": tmp_path / "trained.onnx"}
    words = ["export", path, *(word for name, file in flags.items() for word in (f"--{name}", file))]
    refused = run(*words, "--calib", given["calib"]).check_error("E0105", 2)
    assert "--data" in refused.err and not (tmp_path / "trained.onnx").exists()
    run(*words, "--calib", given["calib"], "--data", given["data"]).check_success()
