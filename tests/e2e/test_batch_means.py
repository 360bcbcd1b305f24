"""Means and sums over a whole batch: class weights, ignored labels, and what a batch of only these does.

The oracle shares no code with the compiler: float64 numpy for gradients and optimizers, onnx.reference for the loss.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from testing.networks import models
from testing.runs import run_steps
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver.trial import like_one, with_exponents_of
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.reference.trainer import run_reference
from tinytrain_compile.target.loader import load_target

BATCH, CLASSES, RATE, MOMENTUM = 4, 3, 0.1, 0.9
LABELS = np.array([[2, 0, 1, 1], [0, 1, 0, 2], [1, 1, 1, 1], [2, 1, 2, 2]], np.int32)
"""A batch each; with label 1 ignored the third one has no label that counts."""
WEIGHTS = [0.5, 3.0, 1.25]
LOSSES: dict[str, tuple[list[float] | None, str, int | None]] = {
    "mean, weights": (WEIGHTS, "mean", None),
    "mean, ignored": (None, "mean", 1),
    "mean, weights, ignored": (WEIGHTS, "mean", 1),
    "mean, a weight of 0": ([0.5, 0.0, 1.25], "mean", None),
    "sum": (None, "sum", None),
    "sum, weights, ignored": (WEIGHTS, "sum", 1),
    "mean": (None, "mean", None),
}


def linear(name: str) -> onnx.ModelProto:
    net = models.Network("linear", "float[1, 5] x", f"float[1, {CLASSES}] y", seed=2)
    net.node("logits", f"y = Identity ({net.dense('fc', 'x', 5, CLASSES)})")
    return models.with_loss(net.model(), *LOSSES[name])


def train(name: str, **options: Any) -> TrainGraph:
    chosen = {"learning_rate": RATE, "momentum": MOMENTUM, "optimizer": "momentum", "batch": BATCH, **options}
    return chain.train_graph(linear(name), **chosen)


def samples_of(graph: TrainGraph) -> Samples:
    return Samples(random_samples(graph, LABELS.size, 0).x, LABELS.reshape(-1, 1)[:, 0].reshape(-1))


def oracle(name: str, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> tuple[list[float], list[np.ndarray]]:
    """Losses of the batches, and the weights after each: SGD with momentum on the loss of all four samples at once."""
    weights, reduction, ignore = LOSSES[name]
    attributes = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    operands = ["y", "t"] + ([] if weights is None else ["w"])
    shapes = [("y", 1, [BATCH, CLASSES]), ("t", 6, [BATCH]), ("w", 1, [CLASSES])][: len(operands)]
    node = onnx.helper.make_node("SoftmaxCrossEntropyLoss", operands, ["loss"], **attributes)
    inputs = [onnx.helper.make_tensor_value_info(*shape) for shape in shapes]
    graph = onnx.helper.make_graph([node], "loss", inputs, [onnx.helper.make_tensor_value_info("loss", 1, [])])
    judge = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    table = np.asarray(weights or [1.0] * CLASSES)
    state, losses, after = [np.zeros_like(w), np.zeros_like(b)], list[float](), list[np.ndarray]()
    for batch, labels in enumerate(LABELS):
        data = x[batch * BATCH : (batch + 1) * BATCH].reshape(BATCH, -1).astype(np.float64)
        logits = data @ w.T + b
        share = np.where(labels == ignore, 0.0, table[labels]) if ignore is not None else table[labels]
        feeds = {"y": logits.astype(np.float32), "t": labels, "w": table.astype(np.float32)}
        counted = share.sum() > 0
        (loss,) = judge.run(None, {key: feeds[key] for key in operands}) if counted else (0.0,)
        losses.append(float(loss))
        if counted:
            p = np.exp(logits - logits.max(1, keepdims=True))
            error = share[:, None] * (p / p.sum(1, keepdims=True) - np.eye(CLASSES)[labels])
            error /= share.sum() if reduction == "mean" else 1.0
            state = [MOMENTUM * v + g for v, g in zip(state, (error.T @ data, error.sum(0)), strict=True)]
            w, b = w - RATE * state[0], b - RATE * state[1]
        after.append(w)
    return losses, after


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_trains_as_one_mean_or_sum_of_all_its_labels(name: str) -> None:
    """For every micro-batch; a batch that does not count changes no bit."""
    for size in (1, 2, 4):
        graph = train(name, micro_batch=size)
        samples = samples_of(graph)
        w, b = (graph.graph.constants[key].astype(np.float64) for key in ("fc_weight", "fc_bias"))
        losses, after = oracle(name, samples.x, w, b)
        run = run_reference(graph, samples, len(LABELS))
        calls = run.losses.reshape(len(LABELS), -1)
        labels = LABELS.reshape(len(LABELS), -1, size)
        reported = [graph.terms.of_batch(list(one), list(y)) for one, y in zip(calls, labels, strict=True)]
        np.testing.assert_allclose(reported, losses, rtol=1e-5, err_msg=f"micro-batch {size}")
        for state, expected in zip(run.states, after, strict=True):
            np.testing.assert_allclose(state["fc_weight"], expected, rtol=1e-4, atol=1e-6)
        if losses[2] == 0.0:
            for key, array in run.states[1].items():
                np.testing.assert_array_equal(run.states[2][key], array)
            assert "fc_weight.velocity" in run.states[1]


@pytest.mark.parametrize("name", ["mean, weights, ignored", "mean, a weight of 0", "sum, weights, ignored"])
@pytest.mark.parametrize("options", [{"micro_batch": 2}, {"batch": 1}, {"accumulate": "inplace", "optimizer": "adam"}])
def test_generated_c_does_the_same(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Also with a batch of one, and where samples are steps of their own: an ignored label moves no moment."""
    graph = train(name, **options)
    samples, steps = samples_of(graph), LABELS.size // graph.batch
    reference = run_reference(graph, samples, steps)
    bundle = chain.project(graph, one=train(name, **{**options, "micro_batch": 1})).bundle
    result = run_steps(bundle, load_target("host"), samples, steps, None, graph.batch, tmp_path)
    assert result.status == "ok"
    np.testing.assert_allclose(result.losses, reference.losses, rtol=1e-5, atol=1e-6)
    nothing = np.isin(LABELS.reshape(steps, -1), graph.terms.weights.nothing).all(axis=1)  # type: ignore[union-attr]
    assert nothing.any() and not nothing.all()
    for step, (ours, theirs) in enumerate(zip(result.states, reference.states, strict=True)):
        for key, array in theirs.items():
            np.testing.assert_allclose(np.frombuffer(ours[key], "<f4"), array.ravel(), rtol=1e-4, atol=1e-6)
        if step and nothing[step]:
            assert dict(ours) == dict(result.states[step - 1])


