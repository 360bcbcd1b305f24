"""Low-rank copies of int8 activations: against the exact step, and against the published method in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.quantize import nets
from tests.training.low_rank_nets import GRADS, everywhere, kinds
from tests.training.test_low_rank import CONVS, Iteration, correlation, rotated
from tinytrain_compile.driver.reference import Trainer, run_reference
from tinytrain_compile.files.samples import random_samples
from tinytrain_compile.ir.activations import MODES, LowRank
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.int8.subspace import QModeAttrs
from tinytrain_compile.ops.names import operand, result
from tinytrain_compile.quantize import QuantOptions, quantise
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

RANKS = {4: (3, 2, 3, 1), 2: (4, 1)}


def followed(shape: tuple[int, ...]) -> LowRank:
    return LowRank(RANKS[len(shape)])


@cache
def known() -> ImportedModel:
    return nets.prepared(kinds(), "int8")


def int8_graph(how: Callable[[tuple[int, ...]], LowRank] | None, store: Any = "sr8", **options: Any) -> TrainGraph:
    """Of `kinds`, dense layer included; how: every layer keeps its input, by its shape."""
    plan = resolve_update(known().graph, "all")
    settings: dict[str, Any] = {"learning_rate": 0.05, **options}
    chosen = TrainingOptions(integer=True, **settings)
    exact = build_training(known(), plan, chosen)
    activations: Mapping[str, LowRank] = {} if how is None else everywhere(exact, how)
    train = build_training(known(), replace(plan, activations=activations), chosen)
    return quantise(train, QuantOptions(0, store))


@pytest.mark.parametrize("options", [{}, {"optimizer": "momentum", "batch": 2}, {"store": "q8.8"}], ids=str)
def test_full_ranks_give_the_exact_step_to_the_byte(options: dict[str, Any]) -> None:
    """The way back rounds to the steps that went in, so that the bound of dW is 0: six steps end in the same state."""
    exact, low = int8_graph(None, **options), int8_graph(rotated, **options)
    assert len(nets.nodes_of(low, "QModeExpand")) == 5
    samples = random_samples(exact, 12, 0)
    wanted, found = (run_reference(train, samples, 6) for train in (exact, low))
    for before, after in zip(wanted.states, found.states, strict=True):
        assert before.keys() <= after.keys()
        assert all(np.array_equal(before[name], after[name]) for name in before)


def test_one_rank_less_is_another_step() -> None:
    """So that the test above says something."""

    def fewer(shape: tuple[int, ...]) -> LowRank:
        full = rotated(shape)
        channels = len(shape) - 1
        bases = {**full.bases, channels: full.bases[channels][:-1]}
        return LowRank((full.ranks[0] - 1, *full.ranks[1:]), "subspace", bases)

    exact, low = int8_graph(None), int8_graph(fewer)
    samples = random_samples(exact, 6, 0)
    wanted, found = (run_reference(train, samples, 6).states[-1] for train in (exact, low))
    assert any(not np.array_equal(wanted[name], found[name]) for name in wanted)


def test_gradients_are_those_of_the_published_method() -> None:
    """Three steps: what comes back is within half a step of the method in float64 on the same integers, and the int32
    gradient within half a step per error that it sums."""
    exact, low = int8_graph(None, batch=4), int8_graph(followed, batch=4)
    trainer, own, seen = Trainer(low), dict[str, Iteration](), 0
    nodes = {node.origin: node for node in nets.nodes_of(exact, "QConvSum")}
    for step in range(3):
        x = random_samples(exact, 3, 0).x[step : step + 1]
        y = np.asarray([[step]], np.int32)
        before, values = dict(trainer.sums), trainer.gather(x, y)
        for node in nets.nodes_of(low, "QConvSum"):
            original, copy = operand(nodes[node.origin], "x"), operand(node, "x")
            back, zero = expansion(low, node.origin)
            a = values[original.name].astype(np.float64).reshape(back.shape) - zero
            whole = own.setdefault(node.origin, Iteration(first(trainer, low, node.origin))).seen(a)
            found = values[back.name].astype(np.float64) - zero
            assert np.abs(found - np.clip(whole, -128 - zero, 127 - zero)).max() <= 0.5 + 1e-3
            error = values[operand(node, "g").name].astype(np.float64)
            layer = node.origin.partition("/")[0]
            image = found.reshape(copy.shape)
            geometry = CONVS.get(layer, ((1, 1), (0, 0), 1, 1))
            clipped = np.clip(whole, -128 - zero, 127 - zero).reshape(copy.shape)
            sums = values[result(node, "sum").name] - before[operand(node, "sum").name]
            np.testing.assert_array_equal(sums, correlation(image, error, *geometry))
            off = np.abs(sums - correlation(clipped, error, *geometry))
            assert (off <= 0.501 * np.abs(error).sum(axis=(0, 1, 2))[:, None, None, None]).all()
            seen += 1
    assert seen == 15


def first(trainer: Trainer, train: TrainGraph, origin: str) -> dict[int, np.ndarray]:
    """Subspaces of a layer that the state begins with, by axis."""
    names = {f"{origin}.{name}": axis for modes in MODES.values() for name, axis in modes}
    return {names[name]: train.graph.constants[name] for name in trainer.state if name in names}


def expansion(train: TrainGraph, origin: str) -> tuple[Any, int]:
    """What a layer's gradient reads, and its zero point."""
    (node,) = (each for each in nets.nodes_of(train, "QModeExpand") if each.origin == origin)
    assert isinstance(node.attrs, QModeAttrs)
    return result(node, "y"), node.attrs.zero


def test_no_float_copy_of_an_activation_is_made() -> None:
    """Nor of the network's input: the first product reads int8, the last one writes it."""
    low = int8_graph(followed)
    kept = {operand(node, "x").name for node in nets.nodes_of(low, "QSubspacePower")}
    assert len(kept) == 5 and not nets.nodes_of(low, *GRADS)
    assert not [node for node in nets.nodes_of(low, "Dequantize") if node.inputs[0].name in kept]
    sizes = {node.origin: result(node, "y").elements for node in nets.nodes_of(low, "QModeExpand")}
    assert len(sizes) == 5
    for node in nets.nodes_of(low, "ModeProduct", "QModeProduct"):
        assert result(node, "y").elements < sizes[node.origin]
