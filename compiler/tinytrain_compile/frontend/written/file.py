"""Back to the file that was imported, with other numbers in it: an ONNX file; tflite.py has the others.

Nodes, names and attributes stay. A tensor that the file computes from initializers, and that is trained as it is,
becomes an initializer in place of its node; one that the file has not (--untie, --classes) is given to its readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.folding import MOVES
from tinytrain_compile.frontend.file.foreign import TFLITE
from tinytrain_compile.frontend.file.forms import FREE_INITIALIZERS
from tinytrain_compile.frontend.file.model import DEFAULT_DOMAINS
from tinytrain_compile.frontend.file.protobuf import (
    external_array,
    free_name,
    is_gradient_graph,
    read_bytes,
    read_proto,
)
from tinytrain_compile.frontend.training_file.read import model_file
from tinytrain_compile.frontend.written.result import WrittenFile
from tinytrain_compile.ir.imported import FileNumbers, ImportedModel, ParameterSource, StoredTensor
from tinytrain_compile.ir.types import Array


def data_name(name: str) -> str:
    """Return what a model file calls the file with its external data."""
    return f"{name}.data"


def written_file(path: Path, name: str, model: ImportedModel, learned: Mapping[str, Array]) -> WrittenFile:
    """Return the model file with these real numbers: `learned` by the names of the tensors that parameters are in.

    name: of the file to be. model: what the file was imported as. Raises E0112 for what the file has no place for.
    """
    if read_bytes(model_file(path))[4:8] == TFLITE:
        from tinytrain_compile.frontend.written.tflite import written_tflite

        return written_tflite(path, model, learned)
    proto = read_proto(model_file(path))
    if is_gradient_graph(proto):
        what = "the weights of a training graph are in another file (a checkpoint, or --weights)"
        raise CompileError("E0112", path.name, what, "export the forward model, or take the twin's state_dict")
    file = _File(proto, model_file(path).parent)
    for tensor in model.fresh:
        file.put_anew(tensor)
    if model.fresh:
        file.forget_sizes(model)
    sources = {source.tensor.name: source for source in model.sources.values()}
    held = Counter(stored.name for each in learned if (stored := sources[each].tensor.stored) is not None)
    for name, count in held.items():
        if count > 1:
            what = f"the file holds once what the device has learned as {count} weights"
            raise CompileError("E0112", f"weight {name}", what, "write it once for each layer")
    for each, numbers in learned.items():
        file.make_room(sources[each], numbers)
    for each, numbers in learned.items():
        file.put(sources[each].tensor, numbers)
    for name_of_copy, copy in model.copies.items():
        if copy.source in learned:
            numbers = copy.of(learned[copy.source])
            file.put(FileNumbers(name_of_copy, "float32", numbers), numbers)
    return file.written(name, learned)


class _File:
    def __init__(self, proto: onnx.ModelProto, folder: Path) -> None:
        self._proto = proto
        graphs = (proto.graph, *(info.algorithm for info in proto.training_info))
        self._tensors = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
        tensors = (tensor for graph in graphs for tensor in _tensors_of(graph))
        self._external = [tensor for tensor in tensors if external_data_helper.uses_external_data(tensor)]
        for tensor in self._external:  # their data is taken in
            made = numpy_helper.from_array(external_array(tensor, f"weight {tensor.name}", folder), tensor.name)
            tensor.raw_data, tensor.data_location = made.raw_data, onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
        self._opset = max((entry.version for entry in proto.opset_import if entry.domain in DEFAULT_DOMAINS), default=0)
        self._wider: dict[str, StoredTensor] = {}
        self._notes: list[str] = []

    def make_room(self, source: ParameterSource, numbers: Array) -> None:
        """Give channels a larger scale whose numbers have grown out of what is stored."""
        name, stored = source.tensor.name, source.tensor.stored
        if stored is None or stored.kind == "int32":
            return
        twice = doublings(self._proto.graph, stored, numbers, source)
        if twice.any():
            found = widened(self._proto.graph, self._opset, stored, twice)
            self._wider.update({each.name: each for each in found})
            self._tensors.update({tensor.name: tensor for tensor in self._proto.graph.initializer})
            count = int((twice > 0).sum())
            self._notes.append(f"{name}: {count} channel{'s have' if count > 1 else ' has'} a larger scale")

    def put(self, tensor: FileNumbers, numbers: Array) -> None:
        """Write a tensor's real numbers as the file stores them, where they are not there already."""
        stored = tensor.stored
        name, data = tensor.name, np.asarray(numbers)
        if stored is not None:
            stored = self._wider.get(stored.name, stored)
            name, data = stored.name, stored.integers(numbers)
        place = self._tensors.get(name) or self._constant(name)
        if place is not None:
            _set(place, data)
        elif any(name in node.output for node in self._proto.graph.node):
            self._instead_of_node(name, data)
        elif tensor.readers:
            self._given_to_readers(name, data, tensor.readers)
        else:
            raise CompileError("E0112", f"weight {name}", "the file has no such tensor", "please report this model")

    def put_anew(self, tensor: FileNumbers) -> None:
        """Put a constant of another shape, read by its layer as it is: without nodes that moved or dequantised it."""
        self._add(tensor.name, tensor.initial)
        for node in list(self._proto.graph.node):
            for output, index in tensor.readers:
                if node.output[0] == output and node.input[index] != tensor.name:
                    old, node.input[index] = node.input[index], tensor.name
                    self._forget(old)

    def _forget(self, name: str) -> None:
        """Remove what made a tensor, where nobody reads that any more."""
        graph = self._proto.graph
        read = {each for node in graph.node for each in node.input} | {value.name for value in graph.output}
        if name in read:
            return
        self._drop(name)
        for node in [node for node in graph.node if name in node.output and not read.intersection(node.output)]:
            graph.node.remove(node)
            for each in dict.fromkeys(node.input):
                self._forget(each)

    def _drop(self, name: str) -> None:
        """Remove an initializer, if there is one of this name."""
        self._external = [tensor for tensor in self._external if tensor.name != name]
        for tensor in [tensor for tensor in self._proto.graph.initializer if tensor.name == name]:
            self._proto.graph.initializer.remove(tensor)

    def forget_sizes(self, model: ImportedModel) -> None:
        """Forget shapes and ranges behind a layer of another size."""
        graph = self._proto.graph
        for node in [node for node in graph.node if node.op_type == "QuantizeLinear"]:
            readers = [other for other in graph.node if node.output[0] in other.input]
            if node.output[0] in model.replaced and all(other.op_type == "DequantizeLinear" for other in readers):
                for other in readers:
                    self._bypass(other.output[0], node.input[0])
                    graph.node.remove(other)
                graph.node.remove(node)
                self._notes.append(f"{node.input[0]} has no format any more: the range was that of the layer before")
        kept = [value for value in graph.value_info if value.name not in model.replaced]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        for value in graph.output:
            if value.name == model.output_name and value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                for dim, size in zip(dims, model.output_shape, strict=True):
                    if dim.HasField("dim_value"):
                        dim.dim_value = size

    def _bypass(self, name: str, source: str) -> None:
        """Let readers of one tensor read another; an output of the file keeps its name."""
        graph = self._proto.graph
        kept, other = (name, source) if any(value.name == name for value in graph.output) else (source, name)
        for node in graph.node:
            for names in (node.input, node.output):
                for index, each in enumerate(names):
                    if each == other:
                        names[index] = kept

    def _constant(self, name: str) -> onnx.TensorProto | None:
        """Return the tensor of a Constant node."""
        for node in self._proto.graph.node:
            if node.op_type == "Constant" and name in node.output:
                return next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
        return None

    def _instead_of_node(self, name: str, data: Array) -> None:
        """Put an initializer where the file computes a tensor: what it is computed from has not learned it."""
        nodes = self._proto.graph.node
        maker = next(node for node in nodes if name in node.output)
        for index, output in enumerate(maker.output):
            if output == name:
                maker.output[index] = ""
        self._notes.append(f"{name} is an initializer: its {maker.op_type} node computed it from others")
        if not any(maker.output):
            nodes.remove(maker)
        self._add(name, data)

    def _given_to_readers(self, name: str, data: Array, readers: Iterable[tuple[str, int]]) -> None:
        wanted = dict[str, list[int]]()
        for output, index in readers:
            wanted.setdefault(output, []).append(index)
        for node in self._proto.graph.node:
            for index in wanted.get(next(iter(node.output), ""), ()):
                node.input[index] = name
        self._notes.append(f"{name} is a new initializer, of its own for who reads it")
        self._add(name, data)

    def _add(self, name: str, data: Array) -> None:
        self._drop(name)
        for value in [value for value in self._proto.graph.input if value.name == name]:
            self._proto.graph.input.remove(value)  # which only old versions need beside the initializer
        self._proto.ir_version = max(self._proto.ir_version, FREE_INITIALIZERS)
        tensor = numpy_helper.from_array(np.array(data, order="C"), name)
        self._proto.graph.initializer.append(tensor)
        self._tensors[name] = self._proto.graph.initializer[-1]

    def written(self, name: str, learned: Mapping[str, Array]) -> WrittenFile:
        """Return the bytes; tensors that were in another file are in one beside it again."""
        data = bytearray()
        for tensor in self._external:
            external_data_helper.set_external_data(tensor, data_name(name), len(data), len(tensor.raw_data))
            data += tensor.raw_data
            tensor.ClearField("raw_data")
        return WrittenFile(self._proto.SerializeToString(), bytes(data), tuple(self._notes), learned)


