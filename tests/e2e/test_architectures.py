"""MLP, DS-CNN, ResNet-8 and a transformer block: gradients right, six cores equal the host, every option trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from testing.networks import models
from testing.networks.choices import choices
from tests.e2e import chain
from tests.e2e.gradients import LossFunction, largest_error, sample
from tests.e2e.marks import needs_qemu
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.base import OPS

GRADIENT_BOUND = 1e-6
"""Relative, of a directional derivative of at least 1e-3."""

FULL: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": models.mlp,
    "ds_cnn": models.ds_cnn,
    "resnet8": models.resnet8,
    "transformer": models.transformer,
}
SMALL: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": models.mlp,
    "ds_cnn": lambda: models.ds_cnn(channels=8, blocks=1, size=(12, 6)),
    "resnet8": lambda: models.resnet8(channels=4, size=16),
    "transformer": lambda: models.transformer(tokens=4, width=8, heads=2),
}


def selections() -> onnx.ModelProto:
    """Token ids that are counted with, masked where they are 0, and of which the largest sums are selected."""
    net = models.Network("selections", "int64[1, 6] x", "float[1, 5] y", seed=5)
    net.table("one", 1)
    net.table("zero", 0)
    net.table("time", 1)
    net.table("last", [2])
    net.table("three", [3])
    net.node("next", "after = Add (x, one)")
    net.node("times", "same = Mul (after, one)")
    net.node("back", "index = Sub (same, one)")
    net.node("rows", f"rows = Gather ({net.weight('table', 7, 4)}, index)")
    net.node("padding", "padding = Equal (x, zero)")
    net.node("token", "token = Not (padding)")
    net.node("mask", "mask = Cast <to = 1> (token)")
    net.node("column", "column = Unsqueeze (mask, last)")
    net.node("counted", "counted = Cast <to = 1> (index)")
    net.node("numbers", "numbers = Unsqueeze (counted, last)")
    net.node("shifted", "shifted = Add (rows, numbers)")
    net.node("masked", "masked = Mul (shifted, column)")
    net.node("sums", "sums = CumSum (masked, time)")
    net.node("sign", "sign = Sign (sums)")
    net.node("apart", "apart = Add (sums, sign)")
    net.node("top", "best, places = TopK <axis = 1> (apart, three)")
    net.node("mean", "m = ReduceMean <axes = [1], keepdims = 0> (best)")
    net.node("y", f"y = Identity ({net.dense('fc', 'm', 4, 5)})")
    return net.model()


OTHERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "zoo": models.zoo,
    "segmenter": models.segmenter,
    "choices": choices,
    "selections": selections,
}
"""Networks of all other operators."""


# ---- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FULL)
def test_gradients_of_whole_models(name: str) -> None:
    train = chain.train_graph(FULL[name]())
    error, where, count = largest_error(train)
    assert count == {"mlp": 6, "ds_cnn": 20, "resnet8": 20, "transformer": 19}[name]
    assert error <= GRADIENT_BOUND, where


@pytest.mark.parametrize("update", ["bias", "head", "last:3", "fc1/Gemm", "fc2/*,fc1/*"])
def test_gradients_of_partial_updates(update: str) -> None:
    error, where, _ = largest_error(chain.train_graph(models.mlp(), update))
    assert error <= GRADIENT_BOUND, where


@pytest.mark.parametrize(
    ("tail", "loss"),
    [
        *(("Softmax", "cross-entropy"), ("LogSoftmax", "cross-entropy"), ("Sigmoid", "bce"), ("Identity", "bce")),
        *(("Identity", "mse"), ("Sigmoid", "mse"), ("Softmax", "mse")),
    ],
)
def test_gradients_of_losses(tail: str, loss: str) -> None:
    error, where, _ = largest_error(chain.train_graph(models.mlp(tail=tail), loss=loss))
    assert error <= GRADIENT_BOUND, where


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 0.25]])
def test_gradients_of_the_models_own_loss(reduction: str, weights: list[float] | None) -> None:
    model = models.with_loss(models.mlp(), weights, reduction, ignore=3)
    train = chain.train_graph(model)
    x, _ = sample(train, 0)
    for label in (0, 1, 2):
        function = LossFunction(train, x, np.array([label], np.int32))
        gradient = function.gradients()["fc3_bias"]
        for index in range(4):
            direction = np.eye(4)[index]
            assert abs(gradient[index] - function.slope({"fc3_bias": direction})) <= 1e-7
    ignored = LossFunction(train, x, np.array([3], np.int32)).gradients()
    assert not any(np.any(gradient) for gradient in ignored.values())


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_gradients_of_all_other_operators(make: Callable[[], onnx.ModelProto]) -> None:
    """Pools and clips have kinks that a step of 1e-6 may touch: ten times the bound."""
    error, where, _ = largest_error(chain.train_graph(make(), loss="cross-entropy"))
    assert error <= 10 * GRADIENT_BOUND, where


SCHEMES = {
    "leading out": 'layer = "pw0/Conv"\nweight = 3',
    "leading in": 'layer = "pw0/Conv"\nweight = 3\naxis = "in"',
    "listed out": 'layer = "pw0/Conv"\nweight = [1, 4, 6]\nbias = true',
    "listed in": 'layer = "pw0/Conv"\nweight = [0, 7]\naxis = "in"',
    "depthwise": 'layer = "dw0/Conv"\nweight = [2, 3, 5]',
    "stem": 'layer = "stem/Conv"\nweight = 5',
    "dense in": 'layer = "fc/Gemm"\nweight = [1, 2, 7]\naxis = "in"\nbias = true',
    "dense out": 'layer = "fc/Gemm"\nweight = [0, 11]',
}


def sliced(tmp_path: Path, *names: str, **options: object) -> TrainGraph:
    path = tmp_path / "scheme.toml"
    path.write_text("".join(f"[[update]]\n{SCHEMES[name]}\n" for name in names))
    return chain.train_graph(SMALL["ds_cnn"](), str(path), **options)


@pytest.mark.parametrize("name", SCHEMES)
def test_gradients_of_channel_slices(name: str, tmp_path: Path) -> None:
    """A slice's gradient is that part of the whole gradient (float64, up to the order of summation)."""
    train = sliced(tmp_path, name)
    error, where, _ = largest_error(train)
    assert error <= GRADIENT_BOUND, where
    whole = chain.train_graph(SMALL["ds_cnn"]())
    x, label = sample(whole, 5)
    expected = LossFunction(whole, x, label).gradients()
    for key, gradient in LossFunction(train, x, label).gradients().items():
        full = expected[key.removesuffix(".updated")]
        part = _same_channels(full, gradient.shape, SCHEMES[name])
        np.testing.assert_allclose(gradient, part, rtol=1e-9, atol=1e-12)


