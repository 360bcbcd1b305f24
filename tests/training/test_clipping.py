"""Clipping by norm against numpy: gradients are what the step without clipping moves the weights by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.quantize import nets
from tests.quantize.gradients import real_inputs
from tests.training.nets import ops
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.training import fuse_updates

RATE, NORM, STEPS = 0.1, 0.5, 4
State = Mapping[str, np.ndarray]
LAYERS = (("fc1_weight", "fc1_bias"), ("fc2_weight", "fc2_bias"), ("fc3_weight", "fc3_bias"))


def train_of(**options: Any) -> TrainGraph:
    return fuse_updates(chain.train_graph(models.mlp(), learning_rate=RATE, **options))


def batches(train: TrainGraph) -> list[tuple[np.ndarray, np.ndarray]]:
    samples: Samples = random_samples(train, STEPS * train.batch, 3)
    places = [slice(step * train.batch, (step + 1) * train.batch) for step in range(STEPS)]
    return [(samples.x[place], samples.y[place]) for place in places]


def gradients(batch: int, weights: State, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Of a batch's mean loss, by plain SGD."""
    plain = Trainer(train_of(batch=batch))
    plain.state |= {name: value for name, value in weights.items() if name in plain.state}
    before = dict(plain.state)
    plain.step(x, y)
    names = [name for name in before if name != "learning_rate"]
    return {name: (before[name].astype(np.float64) - plain.state[name]) / RATE for name in names}


def norms(found: State, per_layer: bool) -> dict[str, float]:
    """By parameter, the norm that it is clipped by."""
    groups = LAYERS if per_layer else (tuple(found),)
    lengths = {group: np.sqrt(sum(float(np.sum(found[name] ** 2)) for name in group)) for group in groups}
    return {name: length for group, length in lengths.items() for name in group}