def _set(tensor: onnx.TensorProto, data: Array) -> None:
    """Set other numbers, in the type that the tensor has."""
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    made = numpy_helper.from_array(np.array(data, kind, order="C"), tensor.name)
    if tuple(tensor.dims) == data.shape and np.array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(made)):
        return
    documentation = tensor.doc_string
    tensor.CopyFrom(made)
    tensor.doc_string = documentation


def _tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors_of(attribute.g)


# ---- wider scales ----------------------------------------------------------------------------------------------------
# Room in a quantised file for weights that have grown: their channels get a larger scale. Scales double as often as it
# takes, as on the device (--rescale on): what the device holds stays whole numbers. The bias of the layer follows,
# since runtimes add it to integer sums: its scale is that of the weight times the input's.

_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_PER_CHANNEL = 13
"""First opset whose DequantizeLinear accepts one scale per channel."""


def doublings(graph: onnx.GraphProto, stored: StoredTensor, real: Array, source: ParameterSource) -> Array:
    """Return how often each output channel's scale has to double for these numbers; it broadcasts with them.

    What is no weight of a layer (a position that is added) has one scale for all, or all of its scales double. From its
    zero point a number may be as far as int8 reaches from 0: what is further is not imported again.
    """
    limits, device = np.iinfo(stored.kind), np.iinfo(np.int8)
    low, high = np.maximum(limits.min - stored.zero, device.min), np.minimum(limits.max - stored.zero, device.max)
    count = real.astype(np.float64) / stored.scale
    over = np.maximum(count / (high + 0.5), count / np.minimum(low - 0.5, -0.5))
    axis = _channel_axis(source) if _of_layers(graph, stored) else None
    largest = over.max(axis=tuple(other for other in range(over.ndim) if other != axis), keepdims=True)
    return np.maximum(np.ceil(np.log2(np.maximum(largest, 1.0))), 0).astype(np.int64)


