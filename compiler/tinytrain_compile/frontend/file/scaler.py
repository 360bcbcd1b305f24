"""The Scaler of skl2onnx (domain ai.onnx.ml), in front of a network: (x - offset) * scale in operators of ONNX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tinytrain_compile.frontend.file.model import LEARNED, OnnxModel, OnnxNode


def without_scalers(model: OnnxModel) -> OnnxModel:
    """Write every Scaler as Sub and Mul of Constant nodes: its numbers describe the data, and are not trained."""
    taken = {name for node in model.nodes for name in (node.name, *node.inputs, *node.outputs)} | set(model.constants)
    nodes = (part for node in model.nodes for part in (_parts(node, taken) if _is_scaler(node) else (node,)))
    return replace(model, nodes=tuple(nodes))


def _is_scaler(node: OnnxNode) -> bool:
    return node.domain == LEARNED and node.op == "Scaler" and len(node.inputs) == len(node.outputs) == 1


def _parts(node: OnnxNode, taken: set[str]) -> Iterator[OnnxNode]:
    """Yield the nodes that stand for a Scaler; a number that it lacks is 0 or 1."""
    offset, scale, centred = (_fresh(f"{node.name}.{part}", taken) for part in ("offset", "scale", "centred"))
    for name, attribute, default in ((offset, "offset", 0.0), (scale, "scale", 1.0)):
        numbers = np.asarray(node.attrs.get(attribute) or [default], np.float32)
        value = numpy_helper.from_array(numbers)
        yield _made(name, "Constant", (), name, {"value": (value, numbers)})
    yield _made(centred, "Sub", (node.input(0), offset), centred, {})
    yield _made(node.name, "Mul", (centred, scale), node.output(0), {})


def _made(name: str, op: str, inputs: tuple[str, ...], output: str, attrs: Mapping[str, tuple[Any, Any]]) -> OnnxNode:
    """Return a node; attrs: name -> attribute as protobuf, and as the importer reads it."""
    proto: onnx.NodeProto = helper.make_node(op, inputs, [output], name=name)
    proto.attribute.extend(helper.make_attribute(key, value) for key, (value, _) in attrs.items())
    return OnnxNode(name, op, "", inputs, (output,), {key: value for key, (_, value) in attrs.items()}, proto)


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
