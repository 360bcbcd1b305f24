"""Whose checkpoints a build reads: those of every build of the same model, no other's, and none that nobody wrote."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.emit.device import ERR_FORMAT, ERR_NAN, HEAD_BYTES, OK, Device
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.trial import with_exponents_of
from tinytrain_compile.emit.checkpoint import contents, model_hash, stored
from tinytrain_compile.ir.stages import ChannelSlice, TrainGraph, UpdatePlan
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def small_mlp(seed: int = 1, classes: int = 3) -> object:
    net = models.Network("small", "float[1, 4] x", f"float[1, {classes}] y", seed=seed)
    hidden = net.relu(net.dense("first", "x", 4, 5))
    net.node("out", f"y = Identity ({net.dense('second', hidden, 5, classes)})")
    return net.model()


def float_train(seed: int = 1, classes: int = 3, update: str = "all", **options: object) -> TrainGraph:
    chosen: dict[str, object] = {"optimizer": "adam", **options}
    return chain.train_graph(small_mlp(seed, classes), update, **chosen)  # type: ignore[arg-type]


def int8_train(update: str = "all", head: str = "int8", store: str = "sr8", **options: object) -> TrainGraph:
    chosen: dict[str, object] = {"optimizer": "momentum", **options}
    return nets.int8_train(nets.cnn(4, 2), update, head, store=store, **chosen)  # type: ignore[arg-type]


def rescaled(**options: object) -> TrainGraph:
    return nets.int8_train(nets.cnn(4, 2), rescale=True, store="mixed", **options)  # type: ignore[arg-type]


def exponents_known(train: TrainGraph) -> TrainGraph:
    return with_exponents_of(train, random_samples(train, 4, 5))


# ---- builds of the same model ---------------------------------------------------------------------------------------

SAME: dict[str, tuple[Callable[[], TrainGraph], Callable[[], TrainGraph]]] = {
    "learning rate, decay": (float_train, lambda: float_train(learning_rate=0.3, weight_decay=0.1)),
    "batch": (float_train, lambda: float_train(batch=4)),
    "micro-batch": (float_train, lambda: float_train(batch=4, micro_batch=2)),
    "in place": (float_train, lambda: float_train(batch=4, accumulate="inplace")),
    "the same set, named otherwise": (float_train, lambda: float_train(update="last:2")),
    "momentum": (lambda: float_train(optimizer="momentum"), lambda: float_train(optimizer="momentum", momentum=0.5)),
    "int8, learning rate, momentum": (int8_train, lambda: int8_train(learning_rate=0.3, momentum=0.5)),
    "int8, batch": (int8_train, lambda: int8_train(batch=4)),
    "int8, micro-batch": (int8_train, lambda: int8_train(batch=4, micro_batch=2)),
    "int8, in place": (int8_train, lambda: int8_train(batch=4, accumulate="inplace")),
    "int8, seed of the noise": (
        int8_train,
        lambda: nets.int8_train(nets.cnn(4, 2), head="int8", seed=7, optimizer="momentum"),
    ),
    "int8, exponents known": (int8_train, lambda: exponents_known(int8_train())),
    "rescaled, batch": (rescaled, lambda: rescaled(batch=4)),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_model_in_another_build(name: str) -> None:
    one, other = (make() for make in SAME[name])
    assert model_hash(one) == model_hash(other)
    assert [v.type for v in stored(one)] == [v.type for v in stored(other)]
    assert contents(one) == contents(other)


OTHER: dict[str, tuple[Callable[[], TrainGraph], Callable[[], TrainGraph]]] = {
    "initial weights": (float_train, lambda: float_train(seed=2)),
    "trained set": (float_train, lambda: float_train(update="last:1")),
    "biases only": (lambda: float_train(update="bias"), float_train),
    "optimizer": (lambda: float_train(optimizer="sgd"), lambda: float_train(optimizer="momentum")),
    "optimizer with the same state": (float_train, lambda: float_train(optimizer="adamw")),
    "head": (float_train, lambda: float_train(classes=4)),
    "loss": (float_train, lambda: float_train(loss="mse")),
    "number format": (lambda: chain.train_graph(nets.cnn(4, 2)), lambda: nets.int8_train(nets.cnn(4, 2))),
    "format of the head": (int8_train, lambda: int8_train(head="fp32")),
    "weight store": (int8_train, lambda: int8_train(store="q8.8")),
    "rescaling": (rescaled, lambda: nets.int8_train(nets.cnn(4, 2), store="mixed")),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_model(name: str) -> None:
    one, other = (make() for make in OTHER[name])
    assert model_hash(one) != model_hash(other)


def test_other_channels_of_the_same_weight() -> None:
    model = chain.imported(small_mlp())  # type: ignore[arg-type]

    def sliced(channels: tuple[int, ...]) -> str:
        plan = UpdatePlan({"second_weight": ChannelSlice("out", channels)})
        return model_hash(build_training(model, plan, TrainingOptions()))

    assert sliced((0, 1)) != sliced((0, 2))


def test_other_formats_of_the_same_weights() -> None:
    """Calibrated on other samples."""
    model = nets.cnn(4, 2)
    known = chain.imported(model)

    def calibrated(seed: int) -> str:
        samples = nets.calibration(model, seed=seed).transpose(known.input_perm)
        formats = replace(known, graph=nets.prepare(nets.calibrate(known.graph, samples), True))
        return model_hash(build_training(formats, resolve_update(known.graph, "last:1"), TrainingOptions()))

    assert calibrated(3) == calibrated(3) != calibrated(4)


# ---- on the device --------------------------------------------------------------------------------------------------

NETS: dict[str, Callable[[], TrainGraph]] = {"float32": float_train, "int8": int8_train}


@pytest.fixture(scope="module", params=NETS)
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Device:
    """A small model; Adam's moments or int8 velocities and exponents."""
    return Device(chain.project(NETS[request.param]()), tmp_path_factory.mktemp("model"))


