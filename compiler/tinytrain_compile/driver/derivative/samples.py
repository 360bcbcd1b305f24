"""Samples of an int8 step that is judged, in the graph's layout and as the file takes them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.driver.derivative.file_loss import FileLoss, Sample
from tinytrain_compile.driver.file_check.imported_values import ImportedValues
from tinytrain_compile.frontend import Rounded
from tinytrain_compile.ir.imported import FileTensor, ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.names import operand
from tinytrain_compile.quantize import ends_of, storage_clamps

MOST = 2
"""Calls of an update that takes more of them: the sum is over several."""


LOSSY = 0.08
"""Share of a tensor's energy that is rounded away, beyond which its gradients are not judged (as NOISY is one)."""


@dataclass(frozen=True, eq=False)
class Batch:
    """What the judged step takes, in the graph's layout, and the same for the file."""

    x: Array
    y: Array
    samples: tuple[Sample, ...]
    micro_batch: int

    def places(self) -> tuple[tuple[int, int], ...]:
        """Return, for each different sample, the call that takes it and its place there."""
        firsts = np.cumsum([0, *(sample.count for sample in self.samples[:-1])])
        return tuple((int(first) // self.micro_batch, int(first) % self.micro_batch) for first in firsts)


class JudgedSamples:
    """Batches of different samples, one after the other."""

    def __init__(self, model: ImportedModel, train: TrainGraph, samples: Samples, loss: FileLoss) -> None:
        self._model, self._train, self._samples = model, train, samples
        self._values = ImportedValues(model, train, model.graph)
        given = [sample_of(self._values, model, samples, index) for index in range(len(samples.x))]
        self._known = [(index, sample) for index, sample in enumerate(given) if loss.counts(sample)]

    @property
    def batches(self) -> int:
        """Return how many batches of different samples there are."""
        return len(self._known)

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
        return Batch(self._samples.x[order], self._samples.y[order], tuple(different), train.micro_batch)


def sample_of(values: ImportedValues, model: ImportedModel, samples: Samples, index: int) -> Sample:
    """Return one of the samples, in the graph's layout, as the file takes it."""
    y = samples.y[index]
    if model.loss is not None:
        label = values.onnx_label(y)
    elif y.dtype.kind == "f":
        label = FileTensor("", model.output_shape, model.output_perm).to_onnx(y).astype(np.float64)
    else:
        label = y
    return Sample(values.onnx_inputs(samples.x[index : index + 1]), label)


class RoundedValues:
    """Tensors of the file as the integer graph holds them, as real numbers."""

    def __init__(self, model: ImportedModel, train: TrainGraph) -> None:
        self._model, self._train = model, train
        self._clamped = storage_clamps(model.graph)
        self._bounds: dict[str, tuple[float, float]] = {}
        nodes = [node for node in train.graph.nodes if has_trait(node.op, "read_output")]
        self._masked = {operand(node, "y").name for node in nodes}
        """Real numbers by which errors are masked, whatever is stored of them."""
        for node in (*train.graph.nodes, *model.graph.nodes):
            moved = has_trait(node.op, "moves_data") and len(node.inputs) == 1
            known = self._bounds.get(node.inputs[0].name) if moved else None
            if moved and node.inputs[0].name in self._masked:  # nothing masks the error again where they are stored
                self._masked |= {value.name for value in node.outputs}
            if isinstance(node.attrs, ClipAttrs):
                known = node.attrs.low, node.attrs.high
            if known is not None:
                self._bounds |= {value.name: known for value in node.outputs}

    def of(self, values: Mapping[str, Array], place: int) -> dict[str, Rounded]:
        """Return those of one sample of a call, in the file's layout."""
        found: dict[str, Rounded] = {}
        for name, tensor in self._model.tensors.items():
            for held, value in self._forms(tensor.value):
                array = values.get(value)
                if array is None or (array.dtype == np.int8 and value not in self._train.formats):
                    continue
                if array.size == math.prod(tensor.shape) * self._train.micro_batch:
                    real, ends = self._real(value, array.reshape(self._train.micro_batch, -1)[place], held)
                    names = self._masked & values.keys()  # the integer graph may not compute one that is only moved
                    masked = next((each for each in self._names(tensor.value) if each in names), value)
                    if masked != value and values[masked].size == array.size:
                        ends = self._real(masked, values[masked].reshape(self._train.micro_batch, -1)[place], held)[1]
                    found[name] = Rounded(tensor.to_onnx(real), tensor.to_onnx(ends))
                    break
        return found

    def cut_inside(self, calls: Sequence[Mapping[str, Array]]) -> tuple[str, ...]:
        """Return values inside an operator of the file, some of which lie beyond their range: errors do not pass there.

        calls: all values of each call.
        """
        known = {name for tensor in self._model.tensors.values() for name in self._names(tensor.value)}
        nodes = self._train.graph.nodes
        clips = {n.outputs[0].name: n.attrs for n in nodes if isinstance(n.attrs, ClipAttrs) and n.op == "Clip"}
        return tuple(
            name
            for name, attrs in clips.items()
            if name not in known and any(_at_ends(values[name], attrs).any() for values in calls if name in values)
        )

    def rounds_away(self, calls: Sequence[Mapping[str, Array]]) -> bool:
        """Tell whether a tensor is read as it is computed and as it is stored, and storing it loses much of it.

        The file has one tensor for both, which is held at one of the two.
        """
        readers = Counter(value.name for node in self._train.graph.nodes for value in node.inputs)
        for node in self._train.graph.nodes:
            if node.op != "Quantize" or readers[node.inputs[0].name] == 1:
                continue
            for values in calls:
                if node.inputs[0].name in values and node.outputs[0].name in values:
                    exact = values[node.inputs[0].name].astype(np.float64)
                    name = node.outputs[0].name
                    stored = self._real(name, values[name], name)[0]
                    if ((exact - stored) ** 2).sum() > LOSSY * (exact**2).sum():
                        return True
        return False

    def _names(self, value: str) -> tuple[str, ...]:
        """Name values that may hold it, the best first: with the saturation of its format, else as it is computed."""
        return tuple(name for _, name in self._forms(value))

    def _forms(self, value: str) -> tuple[tuple[str, str], ...]:
        """Return the same with, for each, the float value that it is a form of."""
        held = (self._clamped.get(value, value), value)
        return tuple((each, name) for each in held for name in (*self._train.forms.get(each, ()), each))

    def _real(self, value: str, array: Array, held: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return real numbers, and where errors do not pass (docs/int8-arithmetic.md): at the ends of a clamp.

        held: the float value of which this is a form. A format of the file is a clamp; a calibrated range is none.
        """
        quant = self._train.formats.get(value)
        if quant is None:
            low, high = self._bounds.get(value, (-math.inf, math.inf))
            return array.astype(np.float64), _at_ends(array, ClipAttrs(low, high))
        low, high = quant.low, quant.high
        if not self._model.quantised:
            low, high = ends_of(quant, ClipAttrs(*self._bounds.get(held, ())))
        ends = (array <= low) | (array >= high)
        return (array.astype(np.float64) - quant.zero) * quant.scale[0], ends


def _at_ends(array: Array, attrs: ClipAttrs) -> NDArray[np.bool_]:
    return (array <= attrs.low) | (array >= attrs.high)
