"""A project without training: it loads what a training build has saved, and infers the same bytes."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tinytrain_compile as tt
from testing.networks import models
from testing.networks.chains import random_chain
from testing.runs import run_steps
from tests.e2e import test_dropout
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import NUMERIC, STRICT, build, needs_gcc
from tests.quantize import nets
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.driver.candidates.inference_only import with_checkpoint
from tinytrain_compile.emit.checkpoint import checkpoint_of
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import write_files
from tinytrain_compile.verify.check import verify

pytestmark = needs_gcc
UPDATES = 4
SCHEME = '[[update]]\nlayer = "second/Gemm"\nbias = true\nweight = 3\naxis = "in"\n'


def perceptron() -> onnx.ModelProto:
    net = models.Network("small", "float[1, 4] x", "float[1, 3] y", seed=1)
    hidden = net.relu(net.dense("first", "x", 4, 5))
    net.node("out", f"y = Identity ({net.dense('second', hidden, 5, 3)})")
    return net.model()


@dataclass(frozen=True)
class Case:
    """A model and options of the build that trains. scheme: of --update, as a file."""

    model: Callable[[], onnx.ModelProto]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    scheme: str = ""
    calibrated: bool = False


CASES: dict[str, Case] = {
    "adam": Case(perceptron, {"update": "all", "optimizer": "adam"}),
    "channels of a weight": Case(perceptron, {"optimizer": "momentum"}, SCHEME),
    "batch": Case(perceptron, {"update": "all", "batch": 4, "micro_batch": 2, "code": "size"}),
    "dropout": Case(test_dropout.network, {"update": "all", "dropout": "on", "batch": 2}),
    "norms": Case(lambda: models.ds_cnn(4, 1, (8, 4)), {"update": "all", "batch_norm": "keep"}),
    "int8": Case(nets.quantised, {"update": "all", "optimizer": "momentum"}),
    "int8, fractions and scales": Case(nets.quantised, {"update": "all", "weight_store": "q8.8", "rescale": "on"}),
    "int8, rows": Case(lambda: random_chain(4), {"update": "last:3", "quant": "int8", "input_lines": True}, "", True),
}
RATES = {"int8, fractions and scales": 30.0}
"""Learning rates, where 0.1 shows nothing."""


@dataclass(frozen=True, eq=False)
class Made:
    training: tt.Compiled
    inference: tt.Compiled


@cache
def made(name: str, folder: Path) -> Made:
    case = CASES[name]
    options = dict(case.options)
    path = write(case.model(), folder, f"{len(name)}.onnx")
    if case.scheme:
        (folder / "scheme.toml").write_text(case.scheme)
        options["update"] = folder / "scheme.toml"
    if case.calibrated:
        x = nets.calibration(case.model())
        np.savez(folder / "calib.npz", x=x, y=np.arange(len(x)) % 3)
        options["calib"] = folder / "calib.npz"
    both = tt.compile(path, verify="none", **options), tt.compile(path, verify="host", inference_only=True, **options)
    return Made(*both)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inference_only")


def trained(compiled: tt.Compiled, rate: float = 0.1) -> tuple[bytes, Array, Array, Array]:
    """A checkpoint after some updates; inputs, and what the build infers of them before and after."""
    project = compiled.project
    batch = project.summary.train.batch
    samples = in_slots(project.bundle.interface, random_samples(project.summary.train, UPDATES * batch, 3))
    with compiled.twin() as twin:
        device = twin.instance
        first = device.infer(samples.x)
        device.set_rate(rate)
        for at in range(0, UPDATES * batch, batch):
            device.train(samples.x[at : at + batch], samples.y[at : at + batch])
        return device.save(), samples.x, first, device.infer(samples.x)


@pytest.mark.parametrize("name", CASES)
def test_what_was_trained_is_inferred(name: str, folder: Path) -> None:
    """Equal bytes before anything was loaded, after a checkpoint, and after one that is damaged anywhere."""
    pair = made(name, folder)
    checkpoint, x, first, last = trained(pair.training, RATES.get(name, 0.1))
    assert not np.array_equal(first, last)
    with pair.inference.twin() as twin:
        device = twin.instance
        assert device.infer(x).tobytes() == first.tobytes()
        device.load(checkpoint)
        assert device.infer(x).tobytes() == last.tobytes()
        for at in range(0, len(checkpoint), max(1, len(checkpoint) // 40)):
            damaged = bytearray(checkpoint)
            damaged[at] ^= 0x10
            with pytest.raises(CompileError):
                device.load(bytes(damaged))
        with pytest.raises(CompileError):
            device.load(checkpoint[:-1])
        assert device.infer(x).tobytes() == first.tobytes()
        for call in (lambda: device.set_rate(0.1), device.save, lambda: device.train(x[:1], x[:1])):
            with pytest.raises(CompileError, match="does not train"):
                call()


@pytest.mark.parametrize("name", CASES)
def test_what_is_smaller(name: str, folder: Path) -> None:
    """The arena, and what of a checkpoint is kept; hash and size of a checkpoint are those of the training build."""
    pair = made(name, folder)
    training, inference = (compiled.report for compiled in (pair.training, pair.inference))
    assert inference["verify"]["result"] == "pass" and inference["verify"]["mode"] == "host"
    assert inference["memory"]["arena_bytes"] < training["memory"]["arena_bytes"]
    found = inference["inference_only"]
    assert found["state_bytes"] == training["memory"]["persistent_bytes"] - extra(pair.training)
    assert found["kept_bytes"] == inference["memory"]["persistent_bytes"] < found["state_bytes"]
    assert inference["work"]["backward_macs"] == 0 and training["inference_only"] is None
    headers = [header_of(compiled) for compiled in (pair.training, pair.inference)]
    for macro in ("MODEL_HASH", "CHECKPOINT_BYTES", "OUTPUT_ELEMENTS"):
        one, other = (re.search(rf"_{macro} (.*)", header) for header in headers)
        assert one is not None and other is not None and one[1] == other[1]
    assert not re.search(r"_(train\w*|accumulate\w*|apply|save|set_lr|label_t)\b\(?", functions(headers[1]))


def header_of(compiled: tt.Compiled) -> str:
    return next(str(text) for name, text in compiled.files.items() if name.endswith("_train.h"))


def extra(compiled: tt.Compiled) -> int:
    """Persistent bytes that are no part of a checkpoint."""
    train = compiled.project.summary.train
    return compiled.project.summary.plan.persistent_bytes - sum(value.size_bytes for value in train.graph.state)


def functions(header: str) -> str:
    """A header without comments, directives and its guard."""
    return re.sub(r"/\*.*?\*/|^#.*$", "", header, flags=re.DOTALL | re.MULTILINE)


@needs_qemu
@pytest.mark.parametrize("name", ["adam", "int8"])
def test_on_the_board(name: str, folder: Path, tmp_path: Path) -> None:
    """What a training build has saved, loaded by the board's code: the same output to the byte."""
    pair = made(name, folder)
    checkpoint, x, first, last = trained(pair.training)
    project = pair.inference.project
    samples = replace(random_samples(project.summary.train.training_step, UPDATES, 3), checkpoint=checkpoint)
    assert in_slots(project.bundle.interface, samples).x[:1].tobytes() == x[:1].tobytes()
    ran = run_steps(project.bundle, load_target("cortex-m7"), samples, 0, None, 1, tmp_path, mode="qemu")
    assert ran.status == "ok" and ran.stack_measured_bytes
    assert ran.output_first.tobytes() == first[:1].tobytes()
    assert ran.output_last.tobytes() == last[:1].tobytes()