def train(device: Device, steps: int, seed: int = 0) -> list[float]:
    count = device.interface.micro_batch
    samples = random_samples(device.made.train, steps * count, seed)
    return [device.train(samples.x[i : i + count], samples.y[i : i + count]) for i in range(0, steps * count, count)]


def test_builds_exchange_checkpoints(device: Device, tmp_path: Path) -> None:
    """Another plan, target, code and rate: the state is taken as it is, and trains on to the same bytes."""
    make = float_train if device.interface.input_dtype == "float32" and not device.interface.exact else int8_train
    assert model_hash(make()) == model_hash(device.made.train)
    train(device, 5)
    saved = device.save()
    graph = make(learning_rate=0.7)
    builds = {
        "small": chain.project(graph, kernels=chain.kernels_of(graph, small=True)),
        "plan": chain.project(make(learning_rate=0.7), "cortex-m4", remat="min"),
    }
    expected = train(device, 4, 1), device.save()
    for name, made in builds.items():
        other = Device(made, tmp_path / name)
        assert other.save() != saved
        assert other.load(saved) == OK and other.save() == saved
        assert (train(other, 4, 1), other.save()) == expected
        assert other.macro("CHECKPOINT_BYTES") == f"{len(saved)}u" == device.macro("CHECKPOINT_BYTES")
        assert (
            other.macro("MODEL_HASH")
            == device.macro("MODEL_HASH")
            == f"UINT64_C(0x{struct.unpack_from('<Q', saved, 4)[0]:016x})"
        )


