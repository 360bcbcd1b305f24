"""Initializers that are one for several readers: shared in the framework, or made one by an exporter.

PyTorch's TorchScript exporter writes tensors of equal values once, whether they are one parameter or not: fresh norms
and zero biases then train tied. Its newer exporter computes with constants, and may leave a copy of a parameter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tinytrain_compile.frontend.exporters.numbered import made as is_numbered
from tinytrain_compile.frontend.exporters.record import Record, read_record
from tinytrain_compile.frontend.exporters.weight_forms import form_of
from tinytrain_compile.frontend.file.model import Links, OnnxModel, OnnxNode, rewritten, unused
from tinytrain_compile.ir.imported import Copy
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
    """The model with what an exporter has computed, where that follows from a parameter, made of the parameter.

    A zero state times a weight, plus a bias, is that bias: one parameter in the framework. So is a weight transposed.
    """
    floats = {name: array for name, array in model.constants.items() if array.dtype.kind == "f" and array.size > 1}
    record = read_record(model.proto)
    made = {name for name in floats if _is_made(name, record)}
    links, constants = Links(model.nodes, model.outputs, model.constants), dict(model.constants)
    nodes: list[OnnxNode] = []
    copies: dict[str, Copy] = {}
    for name in (name for name in floats if name in made):
        for source in (source for source in floats if source not in made):
            form = form_of(floats[name], floats[source], model.opset)
            if form is not None:
                more, shapes = form.nodes(source, name, lambda new: unused(new, constants, links))
                nodes += more
                constants.update(shapes)
                del constants[name]
                copies[name] = Copy(source, form.of)
                break
    return replace(model, nodes=(*nodes, *model.nodes), constants=constants, copies=copies) if nodes else model


def _is_made(name: str, record: Record | None) -> bool:
    """Whether an exporter has made up the name of a tensor."""
    return name not in record.kinds if record is not None else bool(_COMPUTED.fullmatch(name)) or is_numbered(name)
