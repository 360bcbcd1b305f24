"""What the frontend hands to the stages behind it: the forward graph and how its ONNX model relates to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.types import Array, Graph, Node, Value

LossKind = Literal["nll", "softmax-ce", "mse", "bce", "written"]
LossJoin = Literal["mean", "sum", "other"]
"""How the loss of a batch follows from those of its samples."""


@dataclass(frozen=True, eq=False)
class WrittenLoss:
    """A loss that is nodes of the file: they are appended to the forward graph and differentiated as they stand.

    nodes, constants: behind the graph, whose values they read by name. reads: the outputs of the graph as imported,
    where they may have become other values; more than one if the loss reads other heads or hidden activations.
    label: the value that holds the labels. value: the loss, a scalar.
    """

    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    reads: tuple[Value, ...]
    label: Value
    value: Value


@dataclass(frozen=True, eq=False)
class ImportedLoss:
    """The loss that a model brings along (`contract` 2 in report.json).

    kind: "softmax-ce" reads raw scores, "nll" log-probabilities, "bce" logits; "written" is any other, in nodes.
    reduction: of the samples of a batch; "other": it does not follow from those of the samples.
    class_weights: one float32 factor per class, or None.
    ignore_index: the label whose samples do not count, or None.
    axis: the class axis of the graph's output (in the graph's own axis order).
    label / label_shape: the ONNX input that holds the labels ("": it reads none), and its shape (for classes the
    output's without their axis).
    origin: the ONNX node. output: the file's output that is the loss.
    whole: labels are integers in the file, and numbers here.
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
    """Where a tensor of the model file is in the imported graph.

    value: name of the graph's value; shape: the ONNX shape; order: which ONNX axis each axis of the value holds (-1:
    none, its size is 1), every one once. columns: of a flattened channels-last image, the ONNX index of each element of
    the last axis; () for those in order. A value is a real number, also where the file stores integers.
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
    """Whether a floating-point initializer of the file is a parameter, in few words why, and how many numbers it is.

    values: the parameters of the graph that hold its numbers. into: the tensor of the file into whose numbers the
    compiler has taken it: they train as one.
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
        """Return what the file holds of real numbers: the nearest that there are."""
        limits = np.iinfo(self.kind)
        return np.clip(np.rint(real / self.scale) + self.zero, limits.min, limits.max).astype(self.kind)


@dataclass(frozen=True, eq=False)
class FileNumbers:
    """A tensor of the file that parameters are in: an initializer, or what nodes make of some.

    kind: its numpy type. initial: its real numbers in float32, in the file's layout. stored: how the file holds them,
    if as integers.
    readers: (first output, place of the input) of the nodes that read it, for one that the file does not have: it
    becomes their input.
    """

    name: str
    kind: str
    initial: Array
    stored: StoredTensor | None = None
    readers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, eq=False)
class ParameterSource:
    """Which numbers of the file a parameter of the graph holds: parameter = numbers * factor + offset.

    places: of the parameter's shape, where in the tensor (flat). factor, offset: one element, or one for each output
    channel (first axis): the normalisation that was folded into the layer.
    """

    tensor: FileNumbers
    places: NDArray[np.int64]
    factor: NDArray[np.float64]
    offset: NDArray[np.float64]

    @property
    def folded(self) -> bool:
        """Whether a normalisation is in the parameter; of one channel it is one number too."""
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
        """Return the numbers of the file that a parameter stands for, in its shape.

        No finite ones where nothing does.
        """
        with np.errstate(all="ignore"):
            numbers = (parameter.astype(np.float64) - self._along(self.offset)) / self._along(self.factor)
            return numbers.astype(np.float32)

    def _along(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return numbers.reshape(-1, *[1] * (self.places.ndim - 1)) if numbers.size > 1 else numbers.reshape(())


@dataclass(frozen=True, eq=False)
class FileTraining:
    """How a file is trained that says so itself (`contract` 3: TrainingInfoProto, 4: a graph with gradients).

    trained: names of its initializers. optimizer: "" where the file does not say. settings: fields of TrainingOptions.
    learning_rate: None where the file leaves it open. initial: first values of optimizer state, by initializer (in
    ImportedModel: by parameter, in its layout) and kind. notes: remarks for the user.
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
    """Of an input that is integers in the file and float32 here: its numpy type there, and what it may hold."""

    kind: str
    low: int
    high: int


@dataclass(frozen=True)
class DataInput:
    """An input of the file that samples go to. shape: of ONNX, batch included; perm: graph array = ONNX array
    transposed by it. whole: the numbers of one that is integers in the file and float32 in the graph.
    """

    name: str
    shape: tuple[int, ...]
    perm: tuple[int, ...]
    whole: WholeNumbers | None = None


@dataclass(frozen=True, eq=False)
class Copy:
    """An initializer that follows from another one. source: that one; of: makes its numbers of the source's."""

    source: str
    of: Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class ImportedModel:
    """A forward graph with its data inputs, and the way from ONNX arrays to it. Its first output is the model's.

    contract: 1 is a forward model (the user names the loss), 2 a model that ends in its loss; 3 and 4 see FileTraining.
    graph: with a loss of its own it ends where the loss reads it, so it may have further outputs (WrittenLoss.reads).
    input_shape / output_shape: ONNX shapes, batch included.
    input_perm / output_perm: graph array = ONNX array transposed by this permutation.
    quantised: the ONNX model was a quantised one; its ranges are the values' `quant`.
    tensors: by the file's names, the tensors that are still there after fusing and folding: what can be compared.
    replaced: tensors of the file that depend on a layer which --classes has replaced.
    choices: of every floating-point initializer that can change the result, whether it is a parameter.
    floats: ONNX nodes that compute in float32 whatever the others do (recurrent layers).
    training: how the file itself is trained, if it says so.
    whole: the numbers of an input that is integers in the file and float32 in the graph.
    more: data inputs besides the first, in the order of the file.
    sources: of every parameter, the numbers of the file that it holds. fresh: what --classes has replaced.
    copies: initializers that the graph makes of another one, which may be trained.
    requantised: integer initializers that take other scales here, because their numbers do not fit int8.
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

    @property
    def data(self) -> tuple[DataInput, ...]:
        """All data inputs, in the order of the graph's."""
        return (DataInput(self.input_name, self.input_shape, self.input_perm, self.whole), *self.more)
