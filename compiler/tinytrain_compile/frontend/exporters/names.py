"""Names in a file: the modules of a framework that tensors belong to, and names that exporters make up.

PyTorch names a parameter by its module (`f.0.weight`). Where an exporter has computed it and made up a name, the node
that reads it tells: the newer exporter records scopes, the TorchScript exporter makes a path of them (`/m/m.0/Gemm`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tinytrain_compile.frontend.file.model import Links, OnnxNode
from tinytrain_compile.ir.imported import ParameterChoice
from tinytrain_compile.ir.types import FileNames

_SCOPES = "pkg.torch.onnx.name_scopes"
_NAME = re.compile(r"'([^']*)'")
_PASSING = frozenset(("Cast", "DequantizeLinear", "QuantizeLinear", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""What an exporter puts between a weight and its layer, outside of any module."""
_DEEPEST, _LONGEST = 32, 32
"""Modules in each other, and tensors between a weight and its layer: more are in no file but a hostile one."""
_PARAMETRIZED = ".parametrizations"
"""PyTorch keeps what a weight is computed from below the module, in modules of its own making."""


def modules_of(tensor: str, links: Links) -> tuple[str, ...]:
    """Return the modules that hold a tensor, from the inside out; none if neither name nor reader tells."""
    inside = tensor.rpartition(".")[0] if "." in tensor.strip(".") else _of_readers(tensor, links)
    found = list[str]()
    while inside and len(found) < _DEEPEST:
        if _PARAMETRIZED not in inside:
            found.append(inside)
        inside = inside.rpartition(".")[0]
    return tuple(found)


def known_names(choices: Iterable[ParameterChoice], links: Links) -> dict[str, FileNames]:
    """Return what each parameter of the graph is called in the file. links: of the model as the file has it."""
    found = dict[str, FileNames]()
    for choice in choices:
        modules = modules_of(choice.name, links)
        for value in choice.values:
            known = found.get(value, FileNames())
            merged = tuple(dict.fromkeys((*known.modules, *modules)))
            found[value] = FileNames((*known.tensors, choice.name), merged)
    return found


def _of_readers(tensor: str, links: Links) -> str:
    tensors = [tensor]
    for one in tensors:  # grows
        for node in links.readers(one):
            module = _module(node)
            if module:
                return module
            if node.op in _PASSING and len(tensors) < _LONGEST:
                tensors.append(node.output(0))
    return ""


def _module(node: OnnxNode) -> str:
    """Return the module whose call a node is part of."""
    recorded = next((entry.value for entry in node.proto.metadata_props if entry.key == _SCOPES), "")
    if recorded:
        scopes = _NAME.findall(recorded)  # the whole name of each, and last the call itself
        return scopes[-2] if len(scopes) > 1 else ""
    return ".".join(_path(node.name.split("/")[1:-1])) if node.name.startswith("/") else ""


def _path(scopes: Iterable[str]) -> Iterator[str]:
    """Yield the parts of a path: the child of a Sequential repeats its parent's name (`m`, `m.0`)."""
    last = ""
    for scope in scopes:
        yield scope.removeprefix(f"{last}.") if last else scope
        last = scope


# ---- names that exporters make up ------------------------------------------------------------------------------------

_NUMBERED = re.compile(r"(?:onnx::\w+?_)?(\d+)")
_COMPUTED = re.compile(
    r"(val|linear|addmm|add|mul|matmul|mm|view|reshape|expand|unsqueeze|squeeze|select|slice|getitem|clone|_to_copy)"
    r"(_\d+)?"
)
"""Names that PyTorch's newer exporter gives to results computed from constants."""


def number_of(name: str) -> int | None:
    """Return the number in a name that PyTorch's TorchScript exporter makes up; None for any other name."""
    match = _NUMBERED.fullmatch(name)
    return None if match is None else int(match.group(1))


def is_made_up(name: str) -> bool:
    """Tell whether one of PyTorch's exporters has made up the name of a tensor, as its name says."""
    return _COMPUTED.fullmatch(name) is not None or number_of(name) is not None
