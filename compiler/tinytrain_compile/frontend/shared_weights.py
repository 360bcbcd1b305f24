"""Initializers that are one for several readers: shared in the framework, or made one by an exporter.

PyTorch's TorchScript exporter writes tensors of equal values once, whether they are one parameter or not: fresh norms
and zero biases then train tied. Its newer exporter computes with constants, and may leave a copy of a parameter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from tinytrain_compile.frontend.model import Links, OnnxModel, OnnxNode, rewritten, unused
from tinytrain_compile.ir.types import Array

_COMPUTED = re.compile(
    r"(val|linear|addmm|add|mul|matmul|mm|view|reshape|expand|unsqueeze|squeeze|select|slice|getitem|clone|_to_copy)"
    r"(_\d+)?"
)
"""Names that PyTorch's exporter gives to what it has computed from constants."""


@dataclass(frozen=True)
class Merged:
    """One initializer, and the names under which the layers of the framework may have had it."""

    name: str
    tensors: tuple[str, ...]


def merged(model: OnnxModel) -> tuple[Merged, ...]:
    """Initializers that may have been several: behind an Identity, or one number throughout with several readers."""
    links = Links(model.nodes, model.outputs, model.constants)
    found: list[Merged] = []
    for name, array in model.constants.items():
        if array.dtype.kind != "f" or not array.size:
            continue
        others = [node.output(0) for node in links.readers(name) if node.op == "Identity" and not node.domain]
        if _is_fresh(links, name, array):
            others += [_name(name, node) for node in _further_readers(links, name)]
        if others:
            found.append(Merged(name, tuple(others)))
    return tuple(found)


def _is_fresh(links: Links, name: str, array: Array) -> bool:
    """Whether an initializer is one number throughout, as before any training; a single number only as a PRelu's."""
    slopes = all(node.op in ("PRelu", "Identity") for node in links.readers(name))
    return (array.size > 1 or slopes) and bool((array == array.reshape(-1)[0]).all())


def _further_readers(links: Links, name: str) -> list[OnnxNode]:
    """Readers of an initializer behind the first, without Identities."""
    return [node for node in links.readers(name) if node.op != "Identity"][1:]


def _name(name: str, node: OnnxNode) -> str:
    return f"{name} of {node.name}"


def untied(model: OnnxModel) -> OnnxModel:
    """The model with an initializer for every reader of those that may have been several."""
    links, constants = Links(model.nodes, model.outputs, model.constants), dict(model.constants)
    changed: dict[str, OnnxNode | None] = {}
    for name in (found.name for found in merged(model)):
        for node in links.readers(name):
            if node.op == "Identity" and not node.domain:
                constants[node.output(0)] = model.constants[name]
                changed[node.name] = None
        if _is_fresh(links, name, model.constants[name]):
            for node in _further_readers(links, name):
                now, own = changed.get(node.name) or node, unused(_name(name, node), constants, links)
                constants[own] = model.constants[name]
                changed[node.name] = rewritten(now, [own if other == name else other for other in now.inputs])
    nodes = (changed.get(node.name, node) for node in model.nodes)
    return replace(model, nodes=tuple(node for node in nodes if node is not None), constants=constants)


def without_copies(model: OnnxModel) -> OnnxModel:
    """The model with what an exporter has computed, where that is a parameter again, read from the parameter.

    A zero state times a weight, plus a bias, is that bias: one parameter in the framework.
    """
    floats = {name: array for name, array in model.constants.items() if array.dtype.kind == "f" and array.size > 1}
    links, constants = Links(model.nodes, model.outputs, model.constants), dict(model.constants)
    nodes: list[OnnxNode] = []
    copies: dict[str, str] = {}
    for name, array in floats.items():
        source = _source(name, array, floats) if _COMPUTED.fullmatch(name) else None
        if source is not None:
            shape = unused(f"{name}.shape", constants, links)
            constants[shape] = np.array(array.shape, np.int64)
            del constants[name]
            copies[name] = source
            nodes.append(_reshape(name, source, shape))
    return replace(model, nodes=(*nodes, *model.nodes), constants=constants, copies=copies) if nodes else model


def _source(name: str, array: Array, floats: Mapping[str, Array]) -> str | None:
    """An initializer of another kind of name with the same numbers, which are too many different ones for chance."""
    flat = array.reshape(-1)
    if len(np.unique(flat)) < min(4, flat.size):
        return None
    for other, data in floats.items():
        same = other != name and data.size == flat.size and not _COMPUTED.fullmatch(other)
        if same and np.array_equal(data.reshape(-1), flat):
            return other
    return None


def _reshape(name: str, source: str, shape: str) -> OnnxNode:
    proto: onnx.NodeProto = helper.make_node("Reshape", [source, shape], [name], name=f"{name}.copy")
    return OnnxNode(f"{name}.copy", "Reshape", "", (source, shape), (name,), {}, proto)
