"""--dropout on: training drops what a hash of seed, sample and element says, whatever the plan; inference nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.e2e import chain
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tests.frontend.models import write
from tests.frontend.nets import Net
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.pipeline import imported
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.interpreter import run_graph
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.target.loader import load_target

RATIO, SEED, RATE = 0.4, 7, 0.05


def network(training: bool = True) -> onnx.ModelProto:
    """Two layers with a dropout before each."""
    net = Net("float[1, 12] x", "float[1, 5] y")
    ratio, mode = net.table("ratio", RATIO, np.float32), net.table("mode", training, np.bool_)
    net.add(f"d = Dropout (x, {ratio}, {mode})")
    net.dense("h", "d", 12, 16)
    net.add("g = Tanh (h)")
    net.add(f"k = Dropout (g, {ratio}, {mode})")
    net.dense("y", "k", 16, 5)
    return net.model()


def train_graph(folder: Path, model: onnx.ModelProto | None = None, **options: Any) -> TrainGraph:
    """What the command trains, planned."""
    path = write(model or network(), folder)
    chosen = {"update": "all", "dropout": "on", "seed": SEED, "learning_rate": RATE, **options}
    made = CompileOptions(path, out=folder / "out", **chosen)
    return Planner(imported(made), made, load_target("cortex-m4"), Externals()).exact("all").train


# ---- the same in plain Python ---------------------------------------------------------------------------------------


def mixed(word: int) -> int:
    word ^= word >> 16
    word = word * 0x85EBCA6B % 2**32
    word ^= word >> 13
    word = word * 0xC2B2AE35 % 2**32
    return word ^ (word >> 16)


def kept(place: int, sample: int, count: int) -> np.ndarray:
    """Factors of the elements of a sample at the dropout of this place (1, 2, ...)."""
    seed = (SEED * 0x9E3779B1 + place) * 0x9E3779B1 % 2**32
    base = mixed((seed + sample * 0x9E3779B1) % 2**32)
    drawn = np.array([mixed(base ^ (i * 0x9E3779B1 % 2**32)) >> 8 for i in range(count)])
    return np.where(drawn < RATIO * 2**24, 0.0, 1 / (1 - RATIO))


class ByHand:
    """The network in float64, one sample at a time, with gradients written out."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.w = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
        self.samples = 0

    def step(self, xs: np.ndarray, ys: np.ndarray) -> float:
        w, sums, losses = self.w, {name: np.zeros_like(a) for name, a in self.w.items()}, []
        for x, y in zip(xs.astype(np.float64), ys, strict=True):
            first, second = kept(1, self.samples, 12), kept(2, self.samples, 16)
            self.samples += 1
            a = x * first
            t = np.tanh(a @ w["h_w"].T + w["h_b"])
            b = t * second
            z = b @ w["y_w"].T + w["y_b"]
            p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            losses.append(-np.log(p[y]))
            dz = p - np.eye(5)[y]
            dh = (dz @ w["y_w"]) * second * (1 - t * t)
            found = {"y_w": np.outer(dz, b), "y_b": dz, "h_w": np.outer(dh, a), "h_b": dh}
            for name, gradient in found.items():
                sums[name] += gradient / len(xs)
        self.w = {name: array - RATE * sums[name] for name, array in w.items()}
        return float(np.mean(losses))


def data(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, 1, 12)).astype(np.float32), rng.integers(0, 5, (count, 1)).astype(np.int32)


