"""Runs training steps with the numpy reference: what the generated code is compared with."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.verify import ReferenceRun


class Trainer:
    """A model in training: holds its state between steps. Arrays may be float32 or float64."""

    def __init__(self, train: TrainGraph) -> None:
        self._train = train
        graph = train.graph
        self._constants = dict(graph.constants)
        self.state: dict[str, Array] = {value.name: self._constants[value.name] for value in graph.state}
        self._sums: dict[str, Array] = {v.name: np.zeros(v.shape, np.float32) for v in graph.accumulators}
        needed = graph.ancestors((train.loss, *(new for _, new in graph.updates)))
        infer = graph.ancestors(graph.outputs)
        self._infer = [node for node in graph.nodes if node.name in infer]
        self._step = [node for node in graph.nodes if node.phase == "step" and node.name in needed]
        self._apply = [node for node in graph.nodes if node.phase == "apply"]

    def infer(self, x: Array) -> Array:
        """The model's output for one input (graph layout, batch included)."""
        graph = self._train.graph
        values = run_nodes(self._infer, {**self._constants, **self.state, graph.inputs[0].name: x})
        return values[graph.outputs[0].name]

    def step(self, xs: Array, ys: Array) -> list[float]:
        """One update from `batch` samples; returns the loss of each."""
        losses: list[float] = []
        values: dict[str, Array] = {}
        for x, y in zip(xs, ys, strict=True):
            values = self._run(x[None], y.reshape(self._train.label.shape))
            losses.append(float(values[self._train.loss.name]))
            if self._apply:
                self._sums.update(self._new(values, self._sums))
        if self._apply:
            inverse = self._train.inverse_count
            assert inverse is not None
            self._sums[inverse.name] = np.asarray(1.0 / len(xs), np.float32)
            values = run_nodes(self._apply, {**values, **self._sums})
            self._sums = {v.name: np.zeros(v.shape, np.float32) for v in self._train.graph.accumulators}
        self.state.update(self._new(values, self.state))
        return losses

    def _run(self, x: Array, y: Array) -> dict[str, Array]:
        graph = self._train.graph
        feeds = {graph.inputs[0].name: x, self._train.label.name: y}
        return run_nodes(self._step, {**self._constants, **self.state, **self._sums, **feeds})

    def _new(self, values: dict[str, Array], owned: dict[str, Array]) -> dict[str, Array]:
        """The latest content of state or sums, by following the overwriting nodes of what ran."""
        latest: dict[str, Array] = {}
        heads = {name: name for name in owned}
        for node in self._train.graph.nodes:
            for out, source in op_def(node.op).alias:
                name = heads.get(node.inputs[source].name)
                if name is not None and node.outputs[out].name in values:
                    heads[node.outputs[out].name] = name
                    latest[name] = values[node.outputs[out].name]
        return latest


def run_reference(train: TrainGraph, samples: Samples, steps: int) -> ReferenceRun:
    """Outputs of the first sample before and after, losses, and the state after every step."""
    trainer = Trainer(train)
    count, batch = len(samples.x), train.batch
    first = trainer.infer(samples.x[:1])
    losses: list[float] = []
    states: list[dict[str, Array]] = []
    for step in range(steps):
        chosen = [(step * batch + i) % count for i in range(batch)]
        losses += trainer.step(samples.x[chosen], samples.y[chosen])
        states.append(dict(trainer.state))
    return ReferenceRun(np.asarray(losses, np.float32), first, trainer.infer(samples.x[:1]), tuple(states))
