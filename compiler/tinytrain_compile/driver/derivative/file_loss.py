"""The loss of samples as the model file and the options define it, in float64, and its slopes along directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.frontend import FileFunction, FileNode, Rounded
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.types import Array

Direction = Mapping[str, Array]
"""A change of tensors of the file, by name, in float64."""

_VIEWS = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast")
_BETWEEN = ("Clip", "AveragePool", "GlobalAveragePool", "MaxPool", "GlobalMaxPool", "Slice", "Gather", "ReduceMean")
"""Operators whose results lie between the numbers of their first input."""
SURE = 1e-9
"""Distance of a probability from 0 or 1 below which differences of its logarithm are not exact to 1e-6."""
_LOSS_OPS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample as the file takes it, and its label. x: by the file's inputs, without the batch that it may have.

    count: how often it is in the batch.
    """

    x: Mapping[str, Array]
    y: Array
    count: int = 1


@dataclass(frozen=True, eq=False)
class Point:
    """The loss at one setting of the file's numbers. known: every tensor, by sample. losses: of each sample.

    shares: of each sample's loss in the loss of the batch. added: to tensors by rounding, by sample.
    """

    known: tuple[Mapping[str, Array], ...]
    losses: tuple[float, ...]
    shares: tuple[float, ...]
    added: tuple[Mapping[str, Rounded], ...] = ()

    @property
    def loss(self) -> float:
        """Return the loss of the batch."""
        return float(np.dot(self.losses, self.shares))


SATURATED = 2.0**-13
"""Distance of a tanh from 1 at which what float32 rounds off 1 - y * y, 2**-23, is 5e-4 of it: half the tolerance."""