def _of_layers(graph: onnx.GraphProto, stored: StoredTensor) -> bool:
    """Tell whether only layers read a tensor, behind what moves it: these have a scale for each channel."""
    nodes = [node for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] == stored.name]
    shown = _shown(graph, nodes)
    readers = [node for node in graph.node if shown.intersection(node.input) and node.op_type not in MOVES]
    return all(node.op_type in (*_LAYERS, "MatMul") and not shown.intersection(node.input[2:]) for node in readers)


def _shown(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> set[str]:
    """Return what nodes make, and what only moves that."""
    shown = {node.output[0] for node in nodes}
    for node in graph.node:
        if node.op_type in MOVES and node.input[0] in shown:
            shown.add(node.output[0])
    return shown


def _channel_axis(source: ParameterSource) -> int:
    """Return the axis of the file's tensor that has the output channels, which are first in the graph."""
    places = np.unravel_index(source.places.reshape(len(source.places), -1), source.tensor.initial.shape)
    alike = [axis for axis, at in enumerate(places) if (at == at[:, :1]).all()]
    return next((axis for axis in alike if len(np.unique(places[axis])) == len(source.places)), 0)


def widened(graph: onnx.GraphProto, opset: int, stored: StoredTensor, twice: Array) -> list[StoredTensor]:
    """Give a stored weight wider scales, and the biases of its layers; how they are stored now, the weight first."""
    nodes = [node for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] == stored.name]
    readers = [node for node in graph.node if stored.name in node.input]
    if len(nodes) != len(readers) or not nodes or opset < _PER_CHANNEL:
        what = "a channel has learned numbers beyond its scale, which the file holds outside of DequantizeLinear"
        raise CompileError("E0112", f"weight {stored.name}", what, "quantise to QDQ form, of opset 13 or later")
    found = [_with_scale(graph, nodes, stored, twice)]
    for bias in {node.input[0]: node for node in _biases(graph, nodes)}.values():
        held = _stored_bias(graph, bias)
        if held is not None:
            found.append(_with_scale(graph, [bias], held, twice.reshape(-1)))
            tensor = next(tensor for tensor in graph.initializer if tensor.name == held.name)
            integers = found[-1].integers(numpy_helper.to_array(tensor) * held.scale)
            tensor.CopyFrom(numpy_helper.from_array(integers, held.name))
    return found


