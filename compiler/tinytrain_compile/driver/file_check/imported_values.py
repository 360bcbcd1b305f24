"""What the numpy reference makes of one sample, by the names and in the axis order of the model file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.imported import DataInput, FileTensor, ImportedModel
from tinytrain_compile.ir.records import feeds, packed, parts
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array, Graph, Node, Value
from tinytrain_compile.ops.int8.pointwise import plainly_rounded
from tinytrain_compile.ops.interpreter import run_graph, run_nodes
from tinytrain_compile.quantize import inner_clamps, storage_clamps


@dataclass(frozen=True, eq=False)
class Held:
    """Real numbers in ONNX order, and the step of the format that stores them here (0: float32)."""

    array: Array
    step: float


class ImportedValues:
    """Values of the float graph, or of the integer one as real numbers. `loss`: of a model that ends in its loss.

    integer: whether it is the integer graph. Its sums are rounded as the file means it, that is to the nearest: that
    those behind a trained ReLU may be stored above zero instead (QConvAttrs.above) is no part of the file.
    """

    def __init__(
        self,
        model: ImportedModel,
        train: TrainGraph | None,
        floats: Graph | None,
        judge: TrainGraph | None = None,
    ) -> None:
        """Prepare a run.

        floats: the forward graph to run; None: the integer graph of `train`, whose steps take one sample.

        train None: only the forward graph, without a loss. judge: the graph that the model's own loss is taken from,
        where that is not `train` (which may be the integer form of the float32 graph that is run).
        """
        self.model, self.integer = model, floats is None
        self._train, self._floats, self._judge = train, floats, judge or train
        self._nodes: list[Node] = []
        self._known: dict[str, Array] = {}
        if self._judge is not None:
            self._prepare(self._judge)
        self._clamped = storage_clamps(model.graph)
        self._within = inner_clamps(model.graph)
        self._values: Mapping[str, Array] = {}
        self.loss: Array | None = None

    def _prepare(self, train: TrainGraph) -> None:
        """Choose what of the training graph is run: up to its outputs if it is the integer one, and to its loss."""
        graph = train.graph
        targets = graph.outputs if self.integer else ()
        needed = graph.ancestors(targets if self.model.loss is None else (*targets, train.loss))
        self._nodes = [plainly_rounded(node) for node in graph.nodes if node.name in needed]
        sums = {v.name: np.zeros(v.shape, np.int32 if v.dtype == "int32" else np.float32) for v in graph.accumulators}
        self._known = {**sums, **graph.constants}

    def run(self, x: Array, y: Array | None = None) -> None:
        """Compute everything on one sample, as a step takes it (y: its label)."""
        train = self._judge
        if train is not None and y is not None:
            sample = x if train.integer else self._real_inputs(x)
            given = {**feeds(sample, train.data), train.label.name: y.reshape(train.label.shape)}
            self._values = run_nodes(self._nodes, {**self._known, **given}, train.integer)
            loss = None if self.model.loss is None else self._values[train.loss.name]
            self.loss = None if loss is None else train.terms.of_call(loss, y)
        if self._floats is not None:
            self._values = run_graph(self._floats, feeds(self._real_inputs(x), self._floats.inputs))

    def quantised_anew(self, constants: Mapping[str, Array]) -> frozenset[str]:
        """Return integer initializers of the file that the graph holds with other numbers.

        --rescale on leaves room; asymmetric weights take other scales.
        """
        if self._train is None or not self.integer:
            return frozenset()
        held = self._train.graph.constants
        return frozenset(
            name
            for name, array in constants.items()
            if name in self.model.requantised
            or (
                name in held
                and array.dtype == held[name].dtype == np.int8
                and not np.array_equal(np.sort(array.ravel()), np.sort(held[name].ravel()))
            )
        )

    def computed_anew(self, known: Mapping[str, Array]) -> frozenset[str]:
        """Return integer constants that the file computes and whose numbers the graph does not hold in any order.

        It computes them in real numbers, and quantises them as a weight is.
        """
        if self._train is None or not self.integer:
            return frozenset()
        held = [np.sort(array, None) for array in self._train.graph.constants.values() if array.dtype == np.int8]
        stored = {name: _as_int8(array) for name, array in known.items() if array.ndim > 0}
        return frozenset(
            name
            for name, array in stored.items()
            if array is not None and not any(np.array_equal(np.sort(array, None), each) for each in held)
        )

    def ignores(self, y: Array) -> bool:
        """Tell whether the model's own loss ignores these labels."""
        weights = None if self._train is None else self._train.terms.weights
        return weights is not None and bool(np.isin(y, weights.nothing).all())

    def onnx_inputs(self, x: Array) -> dict[str, Array]:
        """Return a sample as the file takes it, by its inputs: real numbers, ONNX axes."""
        found: dict[str, Array] = {}
        for one, part in zip(self.model.data, parts(self._real_inputs(x)), strict=True):
            shape = [one.shape[axis] for axis in one.perm]
            found[one.name] = np.ascontiguousarray(part.reshape(shape).transpose(np.argsort(one.perm)))
        return found

    def onnx_label(self, y: Array) -> Array:
        """Return a label as the file's own loss takes it."""
        model, loss = self.model, self.model.loss
        assert loss is not None
        if loss.kind in ("mse", "bce"):  # in the layout of the output that it is compared with
            return FileTensor("", model.output_shape, model.output_perm).to_onnx(y)
        return y.reshape(loss.label_shape)

    def _real_inputs(self, x: Array) -> Array:
        if self._train is None:
            return x
        values = zip(self._train.data, parts(x), self.model.data, strict=True)
        return packed({value.name: _real_input(part, value, one) for value, part, one in values})

    def tensor(self, name: str, stored: bool) -> tuple[Held, ...]:
        """Return a tensor of the file as the graph holds it; nothing if it does not.

        stored: after it was rounded to integers in the file. The integer graph may hold a value twice: rounded, for
        nodes that compute with integers, and as it was, for a part that computes in float32. Then the rounded one is
        the first.
        """
        found = self.model.tensors.get(name)
        if found is None:
            return ()
        value = self._clamped.get(found.value, found.value) if stored else found.value
        names = (value,) if self._train is None or not self.integer else self._train.forms.get(value, (value,))
        held = tuple(self._held(found, name) for name in names if name in self._values)
        low, high = self._within.get(found.value, (-math.inf, math.inf)) if stored else (-math.inf, math.inf)
        return tuple(replace(one, array=np.clip(one.array, low, high)) for one in held)

    def _held(self, tensor: FileTensor, value: str) -> Held:
        array, step = self._values[value], 0.0
        if array.dtype == np.int8 and self._train is not None:
            quant = self._train.formats[value]
            array, step = _real(array, quant.scale[0], quant.zero), quant.scale[0]
        fits = array.size == math.prod(tensor.shape)
        return Held(tensor.to_onnx(array) if fits else array, step)


def _real_input(x: Array, value: Value, one: DataInput) -> Array:
    quant, whole = value.quant, one.whole
    if quant is None or x.dtype != np.int8:
        return x
    real = _real(x, quant.scale[0], quant.zero)
    return real if whole is None else np.clip(np.rint(real), whole.low, whole.high)


def _real(integers: Array, scale: float, zero: int) -> Array:
    return ((integers.astype(np.float64) - zero) * scale).astype(np.float32)


def _as_int8(array: Array) -> Array | None:
    """Store integers of a file as the graph does: bytes are 128 lower; None for any others."""
    if array.dtype == np.uint8:
        return (array.astype(np.int16) - 128).astype(np.int8)
    return array if array.dtype == np.int8 else None
