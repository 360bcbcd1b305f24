"""Samples of an int8 step that is judged, in the graph's layout and as the file takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.driver.derivative.file_loss import FileLoss, Sample
from tinytrain_compile.driver.imported_values import ImportedValues
from tinytrain_compile.ir.imported import FileTensor, ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array

MOST = 2
"""Calls of an update that takes more of them: the sum is over several."""


@dataclass(frozen=True, eq=False)
class Batch:
    """What the judged step takes, in the graph's layout, and the same for the file."""

    x: Array
    y: Array
    samples: tuple[Sample, ...]


class JudgedSamples:
    """Batches of different samples, one after the other."""

    def __init__(self, model: ImportedModel, train: TrainGraph, samples: Samples, loss: FileLoss) -> None:
        self._model, self._train, self._samples = model, train, samples
        self._values = ImportedValues(model, train, model.graph)
        given = [self._sample(index) for index in range(len(samples.x))]
        self._known = [(index, sample) for index, sample in enumerate(given) if loss.counts(sample)]

    def batch(self, number: int) -> Batch:
        """Return the samples of one update: two different ones at the most."""
        train = self._train
        calls = 1 if train.batch == 1 or train.in_place else min(train.batch // train.micro_batch, MOST)
        size = calls * train.micro_batch
        chosen = [self._known[(2 * number + offset if size > 1 else number) % len(self._known)] for offset in (0, 1)]
        if size == 1 or chosen[0][0] == chosen[1][0]:
            chosen = chosen[:1]
        counts = (size,) if len(chosen) == 1 else (size - size // 2, size // 2)
        order = [index for (index, _), count in zip(chosen, counts, strict=True) for _ in range(count)]
        different = (Sample(s.x, s.y, count) for (_, s), count in zip(chosen, counts, strict=True))
        return Batch(self._samples.x[order], self._samples.y[order], tuple(different))

    def _sample(self, index: int) -> Sample:
        x = self._values.onnx_input(self._samples.x[index : index + 1])
        return Sample(x, self._label(self._samples.y[index]))

    def _label(self, y: Array) -> Array:
        model = self._model
        if model.loss is not None:
            return self._values.onnx_label(y)
        real = y.dtype.kind == "f"
        return FileTensor("", model.output_shape, model.output_perm).to_onnx(y).astype(np.float64) if real else y
