"""What the readers of training graphs share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import DEFAULT_DOMAINS
from tinytrain_compile.frontend.file.protobuf import live_part


def refused(where: str, what: str, try_: str = "give the forward model and --loss") -> CompileError:
    """Return the error for a training graph that cannot be taken over."""
    return CompileError("E0231", where, what, try_)


def number_of(node: onnx.NodeProto, name: str, default: float) -> float:
    """Return a float or integer attribute."""
    for attribute in node.attribute:
        if attribute.name == name and attribute.type == onnx.AttributeProto.FLOAT:
            return attribute.f
        if attribute.name == name and attribute.type == onnx.AttributeProto.INT:
            return float(attribute.i)
    return default


def text_of(node: onnx.NodeProto, name: str, default: str) -> str:
    """Return a string attribute."""
    found = next((a.s for a in node.attribute if a.name == name and a.type == onnx.AttributeProto.STRING), None)
    return default if found is None else found.decode("utf-8", "replace")


def makers_of(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """Return the node that makes each tensor."""
    return {name: node for node in nodes for name in node.output if name}


def through_identity(makers: Mapping[str, onnx.NodeProto], tensor: str) -> str:
    """Return the tensor that Identity nodes show."""
    for _ in range(len(makers)):  # a damaged file may have a circle of them
        node = makers.get(tensor)
        if node is None or node.op_type != "Identity" or node.domain not in DEFAULT_DOMAINS or not node.input:
            break
        tensor = node.input[0]
    return tensor


def up_to(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    weights: Iterable[onnx.TensorProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """Return the model of what leads to the outputs, with operators of the default domain's opset."""
    kept, read = live_part(nodes, [value.name for value in outputs])
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    del made.training_info[:]
    graph = onnx.GraphProto(name=proto.graph.name)
    graph.node.extend(kept)
    graph.initializer.extend(tensor for tensor in weights if tensor.name in read)
    graph.input.extend(value for value in inputs if value.name in read)
    graph.output.extend(outputs)
    made.graph.CopyFrom(graph)
    return made
