"""What PyTorch's newer exporter records in its files: the module's parameters and buffers, and who reads them.

The graph's metadata has the signature of the exported program, and every node the call that it comes from. So a file
tells which of its tensors are parameters, and which parameters are missing because the exporter computed with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_CALL = "pkg.torch.onnx.fx_node"
_INPUT = re.compile(r"^(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR)\b.* ?target='([^']*)'", re.MULTILINE)
_TARGET = re.compile(r"target=torch\.ops\.(\w+\.\w+)[\w.]*\]\(args = (.*), kwargs = ")
_VALUE = re.compile(r"%(\w+)")


@dataclass(frozen=True)
class Call:
    """The call that a node comes from: its operator (`aten.linear`), its arguments as text, the values among them."""

    op: str
    arguments: str
    values: frozenset[str]


@dataclass(frozen=True)
class Record:
    """The signature and the calls.

    kinds: by the module's name of a tensor, PARAMETER, BUFFER or CONSTANT_TENSOR. given: its name -> the name that
    calls have for it. calls: by the first output of a node. made: every value that a node computes.
    """

    kinds: Mapping[str, str]
    given: Mapping[str, str]
    calls: Mapping[str, Call]
    made: frozenset[str]

    @property
    def read(self) -> frozenset[str]:
        """Every value that a call of a node in the file reads."""
        return frozenset[str]().union(*(call.values for call in self.calls.values()))

    def missing(self, kind: str, held: frozenset[str]) -> dict[str, str]:
        """Tensors of a kind that the file does not hold: the name in calls -> the module's."""
        return {self.given[name]: name for name, its in self.kinds.items() if its == kind and name not in held}


def read_record(proto: onnx.ModelProto) -> Record | None:
    """The record in a file; None if it has none."""
    entries = (*proto.graph.metadata_props, *proto.metadata_props)
    signature = next((entry.value for entry in entries if entry.key == _SIGNATURE), "")
    found = _INPUT.findall(signature)
    if not found:
        return None
    kinds = {name: kind for _, kind, name in found}
    given = {name: own for own, _, name in found}
    made = frozenset(name for node in proto.graph.node for name in node.output if name)
    inputs = frozenset(value.name for value in proto.graph.input)
    return Record(kinds, given, dict(_calls(proto)), made | inputs)


def _calls(proto: onnx.ModelProto) -> Iterator[tuple[str, Call]]:
    for node in proto.graph.node:
        text = next((entry.value for entry in node.metadata_props if entry.key == _CALL), "")
        match = _TARGET.search(text)
        if match and node.output:
            op, arguments = match.groups()
            yield node.output[0], Call(op, arguments, frozenset(_VALUE.findall(arguments)))
