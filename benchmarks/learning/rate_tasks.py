"""Small tasks on which `rates` measures the search of `finetune`: tables, 1-D signals and images.

Each task has a tiny network that knows a source domain, and draws samples of another domain by a seed, which also draws
the change of domain. DEVELOPMENT and FRESH tasks chose the rules of the search, REPORTED ones only judge it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import tinytrain_compile as tt
from benchmarks.learning.digit_domains import domain_a, domain_b
from testing.networks.models import Network
from tinytrain_compile.ir.types import Array

OWN, TEST = 240, 400
"""Samples that a search sees, and that judge what it recommends (fewer of a small data set)."""
TYPICAL = 128
"""Samples of the source domain that give an int8 network its ranges."""
SOURCE, PASSES, RATE = 300, 10, 0.02
"""Samples, passes and rate of the training on the source domain."""
Generator = np.random.Generator
Data = tuple[Array, Array]


@dataclass(frozen=True)
class RateTask:
    """network: with random weights; draw: (generator, new domain?) -> (x, y) in a random order.

    options: of the search.
    """

    network: Callable[[], onnx.ModelProto]
    draw: Callable[[Generator, bool], Data]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def files(self, seed: int, folder: Path) -> Path:
        """Samples of a seed: a part to search with and a part to judge by, of the new domain."""
        x, y = self.draw(np.random.default_rng((seed, 1)), True)
        data = folder / f"own{seed}.npz"
        last = OWN + TEST
        np.savez(data, x=x[:OWN], y=y[:OWN], x_test=x[OWN:last], y_test=y[OWN:last])
        return data

    def in_format(self, quant: str, folder: Path) -> dict[str, Any]:
        """Options of a network in float32 or int8; an int8 one writes its typical samples."""
        if quant == "float32":
            return {}
        np.savez(folder / "typical.npz", x=self.draw(np.random.default_rng(77), False)[0][:TYPICAL])
        return {"quant": "int8", "calib": str(folder / "typical.npz")}

    def model(self, folder: Path) -> Path:
        """The network, trained on the source domain by its own C."""
        path, model = folder / "task.onnx", self.network()
        onnx.save(model, path)
        rng = np.random.default_rng(0)
        x, y = self.draw(rng, False)
        x, y = x[:SOURCE], y[:SOURCE]
        with tt.compile(path, update="all", verify="none").twin() as twin:
            for index in (i for _ in range(PASSES) for i in rng.permutation(len(x))):
                twin.train_step(x[index : index + 1], y[index : index + 1], lr=RATE)
            learned = twin.state_dict()
        for tensor in model.graph.initializer:
            if tensor.name in learned:
                tensor.CopyFrom(numpy_helper.from_array(learned[tensor.name], tensor.name))
        onnx.save(model, path)
        return path


# ---- networks -------------------------------------------------------------------------------------------------------


def dense_net(inputs: int, hidden: int, classes: int) -> onnx.ModelProto:
    """Three dense layers."""
    net = Network("table", f"float[1, {inputs}] x", f"float[1, {classes}] y")
    first = net.relu(net.dense("a", "x", inputs, hidden))
    return _with_head(net, net.relu(net.dense("b", first, hidden, hidden)), hidden, classes)


def signal_net(channels: int, classes: int, width: int) -> onnx.ModelProto:
    """Two convolutions over 32 points, and a dense layer on what they find anywhere."""
    net = Network("signal", f"float[1, {channels}, 32] x", f"float[1, {classes}] y")
    first = net.relu(_conv(net, "a", "x", (width, channels, 5), "strides = [2], pads = [2, 2]"))
    second = net.relu(_conv(net, "b", first, (2 * width, width, 5), "strides = [2], pads = [2, 2]"))
    pooled = net.node("pool", f"pooled = GlobalMaxPool ({second})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({pooled})")
    return _with_head(net, flat, 2 * width, classes)


def image_net(side: int, classes: int) -> onnx.ModelProto:
    """Two convolutions of stride 2, and a dense layer."""
    net = Network("images", f"float[1, 1, {side}, {side}] x", f"float[1, {classes}] y")
    first = net.relu(_conv(net, "a", "x", (6, 1, 3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]"))
    second = net.relu(_conv(net, "b", first, (12, 6, 3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]"))
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({second})")
    return _with_head(net, flat, 12 * (-(-side // 4)) ** 2, classes)


def _conv(net: Network, name: str, x: str, shape: tuple[int, ...], attributes: str) -> str:
    weight, bias = net.weight(f"{name}_weight", *shape), net.near(f"{name}_bias", 0.0, 0.1, shape[0])
    return net.node(f"{name}/Conv", f"{name} = Conv <{attributes}> ({x}, {weight}, {bias})")


def _with_head(net: Network, x: str, inputs: int, classes: int) -> onnx.ModelProto:
    net.node("y", f"y = Identity ({net.dense('head', x, inputs, classes)})")
    return net.model()


# ---- samples --------------------------------------------------------------------------------------------------------


def _sklearn(name: str, **given: Any) -> Any:
    return getattr(importlib.import_module("sklearn.datasets"), name)(**given)


def _dealt(rng: Generator, x: Array, y: Array) -> Data:
    order = rng.permutation(len(x))
    return np.ascontiguousarray(x[order], np.float32), y[order].astype(np.int64)


def measured(rng: Generator, new: bool, x: Array, y: Array) -> Data:
    """A table in standard units; a new instrument has gains, offsets and noise of its own."""
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-3)
    if new:
        x = x * np.exp(rng.normal(0, 0.4, x.shape[1])) + rng.normal(0, 0.7, x.shape[1])
    return _dealt(rng, x + rng.normal(0, 0.5, x.shape), y)


def pixels(rng: Generator, new: bool) -> Data:
    """Ten digits as tables of 64 numbers, read by an instrument of its own."""
    found = _sklearn("load_digits")
    return measured(rng, new, found.data, found.target)


def clusters(rng: Generator, new: bool) -> Data:
    """Five classes of two clusters each, 16 columns."""
    x, y = _sklearn(
        "make_classification",
        n_samples=1500,
        n_features=16,
        n_informative=8,
        n_classes=5,
        n_clusters_per_class=2,
        class_sep=1.6,
        random_state=3,
    )
    return measured(rng, new, x, y)


def moves(rng: Generator, new: bool) -> Data:
    """Five kinds of motion of an accelerometer of three axes, which a new wearer has turned and rescaled."""
    count, time = 1400, np.arange(32) / 32
    y = rng.integers(0, 5, count)
    rate = np.array([1.0, 2.0, 3.0, 2.0, 4.0])[y] * rng.uniform(0.8, 1.2, count)
    phase = rng.uniform(0, 2 * np.pi, (count, 1))
    beat = 2 * np.pi * rate[:, None] * time + phase
    shapes = np.stack([np.sin(beat), np.sin(2 * beat) * (y[:, None] > 2), np.cos(beat) * (y[:, None] % 2)], axis=1)
    x = shapes * rng.uniform(0.5, 1.2, (count, 1, 1)) + rng.normal(0, 0.35, (count, 3, 32))
    if new:
        turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        x = np.einsum("ij,njt->nit", turn, x) * rng.uniform(0.5, 1.8) + rng.normal(0, 0.3, (1, 3, 1))
    return _dealt(rng, x, y)


def beats(rng: Generator, new: bool) -> Data:
    """Four kinds of heart beats in one lead; a new device has it inverted, with a wandering baseline."""
    count, time = 1400, np.linspace(-1, 1, 32)
    y = rng.integers(0, 4, count)
    width, late = np.array([0.06, 0.16, 0.06, 0.09])[y], np.array([0.45, 0.45, 0.25, 0.6])[y]
    centre = rng.normal(0, 0.08, count)

    def bump(at: Array, wide: Array | float, high: Array | float) -> Array:
        size = np.broadcast_to(np.asarray(high, float), (count,))[:, None]
        return size * np.exp(-0.5 * ((time - at[:, None]) / np.broadcast_to(wide, (count,))[:, None]) ** 2)

    x = bump(centre, width, 1.5) - bump(centre + 0.15, width, 0.5) + bump(centre + late, 0.12, 0.5 - 0.8 * (y == 3))
    x = x * rng.uniform(0.7, 1.3, (count, 1)) + rng.normal(0, 0.2, x.shape)
    if new:
        drift = 0.4 * np.sin(2 * np.pi * time * rng.uniform(0.3, 1.0) + rng.uniform(0, 6, (count, 1)))
        x = -rng.uniform(0.5, 1.0) * x + drift
    return _dealt(rng, x[:, None], y)


def _digits(rng: Generator) -> Data:
    found = _sklearn("load_digits")
    return _dealt(rng, found.images[:, None] / 16, found.target)


def shifted_digits(rng: Generator, new: bool) -> Data:
    """8 x 8 digits; a new camera moves them by up to a pixel, with less contrast, more light and noise."""
    x, y = _digits(rng)
    if not new:
        return x, y
    moves_of = rng.integers(-1, 2, (len(x), 2))
    moved = np.stack([np.roll(one, tuple(by), (1, 2)) for one, by in zip(x, moves_of, strict=True)])
    level = rng.uniform(0.4, 0.8)
    return (0.3 + level * moved + rng.normal(0, 0.15, x.shape)).astype(np.float32), y


def turned_digits(rng: Generator, new: bool) -> Data:
    """16 x 16 digits, turned, shrunk and noisy in the new domain."""
    x, y = _digits(rng)
    return (domain_b if new else domain_a)(x, int(rng.integers(1 << 30))), y


def groups(rng: Generator, new: bool) -> Data:
    """Six classes of one cluster each, 12 columns."""
    sizes = {"n_features": 12, "n_informative": 10, "n_redundant": 0, "n_classes": 6, "n_clusters_per_class": 1}
    return measured(rng, new, *_sklearn("make_classification", n_samples=1500, class_sep=1.4, random_state=8, **sizes))


def chirps(rng: Generator, new: bool) -> Data:
    """Five sweeps in two microphones: up, down, both, steady, none; a new room has echoes, gains and an offset."""
    count, time = 1400, np.arange(32) / 32
    y = rng.integers(0, 5, count)
    bend = np.array([6.0, -6.0, 0.0, 0.0, 0.0])[y] * rng.uniform(0.7, 1.2, count)
    turn = np.where(y == 2, 5.0, 0.0)[:, None] * np.abs(time - 0.5)
    phase = 2 * np.pi * (5 * time + 0.5 * bend[:, None] * time**2 + turn) + rng.uniform(0, 2 * np.pi, (count, 1))
    sound = np.where(y == 4, 0.0, 1.0)[:, None] * np.sin(phase) * rng.uniform(0.6, 1.2, (count, 1))
    x = np.stack([sound, 0.7 * sound], axis=1) + rng.normal(0, 0.25, (count, 2, 32))
    if new:
        late = int(rng.integers(1, 4))
        x = (x + rng.uniform(0.5, 0.9) * np.roll(x, late, axis=2)) * rng.uniform(0.4, 1.6, (1, 2, 1)) + 0.4
    return _dealt(rng, x, y)


def shapes(rng: Generator, new: bool) -> Data:
    """Six shapes of 12 x 12 pixels; a new camera has less contrast, more light, a blur, and is not straight."""
    count, side = 1400, np.arange(12) - 5.5
    y = rng.integers(0, 6, count)
    size, middle = rng.uniform(2.5, 4.5, count)[:, None, None], rng.uniform(-1, 1, (2, count, 1, 1))
    down, across = side[:, None] - middle[0], side - middle[1]
    disc, square = np.hypot(down, across), np.maximum(np.abs(down), np.abs(across))
    far = (disc - size, square - size, np.abs(disc - size) - 0.8, np.minimum(np.abs(down), np.abs(across)) - 0.8)
    far = (*far, np.abs(down) + np.abs(across) - size, np.abs(down - across) / 1.4 - 0.8)
    x = (np.choose(y[:, None, None], far) < 0).astype(float) + rng.normal(0, 0.15, (count, 12, 12))
    if new:
        blurred = (x + np.roll(x, 1, 1) + np.roll(x, 1, 2)) / 3
        blurred = np.roll(blurred, tuple(rng.integers(-1, 2, 2)), (1, 2))
        x = rng.uniform(0.3, 0.7) + rng.uniform(0.3, 0.6) * blurred + rng.normal(0, 0.1, x.shape)
    return _dealt(rng, x[:, None], y)


def tumours(rng: Generator, new: bool) -> Data:
    """Two kinds of tumours by 30 measures of a picture, read by an instrument of its own."""
    found = _sklearn("load_breast_cancer")
    return measured(rng, new, found.data, found.target)


def shells(rng: Generator, new: bool) -> Data:
    """Four classes, one around the other, in 6 columns."""
    return measured(
        rng, new, *_sklearn("make_gaussian_quantiles", n_samples=1500, n_features=6, n_classes=4, random_state=2)
    )


def knocks(rng: Generator, new: bool) -> Data:
    """Vibration of a bearing: sound, or knocking every 5, 8 or 11 points; a new machine hums and is heard less."""
    count, time = 1400, np.arange(32)
    y = rng.integers(0, 4, count)
    every, first = np.array([99, 5, 8, 11])[y][:, None], rng.integers(0, 11, (count, 1))
    since = (time - first) % every
    knock = np.where(y[:, None] == 0, 0.0, np.exp(-since / 1.5) * np.cos(2.2 * since))
    x = knock * rng.uniform(0.8, 1.6, (count, 1)) + rng.normal(0, 0.25, (count, 32))
    if new:
        hum = np.sin(2 * np.pi * time / rng.uniform(10, 30) + rng.uniform(0, 6, (count, 1)))
        x = rng.uniform(0.4, 0.9) * x + rng.uniform(0.3, 0.7) * hum
    return _dealt(rng, x[:, None], y)


def vowels(rng: Generator, new: bool) -> Data:
    """Six vowels as spectra of 32 bands with two formants; a new speaker's are all higher or lower, and tilted."""
    count, band = 1400, np.arange(32)
    y = rng.integers(0, 6, count)
    low, high = np.array([[4, 22], [6, 17], [8, 13], [5, 10], [7, 21], [10, 15]]).T
    scale = (rng.uniform(0.75, 1.3) if new else 1.0) * rng.normal(1, 0.05, (count, 1))
    peaks = (np.exp(-0.5 * ((band - scale * at[y][:, None]) / 1.8) ** 2) for at in (low, high))
    x = sum(peaks) * rng.uniform(0.7, 1.3, (count, 1)) + rng.normal(0, 0.25, (count, 32))
    if new:
        x = x + rng.uniform(-0.6, 0.6) * (band / 16 - 1)
    return _dealt(rng, x[:, None], y)


