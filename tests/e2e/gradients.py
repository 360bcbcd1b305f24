"""Whole-model gradients against central differences of the loss, in float64 through the numpy interpreter."""

from __future__ import annotations

import math

import numpy as np

from tests.e2e.chain import in_double
from tinytrain_compile.data.samples import index_count
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array, Node
from tinytrain_compile.ops.interpreter import run_nodes

STEP = 1e-6


class LossFunction:
    """The loss of one fixed sample as a function of the trained tensors, and the gradient that the graph computes.

    The training graph must use plain SGD without decay: the gradient is then (old - new) / rate, so that exactly
    what the generated code does to the weights is judged.
    """

    def __init__(self, train: TrainGraph, x: Array, label: Array) -> None:
        self._train = in_double(train)
        graph = self._train.graph
        x = x.astype(np.float64) if x.dtype.kind == "f" else x
        self._feeds = {graph.inputs[0].name: x, train.label.name: label}
        needed = graph.ancestors((train.loss,))
        self._forward: list[Node] = [node for node in graph.nodes if node.name in needed]
        self._updated = dict(graph.updates)
        self.trained = tuple(old.name for old, _ in graph.updates)

    def value(self, moved: dict[str, Array]) -> float:
        values = run_nodes(self._forward, {**self._train.graph.constants, **self._feeds, **moved})
        return float(values[self._train.loss.name])

    def gradients(self) -> dict[str, Array]:
        graph = self._train.graph
        values = run_nodes(graph.nodes, {**graph.constants, **self._feeds})
        rate = float(graph.constants[self._train.learning_rate.name])
        return {old.name: (graph.constants[old.name] - values[new.name]) / rate for old, new in graph.updates}

    def slope(self, directions: dict[str, Array], step: float = STEP) -> float:
        """Central difference of the loss along one direction in several tensors at once."""
        constants = self._train.graph.constants
        ends = [
            self.value({name: constants[name] + sign * step * d for name, d in directions.items()}) for sign in (1, -1)
        ]
        return (ends[0] - ends[1]) / (2 * step)


def sample(train: TrainGraph, seed: int) -> tuple[Array, Array]:
    """A random input and label of the graph."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(train.graph.inputs[0].shape)
    if index_count(train.graph):
        x = random.integers(0, index_count(train.graph), x.shape).astype(np.int32)
    if train.label.dtype == "int32":
        return x, random.integers(0, train.logits.shape[-1], train.label.shape).astype(np.int32)
    return x, random.integers(0, 2, train.label.shape).astype(np.float64)


def largest_error(train: TrainGraph, seed: int = 0) -> tuple[float, str, int]:
    """(largest relative error, its tensor, tensors): each along a direction of its own, then all at once."""
    function = LossFunction(train, *sample(train, seed))
    random = np.random.default_rng(seed + 1)
    gradients = function.gradients()
    assert set(gradients) == set(function.trained)
    directions = {name: _unit(random, gradient.shape) for name, gradient in gradients.items()}
    trials = {name: {name: direction} for name, direction in directions.items()}
    errors: dict[str, float] = {}
    for name, moved in {**trials, "all at once": directions}.items():
        expected = function.slope(moved)
        found = sum(float(np.sum(gradients[key] * direction)) for key, direction in moved.items())
        errors[name] = abs(found - expected) / max(abs(expected), 1e-3)
    worst = max(errors, key=errors.__getitem__)
    return errors[worst], worst, len(gradients)


def _unit(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Entries of about 1 / sqrt(n): a step moves every tensor by the same length."""
    return random.standard_normal(shape) / math.sqrt(max(1, math.prod(shape)))