def _with_scale(
    graph: onnx.GraphProto, nodes: list[onnx.NodeProto], stored: StoredTensor, twice: Array
) -> StoredTensor:
    scale = stored.scale * 2.0**twice
    zero = np.broadcast_to(stored.zero, scale.shape)
    axis = int(np.argmax(scale.shape))
    old = {name for node in nodes for name in node.input[1:]}
    for node in nodes:
        del node.input[1:]
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for tensor in [tensor for tensor in graph.initializer if tensor.name in old - read]:
        graph.initializer.remove(tensor)
    known = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    known |= {name for node in graph.node for name in (*node.input, *node.output)}
    names = [free_name(f"{stored.name}_{what}", known) for what in ("scale", "zero_point")]
    shape = (-1,) if scale.size > 1 else ()
    arrays = (scale.reshape(shape).astype(np.float32), zero.reshape(shape).astype(stored.kind))
    graph.initializer.extend(numpy_helper.from_array(a, name) for a, name in zip(arrays, names, strict=True))
    for node in nodes:
        node.input.extend(names)
        kept = [attribute for attribute in node.attribute if attribute.name != "axis"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("axis", axis)] if scale.size > 1 else kept)
    return replace(stored, scale=scale, zero=zero)


def _biases(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that dequantise the biases of the layers that read a weight, also behind what only moves it."""
    makers = {name: node for node in graph.node for name in node.output}
    shown = _shown(graph, nodes)
    for node in graph.node:
        if node.op_type in _LAYERS and node.input[1] in shown and len(node.input) > 2:
            maker = makers.get(node.input[2])
            if maker is not None and maker.op_type == "DequantizeLinear":
                yield maker


def _stored_bias(graph: onnx.GraphProto, node: onnx.NodeProto) -> StoredTensor | None:
    """Return how a bias is stored, if as int32."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    if node.input[0] not in held or node.input[1] not in held:
        return None
    scale = numpy_helper.to_array(held[node.input[1]]).astype(np.float64)
    if held[node.input[0]].data_type != onnx.TensorProto.INT32:
        return None
    return StoredTensor(node.input[0], "int32", scale.reshape(-1), np.zeros(1, np.int64))
