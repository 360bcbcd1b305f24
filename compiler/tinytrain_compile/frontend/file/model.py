"""An ONNX model after the guard: plain Python data that the importer can rely on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from tinytrain_compile.frontend.file.quantisation import Quantisation
from tinytrain_compile.ir.imported import Copy
from tinytrain_compile.ir.types import Array

LOSS_OPS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
"""Operators of ONNX that are losses of class labels."""


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """One node. `name` is the ONNX name, or one made of operator and output where the model gives none."""

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    proto: onnx.NodeProto

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        return int(self.attrs.get(name, default))

    def number(self, name: str, default: float) -> float:
        """A float attribute; ValueError if it is not finite."""
        value = float(self.attrs.get(name, default))
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
        return value

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        value = self.attrs.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list-of-integers attribute, or None where it is absent."""
        value = self.attrs.get(name)
        return None if value is None else tuple(int(v) for v in value)

    def input(self, index: int) -> str:
        """Name of an input; "" where it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def output(self, index: int) -> str:
        """Name of an output; "" where it is absent."""
        return self.outputs[index] if index < len(self.outputs) else ""


@dataclass(frozen=True, eq=False)
class OnnxInput:
    """A graph input that is no constant: resolved shape, element type as onnx.TensorProto.DataType."""

    name: str
    shape: tuple[int, ...]
    elem_type: int


def _no_names() -> Mapping[str, str]:
    return {}


def _no_copies() -> Mapping[str, Copy]:
    return {}


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A checked model: nodes in topological order, unique names, every read defined, finite weights.

    quantisation: how its tensors are stored, once the nodes compute real numbers (see quantised.py).
    replaced: tensors that depend on a layer which is no longer the file's (see new_head.py); fresh: its constants.
    other_floats: numpy types of constants that are no float32 in the file.
    copies: initializers that nodes make of another one instead.
    notes: what was made of the file before it was imported.
    deciding: constants that only decide what a loop or branch does, which is written out (see control_flow.py).
    """

    name: str
    opset: int
    nodes: tuple[OnnxNode, ...]
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    proto: onnx.ModelProto
    quantisation: Quantisation = field(default_factory=Quantisation)
    replaced: frozenset[str] = frozenset()
    fresh: frozenset[str] = frozenset()
    copies: Mapping[str, Copy] = field(default_factory=_no_copies)
    other_floats: Mapping[str, str] = field(default_factory=_no_names)
    notes: tuple[str, ...] = ()
    deciding: frozenset[str] = frozenset()


def rewritten(node: OnnxNode, inputs: Sequence[str], op: str = "", outputs: Sequence[str] | None = None) -> OnnxNode:
    """The node with other inputs (and operator, and outputs), its protobuf included; itself if nothing changes."""
    made = node.outputs if outputs is None else tuple(outputs)
    if tuple(inputs) == node.inputs and made == node.outputs and op in ("", node.op):
        return node
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.op_type = op or node.op
    del proto.input[:], proto.output[:]
    proto.input.extend(inputs)
    proto.output.extend(made)
    return OnnxNode(node.name, op or node.op, node.domain, tuple(inputs), made, node.attrs, proto)


class Links:
    """Who makes and who reads each tensor of a model, and which tensors are known at compile time."""

    def __init__(self, nodes: Sequence[OnnxNode], outputs: Sequence[str], constants: Mapping[str, Array]) -> None:
        self._readers: dict[str, list[OnnxNode]] = {}
        self._makers: dict[str, OnnxNode] = {}
        self._outputs = frozenset(outputs)
        self._constant = set(constants)
        for node in nodes:
            for name in dict.fromkeys(node.inputs):
                self._readers.setdefault(name, []).append(node)
            self._makers.update(dict.fromkeys(node.outputs, node))
            if node.op in ("Shape", "Size", "Constant") or all(self.is_constant(name) for name in node.inputs if name):
                self._constant.update(node.outputs)

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor does not depend on the model's input."""
        return tensor in self._constant

    def is_output(self, tensor: str) -> bool:
        """Whether a tensor is an output of the model."""
        return tensor in self._outputs

    def readers(self, tensor: str) -> list[OnnxNode]:
        """Nodes that read a tensor, in order."""
        return self._readers.get(tensor, [])

    def maker(self, tensor: str) -> OnnxNode | None:
        """The node that makes a tensor; None for inputs and weights."""
        return self._makers.get(tensor)

    def sole_reader(self, tensor: str) -> OnnxNode | None:
        """The one node that reads a tensor; None if there are others, or the tensor is an output."""
        readers = self.readers(tensor)
        return readers[0] if len(readers) == 1 and not self.is_output(tensor) else None

    def is_used(self, tensor: str) -> bool:
        """Whether anything reads a tensor."""
        return bool(tensor) and (bool(self.readers(tensor)) or self.is_output(tensor))


def unused(name: str, constants: Mapping[str, Array], links: Links) -> str:
    """The name, longer where the file has a tensor of that name."""
    while name in constants or links.readers(name) or links.maker(name) is not None:
        name += "_"
    return name


def reachable(nodes: Sequence[OnnxNode], outputs: Sequence[str]) -> tuple[OnnxNode, ...]:
    """The nodes that the outputs depend on, in the given order."""
    needed = set(outputs)
    kept: list[OnnxNode] = []
    for node in reversed(nodes):
        if needed.intersection(name for name in node.outputs if name):
            kept.append(node)
            needed.update(node.inputs)
    return tuple(reversed(kept))
