"""The pass on a stream in numpy, call by call, as the reference for m_hear (docs/listening.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tinytrain_compile.ir.stages import Listening, TrainGraph
from tinytrain_compile.ir.types import Array, Node
from tinytrain_compile.reference.rounding import changed_runs, scattered
from tinytrain_compile.reference.trainer import Trainer

Run = Callable[[Iterable[Node], Mapping[str, Array]], dict[str, Array]]
"""Evaluates nodes on known values, as `Trainer.run_nodes`."""


class Stream:
    """Rings and calls of a pass on a stream. unsettled: calls until it equals an inference of the window."""

    def __init__(self, listening: Listening, run: Run) -> None:
        self.listening, self._run = listening, run
        self.reset()

    def reset(self) -> None:
        """Empty the rings, as m_init does."""
        graph = self.listening.graph
        self.rings = {ring.name: graph.constants[ring.name] for ring in graph.state}
        self.unsettled = self.listening.calls

    def weights_changed(self) -> None:
        """Count the calls from an update on."""
        self.unsettled = max(self.unsettled, self.listening.settle)

    def hear(self, rows: Array, state: Mapping[str, Array]) -> Array:
        """Take the new rows of a call, in the input's type; return the output, flat. state: weights at that moment."""
        graph = self.listening.graph
        frames = graph.inputs[0]
        known = {**graph.constants, **state, **self.rings, frames.name: rows.reshape(frames.shape)}
        values = self._run(graph.nodes, known)
        self.rings = {ring.name: values[after.name] for ring, after in graph.updates}
        self.unsettled = max(0, self.unsettled - 1)
        return values[graph.outputs[0].name].ravel()


class StreamReference:
    """The stream of the check program: a window of rows for each of several states (see `verify.HeardReference`).

    The window's first rows lack some for a whole call: zeros stand before them.
    """

    def __init__(self, train: TrainGraph, listening: Listening, window: Array, seed: int) -> None:
        self._train, self._listening, self._seed = train, listening, seed
        rows = window.reshape(listening.window, -1)
        missing = np.zeros((-len(rows) % listening.frames, rows.shape[1]), rows.dtype)
        self._calls = np.concatenate([missing, rows]).reshape(-1, listening.frames, rows.shape[1])

    def initial(self) -> dict[str, Array]:
        """Return the state that the graph begins with."""
        return {value.name: self._train.graph.constants[value.name] for value in self._train.graph.state}

    def heard(self, states: Sequence[Mapping[str, Array]]) -> list[Array]:
        """Return the outputs of a window's calls with each of these states: (calls, elements).

        Rings are kept from one state to the next, unless it is loaded.
        """
        return self._streamed(Trainer(self._train), states)

    def rounded(self, states: Sequence[Mapping[str, Array]]) -> list[tuple[Array, Array]]:
        """Return the same in float64, and per call how far float32 may lead away from it."""
        exact, *others = (self._streamed(run, states) for run in changed_runs(self._train, self._seed))
        return [(whole, scattered(whole, parts)) for whole, *parts in zip(exact, *others, strict=True)]

    def _streamed(self, trainer: Trainer, states: Sequence[Mapping[str, Array]]) -> list[Array]:
        stream, found = Stream(self._listening, trainer.run_nodes), list[Array]()
        for state in states:
            found.append(np.stack([stream.hear(rows, state) for rows in self._calls]))
            if self._train.reads_state_of is not None:  # m_load empties the rings
                stream.reset()
        return found