def test_numpy_writes_what_the_device_writes(folder: Path) -> None:
    """The checkpoint that verification makes of a state is that of m_save, to the byte."""
    compiled = made("int8", folder).training
    with compiled.twin() as twin:
        train = compiled.project.summary.train
        state = {value.name: twin.instance.tensor(value.name).reshape(value.shape) for value in train.graph.state}
        assert checkpoint_of(train, state) == twin.instance.save()
        assert zlib.crc32(checkpoint_of(train, state)) == 0x2144DF1C  # of data and its own CRC, little-endian


def test_verification_sees_a_wrong_state(folder: Path) -> None:
    """A loader that takes a tensor from the wrong place of the stream is found, though its CRC is right."""
    project = made("adam", folder).inference.project
    name = next(name for name in project.bundle.files if name.endswith("_train.c"))
    text = project.bundle.files[name]
    assert "20u, HOLDS_FINITE, 12u" in text and "80u, HOLDS_FINITE, 40u" in text
    wrong = text.replace("20u, HOLDS_FINITE, 12u", "20u, HOLDS_FINITE, 16u")
    wrong = wrong.replace("80u, HOLDS_FINITE, 40u", "80u, HOLDS_FINITE, 36u")
    bundle = replace(project.bundle, files={**project.bundle.files, name: wrong})
    train = project.summary.train
    options = CompileOptions(Path("net.onnx"))
    samples, loaded = with_checkpoint(train, random_samples(train.training_step, 4, 3), options)
    assert verify(project.bundle, load_target("cortex-m7"), samples, loaded, "host").result == "pass"
    with pytest.raises(CompileError, match="'first_bias', loaded, index"):
        verify(bundle, load_target("cortex-m7"), samples, loaded, "host")