@pytest.mark.parametrize(("batch", "together"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_equals_training_by_hand(batch: int, together: int, tmp_path: Path) -> None:
    trainer = Trainer(train_graph(tmp_path, batch=batch, micro_batch=together))
    hand, (xs, ys) = ByHand(network()), data()
    for i in range(0, 40, batch):
        losses = trainer.step(xs[i : i + batch], ys[i : i + batch])
        assert np.mean(losses) == pytest.approx(hand.step(xs[i : i + batch, 0], ys[i : i + batch, 0]), rel=1e-5)
    for name, array in hand.w.items():
        if name in trainer.state:
            np.testing.assert_allclose(trainer.state[name], array, rtol=0, atol=1e-5)
    assert int(trainer.state["dropout_samples"]) == 40


# ---- plans, state, inference ----------------------------------------------------------------------------------------


def deep() -> onnx.ModelProto:
    """Activations that are worth computing twice, behind dropout."""
    net = Net("float[1, 4, 12, 12] x", "float[1, 3] y")
    ratio, mode = net.table("ratio", RATIO, np.float32), net.table("mode", True, np.bool_)
    net.conv("c1", "x", (4, 4, 3, 3), "pads = [1, 1, 1, 1]")
    last = "c1"
    for k in range(2, 6):
        net.add(f"t{k} = Tanh ({last})")
        net.add(f"d{k} = Dropout (t{k}, {ratio}, {mode})")
        net.conv(f"c{k}", f"d{k}", (4, 4, 3, 3), "pads = [1, 1, 1, 1]")
        last = f"c{k}"
    net.add(f"p = GlobalAveragePool ({last})")
    net.add("f = Flatten (p)")
    net.dense("y", "f", 4, 3)
    return net.model()


def test_a_second_run_drops_the_same(tmp_path: Path) -> None:
    plain, twice = (train_graph(tmp_path, deep(), remat=remat) for remat in ("off", "min"))
    assert any(node.op == "RandomDropout" and "@2" in node.name for node in twice.graph.nodes)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, *plain.graph.inputs[0].shape)).astype(np.float32), np.zeros((3, 1), np.int32)
    trainers = Trainer(plain), Trainer(twice)
    for i in range(3):
        losses = [trainer.step(x[i : i + 1], y[i : i + 1]) for trainer in trainers]
        assert losses[0] == losses[1]
    for name, array in trainers[0].state.items():
        np.testing.assert_array_equal(array, trainers[1].state[name])


def test_a_saved_state_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    train = train_graph(tmp_path)
    (xs, ys), first = data(), Trainer(train)
    for i in range(5):
        first.step(xs[i : i + 1], ys[i : i + 1])
    loaded, other = Trainer(train), Trainer(train)
    loaded.state = {value.name: first.state[value.name].copy() for value in train.graph.state}
    other.state = {**loaded.state, "dropout_samples": np.zeros((), np.int32)}
    losses = [trainer.step(xs[5:6], ys[5:6])[0] for trainer in (first, loaded, other)]
    assert losses[0] == losses[1] != losses[2]


def test_inference_drops_nothing_and_training_does(tmp_path: Path) -> None:
    train = train_graph(tmp_path)
    trainer, (xs, ys) = Trainer(train), data()
    model = imported(CompileOptions(tmp_path / "net.onnx", dropout="off")).graph
    trainer.set_rate(0.0)
    for x, y in zip(xs, ys, strict=True):
        output = trainer.infer(x)
        np.testing.assert_array_equal(output, run_graph(model, {"x": x})[model.outputs[0].name])
        whole = -np.log(np.exp(output[0, y[0]]) / np.exp(output).sum())
        assert abs(trainer.step(x[None], y[None])[0] - whole) > 1e-4


def test_share_of_what_is_dropped() -> None:
    """Of elements, of samples, and of pairs of neighbours in both directions."""
    dropped = np.array([kept(1, sample, 500) for sample in range(200)]) == 0
    assert abs(dropped.mean() - RATIO) < 0.01
    assert np.abs(dropped.mean(axis=0) - RATIO).max() < 0.16 and np.abs(dropped.mean(axis=1) - RATIO).max() < 0.1
    both = (dropped[1:] & dropped[:-1]).mean(), (dropped[:, 1:] & dropped[:, :-1]).mean()
    assert np.abs(np.array(both) - RATIO**2).max() < 0.01


@pytest.mark.parametrize("more", [(), ("--batch", "4", "--micro-batch", "2"), ("--remat", "min", "--code", "size")])
def test_host_computes_the_same(more: tuple[str, ...], tmp_path: Path) -> None:
    path = write(deep() if "--remat" in more else network(), tmp_path)
    chosen = ("--out", tmp_path / "out", "--target", "cortex-m55", "--verify", "host", "--dropout", "on")
    found = run(path, *chosen, *more).check_success()
    assert "PASS" in found.out and "left out" not in found.out


@pytest.mark.parametrize(
    ("training", "more", "what"),
    [
        (False, (), "no Dropout in training mode"),
        (True, ("--quant", "int8", "--calib", "x.npz"), "an int8 activation has no room"),
    ],
)
def test_what_cannot_be(training: bool, more: tuple[str, ...], what: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 12), np.float32))
    path = write(network(training), tmp_path)
    given = [str(tmp_path / a) if a.endswith("npz") else a for a in more]
    found = run(path, "--out", tmp_path / "out", "--dropout", "on", *given).check_error("E0113", 2)
    assert what in found.err


@needs_qemu
@pytest.mark.qemu
def test_all_cores_drop_the_same(tmp_path: Path) -> None:
    reports = chain.check_on_boards(train_graph(tmp_path), steps=2)
    assert list(reports) == list(chain.BOARDS)
    assert {report.result for report in reports.values()} == {"pass"}