def test_every_flipped_bit_is_refused(device: Device) -> None:
    """And the model is then in its initial state."""
    assert device.restart() == OK
    initial = device.save()
    train(device, 3)
    saved = device.save()
    assert device.load(saved) == OK
    for bit in range(8 * len(saved)):
        flipped = bytearray(saved)
        flipped[bit // 8] ^= 1 << bit % 8
        if bit % 8 == 0:  # else the model is in its initial state already
            assert device.load(saved) == OK
        assert device.load(bytes(flipped)) == ERR_FORMAT, bit
        assert device.save() == initial, bit
    assert device.load(saved) == OK and device.save() == saved


HOSTILE = {
    "FINITE": [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF],
    "NOT_NEGATIVE": [0x80000001, 0xBF800000, 0x7F800000, 0x7FC00000],
    "POWERS": [0x3F800001, 0xBF800000, 0x7FC00000, 0x80000000],
    "EXPONENT": [101, -101, 2**31 - 1, -(2**31), 1 << 24],
    "SYMMETRIC": [-128],
    "SHIFTS": [101, -101, -128, 127],
}
"""What no training makes, by what a tensor may hold."""


def hostile(graph: TrainGraph, saved: bytes) -> list[tuple[str, bytes]]:
    """Checkpoints with a right CRC and one number that training cannot have made."""
    found: list[tuple[str, bytes]] = []
    at, kinds = HEAD_BYTES, contents(graph)
    for value in stored(graph):
        for number in HOSTILE.get(kinds[value.name], ()):
            width = value.size_bytes // value.elements
            place = at + width * (value.elements - 1 if kinds[value.name] != "EXPONENT" else 0)
            changed = bytearray(saved[:-4])
            changed[place : place + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
            found.append((f"{value.name}: {number}", bytes(changed) + struct.pack("<I", zlib.crc32(changed))))
        if kinds[value.name] == "EXPONENT":
            for quiet in (-2, 8, 2**31 - 1):
                changed = bytearray(saved[:-4])
                changed[at + 4 : at + 8] = struct.pack("<i", quiet)
                found.append((f"{value.name}: quiet {quiet}", bytes(changed) + struct.pack("<I", zlib.crc32(changed))))
        at += value.size_bytes
    return found


@pytest.mark.parametrize("name", [*NETS, "rescaled"])
def test_states_that_no_training_makes_are_refused(name: str, tmp_path: Path) -> None:
    """With a right CRC. UBSan watches: such exponents overflow an int32 where they are used."""
    made = chain.project({**NETS, "rescaled": rescaled}[name]())
    device = Device(made, tmp_path, ("-O0", "-fsanitize=undefined", "-fno-sanitize-recover=all"))
    train(device, 3)
    saved = device.save()
    cases = hostile(made.train, saved)
    kinds = set(contents(made.train).values()) - {"ANY"}
    assert kinds == {
        "float32": {"FINITE", "NOT_NEGATIVE", "POWERS"},
        "int8": {"SYMMETRIC", "EXPONENT", "NOT_NEGATIVE"},
    }.get(name, {"SYMMETRIC", "EXPONENT", "SHIFTS", "FINITE", "NOT_NEGATIVE"})
    assert len(cases) > 10
    for what, checkpoint in cases:
        assert device.load(checkpoint) == ERR_FORMAT, what
        train(device, 1)
    assert device.load(saved) == OK
    train(device, 2)


def test_ends_of_what_training_makes_are_taken(tmp_path: Path) -> None:
    """Any exponent within its limits trains on without an overflow."""
    made = chain.project(rescaled())
    device = Device(made, tmp_path, ("-O0", "-fsanitize=undefined", "-fno-sanitize-recover=all"))
    train(device, 3)
    saved, kinds = device.save(), contents(made.train)
    ends = {"EXPONENT": (-100, 100), "SYMMETRIC": (-127, 127), "SHIFTS": (-100, 100), "ANY": (-128, 127)}
    for choice in range(2):
        changed, at = bytearray(saved[:-4]), HEAD_BYTES
        for value in stored(made.train):
            number = ends.get(kinds[value.name], (0, 0))[choice]
            if kinds[value.name] == "EXPONENT":
                changed[at : at + 4] = struct.pack("<i", number)
            elif value.dtype == "int8":
                changed[at : at + value.size_bytes] = np.full(value.elements, number, np.int8).tobytes()
            elif value.dtype == "int32":
                changed[at : at + value.size_bytes] = np.full(value.elements, number << 24, np.int32).tobytes()
            at += value.size_bytes
        assert device.load(bytes(changed) + struct.pack("<I", zlib.crc32(changed))) == OK
        train(device, 9)


def test_a_state_from_before_the_first_step_in_a_build_that_knows_its_exponents(tmp_path: Path) -> None:
    """It is the initial state, but for the rate: exponents that were never found are the ones compiled in."""
    unknown, known = chain.project(int8_train()), chain.project(exponents_known(int8_train()))
    one, other = Device(unknown, tmp_path / "one"), Device(known, tmp_path / "other")
    initial = other.save()
    one.set_rate(0.25)
    train(other, 3)
    assert other.load(one.save()) == OK
    other_state = other.save()
    assert struct.unpack_from("<f", other_state, HEAD_BYTES) == (0.25,)
    assert other_state[HEAD_BYTES + 4 : -4] == initial[HEAD_BYTES + 4 : -4]
    train(one, 2)
    found = one.save()
    assert other.load(found) == OK and other.save() == found


def test_a_state_that_cannot_be_loaded_is_not_written(tmp_path: Path) -> None:
    """Weights that a far too large rate has made infinite."""
    device = Device(chain.project(float_train(optimizer="sgd", loss="mse")), tmp_path)
    device.set_rate(3e38)
    samples = random_samples(device.made.train, 1, 0)
    device.train(100 * samples.x, 100 * samples.y)
    assert device.try_save()[0] == ERR_NAN and device.try_save()[1] == b""