@pytest.mark.parametrize("standard", ["c11", "gnu11", "c17"])
def test_compiles_strictly(standard: str, folder: Path, tmp_path: Path) -> None:
    bundle = made("int8, rows", folder).inference.project.bundle
    write_files(tmp_path, bundle.files)
    files = sorted(name for name in bundle.files if name.endswith(".c"))
    strict = [f"-std={standard}" if flag.startswith("-std") else flag for flag in STRICT]
    build(["gcc", *strict, *NUMERIC, "-O1", "-c", *files], tmp_path)
    header = next(name for name in bundle.files if name.endswith("_train.h"))
    (tmp_path / "user.cpp").write_text(f'#include "{header}"\n')
    if shutil.which("g++"):
        build(
            [
                "g++",
                "-std=c++17",
                "-Wall",
                "-Wextra",
                "-Wconversion",
                "-Wshadow",
                "-pedantic",
                "-Werror",
                "-c",
                "user.cpp",
            ],
            tmp_path,
        )


def test_command_and_package(folder: Path, tmp_path: Path) -> None:
    """The line of the report, a package, a board; exit 3 where the arena is too small."""
    path = write(perceptron(), tmp_path)
    flags = ("--update", "all", "--inference-only", "--verify", "none")
    done = run(str(path), *flags, "--package", "arduino", "--target", "nucleo-f746zg", "-o", str(tmp_path / "out"))
    assert done.exit_code == 0 and "no training: keeps 172 of the 176 B that a checkpoint holds" in " ".join(
        done.out.split()
    )
    assert json.loads((tmp_path / "out" / "report.json").read_text())["inference_only"]["kept_bytes"] == 172
    assert not re.search(r"_train_step|_save\(", "".join(p.read_text() for p in (tmp_path / "out" / "src").iterdir()))
    small = run(str(path), *flags, "--arena", "128", "--dry-run").check_error("E0401", 3)
    assert "inference needs 240 B" in small.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("", "needs the layers that the other build trains"),
        ("--update all --lock plan.json", "not possible with --lock"),
        ("--update all --features on", "not possible with --features"),
        ("--update all --slices on", "not possible with --slices"),
        (
            "--update all --runtime store",
            "--inference-only: is not possible with --runtime, which is for builds that train",
        ),
        ("--update all --max-step-time 1s", "not possible with --max-step-time"),
        ("--update all --count", "not possible with --count"),
        ("--update all --batch 2 --micro-batch 2 --activations asi --data own.npz", "several samples in a step"),
    ],
)
def test_options_of_training(flags: str, says: str, tmp_path: Path) -> None:
    path = write(perceptron(), tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).random((4, 4), np.float32), y=np.zeros(4, np.int64))
    words = [str(tmp_path / word) if "." in word else word for word in flags.split()]
    assert says in run(str(path), "--inference-only", *words, "--dry-run").check_error("E0113", 2).err
