"""Runs training steps with the numpy reference: what the generated code is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tinytrain_compile.ir.records import feeds, in_calls, is_finite
from tinytrain_compile.ir.stages import Samples, TrainGraph, Velocity
from tinytrain_compile.ir.types import Array, Node
from tinytrain_compile.ops.base import alias_of, run_node
from tinytrain_compile.ops.int8.exponents import first_exponent, probe_exponent
from tinytrain_compile.ops.int8.steps import multiply_rate, split_rate
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.ops.names import ErrorOperands, error_operands
from tinytrain_compile.verify.compare import ReferenceRun


class Trainer:
    """A model in training: holds its state between steps. Arrays may be float32 or float64."""

    def __init__(self, train: TrainGraph) -> None:
        self._train = train
        graph = train.graph
        self._constants = dict(graph.constants)
        self.state: dict[str, Array] = {value.name: self._constants[value.name] for value in graph.state}
        self.sums = self.zero_sums()
        self.exponents_known = train.exponents_known
        needed = graph.ancestors((train.loss, *(new for _, new in graph.updates)))
        infer = graph.ancestors(graph.outputs)
        self._infer = [node for node in graph.nodes if node.name in infer]
        step = [node for node in graph.nodes if node.phase == "step" and node.name in needed]
        judged = graph.ancestors((train.loss,))
        self._forward = [node for node in step if node.name in judged]
        self._backward = [node for node in step if node.name not in judged]
        self._apply = [node for node in graph.nodes if node.phase == "apply"]
        self._latest = {v.name: v.name for v in (*graph.state, *graph.accumulators)}
        for node in graph.nodes:
            for out, source in alias_of(node):
                owner = self._latest.get(node.inputs[source].name)
                if owner is not None:
                    self._latest[node.outputs[out].name] = owner

    def run_nodes(self, nodes: Iterable[Node], known: Mapping[str, Array]) -> dict[str, Array]:
        """Evaluate nodes in order; what runs them otherwise overrides this."""
        return run_nodes(nodes, known, self._train.integer)

    def owner(self, name: str) -> str | None:
        """Return the state or sum that a value is the latest content of."""
        return self._latest.get(name)

    def infer(self, x: Array) -> Array:
        """Return the model's output for one input slot: a micro-batch of samples (graph layout)."""
        graph = self._train.graph
        known = {**self._constants, **self.state, **self._active(0), **feeds(x, self._train.data)}
        return self.run_nodes(self._infer, known)[graph.outputs[0].name]

    def set_rate(self, learning_rate: float) -> None:
        """Set the learning rate, as m_set_lr does."""
        self.state[self._train.learning_rate.name] = np.asarray(learning_rate, np.float32)

    def step(self, xs: Array, ys: Array) -> list[float]:
        """Make one update from `batch` samples; return the loss of each micro-batch.

        One that is not finite changes nothing; it is NaN for an input with a number that is not.
        """
        losses, counted, weight = self._gradients(xs, ys)
        if self._apply and counted:
            self._update(counted if self._train.weight_sum is None else weight)
        return losses

    def _gradients(self, xs: Array, ys: Array) -> tuple[list[float], int, np.float32]:
        """Forward and backward passes of some samples: losses, samples that count, what their labels weigh."""
        train, losses, counted = self._train, list[float](), 0
        weights, weight = train.terms.weights, np.float32(0.0)
        self.set_scalars(train.batch if train.in_place else 1)
        self.sums |= self._active(1)
        calls = in_calls(xs, train.data, train.micro_batch)
        for x, y in zip(calls, ys.reshape(-1, *train.label.shape), strict=True):
            if not (is_finite(x) and (train.integer or np.isfinite(y).all())):
                losses.append(float("nan"))
                continue
            values = self._judged(x, y)
            losses.append(float(train.terms.of_call(values[train.loss.name], y)))
            if not np.isfinite(losses[-1]):
                continue
            counted += train.micro_batch
            if weights is None or not np.isin(y, weights.nothing).all():
                weight = weight if weights is None else weights.of(y, float(weight))
                self._keep(self._backward, self._backpropagated(values))
        return losses, counted, weight

    def _update(self, divisor: int | np.float32) -> None:
        """Apply the sums of gradients, as m_apply does."""
        if divisor == 0:  # no label counts
            self.sums = self.zero_sums()
            return
        self.set_scalars(divisor if self._train.terms.divisor != "one" else 1)
        held = {**self._constants, **self.state, **self.sums}
        held |= {name: held[owner] for name, owner in self._latest.items()}
        self._keep(self._apply, self.run_nodes(self._apply, held))

    def values(self, x: Array, y: Array) -> dict[str, Array]:
        """Return every value of a step on one micro-batch, by name, and keep nothing of it."""
        return self._backpropagated(self._judged(x, y.reshape(self._train.label.shape)))

    def gather(self, x: Array, y: Array) -> dict[str, Array]:
        """Return the same and keep what a step of several samples keeps: sums, exponents, noise; no update."""
        values = self.values(x, y)
        self._keep(self._backward, values)
        return values

    def set_scalars(self, divisor: int | np.float32) -> None:
        """Write what the generated code writes itself: 1 / divisor, and in integers the learning rate over it."""
        train = self._train
        if train.inverse_count is not None:
            self.sums[train.inverse_count.name] = np.asarray(np.float32(1.0) / np.float32(divisor), np.float32)
        if train.rate is None:
            return
        rate = np.float32(self.state[train.learning_rate.name])
        whole = train.velocity is not None and train.velocity.signed and not train.in_place
        if isinstance(divisor, np.floating):
            split = [split_rate(rate if whole else rate / divisor)]
        else:
            split = [split_rate(rate, 1 if train.terms.divisor == "one" or whole else divisor)]
        if train.velocity is not None:
            split += self._of_velocity(train.velocity, divisor)
        self.sums[train.rate.name] = np.concatenate(split)

    def _of_velocity(self, velocity: Velocity, divisor: int | np.float32) -> list[Array]:
        """Return what the rate holds behind the learning rate: factors times or over what a step sums."""
        factors = [np.float32(f) for f in (velocity.kept, velocity.ahead) if f is not None]
        stored = np.float32(velocity.stored)
        if isinstance(divisor, np.floating):
            times, over = [split_rate(factor * divisor) for factor in factors], split_rate(stored / divisor)
        else:
            count = 1 if self._train.in_place or self._train.terms.divisor == "one" else divisor
            times, over = [multiply_rate(split_rate(factor), count) for factor in factors], split_rate(stored, count)
        return [times[0], over, *times[1:]]

    def _active(self, value: int) -> dict[str, Array]:
        """Write what the generated code writes for dropout, if there is any."""
        active = self._train.dropout
        return {} if active is None else {active.name: np.asarray(value, np.int32)}

    def zero_sums(self) -> dict[str, Array]:
        """Return sums as they are before the first sample of an update."""
        dtypes = {"float32": np.float32, "int32": np.int32}
        return {v.name: np.zeros(v.shape, dtypes[v.dtype]) for v in self._train.graph.accumulators}

    def _judged(self, x: Array, y: Array) -> dict[str, Array]:
        """Return all values that the loss depends on, and the loss: nothing that outlives a step is overwritten yet."""
        given = {**feeds(x, self._train.data), self._train.label.name: y}
        return self.run_nodes(self._forward, {**self._constants, **self.state, **self.sums, **given})

    def _backpropagated(self, values: dict[str, Array]) -> dict[str, Array]:
        """Return these, and what the rest of the step makes of them."""
        if self.exponents_known:
            return self.run_nodes(self._backward, values)
        self.exponents_known = True
        for node in self._backward:
            error = error_operands(node)
            if error is not None:
                self._find_exponent(node, error, values)
            values = self.run_nodes((node,), values)
        return values

    def _find_exponent(self, node: Node, error: ErrorOperands, values: dict[str, Array]) -> None:
        """Run an error with an exponent that is surely large enough (first step), then choose the right one."""
        own = error.exponent.name
        start = probe_exponent([int(values[v.name][0]) for v in error.read], error.probe)
        values[own] = np.asarray([start, 0], np.int32)
        peak = int(run_node(node, tuple(values[v.name] for v in node.inputs), exact=True)[1])
        values[own] = np.asarray([first_exponent(start, peak, error.float_peak), 0], np.int32)
        self.state[own] = values[own]

    def _keep(self, nodes: Iterable[Node], values: dict[str, Array]) -> None:
        """Keep the latest content of state and sums, from what the overwriting nodes made."""
        for node in nodes:
            for out, _ in alias_of(node):
                name = node.outputs[out].name
                owner = self._latest.get(name)
                if owner in self.state:
                    self.state[owner] = values[name]
                elif owner is not None:
                    self.sums[owner] = values[name]


