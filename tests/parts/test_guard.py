"""--guard: the C accepts and restores as the twin does, whatever training did to the model."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import needs_gcc
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array
from tinytrain_compile.parts.guard.twin import Guard
from tinytrain_compile.twin import Instance

pytestmark = needs_gcc
GOLDEN, OPEN, ACCEPTED, REFUSED = 20, 0, 1, 2
_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Place(ctypes.Structure):
    """`m_guard_place_t`."""

    _fields_ = (("save", _Call), ("load", _Call), ("ctx", ctypes.c_void_p))


class Check(ctypes.Structure):
    """`m_guard_t`."""

    _fields_ = (("done", ctypes.c_uint32), ("found", ctypes.c_uint32))


class InC:
    """The guard of a library, whose place is a list of checkpoints."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.kept, self.out = instance, list[bytes](), (ctypes.c_float * 64)()
        self.place = Place(_Call(self._save), _Call(self._load), None)

    def _save(self, _ctx: Any, _m: Any) -> int:
        self.kept.append(self.instance.save())
        return 0

    def _load(self, _ctx: Any, _m: Any) -> int:
        self.instance.load(self.kept[-1])
        return 0

    def check(self) -> bool:
        verdict = ctypes.c_int()
        call = self.instance.function("guard_check")
        status = call(self.instance.handle, self.out, ctypes.byref(self.place), ctypes.byref(verdict))
        assert status == 0
        assert verdict.value in (ACCEPTED, REFUSED)
        return verdict.value == ACCEPTED

    def slices(self, size: int) -> list[int]:
        """Verdicts of slices until one is not open; nothing is saved or restored."""
        check, verdict, found = Check(), ctypes.c_int(), list[int]()
        call = self.instance.function("guard_slice")
        while not found or found[-1] == OPEN:
            given = (self.instance.handle, self.out, ctypes.c_uint32(size), ctypes.byref(verdict))
            assert call(ctypes.byref(check), *given) == 0
            found.append(verdict.value)
        assert (check.done, check.found) == (0, 0), "the next check begins anew"
        return found


def golden_file(folder: Path, labels: Callable[[np.random.Generator], Array]) -> tuple[Path, Path]:
    """(an .npz of golden samples of the network below, one to calibrate and to train on)."""
    rng = np.random.default_rng(3)
    paths = folder / "golden.npz", folder / "own.npz"
    for path in paths:
        np.savez(path, x=rng.normal(size=(GOLDEN, 12)).astype(np.float32), y=labels(rng))
    return paths


def as_answered(golden: Path, model: Path, options: dict[str, Any]) -> None:
    """Label golden samples as the model of the file does, but for the first three."""
    with tt.compile(model, update="all", verify="none", **options).twin() as twin:
        answers = twin.predict(np.load(golden)["x"]).argmax(axis=1)
    answers[:3] = (answers[:3] + 1) % 4
    np.savez(golden, x=np.load(golden)["x"], y=answers)


def decide(made: Any, own: Path, rates: tuple[float, ...]) -> list[bool]:
    """Train at these rates in turn, 30 steps each; assert that C and twin decide alike; return the decisions."""
    x, y = np.load(own)["x"], np.load(own)["y"]
    decisions = list[bool]()
    with made.twin() as trained, made.twin() as other:
        part = next(part for part in made.project.summary.parts if part.name == "guard")
        guard, in_c = Guard(part.golden), InC(trained.instance)
        for rate in (0.0, *rates):
            for step in range(30 if rate else 0):
                at = slice(step % len(x), step % len(x) + 1)
                for twin in (trained, other):
                    with contextlib.suppress(CompileError):  # NaN: the step changed nothing
                        twin.train_step(x[at], y[at], lr=rate)
            before = trained.instance.save()
            sliced = in_c.slices(7)
            assert sliced[:-1] == [OPEN] * 2
            assert trained.instance.save() == before, "a check changes no state"
            decisions.append(in_c.check())
            assert (sliced[-1] == ACCEPTED) == decisions[-1] == guard.check(other.instance)
            assert trained.instance.save() == other.instance.save() == in_c.kept[-1] == guard.kept
    return decisions


@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_classes(quant: str, tmp_path: Path) -> None:
    """The labels are the file's own answers but for three, so that a rate of 3 loses some and a rate of 0 none."""
    golden, own = golden_file(tmp_path, lambda rng: rng.integers(0, 4, GOLDEN))
    model = write(models.mlp(), tmp_path, "m.onnx")
    int8 = {"quant": "int8", "calib": own} if quant == "int8" else {}
    as_answered(golden, model, int8)
    made = tt.compile(model, update="all", verify="none", guard=golden, guard_drop=0.1, **int8)
    assert (made.report["runtime"]["guard"]["right"], made.report["runtime"]["guard"]["least"]) == (17, 15)
    decisions = decide(made, own, (0.001, 3.0, 1e30, 0.002))
    assert decisions[:3] == [True, True, False]
    assert not decisions[3]


