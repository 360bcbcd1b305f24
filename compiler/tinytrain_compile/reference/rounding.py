"""The reference of one step from a given state, and what rounding may do to that step.

A float32 kernel that sums n terms gives the exact result of inputs that were changed by about sqrt(n) units in the last
place. So the step is run in float64, and a few times in float32 with the inputs of every node changed at random by so
much: how far the gradients then scatter is what rounding does to them. An optimizer may make much of that (Adam makes a
full step of a gradient that is nothing but rounding), so updates are run again with gradients anywhere in that range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array, Node
from tinytrain_compile.ops.base import alias_of, has_trait, op_def, run_node
from tinytrain_compile.ops.fused_update import taken_apart
from tinytrain_compile.ops.normalise import NormalizeAttrs
from tinytrain_compile.reference.trainer import Trainer, inferred
from tinytrain_compile.verify.compare import Rounded, Step

UNIT = 2.0**-24
"""Relative error of one float32 operation."""

RUNS, ROOM = 4, 4.0
"""Runs with changed inputs; how many times as far as these scatter a float32 result may lie from that in float64."""

GRID = np.linspace(-1.0, 1.0, 9)
"""Where between both ends of a gradient an update is run again."""


class StepwiseReference:
    """A float32 training graph on samples that are taken in turn (see `verify.StepReference`)."""

    def __init__(self, train: TrainGraph, samples: Samples, seed: int = 0) -> None:
        self._train, self._samples, self._seed = train, samples, seed
        self._trainer = Trainer(train)

    def initial(self) -> dict[str, Array]:
        """Return the state that the graph begins with."""
        return {value.name: self._train.graph.constants[value.name] for value in self._train.graph.state}

    def infer(self, state: Mapping[str, Array]) -> Array:
        """Return the output of the first micro-batch."""
        self._begin(self._trainer, state)
        return inferred(self._train, self._trainer.infer(self._probe()))

    def step(self, number: int, state: Mapping[str, Array]) -> Step:
        """Step `number` from a state, in float32."""
        self._begin(self._trainer, state)
        return self._stepped(self._trainer, number)

    def rounded(self, number: int, state: Mapping[str, Array]) -> Rounded:
        """Step `number` in float64 and per element how far float32 may lead away from it."""
        runs = [_Changed(self._train, None)]
        runs += [_Changed(self._train, np.random.default_rng((self._seed, number, k))) for k in range(RUNS)]
        for run in runs:
            self._begin(run, state)
        steps = [self._stepped(run, number) for run in runs]
        allowed = {name: _farthest(steps[0].state[name], [s.state[name] for s in steps[1:]]) for name in state}
        for place, update in enumerate(runs[0].updates):
            others = [run.updates[place].arrays for run in runs[1:]]
            for name, spread in update.spread(others).items():
                allowed[name] = allowed[name] + spread
        losses = ROOM * np.max(_farthest(steps[0].losses, [s.losses for s in steps[1:]]), initial=0.0)
        return Rounded(steps[0], allowed, np.full(len(steps[0].losses), losses))

    def rounded_output(self, state: Mapping[str, Array]) -> tuple[Array, float]:
        """Return `infer` in float64 and how far float32 may lead away from it."""
        outputs: list[Array] = []
        for run in changed_runs(self._train, self._seed):
            self._begin(run, state)
            outputs.append(inferred(self._train, run.infer(self._probe())))
        return outputs[0], float(scattered(outputs[0][None], [output[None] for output in outputs[1:]])[0])

    def _begin(self, trainer: Trainer, state: Mapping[str, Array]) -> None:
        constants = self._train.graph.constants
        trainer.state = {name: array.reshape(constants[name].shape) for name, array in state.items()}

    def _probe(self) -> Array:
        count = len(self._samples.x)
        first = [i % count for i in range(self._train.micro_batch)]
        return self._samples.x[first]

    def _stepped(self, trainer: Trainer, number: int) -> Step:
        count, batch = len(self._samples.x), self._train.batch
        chosen = [(number * batch + i) % count for i in range(batch)]
        losses = trainer.step(self._samples.x[chosen], self._samples.y[chosen])
        return Step(np.asarray(losses), dict(trainer.state))


def changed_runs(train: TrainGraph, seed: int) -> list[Trainer]:
    """Return a trainer in float64, then those in float32 with changed inputs."""
    return [_Changed(train, None), *(_Changed(train, np.random.default_rng((seed, k))) for k in range(RUNS))]


def scattered(exact: Array, others: Iterable[Array]) -> Array:
    """Return how far float32 may lie from each of these outputs: (outputs, elements) -> (outputs,)."""
    return ROOM * np.max(_farthest(exact, others), axis=1, initial=0.0)


def _farthest(centre: Array, others: Iterable[Array]) -> Array:
    """Return per element the largest distance of any other from the centre; 0 where that is no number."""
    with np.errstate(all="ignore"):
        distances = [np.abs(np.asarray(other, np.float64) - centre) for other in others]
    return np.nan_to_num(np.max(distances, axis=0), nan=0.0, posinf=0.0)


@dataclass(frozen=True, eq=False)
class _Update:
    """One run of a node that overwrites state: its operands, and which state its outputs are."""

    node: Node
    arrays: tuple[Array, ...]
    owners: Mapping[int, str] = field(default_factory=dict[int, str])

    def spread(self, others: list[tuple[Array, ...]]) -> dict[str, Array]:
        """Return per state how far it may be from what this run made of it, with gradients anywhere in their range."""
        kept = {source for _, source in alias_of(self.node)}
        moved = list(self.arrays)
        widths = {
            k: ROOM * float(np.max(_farthest(array, [other[k] for other in others]), initial=0.0))
            for k, array in enumerate(self.arrays)
            if k not in kept and array.shape == self.arrays[0].shape
        }
        centre = run_node(self.node, self.arrays)
        found = {name: np.zeros_like(centre[out]) for out, name in self.owners.items()}
        for share in GRID:
            for k, width in widths.items():
                moved[k] = self.arrays[k] + share * width
            results = run_node(self.node, tuple(moved))
            for out, name in self.owners.items():
                found[name] = np.maximum(found[name], _farthest(centre[out], [results[out]]))
        return found


class _Changed(Trainer):
    """A trainer whose nodes see inputs that a draw changes by what rounding may; None: in float64, and as they are."""

    def __init__(self, train: TrainGraph, draw: np.random.Generator | None) -> None:
        super().__init__(train)
        self._draw = draw
        self.updates: list[_Update] = []

    def run_nodes(self, nodes: Iterable[Node], known: Mapping[str, Array]) -> dict[str, Array]:
        """Evaluate nodes in order with changed inputs; updates of the state are noted."""
        values = {name: self._number(np.asarray(array)) for name, array in known.items()}
        for node in [part for whole in nodes for part in taken_apart(whole)]:
            arrays = tuple(values[value.name] for value in node.inputs)
            owners = {out: self.owner(node.outputs[out].name) for out, _ in alias_of(node)}
            named = {out: name for out, name in owners.items() if name in self.state}
            if named:
                self.updates.append(_Update(node, arrays, named))
            results = run_node(node, arrays if op_def(node.op).view else self._changed(node, arrays))
            if self._draw is not None and has_trait(node.op, "cancels"):
                results = tuple(self._moved(node, arrays, results))
            values.update({out.name: self._number(array) for out, array in zip(node.outputs, results, strict=True)})
        return values

    def _number(self, array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        return array.astype(np.float64 if self._draw is None else np.float32)

    def _changed(self, node: Node, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        if self._draw is None:
            return arrays
        width, found = UNIT * float(np.sqrt(_terms(node))), list[Array]()
        for array in arrays:
            changed = array * (1.0 + width * self._draw.uniform(-1.0, 1.0, array.shape))
            found.append(changed.astype(np.float32) if array.dtype.kind == "f" else array)
        return tuple(found)

    def _moved(self, node: Node, arrays: tuple[Array, ...], results: tuple[Array, ...]) -> Iterator[Array]:
        """Change the results of a node with large numbers inside that cancel: no change of its inputs explains those.

        Each on its own, and all alike, since all elements share the mean or the sum that was rounded. By a unit of the
        largest number at hand, or, where a group is normalised, by as much as the change of its inputs has changed one
        of its outputs: what rounds its mean is divided by its deviation, as they are.
        """
        assert self._draw is not None
        floats = [array for array in (*arrays, *results) if array.dtype.kind == "f"]
        unit = UNIT * max(float(np.max(np.abs(array), initial=0.0)) for array in floats)
        widths = [np.asarray(unit) for _ in results]
        if isinstance(node.attrs, NormalizeAttrs):
            exact = run_node(node, tuple(a.astype(np.float64) for a in arrays))
            changes = (_farthest(one, [result]) for one, result in zip(exact, results, strict=True))
            widths = [np.maximum(unit, np.max(c, axis=node.attrs.axes, keepdims=True, initial=0.0)) for c in changes]
        alike = self._draw.uniform(-1.0, 1.0)
        for result, width in zip(results, widths, strict=True):
            yield result + width * (alike + self._draw.uniform(-1.0, 1.0, result.shape))


def _terms(node: Node) -> float:
    """Return about how many terms a node's longest sum has: products or elements read per element written."""
    written = max(1, min(value.elements for value in node.outputs))
    read = max((value.elements for value in node.inputs), default=1)
    return max(1.0, op_def(node.op).macs(node) / written, read / written)