def gratings(rng: Generator, new: bool) -> Data:
    """Stripes in four directions, fine or coarse, in 10 x 10 pixels; a new camera is turned, and darker at a side."""
    count, side = 1400, np.arange(10) - 4.5
    y = rng.integers(0, 8, count)
    turn = np.pi / 4 * (y % 4) + rng.normal(0, 0.08, count) + (rng.uniform(-0.3, 0.3) if new else 0.0)
    along = np.sin(turn)[:, None, None] * side[:, None] + np.cos(turn)[:, None, None] * side
    wave = np.where(y < 4, 1.0, 1.9)[:, None, None] * along + rng.uniform(0, 2 * np.pi, (count, 1, 1))
    x = np.sin(wave) + rng.normal(0, 0.5, (count, 10, 10))
    if new:
        x = rng.uniform(0.5, 0.9) * x + rng.uniform(0.05, 0.15) * side
    return _dealt(rng, x[:, None], y)


def dark_digits(rng: Generator, new: bool) -> Data:
    """8 x 8 digits; a new camera shows them as negatives, and a spot covers some pixels."""
    x, y = _digits(rng)
    if not new:
        return x, y
    covered = np.zeros((8, 8), bool)
    covered[tuple(slice(at, at + 2) for at in rng.integers(0, 7, 2))] = True
    x = rng.uniform(0.6, 1.0) * (1 - x) + rng.normal(0, 0.1, x.shape)
    return np.where(covered, 0.0, x).astype(np.float32), y


