"""The devices, each a twin with data of its own; what they learn alone, and one from all data in one place."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tinytrain_compile as tt

HERE = Path(__file__).resolve().parent
DIGITS = HERE.parent / "digits"
DATA = HERE / "data.npz"
DEVICES = 8
RATE, EPOCHS = 0.01, 2
"""Of the steps on a device, and its passes over its samples in a round."""

Samples = tuple[NDArray[np.float32], NDArray[np.int32]]


def build() -> tt.Compiled:
    """The firmware that all devices have: examples/digits in int8, all layers, with deltas."""
    calib = DIGITS / "calib.npz"
    return tt.compile(DIGITS / "digits.onnx", runtime="delta", quant="int8", calib=calib, update="all", verify="none")


def samples(device: int, part: str = "", path: Path = DATA) -> Samples:
    """Images (N, 1, 8, 8), 0 to 1, and labels of a device; part "_test": those that it never trains on."""
    with np.load(path) as data:
        x, y = data[f"x{part}"][device], data[f"y{part}"][device]
    return (x[:, None] / np.float32(255)).astype(np.float32), y.astype(np.int32)


@dataclass
class Device:
    """A device: its number, its twin, its data. path: the file of everyone's test images; saved: bytes of each
    checkpoint that it has written."""

    number: int
    twin: tt.Twin
    data: Sequence[Samples]
    path: Path = DATA
    saved: list[int] = field(default_factory=list[int])

    @property
    def samples(self) -> int:
        """That it learns from."""
        return sum(len(y) for _, y in self.data)

    def train(self, turn: int) -> None:
        """EPOCHS passes, each in an order of its own."""
        x, y = (np.concatenate(kind) for kind in zip(*self.data, strict=True))
        order = np.random.default_rng((self.number, turn))
        for _ in range(EPOCHS):
            for index in order.permutation(len(y)):
                self.twin.train_step(x[index : index + 1], y[index : index + 1], lr=RATE)

    def take(self, delta: bytes) -> None:
        """The fleet's weights; then one checkpoint, which is what survives a reset."""
        self.twin.apply_delta(delta)
        self.saved.append(len(self.twin.instance.save()))

    def accuracies(self, devices: Sequence[int]) -> list[float]:
        """Percent right on the test images of each of these devices."""
        return [100 * self.twin.evaluate(*samples(device, "_test", self.path))["accuracy"] for device in devices]


@contextmanager
def fleet(firmware: tt.Compiled, count: int = DEVICES, path: Path = DATA) -> Generator[list[Device]]:
    """So many devices as they leave the factory, each with rounding noise of its own."""
    with ExitStack() as kept:
        devices = [Device(n, kept.enter_context(firmware.twin()), [samples(n, path=path)], path) for n in range(count)]
        for device in devices:
            device.twin.seed_device(1 + device.number)
        yield devices


def own(devices: Sequence[Device]) -> list[float]:
    """Accuracy of each on its own test images."""
    return [device.accuracies([device.number])[0] for device in devices]


def alone(firmware: tt.Compiled, rounds: int, count: int = DEVICES, path: Path = DATA) -> list[list[float]]:
    """After every round, with no exchange; the first row is before training."""
    with fleet(firmware, count, path) as devices:
        rows = [own(devices)]
        for turn in range(rounds):
            for device in devices:
                device.train(turn)
            rows.append(own(devices))
    return rows


def together(firmware: tt.Compiled, rounds: int, count: int = DEVICES, path: Path = DATA) -> list[list[float]]:
    """One device that is given the data of all: so many times as many updates in a round."""
    everyone = range(count)
    with firmware.twin() as twin:
        device = Device(count, twin, [samples(number, path=path) for number in everyone], path)
        rows = [device.accuracies(everyone)]
        for turn in range(rounds):
            device.train(turn)
            rows.append(device.accuracies(everyone))
    return rows
