"""Training fixtures of Deeploy in ../shared: a training graph, its weights, samples, and the goldens of a few steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from testing.places import SHARED
from tinytrain_compile.ir.types import Array

FOLDER = SHARED / "training-graphs" / "deeploy"
TRAINED = ("simplemlp", "autoencoder", "cct", "cct_lora")
REFUSED = ("dscnn", "resnet8", "mobilenetv1")
"""They normalise with the statistics of a batch."""
RATE = 0.001
"""Learning rate of every optimizer.onnx."""
MOST_LOSS, MOST_CHANGE = 1e-6, 0.01
"""What a loss may differ by, and a weight's change relative to its norm."""


@dataclass(frozen=True)
class Found:
    """Largest difference of a loss; the tensor whose change differs most from the golden, by how much of its norm."""

    losses: float
    tensor: str
    change: float

    @property
    def meets(self) -> bool:
        """Whether this is within the bounds."""
        return self.losses <= MOST_LOSS and self.change <= MOST_CHANGE


@dataclass(frozen=True, eq=False)
class Fixture:
    """x, y: samples in the file's layout, one each micro-batch. accumulate: of how many an update adds the gradients.

    losses, weights: goldens. first: weights before.
    """

    name: str
    x: Array
    y: Array
    accumulate: int
    losses: Array
    first: Mapping[str, Array]
    weights: Mapping[str, Array]

    @property
    def model(self) -> Path:
        """The training graph."""
        return FOLDER / self.name / "network.onnx"

    @property
    def given(self) -> Path:
        """The file for --weights."""
        return FOLDER / self.name / "inputs.npz"

    @property
    def rate(self) -> float:
        """Learning rate with which a mean of gradients is the fixture's sum."""
        return RATE * self.accumulate

    def judge(self, step: Callable[[Array, Array], Sequence[float]], state: Callable[[], Mapping[str, Array]]) -> Found:
        """Train by `step`, on the samples of an update, which gives their losses; compare with the goldens."""
        losses = list[float]()
        for start in range(0, len(self.x), self.accumulate):
            part = slice(start, start + self.accumulate)
            losses += [float(loss) for loss in step(self.x[part], self.y[part])]
        apart = float(np.abs(np.array(losses) - self.losses).max())
        changes = dict[str, float]()
        for name, held in state().items():
            wanted = self.weights[name].astype(np.float64) - self.first[name]
            own = held.astype(np.float64) - self.first[name]
            changes[name] = float(np.linalg.norm(own - wanted) / max(np.linalg.norm(wanted), 1e-30))
        worst = max(changes, key=lambda name: changes[name])
        assert set(changes) == set(self.first), "another set of weights was trained"
        return Found(apart, worst, changes[worst])


def fixture(name: str) -> Fixture:
    """Read one. Weights are by position of the graph's inputs, accumulators left out; optimizer.onnx names them."""
    inputs, outputs = np.load(FOLDER / name / "inputs.npz"), np.load(FOLDER / name / "outputs.npz")
    graph, optimizer = (
        onnx.ModelProto.FromString((FOLDER / name / file).read_bytes()).graph
        for file in ("network.onnx", "optimizer.onnx")
    )
    names = [value.name for value in graph.input if not value.name.endswith(".buffer")]
    count = int(inputs["meta_n_batches"][0])
    sets = [f"mb{index}_" if index else "" for index in range(count)]
    x, y = (np.concatenate([inputs[f"{each}arr_000{place}"] for each in sets]) for place in (0, 1))
    accumulate = int(inputs["meta_n_accum"][0]) if "meta_n_accum" in inputs else 1
    first = {node.input[0]: inputs[f"arr_{names.index(node.input[0]):04}"] for node in optimizer.node}
    return Fixture(name, x, y, accumulate, outputs["loss"], first, {key: outputs[key] for key in first})