DEVELOPMENT = {
    "table": RateTask(lambda: dense_net(16, 16, 5), clusters),
    "signal": RateTask(lambda: signal_net(3, 5, 8), moves),
    "images": RateTask(lambda: image_net(8, 10), shifted_digits),
}
FRESH = {
    "pixels": RateTask(lambda: dense_net(64, 16, 10), pixels, {"batch": 4}),
    "beats": RateTask(lambda: signal_net(1, 4, 6), beats),
    "turned": RateTask(lambda: image_net(16, 10), turned_digits),
}
REPORTED = {
    "groups": RateTask(lambda: dense_net(12, 16, 6), groups),
    "chirps": RateTask(lambda: signal_net(2, 5, 6), chirps),
    "shapes": RateTask(lambda: image_net(12, 6), shapes),
    "tumours": RateTask(lambda: dense_net(30, 8, 2), tumours),
    "shells": RateTask(lambda: dense_net(6, 24, 4), shells, {"batch": 4}),
    "knocks": RateTask(lambda: signal_net(1, 4, 8), knocks),
    "vowels": RateTask(lambda: signal_net(1, 6, 6), vowels, {"update": "last:2"}),
    "gratings": RateTask(lambda: image_net(10, 8), gratings),
    "dark": RateTask(lambda: image_net(8, 10), dark_digits, {"batch": 8}),
}