@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_features_judge_as_samples_do(quant: str, tmp_path: Path) -> None:
    """Features in flash are those of m_features, verdicts those of a guard on samples; one wrong weight is refused."""
    golden, own = golden_file(tmp_path, lambda rng: rng.integers(0, 4, GOLDEN))
    model = write(models.mlp(), tmp_path, "m.onnx")
    int8 = {"quant": "int8", "calib": own} if quant == "int8" else {}
    as_answered(golden, model, int8)
    options: dict[str, Any] = {"update": "last:1", "verify": "none", "guard": golden, "guard_drop": 0.1, **int8}
    plain, made = (tt.compile(model, features=features, **options) for features in ("off", "on"))
    x = np.load(golden)["x"]
    with made.twin() as twin:
        features = twin.features(x)
        in_flash = made.project.bundle.files["m_guard.c"].partition("golden_x[SAMPLES][INPUTS] = ")[2].partition("};")
        assert [int(byte) for byte in re.findall(r"\d+", in_flash[0])] == features.ravel().tolist()
        assert made.report["runtime"]["guard"]["flash_bytes"] == features.size + GOLDEN * 4
        assert twin.predict_features(features).tobytes() == twin.predict(x).tobytes()
        guard, accepted = InC(twin.instance), twin.instance.save()
        assert guard.check()
        weights = twin.state_dict()
        (bias,) = (weight for weight in weights.values() if weight.ndim == 1)
        bias[0] = 100
        twin.load_state_dict(weights)
        assert twin.instance.save() != accepted
        assert not guard.check()
        assert twin.instance.save() == accepted
    rates = (0.001, 3.0, 1e30, 0.002)
    assert decide(made, own, rates) == decide(plain, own, rates)


def test_values(tmp_path: Path) -> None:
    golden, own = golden_file(tmp_path, lambda rng: rng.normal(size=(GOLDEN, 4)).astype(np.float32))
    model = write(models.mlp(), tmp_path, "m.onnx")
    exact = tt.compile(model, update="all", loss="mse", verify="none", guard=golden, guard_drop=0.0)
    assert decide(exact, own, ()) == [True], "the rounding of the C is no loss"
    made = tt.compile(model, update="all", loss="mse", verify="none", guard=golden)
    found = made.report["runtime"]["guard"]
    assert 1.01 < found["most"] / found["error"] < 1.0101
    decisions = decide(made, own, (1e-5, 5.0, 1e30))
    assert decisions == [True, True, False, False]


@needs_qemu
def test_golden_samples_count_for_a_flash_budget(tmp_path: Path) -> None:
    """Kernels and prepared weights are chosen with them in flash."""
    golden, own = golden_file(tmp_path, lambda rng: rng.integers(0, 4, GOLDEN))
    options = {"update": "last:1", "verify": "none", "quant": "int8", "calib": own, "features": "on"}
    made = tt.compile(write(models.mlp(), tmp_path, "m.onnx"), guard=golden, flash_budget="1MB", **options)
    assert made.report["runtime"]["guard"]["features"]


def test_refused(tmp_path: Path) -> None:
    golden, _ = golden_file(tmp_path, lambda rng: rng.integers(0, 4, GOLDEN))
    model = write(models.mlp(), tmp_path, "m.onnx")
    with pytest.raises(CompileError, match=r"E0113.*--guard.*--inference-only"):
        tt.compile(model, update="all", verify="none", guard=golden, inference_only=True)
    with pytest.raises(CompileError, match=r"E0101.*'1.5' is no share"):
        tt.compile(model, update="all", verify="none", guard=golden, guard_drop=1.5)
    ignoring = write(models.with_loss(models.mlp(), [1, 2, 3, 4], "mean", ignore=-1), tmp_path, "ignoring.onnx")
    np.savez(golden, x=np.zeros((2, 12), np.float32), y=np.array([1, -1]))
    with pytest.raises(CompileError, match=r"E0105.*golden.npz: golden sample 1 has label -1, which does not count"):
        tt.compile(ignoring, update="all", verify="none", guard=golden)
    np.savez(golden, x=np.zeros((0, 12), np.float32), y=np.zeros(0, np.int64))
    with pytest.raises(CompileError, match=r"E0\d+.*golden.npz"):
        tt.compile(model, update="all", verify="none", guard=golden)
    np.savez(golden, x=np.zeros((2, 11), np.float32), y=np.zeros(2, np.int64))
    with pytest.raises(CompileError, match=r"E0\d+.*golden.npz"):
        tt.compile(model, update="all", verify="none", guard=golden)
