"""The numpy reference as a step that is judged: its parameters in numbers of the file, before and after an update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.driver.derivative.optimizers import KINDS, Tensors
from tinytrain_compile.ir.imported import ImportedModel, ParameterSource
from tinytrain_compile.ir.stages import ChannelSlice, TrainGraph, channel_axis
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.reference.trainer import Trainer

_RMSPROP: Mapping[int, tuple[str, ...]] = {
    1: ("squares",),
    2: ("squares", "velocity"),
    3: ("squares", "mean", "velocity"),
}
"""State of rmsprop by how much there is of it: with a momentum, and centred, it has more."""
SETTLING = 5
"""Steps without a rate after which subspaces suit the samples."""
_LEAST_SIZE = 1e-2
"""Root mean square that a tensor of zeros is taken to have when its numbers are shaken."""


@dataclass(frozen=True, eq=False)
class Part:
    """A trained tensor of the state. parameter: of the imported graph; source: its numbers in the file.

    piece: the channels of the parameter that it has.
    """

    name: str
    parameter: str
    source: ParameterSource
    piece: ChannelSlice | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its shape, as the map to the file has it."""
        return self.source.places.shape

    @property
    def origin(self) -> str:
        """Return the name by which the user knows it: the tensor of the file."""
        return self.source.tensor.name

    def of(self, whole: Array) -> Array:
        """Return its own numbers among those of the whole parameter."""
        if self.piece is None:
            return whole.reshape(self.shape)
        axis = channel_axis(self.piece.axis, self.source.places.ndim)
        return np.take(whole, self.piece.channels, axis).reshape(self.shape)

    def factor(self) -> NDArray[np.float64]:
        """Return what the file's numbers were multiplied by, so that it broadcasts; 0: they have no part in it."""
        factor = self.source.factor
        return factor.reshape(-1, *[1] * (len(self.shape) - 1)) if factor.size > 1 else factor.reshape(())


class JudgedStep:
    """One training step of the numpy reference, at numbers near the file's own.

    exact: layers whose low-rank copies are judged by themselves.
    """

    def __init__(self, train: TrainGraph, model: ImportedModel, exact: Set[str] = frozenset()) -> None:
        self.train = _without_dropout(train)
        self._trainer = Trainer(self.train)
        self._first = dict(self._trainer.state)
        self.parts = tuple(_part(train, model, name) for name in train.trained)
        self._kept = dict(_optimizer_state(train))
        copied = {kept.layer for kept in train.low_rank} - exact
        origins = {value.name: value.origin for value in train.graph.state}
        self.approximate = tuple(p for p in self.parts if origins[p.name] in copied and len(p.shape) > 1)
        """Weights whose gradient is of a low-rank copy of their layer's input."""
        self._subspaces = _subspaces(train, self._trainer)
        self.exact = tuple(part for part in self.parts if part not in self.approximate)

    @property
    def initial(self) -> Mapping[str, Array]:
        """Return the state that training begins with."""
        return self._first

    def shaken(self, amount: float, seed: int) -> dict[str, Array]:
        """Return the state with trained numbers moved at random: no ties, exact zeros and dead branches are left.

        The optimizer's state is 0: beside a large one, float32 rounds off what a gradient adds. amount: of a tensor's
        root mean square.
        """
        rng, state = np.random.default_rng(seed), dict(self._first)
        state |= {name: np.zeros_like(state[name]) for kept in self._kept.values() for name in kept}
        for part in self.parts:
            numbers = np.asarray(state[part.name], np.float64).reshape(part.shape)
            size = max(float(np.sqrt(np.mean(numbers**2))), _LEAST_SIZE)
            step = np.where(part.factor() != 0, rng.standard_normal(part.shape) * amount * size, 0)
            moved = (numbers + step).astype(np.float32)
            state[part.name] = moved.reshape(np.shape(self._first[part.name]))
        return state

    def step(self, state: Mapping[str, Array], x: Array, y: Array, rate: float) -> tuple[dict[str, Array], list[float]]:
        """Return the state after one update on these samples from such a state, and the loss of every call."""
        trainer = self._trainer
        trainer.state, trainer.sums = dict(state), trainer.zero_sums()
        trainer.set_rate(rate)
        losses = trainer.step(x, y)
        return dict(trainer.state), losses

    def settled(self, state: Mapping[str, Array], x: Array, y: Array) -> dict[str, Array]:
        """Return a state whose subspaces of low-rank copies have met these samples: their first ones are random."""
        begin = dict(state)
        for _ in range(SETTLING if self._subspaces else 0):
            after, _ = self.step(begin, x, y, 0.0)
            begin |= {name: after[name] for name in self._subspaces}
        return begin

    def tensors(self, part: Part, state: Mapping[str, Array], optimizer: str) -> Tensors:
        """Return a parameter and its optimizer state in float64."""
        kept = self._kept.get(part.name, ())
        kinds = KINDS[optimizer] if optimizer != "rmsprop" else _RMSPROP[len(kept)]
        return {
            kind: np.asarray(state[name], np.float64).reshape(part.shape)
            for kind, name in zip(("w", *kinds), (part.name, *kept), strict=True)
        }

    def numbers(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """Return the parameters alone."""
        return {part.name: state[part.name] for part in self.parts}

    def change(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """Return, by part, what such a state has added to the file's own numbers."""
        return {
            part.name: np.asarray(state[part.name], np.float64).reshape(part.shape)
            - np.asarray(self._first[part.name], np.float64).reshape(part.shape)
            for part in self.parts
        }

    def in_file(self, change: Mapping[str, Array], base: Mapping[str, Array]) -> dict[str, Array]:
        """Return a change of parameters as the change of the file's tensors that makes it; base: these tensors."""
        made: dict[str, Array] = {}
        for part in self.parts:
            if part.name not in change:
                continue
            factor = np.broadcast_to(part.factor(), part.shape)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = np.where(factor != 0, change[part.name] / factor, 0)
            name = part.origin
            flat = made.setdefault(name, np.zeros(base[name].size))
            flat[part.source.places.reshape(-1)] = step.reshape(-1)
        return {name: flat.reshape(base[name].shape) for name, flat in made.items()}


def _subspaces(train: TrainGraph, trainer: Trainer) -> tuple[str, ...]:
    """Name the state that low-rank copies carry from step to step."""
    kept = [node.outputs[0].name for node in train.graph.nodes if node.op == "KeepSubspace"]
    return tuple(owner for name in kept if (owner := trainer.owner(name)) is not None)


def _optimizer_state(train: TrainGraph) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each trained tensor with the names of the state that its update overwrites beside it."""
    state = {value.name for value in train.graph.state}
    for node in train.graph.nodes:
        overwritten = [node.inputs[source].name for _, source in alias_of(node)]
        if overwritten and overwritten[0] in train.trained:
            yield overwritten[0], tuple(name for name in overwritten[1:] if name in state)


def _part(train: TrainGraph, model: ImportedModel, name: str) -> Part:
    trained = train.trained[name]
    source = model.sources[trained.parameter]
    if trained.piece is not None:
        axis = channel_axis(trained.piece.axis, source.places.ndim)
        source = source.cut(axis, trained.piece.channels)
    return Part(name, trained.parameter, source, trained.piece)


def _without_dropout(train: TrainGraph) -> TrainGraph:
    """Drop nothing, as in an inference: the file has no masks to compare with."""
    return train if train.dropout is None else replace(train, dropout=None)


def norm(arrays: Iterable[Array]) -> float:
    """Return the Euclidean norm of several arrays together."""
    return float(np.sqrt(sum(float(np.sum(array**2)) for array in arrays)))
