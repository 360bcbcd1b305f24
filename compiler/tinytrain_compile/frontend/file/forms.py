"""Forms of a file that become the one that is imported: one output, opset 13, float32, a batch of 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference, version_converter

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import (
    DEFAULT_DOMAINS,
    LEARNED,
    OPSET,
    OTHER_FLOATS,
    TYPE_ATTRIBUTES,
    OnnxModel,
    OnnxNode,
)
from tinytrain_compile.frontend.file.protobuf import check_finite
from tinytrain_compile.ir.types import Array

FREE_INITIALIZERS = 4
"""The first IR version whose initializers need not be inputs."""


def with_output(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the file with this output only, or this result of a node.

    E0218 if it has neither.
    """
    graph = proto.graph
    chosen = [value for value in graph.output if value.name == name]
    if not chosen and any(name in node.output for node in graph.node):
        chosen = [value for value in _inferred(proto) if value.name == name] or [onnx.ValueInfoProto(name=name)]
    if not chosen:
        names = ", ".join(value.name for value in graph.output)
        what = "the model has no such output, and no node with such a result"
        raise CompileError("E0218", f"--model-output {name}", what, f"its outputs are: {names}")
    del proto.graph.output[:]
    proto.graph.output.extend(chosen[:1])
    return proto


def _inferred(proto: onnx.ModelProto) -> Iterable[onnx.ValueInfoProto]:
    """Return types of results as the file or onnx gives them; none if onnx cannot infer them."""
    try:
        return shape_inference.infer_shapes(proto).graph.value_info
    except Exception:  # of the C++ part
        return proto.graph.value_info


def proto_of(model: OnnxModel) -> onnx.ModelProto:
    """Return what counts of a checked model, as a file of its own."""
    graph = onnx.GraphProto(name=model.name)
    graph.node.extend(node.proto for node in model.nodes)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in model.constants.items())
    graph.input.extend(helper.make_tensor_value_info(v.name, v.elem_type, v.shape) for v in model.inputs)
    graph.output.extend(model.proto.graph.output)
    foreign = [entry for entry in model.proto.opset_import if entry.domain not in DEFAULT_DOMAINS]
    opsets = [helper.make_opsetid("", model.opset), *foreign]
    return helper.make_model(graph, opset_imports=opsets, ir_version=max(model.proto.ir_version, FREE_INITIALIZERS))


def inferred_types(model: OnnxModel) -> Mapping[str, tuple[tuple[int, ...], int]]:
    """Return shape and element type of every tensor that onnx can infer, of inputs too; none of a damaged graph."""
    proto = proto_of(model)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        graph = shape_inference.infer_shapes(proto, data_prop=True).graph
    except Exception:  # of the C++ part; what has no shape is refused by name
        return {}
    found = {value.name: (value.shape, value.elem_type) for value in model.inputs}
    for value in (*graph.value_info, *graph.output):
        kind: onnx.TypeProto.Tensor = value.type.tensor_type
        dims = tuple(dim.dim_value for dim in kind.shape.dim)
        if kind.HasField("shape") and all(dim > 0 for dim in dims):
            found[value.name] = dims, kind.elem_type
    return found


def at_opset_13(model: OnnxModel) -> onnx.ModelProto:
    """Return the model as onnx's converter writes it. E0208 where that cannot."""
    proto = proto_of(model)
    for node in model.nodes:
        if not node.domain and not defs.has(node.op, model.opset):
            what = f"opset {model.opset} has no such operator"
            raise CompileError("E0208", f"node {node.name} ({node.op})", what, f"export with opset {OPSET} or later")
    try:
        return version_converter.convert_version(proto, OPSET)
    except Exception as problem:  # ConvertError, RuntimeError of the C++ part
        what = f"opset {model.opset}, and onnx's version converter fails: {' '.join(str(problem).split())[:120]}"
        raise CompileError("E0208", model.name, what, f"export with opset {OPSET} or later") from problem


def in_float32(model: OnnxModel) -> OnnxModel:
    """Return the model with float32 in place of every other float, and a note."""
    nodes: list[OnnxNode] = []
    for node in model.nodes:
        proto = node_in_float32(node.proto)
        if proto is not node.proto:
            changed = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
            tensors = {name: numpy_helper.to_array(a) for name, a in changed.items() if isinstance(a, onnx.TensorProto)}
            node = replace(node, attrs={**changed, **tensors}, proto=proto)
        nodes.append(node)
    inputs = tuple(
        replace(value, elem_type=onnx.TensorProto.FLOAT) if value.elem_type in OTHER_FLOATS else value
        for value in model.inputs
    )
    constants = {name: array_in_float32(array, f"weight {name}") for name, array in model.constants.items()}
    others = {name: a.dtype.name for name, a in model.constants.items() if a.dtype.name in OTHER_FLOATS.values()}
    found = " and ".join(OTHER_FLOATS[kind] for kind in sorted(model.other_float_types))
    notes = (*model.notes, f"{found} of the file is float32 here, and in its check")
    return replace(model, nodes=tuple(nodes), inputs=inputs, constants=constants, notes=notes, other_floats=others)


def node_in_float32(proto: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node that makes or holds no other float; itself if it does so already."""
    kinds = [a.i if a.name in TYPE_ATTRIBUTES else a.t.data_type for a in proto.attribute]
    if proto.domain == LEARNED or not OTHER_FLOATS.keys() & set(kinds):
        return proto
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    for attribute in made.attribute:
        if attribute.name in TYPE_ATTRIBUTES and attribute.i in OTHER_FLOATS:
            attribute.i = onnx.TensorProto.FLOAT
        elif attribute.t.data_type in OTHER_FLOATS:
            where = f"node {proto.name} ({proto.op_type}), attribute {attribute.name}"
            attribute.t.CopyFrom(numpy_helper.from_array(array_in_float32(numpy_helper.to_array(attribute.t), where)))
    return made


def array_in_float32(array: Array, where: str) -> Array:
    """Return float32 numbers in place of other floats; E0225 for a tensor whose numbers are too large for it."""
    if array.dtype.name not in OTHER_FLOATS.values():
        return array
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    check_finite(narrow, where)
    return narrow