def assert_moves(before: State, after: State, expected: State) -> None:
    for name, move in expected.items():
        real = before[name].astype(np.float64) - after[name]
        np.testing.assert_allclose(real, RATE * move, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("per", ["model", "layer"])
@pytest.mark.parametrize(("batch", "accumulate"), [(1, "exact"), (3, "exact")])
def test_a_step_is_as_long_as_the_norm_allows(per: str, batch: int, accumulate: str) -> None:
    """A batch by its own norm, a single sample by that of the sample before (the first by none)."""
    train = train_of(clip_norm=NORM, clip_per=per, batch=batch, accumulate=accumulate)
    trainer, earlier, clipped = Trainer(train), dict[str, float](), 0
    for x, y in batches(train):
        before = dict(trainer.state)
        found = gradients(batch, before, x, y)
        own = norms(found, per == "layer")
        trainer.step(x, y)
        limits = own if batch > 1 else earlier
        factors = {name: min(1.0, NORM / limits[name]) if limits else 1.0 for name in found}
        clipped += any(factor < 0.9 for factor in factors.values())
        assert_moves(before, trainer.state, {name: factors[name] * g for name, g in found.items()})
        earlier = own
    assert clipped >= 2


def test_moments_are_those_of_clipped_gradients() -> None:
    """Adam (its epsilon large, so that lengths matter) and momentum, by hand."""
    adam = Trainer(train_of(clip_norm=NORM, batch=3, optimizer="adam", epsilon=1e-2))
    heavy = Trainer(train_of(clip_norm=NORM, batch=3, optimizer="momentum", momentum=0.5))
    first, second, velocity = (
        dict.fromkeys(gradients(3, adam.state, *batches(train_of(batch=3))[0]), 0.0) for _ in "123"
    )
    for count, (x, y) in enumerate(batches(train_of(batch=3)), 1):
        for trainer in (adam, heavy):
            before = dict(trainer.state)
            found = gradients(3, before, x, y)
            factor = min(1.0, NORM / norms(found, False)["fc1_bias"])
            expected: dict[str, np.ndarray] = {}
            for name, g in found.items():
                if trainer is heavy:
                    velocity[name] = expected[name] = 0.5 * velocity[name] + factor * g
                    continue
                first[name] = 0.9 * first[name] + 0.1 * factor * g
                second[name] = 0.999 * second[name] + 0.001 * (factor * g) ** 2
                root = np.sqrt(second[name] / (1 - 0.999**count)) + 1e-2
                expected[name] = first[name] / (1 - 0.9**count) / root
            trainer.step(x, y)
            assert_moves(before, trainer.state, expected)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad", "rmsprop", "lion"])
def test_what_is_not_stored_has_the_same_squares(optimizer: str) -> None:
    plain = chain.train_graph(models.mlp(), clip_norm=NORM, optimizer=optimizer)
    fused = fuse_updates(plain)
    assert sum("Squared" in shown_name(node) for node in fused.graph.nodes) == 3
    one, other = Trainer(plain), Trainer(fused)
    for x, y in batches(plain):
        assert one.step(x, y) == other.step(x, y)
    assert {name: value.tobytes() for name, value in one.state.items()} == {
        name: value.tobytes() for name, value in other.state.items()
    }


@pytest.mark.parametrize("squares", [np.inf, np.nan])
def test_a_norm_that_is_no_number_stops_one_step(squares: float) -> None:
    """Its gradient may be fine: squares of 2e19 are infinite."""
    train = train_of(clip_norm=NORM)
    trainer, (first, second, *_) = Trainer(train), batches(train)
    trainer.state["fc2_weight.gradient_squares"] = np.asarray(squares, np.float32)
    before = dict(trainer.state)
    trainer.step(*first)
    assert all(np.array_equal(before[name], trainer.state[name]) for layer in LAYERS for name in layer)
    trainer.step(*second)
    changed = [name for layer in LAYERS for name in layer if not np.array_equal(before[name], trainer.state[name])]
    assert len(changed) == 6 and all(np.isfinite(value).all() for value in trainer.state.values())


def test_nothing_is_clipped_unless_asked_for() -> None:
    plain, wide = train_of(), train_of(clip_norm=1e6)
    assert not any(op in ("RowSquares", "SquareTotal", "ClipFactor") for op in ops(plain))
    one, other = Trainer(plain), Trainer(wide)
    for x, y in batches(plain):
        assert one.step(x, y) == other.step(x, y)


def test_sums_of_a_batch_need_no_state() -> None:
    """So builds with and without clipping read each other's checkpoints."""
    plain, clipped = train_of(batch=3), train_of(batch=3, clip_norm=NORM)
    assert plain.graph.state == clipped.graph.state
    assert plain.identity == clipped.identity


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("store", ["sr8", "q8.8"])
def test_integer_gradients_have_the_norm_of_real_ones(batch: int, store: str) -> None:
    """Within what int8 errors are off by; the first step of both, by tensor."""
    options: dict[str, Any] = {"clip_norm": 1e-3, "clip_per": "layer", "batch": batch}
    integer = nets.int8_train(nets.cnn(), store=store, **options)  # type: ignore[arg-type]
    real = nets.float_train(nets.cnn(), **options)
    samples = random_samples(integer, batch, 3)
    found: list[dict[str, float]] = []
    for train, x in ((integer, samples.x), (real, real_inputs(integer, samples.x))):
        trainer = Trainer(train)
        trainer.step(x, samples.y)
        held = trainer.sums if batch > 1 else trainer.state
        found.append({name: float(value) for name, value in held.items() if "squares" in name})
    assert found[0].keys() == found[1].keys()
    for name, squares in found[1].items():
        assert 0.85 * squares < found[0][name] < 1.15 * squares, name


SLOPED = """<ir_version: 8, opset_import: ["": 17]>
net (float[1,4] x) => (float[1,3] y) <float[5,4] w = {%s}, float slope = {0.5}, float[3,5] v = {%s}> {
    h = Gemm<transB=1>(x, w)
    a = PRelu(h, slope)
    y = Gemm<transB=1>(a, v)
}"""


@pytest.mark.parametrize("batch", [1, 3])
def test_a_parameter_of_one_number_counts_too(batch: int) -> None:
    """The slope of a PReLU, which has no rows."""
    rng = np.random.default_rng(1)
    numbers = [", ".join(f"{value:.3f}" for value in rng.normal(0, 1, count)) for count in (20, 15)]
    model = onnx.parser.parse_model(SLOPED % tuple(numbers))
    graphs = [
        fuse_updates(chain.train_graph(model, learning_rate=RATE, batch=batch, **options))
        for options in ({}, {"clip_norm": 0.01})
    ]
    plain, clipped = map(Trainer, graphs)
    before, ((x, y), *_) = dict(plain.state), batches(graphs[0])
    for _ in range(1 if batch > 1 else 2):  # a single sample by the norm of the step before
        plain.state |= {name: value for name, value in clipped.state.items() if name in plain.state}
        before = dict(plain.state)
        plain.step(x, y)
        clipped.step(x, y)
    moves = {name: before[name].astype(np.float64) - plain.state[name] for name in ("w", "slope", "v")}
    norm = np.sqrt(sum(np.sum((move / RATE) ** 2) for move in moves.values()))
    assert moves["slope"] != 0
    if batch > 1:
        assert abs(moves["slope"]) > 0.1 * RATE * norm
        assert_moves(before, clipped.state, {name: move / RATE * 0.01 / norm for name, move in moves.items()})
    else:
        np.testing.assert_allclose(clipped.state["slope.gradient_squares"], (moves["slope"] / RATE) ** 2, rtol=1e-3)
