"""A twin where there is no C compiler: the numpy reference, with a warning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.places import ROOT
from tests.emit.test_generated_c import needs_gcc
from tinytrain_compile import api
from tinytrain_compile.verify.tools import find_tools

DIGITS = ROOT / "examples" / "digits"


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "find_tools", lambda: replace(find_tools(), host_cc=None))


def some(count: int) -> tuple[Any, Any]:
    with np.load(DIGITS / "data.npz") as data:
        return data["x"][:count], data["y"][:count]


@needs_gcc
@pytest.mark.parametrize("labelled", [False, True], ids=["finds exponents", "knows exponents"])
def test_an_int8_network_gives_the_bytes_of_the_c(
    labelled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Steps in batches, outputs, checkpoints to and fro, also from before the first step."""
    x, y = some(24)
    np.savez(tmp_path / "calib.npz", x=x, **({"y": y} if labelled else {}))
    options: dict[str, Any] = {"update": "last:2", "batch": 4, "optimizer": "momentum", "verify": "none"}
    compiled = tt.compile(DIGITS / "digits.onnx", quant="int8", calib=tmp_path / "calib.npz", **options)
    with compiled.twin() as device:
        without_compiler(monkeypatch)
        with pytest.warns(UserWarning, match="no C compiler on this machine"):
            twin = compiled.twin()
        assert twin.instance.save() == device.instance.save()
        twin.instance.load(device.instance.save())
        device.instance.load(twin.instance.save())
        for first in range(0, 24, 4):
            chosen = slice(first, first + 4)
            assert twin.train_step(x[chosen], y[chosen], lr=0.01) == device.train_step(x[chosen], y[chosen], lr=0.01)
            assert twin.instance.save() == device.instance.save()
        assert np.array_equal(twin.predict(x), device.predict(x))
        trained = device.instance.save()
        twin.reset()
        assert twin.instance.save() != trained
        twin.instance.load(trained)
        weights = device.state_dict()
        twin.load_state_dict(weights)
        assert twin.instance.save() == trained
        device.train_step(x[:4], y[:4])
        twin.train_step(x[:4], y[:4])
        assert twin.instance.save() == device.instance.save() != trained
        assert twin.evaluate(x, y) == device.evaluate(x, y)


@needs_gcc
def test_every_plan_of_an_image_computes_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Plans differ in micro-batch and order alone, also where the numpy reference stands for them."""
    x, labels = some(8)
    y = np.eye(10, dtype=np.float32)[labels]
    np.savez(tmp_path / "calib.npz", x=x, y=y)  # with y: exponents of errors are known, several samples a call
    options: dict[str, Any] = {"update": "all", "batch": 4, "micro_batch": "auto", "loss": "mse", "verify": "none"}
    options |= {"quant": "int8", "calib": tmp_path / "calib.npz", "plans": "43KB,50KB"}
    compiled = tt.compile(DIGITS / "digits.onnx", **options)
    without_compiler(monkeypatch)
    kept = set[bytes]()
    for plan in (0, 1):
        with pytest.warns(UserWarning, match="no C compiler"):
            twin = compiled.twin(plan=plan)
        for first in (0, 4):
            twin.train_step(x[first : first + 4], y[first : first + 4])
        kept.add(twin.instance.save())
    assert len(kept) == 1


def test_without_a_compiler_it_trains_in_float32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x, y = some(40)
    without_compiler(monkeypatch)
    compiled = tt.compile(DIGITS / "digits.onnx", update="head", features="on", verify="none")
    with pytest.warns(UserWarning, match="numbers near them"):
        twin = compiled.twin()
    before = twin.evaluate(x, y)
    for i in range(40):
        twin.train_step(x[i : i + 1], y[i : i + 1], lr=0.02)
    assert twin.evaluate(x, y)["loss"] < 0.9 * before["loss"]
    twin.save(tmp_path / "device.bin")
    kept = (tmp_path / "device.bin").read_bytes()
    damaged = bytearray(kept)
    damaged[40] ^= 1
    for wrong in (bytes(damaged), kept[:-1], b""):
        with pytest.raises(tt.CompileError) as caught:
            twin.instance.load(wrong)
        assert caught.value.code == "E0105" and twin.evaluate(x, y) == before
    twin.load(tmp_path / "device.bin")
    assert twin.instance.save() == kept
    with pytest.raises(tt.CompileError) as caught:
        twin.features(x[:1])
    assert caught.value.code == "E0114"
    with pytest.raises(tt.CompileError, match="learning rate"):
        twin.train_step(x[:1], y[:1], lr=float("nan"))
    twin.instance.tensor(next(iter(twin.instance.state())))[:1] = np.nan
    with pytest.raises(tt.CompileError) as caught:
        twin.instance.save()
    assert caught.value.code == "E0603"
    twin.close()
    with pytest.raises(tt.CompileError, match="closed"):
        twin.predict(x)