def _same_channels(full: np.ndarray, shape: tuple[int, ...], scheme: str) -> np.ndarray:
    if full.shape == shape:
        return full
    asked = next(line.partition(" = ")[2] for line in scheme.splitlines() if line.startswith("weight"))
    channels = list(range(int(asked))) if asked.isdecimal() else [int(c) for c in asked.strip("[]").split(",")]
    return np.take(full, channels, axis=full.ndim - 1 if 'axis = "in"' in scheme else 0)


# ---- boards ---------------------------------------------------------------------------------------------------------


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["mlp", "ds_cnn", "transformer"])
def test_small_models_train_alike_on_all_cores(name: str) -> None:
    reports = chain.check_on_boards(chain.train_graph(SMALL[name]()))
    assert list(reports) == list(chain.BOARDS)
    for report in reports.values():
        assert (report.mode, report.result, report.steps) == ("qemu", "pass", 3)
        assert "bit-exact   PASS" in report.message
    for alike in (("cortex-m0plus", "cortex-m3"), ("cortex-m4", "cortex-m7", "cortex-m33")):
        assert len({reports[board].losses for board in alike}) == 1, "with FMA or without: the same bytes"


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_all_other_operators_train_alike_on_all_cores(make: Callable[[], onnx.ModelProto]) -> None:
    train = chain.train_graph(make(), loss="cross-entropy", optimizer="momentum")
    assert {report.result for report in chain.check_on_boards(train, steps=2).values()} == {"pass"}


OPTIMIZERS: dict[str, dict[str, object]] = {
    "adagrad": {"optimizer": "adagrad"},
    "rmsprop": {"optimizer": "rmsprop", "momentum": 0.0},
    "rmsprop, momentum": {"optimizer": "rmsprop", "momentum": 0.9},
    "rmsprop, centered": {"optimizer": "rmsprop", "momentum": 0.0, "centered": True},
    "lion": {"optimizer": "lion", "weight_decay": 0.1},
}


def tokens() -> onnx.ModelProto:
    """A table of rows, looked up by integers."""
    net = models.Network("tokens", "int64[1, 5] x", "float[1, 5] y", seed=3)
    net.node("rows", f"e = Gather ({net.weight('table', 7, 6)}, x)")
    net.node("mean", "m = ReduceMean <axes = [1], keepdims = 0> (e)")
    net.node("y", f"y = Identity ({net.dense('fc', 'm', 6, 5)})")
    return net.model()


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_rows_train_alike_on_all_cores(name: str) -> None:
    train = chain.train_graph(tokens(), loss="cross-entropy", **OPTIMIZERS[name])
    assert {report.result for report in chain.check_on_boards(train, steps=2).values()} == {"pass"}