def inferred(train: TrainGraph, output: Array) -> Array:
    """Join outputs as the check program does: that of the first sample and, of several, that of all."""
    whole = output.ravel()
    return whole if train.micro_batch == 1 else np.concatenate([whole[: whole.size // train.micro_batch], whole])


def run_inference(train: TrainGraph, x: Array, state: Mapping[str, Array]) -> Array:
    """Return the output of one input slot from a state, flat."""
    trainer = Trainer(train)
    trainer.state = dict(state)
    return trainer.infer(x).ravel()


def run_reference(train: TrainGraph, samples: Samples, steps: int) -> ReferenceRun:
    """Return outputs of the first micro-batch before and after, losses, and the state after every step."""
    trainer = Trainer(train)
    count, batch = len(samples.x), train.batch
    probe = samples.x[[i % count for i in range(train.micro_batch)]]
    first = inferred(train, trainer.infer(probe))
    losses: list[float] = []
    states: list[dict[str, Array]] = []
    for step in range(steps):
        chosen = [(step * batch + i) % count for i in range(batch)]
        losses += trainer.step(samples.x[chosen], samples.y[chosen])
        states.append(dict(trainer.state))
    return ReferenceRun(np.asarray(losses, np.float32), first, inferred(train, trainer.infer(probe)), tuple(states))