@pytest.mark.parametrize("name", ["mean, weights, ignored", "sum, weights, ignored", "mean, ignored"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_int8_is_the_same_to_the_byte_for_every_micro_batch(name: str, optimizer: str, tmp_path: Path) -> None:
    weights, reduction, ignore = LOSSES[name]
    model = nets.pixels(weights, reduction, ignore)
    options: dict[str, Any] = {"head": "int8", "batch": 4, "learning_rate": 0.05, "optimizer": optimizer}
    made = {size: nets.int8_train(model, micro_batch=size, **options) for size in (1, 2, 4)}
    samples = random_samples(made[1], 12, 3)
    y = samples.y.copy()
    y[1], y[4:8] = 1, 1  # an ignored sample, and a batch of these
    samples = replace(samples, y=y)
    one = with_exponents_of(made[1], random_samples(made[1], 8, 5))
    runs = {size: run_reference(like_one(graph, one), samples, 3) for size, graph in made.items()}
    for state in range(3):
        for key, array in runs[1].states[state].items():
            for size in (2, 4):
                np.testing.assert_array_equal(runs[size].states[state][key], array, f"{key}, micro-batch {size}")
    for key, array in runs[1].states[0].items():
        np.testing.assert_array_equal(runs[1].states[1][key], array)
    assert any((runs[1].states[2][key] != array).any() for key, array in runs[1].states[1].items())
    graph = like_one(made[2], one)
    result = run_steps(chain.project(graph, one=one).bundle, load_target("host"), samples, 3, None, 4, tmp_path)
    np.testing.assert_array_equal(result.losses, np.asarray(runs[2].losses, np.float32))
    for ours, theirs in zip(result.states, runs[2].states, strict=True):
        assert all(bytes(ours[key]) == array.tobytes() for key, array in theirs.items())


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_int8_takes_the_rate_over_the_sum_of_weights(optimizer: str) -> None:
    """Where all labels count alike, the mean by weights is the plain mean, so weights move as far."""
    moved: list[np.ndarray] = []
    for weights, ignore in ((None, None), ([2.5, 2.5, 2.5], None), ([0.2, 0.2, 7.0], 2)):
        options: dict[str, Any] = {"learning_rate": 0.05, "optimizer": optimizer, "store": "q8.8"}
        graph = nets.int8_train(nets.pixels(weights, "mean", ignore), head="int8", batch=4, **options)
        samples = random_samples(graph, 8, 3)
        samples = replace(samples, y=np.minimum(samples.y, 1))
        states = run_reference(graph, samples, 2).states
        ends = [
            256.0 * state[f"{name}_weight"] + state[f"{name}_weight.fraction"]
            for state in (graph.graph.constants, states[1])
            for name in ("first", "second")
        ]
        moved.append(np.concatenate([(ends[2] - ends[0]).ravel(), (ends[3] - ends[1]).ravel()]))
    size = np.linalg.norm(moved[0])
    assert size > 100
    for other in moved[1:]:
        assert np.linalg.norm(other - moved[0]) < 0.05 * size


@pytest.mark.parametrize("name", ["mean, weights", "mean, weights, ignored", "sum, weights, ignored"])
def test_the_printed_loss_does_not_depend_on_the_arena(name: str, tmp_path: Path) -> None:
    write(linear(name), tmp_path)
    found: list[list[float]] = []
    for index, arena in enumerate(([], ["--arena", "64KB", "--micro-batch", "auto"])):
        out = tmp_path / str(index)
        flags = ("--batch", "4", "--lr", "0.1", "--verify", "host", "--report", "json", "-o", out)
        run(tmp_path / "net.onnx", *flags, *arena).check_success()
        report = json.loads((out / "report.json").read_text())
        assert report["micro_batch"] == (4 if arena else 1)
        found.append(report["verify"]["losses"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