def test_models_here_use_the_operators() -> None:
    """What no model of this module trains on a board: only ops that no float training step needs."""
    seen: set[str] = set()
    for make in (*SMALL.values(), *OTHERS.values(), tokens):
        for update in ("all", "bias"):
            train = chain.train_graph(make(), update, loss="cross-entropy", batch=2, optimizer="adam")
            seen |= {node.op for node in train.graph.nodes}
    others = {"Gelu", "GeluGrad", "Sigmoid", "SigmoidGrad", "Softmax", "MeanSquaredError", "MeanSquaredErrorGrad"}
    others |= {"SigmoidCrossEntropy", "SigmoidCrossEntropyGrad", "SgdUpdate", "MomentumUpdate", "SoftmaxGrad"}
    for options in OPTIMIZERS.values():
        seen |= {node.op for node in chain.train_graph(tokens(), loss="cross-entropy", **options).graph.nodes}
    others |= {"SetState"}  # of training files: test_training_graphs.py
    others |= {"PageOut", "PageIn", "ConcatView", "SliceView"}  # the planner adds them: test_memories.py, test_views.py
    others |= {"PushRows"}  # test_listening.py
    others |= {"Stream", "InputLines", "FusedUpdate"}  # test_streams.py, test_lines.py, test_fused_updates.py
    others |= {"ClipFactor", "RowSquares", "SquareTotal"}  # test_clipping.py
    others |= {"KeepSubspace", "ModeProduct", "SubspaceGradWeight"}  # test_low_rank.py
    others |= {"Orthonormalize", "SubspacePower"}
    others |= {"Dropout", "RandomDropout", "CountSamples"}  # test_dropout.py
    quantised = {op for op in OPS if ".ops.int8." in OPS[op].reference.__module__}
    assert set(OPS) - seen - others - quantised == set()


@needs_qemu
@pytest.mark.qemu
def test_resnet8_trains_alike_on_two_cores() -> None:
    reports = chain.check_on_boards(chain.train_graph(SMALL["resnet8"]()), ("cortex-m7", "cortex-m55"))
    assert [r.result for r in reports.values()] == ["pass", "pass"]
    assert all(r.max_error is not None and r.max_error < 1e-5 for r in reports.values())


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_optimizers_with_decay_on_a_board(optimizer: str, batch: int) -> None:
    train = chain.train_graph(models.mlp(), optimizer=optimizer, weight_decay=0.05, batch=batch)
    copies = {"sgd": 1, "momentum": 2, "adam": 3, "adamw": 3}[optimizer]
    parameters = 12 * 10 + 10 + 10 * 10 + 10 + 10 * 4 + 4
    extra = 4 if copies < 3 else 4 + 8
    made = chain.project(train)
    assert made.plan.persistent_bytes == copies * 4 * parameters + extra
    report = chain.check(made, steps=3)
    assert (report.result, len(report.losses)) == ("pass", 3)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("tail", "loss"), [("Identity", "mse"), ("Sigmoid", "bce"), ("Softmax", "cross-entropy")])
def test_losses_on_a_board(tail: str, loss: str) -> None:
    train = chain.train_graph(models.mlp(tail=tail), loss=loss)
    assert chain.check(chain.project(train, "cortex-m33"), "cortex-m33").result == "pass"


@needs_qemu
@pytest.mark.qemu
def test_own_loss_with_weights_on_a_board() -> None:
    train = chain.train_graph(models.with_loss(models.mlp(), [0.5, 2.0, 1.0, 0.25], "sum", ignore=3))
    assert chain.check(chain.project(train, "cortex-m4"), "cortex-m4").result == "pass"


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "names",
    [("leading out", "depthwise", "dense in"), ("listed in", "stem", "dense out"), ("listed out", "leading in")],
)
def test_channel_slices_on_a_board(names: tuple[str, ...], batch: int, tmp_path: Path) -> None:
    train = sliced(tmp_path, *names, batch=batch, optimizer="momentum")
    assert chain.check(chain.project(train)).result == "pass"


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rate"), [("mlp", 0.2), ("ds_cnn", 0.2), ("resnet8", 0.05), ("transformer", 0.05)])
def test_loss_falls_on_fixed_data(name: str, rate: float) -> None:
    """20 steps over the same four samples, as the generated C computes them."""
    train = chain.train_graph(SMALL[name](), optimizer="momentum", learning_rate=rate, batch=4)
    report = chain.check(chain.project(train), mode="host", steps=20, distinct=4)
    losses = report.losses
    assert len(losses) == 20
    assert losses[-1] < 0.3 * losses[0], losses
    assert np.mean(losses[10:]) < np.mean(losses[:10])