class FileLoss:
    """The loss of a batch as a function of the file's numbers."""

    def __init__(self, file: FileFunction, model: ImportedModel, asked: str | None) -> None:
        """Prepare the loss. asked: by the user's name for it; None: the default, or the one in the file."""
        self._file, self._model = file, model
        self._makers = {name: node for node in file.nodes for name in node.outputs}
        own = model.loss
        self._output = file.outputs[0] if own is None else own.output
        self._label = "" if own is None else own.label
        self._joined = "mean" if own is None else own.reduction
        self._end = self._last()
        self._of_output = _written(self._kind(asked), self._end, self._probabilities()) if own is None else None
        self._batch = file.batch_of(model.input_name) if model.input_shape[:1] == (1,) else 1

    def at(self, samples: Sequence[Sample], changed: Direction) -> Point:
        """Evaluate the loss with these tensors in place of the file's."""
        changed = self._with_copies(changed)
        known = tuple(self._file.values(self._feeds(sample), changed) for sample in samples)
        losses = tuple(self._loss(values, sample) for values, sample in zip(known, samples, strict=True))
        return Point(known, losses, self._shares(samples))

    def tanh_saturates(self, point: Point) -> bool:
        """Tell whether float32 leaves too little of the slope of a tanh; of LSTM and GRU nobody sees their gates."""
        for node in self._makers.values():
            if node.op in ("LSTM", "GRU"):
                return True
            if node.op in ("Tanh", "RNN") and any(
                bool((np.abs(known[name]) > 1 - SATURATED).any())
                for known in point.known
                for name in node.outputs
                if name
            ):
                return True
        return False

    def near(self, samples: Sequence[Sample], changed: Direction, rounded: Sequence[Mapping[str, Rounded]]) -> Point:
        """Evaluate the loss with tensors that are rounded on the way. rounded: what became of them, by sample."""
        pairs, changed = zip(samples, rounded, strict=True), self._with_copies(changed)
        found = [self._file.values_near(self._feeds(sample), changed, after) for sample, after in pairs]
        known, added = (tuple(each) for each in zip(*found, strict=True))
        losses = tuple(self._loss(values, sample) for values, sample in zip(known, samples, strict=True))
        return Point(known, losses, self._shares(samples), added)

    def slope(self, point: Point, samples: Sequence[Sample], direction: Direction) -> float:
        """Return (L(p + d) - L(p - d)) / 2: the change of the loss along a small direction, by a central difference."""
        ends: list[float] = []
        for sign in (1.0, -1.0):
            losses: list[float] = []
            for known, sample in zip(point.known, samples, strict=True):
                moved = {name: known[name] + sign * step for name, step in direction.items()}
                losses.append(self._loss(self._file.again(known, self._with_copies(moved)), sample))
            ends.append(float(np.dot(losses, point.shares)))
        return (ends[0] - ends[1]) / 2

    def rise(self, point: Point, samples: Sequence[Sample], direction: Direction) -> float:
        """Return L(p + d) - L(p): one evaluation, and less exact by what the slope changes on the way."""
        ends: list[float] = []
        for known, added, sample in zip(point.known, point.added, samples, strict=True):
            moved = {name: known[name] + step for name, step in direction.items()}
            ends.append(self._loss(self._file.again(known, self._with_copies(moved), added), sample))
        return float(np.dot(ends, point.shares)) - point.loss

    def _with_copies(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Return these tensors, and initializers that follow from one of them and so move with it."""
        follow = {
            name: np.asarray(copy.of(tensors[copy.source]), np.float64)
            for name, copy in self._model.copies.items()
            if copy.source in tensors and name in self._file.constants
        }
        return {**tensors, **follow}

    def _feeds(self, sample: Sample) -> dict[str, Array]:
        """Repeat the sample as often as the file takes samples at once: they are the same, so that the first tells."""
        given = {**sample.x, self._label: sample.y} if self._label else sample.x
        count, kinds = self._batch, self._file.inputs
        return {name: np.concatenate([array] * count).astype(kinds[name]) for name, array in given.items()}

    def _loss(self, values: Mapping[str, Array], sample: Sample) -> float:
        out = values[self._output]
        if self._of_output is not None:
            return self._of_output(out[: len(out) // self._batch] if self._batch > 1 else out, sample.y)
        whole = float(out.sum())
        return whole / self._batch if self._joined == "sum" else whole

    def _shares(self, samples: Sequence[Sample]) -> tuple[float, ...]:
        """Return what each sample's loss counts in that of the batch.

        PyTorch's `reduction` over all samples at once.
        """
        counts = np.array([sample.count for sample in samples], np.float64)
        if self._joined == "sum":
            return tuple(counts)
        weights = counts * [self._weight(sample) for sample in samples]
        return tuple(weights / weights.sum())

    def _weight(self, sample: Sample) -> float:
        """Return what the labels of a sample weigh.

        The weighted mean of SoftmaxCrossEntropyLoss in the ONNX specification.
        """
        node = self._makers.get(self._through(self._output, ("Identity",)))
        if node is None or node.op not in _LOSS_OPS:
            return 1.0
        labels = sample.y.reshape(-1).astype(np.int64)
        attrs = {attribute.name: attribute.i for attribute in node.proto.attribute}
        kept = labels[labels != attrs["ignore_index"]] if "ignore_index" in attrs else labels
        _, _, *weights = node.inputs
        table = self._file.constants[weights[0]] if weights and weights[0] else None
        return float(len(kept) if table is None else table[kept].sum())

    def counts(self, sample: Sample) -> bool:
        """Tell whether the file's own loss takes notice of a sample's labels."""
        return self._of_output is not None or self._weight(sample) > 0

    def _kind(self, asked: str | None) -> str:
        if asked is not None:
            return asked
        return "bce" if self._end is not None and self._end.meaning == "Sigmoid" else "cross-entropy"

    def _through(self, name: str, ops: Sequence[str]) -> str:
        while (node := self._makers.get(name)) is not None and node.meaning in ops:
            name = node.inputs[0]
        return name

    def _last(self) -> FileNode | None:
        """Return the operator that makes the numbers of the output."""
        return self._makers.get(self._through(self._output, (*_VIEWS, "Clip", "QuantizeLinear", "DequantizeLinear")))

    def _probabilities(self) -> bool:
        """Tell whether every number of the output lies from 0 to 1 by what makes it."""
        moved = (*_VIEWS, *_BETWEEN, "QuantizeLinear", "DequantizeLinear")
        node = self._makers.get(self._through(self._output, moved))
        return node is not None and node.meaning in ("Sigmoid", "HardSigmoid", "Softmax")


def _written(kind: str, end: FileNode | None, probabilities: bool) -> Callable[[Array, Array], float]:
    """Return the loss of an output and a label.

    As torch.nn documents MSELoss, BCELoss, BCEWithLogitsLoss and CrossEntropyLoss.
    """
    if kind == "mse":
        return lambda out, y: float(np.mean((out - y.reshape(out.shape)) ** 2))
    if kind == "bce":
        return _bce_of_probabilities if probabilities else _bce_of_scores
    name, axis = ("", 1) if end is None else (end.meaning, _axis(end))
    return lambda out, y: _cross_entropy(out, y, name, axis)


def _axis(end: FileNode) -> int:
    """Return the axis of a softmax at the end; 1 of any other."""
    if end.meaning not in ("Softmax", "LogSoftmax"):
        return 1
    return next((attribute.i for attribute in end.proto.attribute if attribute.name == "axis"), -1)


def _bce_of_probabilities(p: Array, y: Array) -> float:
    """Return infinite if a wrong probability is so close to 1 that float64 has lost what is left of it."""
    y = y.reshape(p.shape)
    if np.any((p < SURE) & (y > 0) | (1 - p < SURE) & (y < 1)):
        return float("inf")
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(y != 0, y * np.log(p), 0) + np.where(y != 1, (1 - y) * np.log1p(-p), 0)
    return float(-terms.mean())


def _bce_of_scores(s: Array, y: Array) -> float:
    y = y.reshape(s.shape)
    return float(np.mean(np.maximum(s, 0) - s * y + np.log1p(np.exp(-np.abs(s)))))


def _cross_entropy(out: Array, y: Array, end: str, axis: int) -> float:
    """Return the mean of -log p of the labels. Classes: axis 1 of the output, or the axis of its last softmax."""
    steps = out.ndim == 3 and out.shape[0] > 1 and out.shape[1] == 1  # (time, 1, classes)
    axis = axis % out.ndim if end else 1
    axis = (2 if steps else 1) if out.shape[axis] < 2 else axis
    if end == "Softmax":
        with np.errstate(divide="ignore"):
            logp = np.log(out)
    elif end == "LogSoftmax":
        logp = out
    else:
        shifted = out - out.max(axis, keepdims=True)
        logp = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    rows = np.moveaxis(logp, axis, -1).reshape(-1, logp.shape[axis])
    return float(-rows[np.arange(len(rows)), y.reshape(-1).astype(np.int64)].mean())


def output_saturates(file: FileFunction, point: Point) -> bool:
    """Tell whether a sample's output is at an end of the format that a quantised file stores it in.

    A loss that the training step takes from scores, before the sigmoid or softmax of the file, does not see that end.
    """
    ends = file.ends_of_output()
    if ends is None:
        return False
    outputs = [known[file.outputs[0]] for known in point.known]
    return any(bool((y <= ends[0]).any() or (y >= ends[1]).any()) for y in outputs)
