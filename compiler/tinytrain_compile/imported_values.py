"""What the numpy reference makes of one sample, by the names and in the axis order of the model file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array, Graph
from tinytrain_compile.ops.interpreter import run_graph, run_nodes


class ImportedValues:
    """Values of the float graph, or of the integer one as real numbers. `loss`: of a model that ends in its loss."""

    def __init__(self, model: ImportedModel, train: TrainGraph, floats: Graph | None) -> None:
        """floats: the forward graph to run; None: the integer graph of `train`, whose steps take one sample."""
        self._model, self._train, self._floats = model, train, floats
        graph = train.graph
        targets = graph.outputs if floats is None else ()
        targets = targets if model.loss is None else (*targets, train.loss)
        needed = graph.ancestors(targets)
        self._nodes = [node for node in graph.nodes if node.name in needed]
        sums = {v.name: np.zeros(v.shape, np.int32 if v.dtype == "int32" else np.float32) for v in graph.accumulators}
        self._known: dict[str, Array] = {**sums, **graph.constants}
        self._clamped = {
            node.inputs[0].name: node.outputs[0].name
            for node in model.graph.nodes
            if node.op == "Clip" and node.outputs[0].quant is not None and node.inputs[0].quant is None
        }
        self._values: Mapping[str, Array] = {}
        self.loss: Array | None = None

    def run(self, x: Array, y: Array) -> None:
        """Compute everything on one sample, as a step takes it."""
        graph = self._train.graph
        feeds = {graph.inputs[0].name: x.reshape(graph.inputs[0].shape)}
        feeds[self._train.label.name] = y.reshape(self._train.label.shape)
        self._values = run_nodes(self._nodes, {**self._known, **feeds}, self._train.integer)
        self.loss = self._values[self._train.loss.name] if self._model.loss is not None else None
        if self._floats is not None:
            source = self._floats.inputs[0]
            self._values = run_graph(self._floats, {source.name: self._real_input(x).reshape(source.shape)})

    def onnx_input(self, x: Array) -> Array:
        """A sample as the file takes it: real numbers, ONNX axes."""
        perm = self._model.input_perm
        shape = [self._model.input_shape[axis] for axis in perm]
        return np.ascontiguousarray(self._real_input(x).reshape(shape).transpose(np.argsort(perm)))

    def _real_input(self, x: Array) -> Array:
        source = self._train.graph.inputs[0]
        if source.quant is None or x.dtype != np.int8:
            return x
        return _real(x, source.quant.scale[0], source.quant.zero)

    def tensor(self, name: str, stored: bool) -> tuple[Array, float] | None:
        """A tensor of the file as real numbers, and the step of the format that holds it here (0: float32).

        stored: after it was rounded to integers in the file. None where the graph has no such value.
        """
        found = self._model.tensors.get(name)
        if found is None:
            return None
        value, step = found.value, 0.0
        if self._floats is None:
            value = self._clamped.get(value, value) if stored else value
            value = self._train.forms.get(value, value)
        array = self._values.get(value)
        if array is None:
            return None
        quant = self._train.formats.get(value) if self._floats is None and array.dtype == np.int8 else None
        if quant is not None:
            array, step = _real(array, quant.scale[0], quant.zero), quant.scale[0]
        return found.to_onnx(array), step


def _real(integers: Array, scale: float, zero: int) -> Array:
    return ((integers.astype(np.float64) - zero) * scale).astype(np.float32)
