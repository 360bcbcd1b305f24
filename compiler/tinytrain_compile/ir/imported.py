"""Result of the frontend for later stages: the forward graph and its relation to the ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.types import Array, FileFormat, Graph, Node, Value

LossKind = Literal["nll", "softmax-ce", "mse", "bce", "written"]
LossJoin = Literal["mean", "sum", "other"]
"""Relation of a batch's loss to those of its samples."""


@dataclass(frozen=True, eq=False)
class WrittenLoss:
    """A loss made of nodes of the file: they are appended to the forward graph and differentiated unchanged.

    nodes, constants: after the graph, whose values they read by name. reads: the outputs of the graph as imported,
    which may have become other values since; more than one if the loss reads other heads or hidden activations.
    label: the value that holds the labels. value: the loss, a scalar.
    """

    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    reads: tuple[Value, ...]
    label: Value
    value: Value


@dataclass(frozen=True, eq=False)
class ImportedLoss:
    """The loss contained in a model (`contract` 2 in report.json).

    kind: "softmax-ce" reads raw scores, "nll" log-probabilities, "bce" logits; "written" is any other, in nodes.
    reduction: of the samples of a batch; "other": a batch's loss does not follow from those of the samples.
    class_weights: one float32 factor per class, or None.
    ignore_index: label of samples that do not count, or None.
    axis: the class axis of the graph's output (in the graph's own axis order).
    label / label_shape: the ONNX input that holds the labels ("": it reads none), and its shape (for classes, the
    output's shape without their axis).
    origin: the ONNX node. output: the file's output that is the loss.
    whole: labels are integers in the file, and float32 here.
    """

    kind: LossKind
    reduction: LossJoin
    class_weights: Array | None
    ignore_index: int | None
    axis: int
    label: str
    label_shape: tuple[int, ...]
    origin: str
    output: str = ""
    written: WrittenLoss | None = None
    whole: bool = False


@dataclass(frozen=True)
class FileTensor:
    """Place of a tensor of the model file in the imported graph.

    value: name of the graph's value; shape: the ONNX shape; order: the ONNX axis of each axis of the value (-1: none,
    its size is 1), every one once. columns: for a flattened channels-last image, the ONNX index of each element of the
    last axis; () if these are in order. A value is a real number, even if the file stores integers.
    """

    value: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    columns: tuple[int, ...] = ()

    def to_onnx(self, array: Array) -> Array:
        """Return the value's array with the axes that the file has."""
        dims = [1 if axis < 0 else self.shape[axis] for axis in self.order]
        kept = [index for index, axis in enumerate(self.order) if axis >= 0]
        real = array.reshape([dims[index] for index in kept])
        axes = [self.order[index] for index in kept]
        laid = real.transpose([axes.index(axis) for axis in range(len(axes))])
        return laid[..., np.argsort(self.columns)] if self.columns else laid


@dataclass(frozen=True)
class ParameterChoice:
    """Decision whether a floating-point initializer of the file is a parameter, with a short reason and its number of
    elements.

    values: the parameters of the graph that hold its numbers. into: the tensor of the file into which the compiler has
    folded it: they train as one.
    """

    name: str
    trained: bool
    why: str
    elements: int
    values: tuple[str, ...] = ()
    into: str = ""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """Integers in the file that stand for real numbers: real = (integers - zero) * scale.

    name: of the tensor; kind: its numpy type; scale, zero: in shapes that broadcast against it.
    """

    name: str
    kind: str
    scale: NDArray[np.float64]
    zero: NDArray[np.int64]

    def integers(self, real: Array) -> Array:
        """Return the nearest integers of the file's format to real numbers."""
        limits = np.iinfo(self.kind)
        return np.clip(np.rint(real / self.scale) + self.zero, limits.min, limits.max).astype(self.kind)


@dataclass(frozen=True, eq=False)
class FileNumbers:
    """A tensor of the file that contains parameters: an initializer, or the result of nodes on some.

    kind: its numpy type. initial: its real numbers in float32, in the file's layout. stored: its integer form in the
    file, if any. readers: (first output, index of the input) of the nodes that read a tensor missing in the file: it
    becomes their input.
    """

    name: str
    kind: str
    initial: Array
    stored: StoredTensor | None = None
    readers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, eq=False)
