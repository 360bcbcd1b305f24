"""A loss that is NaN or infinite: the step stops behind it, and nothing that outlives the step has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks import models
from testing.runs import run_steps
from tests.e2e import chain
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.reference.trainer import run_reference
from tinytrain_compile.target.loader import load_target

STEPS = 4


def float_train(**options: Any) -> TrainGraph:
    return chain.train_graph(models.mlp(), loss="mse", learning_rate=0.05, **options)


def int8_train(**options: Any) -> TrainGraph:
    """The first step has to find the exponents of errors."""
    return nets.int8_train(nets.cnn(), loss="mse", head="fp32", learning_rate=0.05, **options)


CASES = {
    "sgd": lambda: float_train(),
    "momentum": lambda: float_train(optimizer="momentum"),
    "adam, batch 2": lambda: float_train(optimizer="adam", batch=2),
    "adamw, in place": lambda: float_train(optimizer="adamw", batch=2, accumulate="inplace", weight_decay=0.1),
    "int8": lambda: int8_train(),
    "int8, batch 2, momentum": lambda: int8_train(optimizer="momentum", batch=2),
    "int8, in place": lambda: int8_train(batch=2, accumulate="inplace"),
}


def spoiled(train: TrainGraph) -> Samples:
    """Samples of which every other step's have a target that is NaN or infinite, the very first among them."""
    samples = random_samples(train, STEPS * train.batch, 0)
    y = samples.y.copy()
    for step, value in ((0, np.nan), (2, np.inf)):
        for i in range(step * train.batch, (step + 1) * train.batch):
            y[i].flat[-1] = value
    return replace(samples, y=y)


@pytest.mark.parametrize("name", CASES)
def test_a_step_without_a_finite_loss_leaves_all_as_it_was(name: str, tmp_path: Path) -> None:
    train = CASES[name]()
    samples = spoiled(train)
    result = run_steps(
        chain.project(train).bundle, load_target("cortex-m7"), samples, STEPS, None, train.batch, tmp_path
    )
    bad = ~np.isfinite(result.losses.reshape(STEPS, -1))
    assert bad.all(axis=1).tolist() == [True, False, True, False] and not bad[1].any() and not bad[3].any()
    states = [{name: bytes(data) for name, data in state.items()} for state in result.states]
    initial = {value.name: train.graph.constants[value.name].tobytes() for value in train.graph.state}
    assert states[0] == initial
    assert states[1] == states[2] != initial
    assert states[3] != states[2]
    reference = run_reference(train, samples, STEPS)
    for ours, theirs in zip(states, reference.states, strict=True):
        for key, array in theirs.items():
            data = np.frombuffer(ours[key], array.dtype).reshape(array.shape)
            if train.integer:
                np.testing.assert_array_equal(data, array, key)
            else:
                np.testing.assert_allclose(data, array, rtol=1e-4, atol=1e-5, err_msg=key)


def test_one_bad_sample_of_a_batch_counts_as_if_it_were_not_there(tmp_path: Path) -> None:
    """The sums hold the others, and the mean is over as many."""
    train = float_train(optimizer="momentum", batch=3)
    good = random_samples(train, 3, 0)
    bad = replace(good, y=good.y.copy())
    bad.y[1].flat[0] = np.nan
    trainer_states = run_reference(train, bad, 1).states[0]
    two = run_reference(replace(train, batch=2), Samples(good.x[[0, 2]], good.y[[0, 2]]), 1).states[0]
    result = run_steps(chain.project(train).bundle, load_target("cortex-m7"), bad, 1, None, 3, tmp_path)
    for name, array in two.items():
        np.testing.assert_array_equal(trainer_states[name], array)
        ours = np.frombuffer(result.states[0][name], np.float32).reshape(array.shape)
        np.testing.assert_allclose(ours, array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_no_plan_overwrites_anything_before_the_loss_is_known(name: str) -> None:
    """And the validator refuses one that does: here, one that should have waited for the end of the step."""
    graph = CASES[name]().graph
    options = PlanOptions(keep=(graph.guard,), effort="quick")
    plan = plan_memory(graph, options)
    validate_plan(graph, plan, options)
    last = [node for node in plan.order if node.phase == "step"][-1].outputs[0].name
    with pytest.raises(PlanError, match=f"before '{last}' is known"):
        validate_plan(replace(graph, guard=last), plan, options)
