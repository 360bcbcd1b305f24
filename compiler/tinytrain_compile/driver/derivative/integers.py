"""The comparison in integers: the gradient that int8 updates show, against the slopes of the model file in float64.

Forward pass, errors and updates round, so the two are never equal. Two figures tell a fault from rounding, for each
trained tensor: how long the file's derivative is along the gradient of the update (1 if they are equal, 0.5 if the
update is twice too large, -1 if its sign is wrong), and how much of it lies in other directions (a part that the update
lacks). The file is evaluated without its formats, as real numbers that saturate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.driver.derivative.file_loss import FileLoss, Point, Sample
from tinytrain_compile.driver.derivative.integer_step import IntegerStep, Shown
from tinytrain_compile.driver.derivative.judged import Part, norm
from tinytrain_compile.driver.derivative.samples import JudgedSamples, RoundedValues
from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.training_options import training_options
from tinytrain_compile.frontend import FileFunction, Rounded
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array

SMALL = 1e-5
"""Length of a step, of a tensor's own: in float64 a one-sided difference is exact to 1e-4 there."""
LEAST_SIZE = 1e-3
"""Root mean square that a tensor of zeros is taken to have in that."""
import os
FORCE=not os.environ.get("NOFORCE")
DIRECTIONS = 3
"""Random directions for the tensors of a layer together, on each sample."""


@dataclass(eq=False)
class Compared:
    """What was found of one tensor. ours: squared norms of its gradients; along: their products with the file's.

    others: squared differences along random directions of its layer, of the gradients' norms; sizes: see Integers.
    """

    part: Part
    ours: list[float] = field(default_factory=list[float])
    along: list[float] = field(default_factory=list[float])
    others: list[float] = field(default_factory=list[float])
    noise: list[float] = field(default_factory=list[float])
    size: float = 0.0

    @property
    def length(self) -> float:
        """Return how long the file's derivative is along the update's, of the latter."""
        total = sum(self.ours)
        return sum(self.along) / total if total > 0 else 0.0

    @property
    def apart(self) -> float:
        """Return the mean squared difference, of the update's gradient."""
        return float(np.mean(self.others)) if self.others else 0.0


class Integers:
    """Compares tensors on one batch after the other."""

    def __init__(
        self, file: FileFunction, model: ImportedModel, train: TrainGraph, samples: Samples, options: CompileOptions
    ) -> None:
        self._file = file
        self._loss = FileLoss(file, model, options.loss)
        self._how = training_options(options, model, train.batch)
        self.step = IntegerStep(train, model, self._how)
        self._samples = JudgedSamples(model, train, samples, self._loss)
        self._rounded = RoundedValues(model, train)
        self._stored = {name for node in file.nodes if node.op == "QuantizeLinear" for name in node.inputs[:1]}
        moved = self.step.judged.in_file(self.step.change(), file.constants)
        self._start = {name: file.constants[name] + step for name, step in moved.items()}
        self.found = {part.name: Compared(part) for part in self.step.parts}
        self.losses: list[tuple[float, float]] = []
        self.seconds: dict[str, float] = {}
        self._rng = np.random.default_rng(len(self.found))

    def compare(self, number: int, parts: Sequence[Part]) -> None:
        """Compare these tensors on the batch of this number."""
        t0 = time.process_time()
        batch = self._samples.batch(number)
        found = self.step.run(batch.x, batch.y)
        t1 = time.process_time()
        shown = self.step.gradients(found)
        t2 = time.process_time()
        rounded = [self._without_ends(self._rounded.of(found.calls[c], place)) for c, place in batch.places()]
        point = self._loss.near(batch.samples, self._start, rounded if FORCE else [{} for _ in rounded])
        self.losses.append((float(np.mean(found.losses)), point.loss))
        lengths = {name: norm((one.gradient * one.known,)) for name, one in shown.items()}
        for group in self._layers(parts):
            for part in group:
                self._along(part, point, batch.samples, shown[part.name])
            for _ in range(DIRECTIONS):
                self._apart(group, point, batch.samples, shown, lengths)
        t3 = time.process_time()
        for name, seconds in (("pass", t1 - t0), ("updates", t2 - t1), ("file", t3 - t2)):
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def _without_ends(self, rounded: Mapping[str, Rounded]) -> dict[str, Rounded]:
        """Without tensors that the file stores in a format: they may lie beyond its range, and then have no slope."""
        return {name: array for name, array in rounded.items() if name not in self._stored}

    def _along(self, part: Part, point: Point, samples: Sequence[Sample], shown: Shown) -> None:
        row, gradient = self.found[part.name], shown.gradient * shown.known
        length, own = norm((gradient,)), self._size(part, point)
        row.size = max(row.size, length * own)
        row.ours.append(length**2)
        row.noise.append(norm((shown.noise * shown.known,)) ** 2)
        if not length:
            row.along.append(0.0)
            return
        scale = SMALL * own / length
        rise = self._rise(point, samples, {part.name: gradient * scale})
        row.along.append(rise / scale)

    def _apart(
        self,
        group: Sequence[Part],
        point: Point,
        samples: Sequence[Sample],
        shown: Mapping[str, Shown],
        lengths: Mapping[str, float],
    ) -> None:
        """The difference along one random direction, in which all tensors of a layer count alike."""
        counted = [part for part in group if lengths[part.name]]
        if not counted:
            return
        steps: dict[str, Array] = {}
        reach = SMALL * min(lengths[p.name] * self._size(p, point) / np.sqrt(p.source.places.size) for p in counted)
        ours = 0.0
        for part in counted:
            one = shown[part.name]
            signs = np.where(one.known, self._rng.integers(0, 2, part.shape) * 2.0 - 1.0, 0)
            steps[part.name] = signs * (reach / lengths[part.name])
            ours += float((one.gradient * steps[part.name]).sum())
        theirs = self._rise(point, samples, steps)
        for part in counted:
            self.found[part.name].others.append(((theirs - ours) / reach) ** 2)

    def _rise(self, point: Point, samples: Sequence[Sample], steps: Mapping[str, Array]) -> float:
        """How the loss of the file changes by a step of parameters."""
        return self._loss.rise(point, samples, self.step.judged.in_file(steps, point.known[0]))

    def _size(self, part: Part, point: Point) -> float:
        """The norm of a parameter, as the file's numbers have it."""
        numbers = point.known[0][part.origin].reshape(-1)[part.source.places.reshape(-1)]
        factor = np.abs(np.broadcast_to(part.factor(), part.shape)).reshape(-1)
        return max(norm((numbers * factor,)), LEAST_SIZE * float(np.sqrt(numbers.size)))

    def _layers(self, parts: Sequence[Part]) -> list[list[Part]]:
        """Parts by the node of the file that reads them: behind it the same is evaluated again."""
        groups: dict[str, list[Part]] = {}
        for part in parts:
            groups.setdefault(self._reader(part.origin), []).append(part)
        return list(groups.values())

    def _reader(self, name: str) -> str:
        while True:
            readers = [node for node in self._file.nodes if name in node.inputs]
            if len(readers) != 1 or readers[0].op not in _FORMS:
                return readers[0].outputs[0] if readers else name
            name = readers[0].outputs[0]


_FORMS = ("Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that an exporter writes between a weight and its layer."""
