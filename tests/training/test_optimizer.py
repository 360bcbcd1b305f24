"""Optimizers against their formulas, and accumulation against the mean gradient."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from testing.runs import run_steps
from tests.e2e import chain
from tests.e2e.gradients import LossFunction
from tests.training import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.reference.trainer import Trainer, run_reference
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.run import RunResult

RATE, DECAY = 0.05, 0.1
State = dict[str, Array]


def gradient_at(train: TrainGraph, weights: State, x: Array, y: Array) -> State:
    """Gradients of one sample at given weights, by the SGD graph in float64."""
    constants = {**train.graph.constants, **weights}
    moved = replace(train, graph=replace(train.graph, constants=constants))
    return LossFunction(moved, x[None], y.reshape(train.label.shape)).gradients()


def sgd(w: Array, g: Array, memory: dict[str, Array], step: int) -> Array:
    return w - RATE * (g + DECAY * w)


def momentum(w: Array, g: Array, memory: dict[str, Array], step: int) -> Array:
    memory["v"] = 0.9 * memory.get("v", np.zeros_like(w)) + g + DECAY * w
    return w - RATE * memory["v"]


def _adam_step(g: Array, memory: dict[str, Array], step: int) -> Array:
    memory["m"] = 0.9 * memory.get("m", np.zeros_like(g)) + 0.1 * g
    memory["s"] = 0.999 * memory.get("s", np.zeros_like(g)) + 0.001 * g**2
    return (memory["m"] / (1 - 0.9**step)) / (np.sqrt(memory["s"] / (1 - 0.999**step)) + 1e-8)


def adam(w: Array, g: Array, memory: dict[str, Array], step: int) -> Array:
    """Kingma and Ba 2015, algorithm 1, with the decay in the gradient."""
    return w - RATE * _adam_step(g + DECAY * w, memory, step)


def adamw(w: Array, g: Array, memory: dict[str, Array], step: int) -> Array:
    """Loshchilov and Hutter 2019, algorithm 2: the decay acts on the weight."""
    return w - RATE * (_adam_step(g, memory, step) + DECAY * w)


FORMULAS: dict[str, Callable[[Array, Array, dict[str, Array], int], Array]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adam": adam,
    "adamw": adamw,
}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("optimizer", FORMULAS)
def test_optimizer_follows_its_formula(optimizer: str, batch: int) -> None:
    """Five steps of the reference against the textbook in float64, with gradients computed apart."""
    model = chain.imported(models.mlp())
    options = {"optimizer": optimizer, "learning_rate": RATE, "weight_decay": DECAY, "batch": batch}
    train, plain = chain.train_graph(model, **options), chain.train_graph(model)
    samples = random_samples(train, 5 * batch, 3)
    trainer = Trainer(train)
    weights: State = {name: plain.graph.constants[name].astype(np.float64) for name in nets.updated(plain)}
    memory: dict[str, dict[str, Array]] = {name: {} for name in weights}
    for step in range(5):
        part = slice(step * batch, (step + 1) * batch)
        xs, ys = samples.x[part], samples.y[part]
        each = [gradient_at(plain, weights, x, y) for x, y in zip(xs, ys, strict=True)]
        for name in weights:
            mean = np.mean([gradients[name] for gradients in each], axis=0)
            weights[name] = FORMULAS[optimizer](weights[name], mean, memory[name], step + 1)
        trainer.step(xs, ys)
        for name, expected in weights.items():
            np.testing.assert_allclose(trainer.state[name], expected, rtol=2e-4, atol=2e-5, err_msg=f"{name}, {step}")


def test_accumulated_gradient_is_the_mean_gradient() -> None:
    """Contract: relative difference <= 1e-5 (generated C, batch 8, one plain SGD step)."""
    model = chain.imported(nets.convs())
    batch = 8
    train, plain = chain.train_graph(model, batch=batch, learning_rate=1.0), chain.train_graph(model)
    samples = random_samples(train, batch, 4)
    after = run_on_host(train, samples, 1).states[0]
    each = [gradient_at(plain, {}, x, y) for x, y in zip(samples.x, samples.y, strict=True)]
    for name in nets.updated(train):
        start = train.graph.constants[name].astype(np.float64)
        found = start - np.frombuffer(after[name], "<f4").reshape(start.shape)
        mean = np.mean([gradients[name] for gradients in each], axis=0)
        assert np.linalg.norm(found - mean) <= 1e-5 * max(np.linalg.norm(mean), 1e-2), name


@pytest.mark.parametrize("optimizer", FORMULAS)
def test_accumulation_in_place_is_that_many_steps(optimizer: str) -> None:
    """Contract: `inplace` is B sequential steps at lr / B: bit for bit, and without a gradient sum."""
    model, batch = chain.imported(models.mlp()), 4
    options = {"optimizer": optimizer, "weight_decay": DECAY}
    train = chain.train_graph(model, learning_rate=RATE, batch=batch, accumulate="inplace", **options)
    single = chain.train_graph(model, learning_rate=RATE / batch, **options)
    assert train.in_place and train.graph.accumulators == () and train.inverse_count is None
    samples = random_samples(train, 3 * batch, 3)
    ours, theirs = Trainer(train), Trainer(single)
    losses = [loss for i in range(3) for loss in ours.step(samples.x[i * 4 : i * 4 + 4], samples.y[i * 4 : i * 4 + 4])]
    assert losses == [theirs.step(samples.x[i : i + 1], samples.y[i : i + 1])[0] for i in range(3 * batch)]
    for name in set(ours.state) - {"learning_rate"}:
        np.testing.assert_array_equal(ours.state[name], theirs.state[name])
    assert chain.check(chain.project(train), mode="host").result == "pass"


def test_a_batch_of_one_in_place_is_a_plain_step() -> None:
    ours, plain = (chain.train_graph(models.mlp(), accumulate=how) for how in ("inplace", "exact"))
    assert not ours.in_place
    assert [node.op for node in ours.graph.nodes] == [node.op for node in plain.graph.nodes]


def run_on_host(train: TrainGraph, samples: Samples, steps: int, rate: float | None = None) -> RunResult:
    made = chain.project(train)
    with tempfile.TemporaryDirectory() as folder:
        return run_steps(made.bundle, load_target("host"), samples, steps, rate, train.batch, Path(folder).resolve())


def test_same_sample_many_times_is_that_sample() -> None:
    """Accumulating one sample 5 times is one step with it."""
    single, many = (chain.train_graph(models.mlp(), batch=batch) for batch in (1, 5))
    samples = random_samples(single, 1, 0)
    first, second = (run_reference(train, samples, 3).states[-1] for train in (single, many))
    for name in nets.updated(single):
        np.testing.assert_allclose(first[name], second[name], rtol=1e-5, atol=1e-7)


def test_learning_rate_can_be_set_at_run_time() -> None:
    """m_set_lr(0) freezes everything; m_set_lr(a) is the same as compiling with a."""
    compiled, other = (chain.train_graph(models.mlp(), learning_rate=rate) for rate in (0.3, 0.01))
    samples = random_samples(compiled, 3, 0)
    expected = run_on_host(compiled, samples, 3)
    found = run_on_host(other, samples, 3, rate=0.3)
    assert found.states == expected.states
    np.testing.assert_array_equal(found.losses, expected.losses)
    still = run_on_host(other, samples, 2, rate=0.0)
    names = nets.updated(other)
    for name in names:
        assert still.states[-1][name] == other.graph.constants[name].tobytes()


def test_state_is_what_the_optimizer_needs() -> None:
    kinds = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
    for optimizer, moments in kinds.items():
        train = chain.train_graph(models.mlp(), "head", optimizer=optimizer)
        names = {value.name for value in train.graph.state}
        assert len(names) == 2 * (1 + moments) + 1 + (moments == 2)
        assert train.graph.accumulators == ()


def test_accumulators_hold_sums_of_trained_gradients_only() -> None:
    train = chain.train_graph(models.mlp(), "head", batch=2, optimizer="momentum")
    assert {value.name for value in train.graph.accumulators} == {
        *("inverse_count", "fc3_weight.gradient_sum", "fc3_bias.gradient_sum")
    }
    assert [node.op for node in train.graph.nodes if node.phase == "apply"].count("MomentumUpdate") == 2
    assert all(node.phase == "step" for node in train.graph.nodes if "Grad" in node.op)
