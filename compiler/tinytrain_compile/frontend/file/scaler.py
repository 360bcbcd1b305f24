"""The Scaler of skl2onnx (domain ai.onnx.ml), in front of a network: (x - offset) * scale in operators of ONNX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.model import LEARNED, OnnxModel, OnnxNode, new_node
from tinytrain_compile.frontend.file.protobuf import free_name


def without_scalers(model: OnnxModel) -> OnnxModel:
    """Write every Scaler as Sub and Mul of Constant nodes: its numbers describe the data, and are not trained."""
    taken = {name for node in model.nodes for name in (node.name, *node.inputs, *node.outputs)} | set(model.constants)
    nodes = (part for node in model.nodes for part in (_parts(node, taken) if _is_scaler(node) else (node,)))
    return replace(model, nodes=tuple(nodes))


def _is_scaler(node: OnnxNode) -> bool:
    return node.domain == LEARNED and node.op == "Scaler" and len(node.inputs) == len(node.outputs) == 1


def _parts(node: OnnxNode, taken: set[str]) -> Iterator[OnnxNode]:
    """Yield the nodes that stand for a Scaler; a number that it lacks is 0 or 1."""
    offset, scale, centred = (free_name(f"{node.name}.{part}", taken) for part in ("offset", "scale", "centred"))
    for name, attribute, default in ((offset, "offset", 0.0), (scale, "scale", 1.0)):
        numbers = np.asarray(node.attrs.get(attribute) or [default], np.float32)
        yield new_node(name, "Constant", (), (name,), {"value": numbers})
    yield new_node(centred, "Sub", (node.input(0), offset), (centred,))
    yield new_node(node.name, "Mul", (centred, scale), (node.output(0),))
