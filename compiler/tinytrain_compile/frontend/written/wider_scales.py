"""Room in a quantised file for weights that have grown: their channels get a larger scale.

Scales double as often as it takes, as on the device (--rescale on): what the device holds stays whole numbers. The
bias of the layer follows, since runtimes add it to integer sums: its scale is that of the weight times the input's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.folding import MOVES
from tinytrain_compile.frontend.file.protobuf import free_name
from tinytrain_compile.ir.imported import ParameterSource, StoredTensor
from tinytrain_compile.ir.types import Array

_LAYERS = ("Conv", "ConvTranspose", "Gemm")
_PER_CHANNEL = 13
"""The first opset whose DequantizeLinear has scales for channels."""


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
    _drop_unread(graph, old)
    names = [_unused(graph, f"{stored.name}_{what}") for what in ("scale", "zero_point")]
    shape = (-1,) if scale.size > 1 else ()
    arrays = (scale.reshape(shape).astype(np.float32), zero.reshape(shape).astype(stored.kind))
    graph.initializer.extend(numpy_helper.from_array(a, name) for a, name in zip(arrays, names, strict=True))
    for node in nodes:
        node.input.extend(names)
        kept = [attribute for attribute in node.attribute if attribute.name != "axis"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("axis", axis)] if scale.size > 1 else kept)
    return replace(stored, scale=scale, zero=zero)


def _drop_unread(graph: onnx.GraphProto, names: set[str]) -> None:
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for tensor in [tensor for tensor in graph.initializer if tensor.name in names - read]:
        graph.initializer.remove(tensor)


def _unused(graph: onnx.GraphProto, name: str) -> str:
    """Return the name, longer where the file has a tensor of that name."""
    known = {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    known.update(name for node in graph.node for name in (*node.input, *node.output))
    return free_name(name, known)


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