class ParameterSource:
    """Numbers of the file that a parameter of the graph holds: parameter = numbers * factor + offset.

    places: in the parameter's shape, flat indices into the tensor. factor, offset: one element, or one for each output
    channel (first axis): the normalisation folded into the layer.
    """

    tensor: FileNumbers
    places: NDArray[np.int64]
    factor: NDArray[np.float64]
    offset: NDArray[np.float64]

    @property
    def folded(self) -> bool:
        """True if a normalisation is folded into the parameter; for one channel it is one number too."""
        return bool((self.factor != 1).any() or (self.offset != 0).any())

    def cut(self, axis: int, channels: Sequence[int]) -> ParameterSource:
        """Return the source of some channels of the parameter."""
        own = (each[list(channels)] if each.size > 1 and axis == 0 else each for each in (self.factor, self.offset))
        return ParameterSource(self.tensor, np.take(self.places, channels, axis), *own)

    def in_graph(self, tensor: Array) -> Array:
        """Return the parameter that the importer makes of such numbers."""
        factor, offset = self._along(self.factor), self._along(self.offset)
        taken = tensor.reshape(-1)[self.places]
        if not self.folded:
            return taken.astype(np.float32)
        with np.errstate(over="ignore"):
            return (taken.astype(np.float64) * factor + offset).astype(np.float32)

    def in_file(self, parameter: Array) -> Array:
        """Return the numbers of the file for a parameter, in its shape.

        They are not finite if none match.
        """
        with np.errstate(all="ignore"):
            numbers = (parameter.astype(np.float64) - self._along(self.offset)) / self._along(self.factor)
            return numbers.astype(np.float32)

    def _along(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return numbers.reshape(-1, *[1] * (self.places.ndim - 1)) if numbers.size > 1 else numbers.reshape(())


@dataclass(frozen=True, eq=False)
class FileTraining:
    """Training defined by the file itself (`contract` 3: TrainingInfoProto, 4: a graph with gradients).

    trained: names of its initializers. optimizer: "" if the file does not name one. settings: fields of
    TrainingOptions. learning_rate: None if the file leaves it open. initial: first values of optimizer state, by
    initializer (in ImportedModel: by parameter, in its layout) and kind. notes: remarks for the user.
    """

    contract: Literal[3, 4]
    trained: tuple[str, ...]
    optimizer: str
    settings: Mapping[str, Any]
    learning_rate: float | None
    initial: Mapping[tuple[str, str], Array]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WholeNumbers:
    """Integers of an input that is float32 here: their numpy type in the file, and their range."""

    kind: str
    low: int
    high: int


@dataclass(frozen=True)
class DataInput:
    """An input of the file for samples. shape: of ONNX, batch included; perm: graph array = ONNX array transposed by
    it. whole: the numbers of an input that is integers in the file and float32 in the graph.
    """

    name: str
    shape: tuple[int, ...]
    perm: tuple[int, ...]
    whole: WholeNumbers | None = None


@dataclass(frozen=True, eq=False)
class Copy:
    """An initializer computed from another one. source: the other one; of: function from the source's numbers to its
    own."""

    source: str
    of: Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class ImportedModel:
    """A forward graph with its data inputs, and the mapping from ONNX arrays to it. Its first output is the model's.

    contract: 1 is a forward model (the user names the loss), 2 a model that ends in its loss; 3 and 4 see FileTraining.
    graph: if the model has a loss, it ends where the loss reads it, so it may have further outputs (WrittenLoss.reads).
    input_shape / output_shape: ONNX shapes, batch included.
    input_perm / output_perm: graph array = ONNX array transposed by this permutation.
    quantised: the ONNX model was quantised; its ranges are the values' `quant`.
    tensors: by the file's names, the tensors that remain after fusing and folding and can be compared. replaced:
    tensors of the file that depend on a layer which --classes has replaced.
    choices: decisions on every floating-point initializer that can change the result.
    floats: ONNX nodes that always compute in float32 (recurrent layers).
    training: defined by the file itself, if it does so.
    whole: the numbers of an input that is integers in the file and float32 in the graph.
    more: data inputs besides the first, in the order of the file.
    stored_output: of the first output, if the file ends in integers (.tflite).
    sources: parameter -> the numbers of the file that it holds. fresh: tensors that --classes has replaced.
    copies: initializers that the graph computes from another one, which may be trained.
    requantised: integer initializers that get other scales here, because their numbers do not fit int8.
    """

    graph: Graph
    contract: Literal[1, 2, 3, 4]
    loss: ImportedLoss | None
    input_name: str
    input_shape: tuple[int, ...]
    input_perm: tuple[int, ...]
    output_name: str
    output_shape: tuple[int, ...]
    output_perm: tuple[int, ...]
    quantised: bool = False
    tensors: Mapping[str, FileTensor] = field(default_factory=dict[str, FileTensor])
    replaced: frozenset[str] = frozenset()
    choices: tuple[ParameterChoice, ...] = ()
    floats: frozenset[str] = frozenset()
    training: FileTraining | None = None
    whole: WholeNumbers | None = None
    sources: Mapping[str, ParameterSource] = field(default_factory=dict[str, ParameterSource])
    fresh: tuple[FileNumbers, ...] = ()
    copies: Mapping[str, Copy] = field(default_factory=dict[str, Copy])
    requantised: frozenset[str] = frozenset()
    more: tuple[DataInput, ...] = ()
    stored_output: FileFormat | None = None

    @property
    def data(self) -> tuple[DataInput, ...]:
        """All data inputs, in the order of the graph's."""
        return (DataInput(self.input_name, self.input_shape, self.input_perm, self.whole), *self.more)
