"""Loops of a known number of turns, branches of which one is taken, and sequences: written out as plain nodes.

Exporters write them for modules whose work does not depend on the numbers of a sample: PyTorch for an EmbeddingBag,
tf2onnx for the recurrent layers of Keras.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.folding import FOLDABLE, fold
from tinytrain_compile.frontend.file.forms import inferred_types
from tinytrain_compile.frontend.file.guard import read_node
from tinytrain_compile.frontend.file.model import CONTROL_FLOW, OnnxModel, OnnxNode, changed, new_node, reachable
from tinytrain_compile.frontend.file.protobuf import bodies, free_name, tensor_array
from tinytrain_compile.ir.types import Array

_TURNS = 256
"""Most turns of a loop: each becomes nodes of its own."""
_MOST = 40_000
"""Most nodes and counters that are written: loops in loops multiply (256 turns of a GRU of Keras are about 8,000)."""
_SMALL = 1024
"""Elements of the largest tensor that is looked at to know what a loop does."""


class _UnknownError(Exception):
    """A loop or branch that depends on the numbers of a sample, or is too long to be written out."""


def without_control_flow(model: OnnxModel, folder: Path) -> OnnxModel:
    """Return the model with loops, branches and sequences written out where that is possible; others stay."""
    return _Writer(model, folder).run()


@dataclass
class _Written:
    """What is written so far.

    known: small tensors whose numbers follow from constants; lists: tensors of sequences; names: that are taken.
    """

    constants: dict[str, Array]
    known: dict[str, Array]
    names: set[str]
    nodes: list[OnnxNode] = field(default_factory=list[OnnxNode])
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def copy(self) -> _Written:
        """Return one that does not change with this one."""
        return _Written(dict(self.constants), dict(self.known), set(self.names), [*self.nodes], dict(self.lists))


class _Writer:
    def __init__(self, model: OnnxModel, folder: Path) -> None:
        self._model, self._folder = model, folder
        self._types = inferred_types(model)
        known = {name: array for name, array in model.constants.items() if _is_small(array)}
        names = {*model.constants, *(name for node in model.nodes for name in (node.name, *node.outputs))}
        self._now = _Written(dict(model.constants), known, names)
        self._most = len(model.nodes) + len(model.constants) + _MOST

    def run(self) -> OnnxModel:
        for node in self._model.nodes:
            self._write(node)
        made = replace(self._model, nodes=tuple(self._now.nodes), constants=self._now.constants)
        deciding = (_needed(self._model) - _needed(made)) & self._model.constants.keys()
        return replace(made, deciding=frozenset(deciding))

    def _write(self, node: OnnxNode) -> None:
        """Write a node of the file; as it stands if what it does is not known."""
        before = self._now.copy() if ("", node.op) in CONTROL_FLOW else self._now
        try:
            self._one(node)
        except _UnknownError:
            self._now = before
            self._now.nodes.append(node)

    def _one(self, node: OnnxNode) -> None:
        if len(self._now.nodes) + len(self._now.constants) > self._most:
            raise _UnknownError
        if node.op == "Loop":
            self._loop(node)
        elif node.op == "If":
            chosen = node.attrs["then_branch" if self._number(node.input(0)) else "else_branch"]
            for output, name in zip(node.outputs, self._body(chosen, node.name, {}), strict=True):
                self._alias(node, name, output)
        elif node.op in ("SequenceEmpty", "SequenceConstruct"):
            self._now.lists[node.output(0)] = node.inputs
        elif node.op in ("SequenceInsert", "SequenceAt", "ConcatFromSequence"):
            self._sequence(node)
        elif node.op == "Identity" and node.input(0) in self._now.lists:
            self._now.lists[node.output(0)] = self._now.lists[node.input(0)]
        elif bodies(node.proto) or any(name in self._now.lists for name in node.inputs):
            raise _UnknownError
        else:
            self._now.nodes.append(node)
            self._learn(node)

    def _learn(self, node: OnnxNode) -> None:
        """Keep the results of a node that follow from what is known."""
        shape, _ = self._types.get(node.input(0), (None, 0))
        if node.op == "Shape" and shape is not None and not node.attrs:
            self._now.known[node.output(0)] = np.array(shape, np.int64)
        elif node.op in FOLDABLE and not node.domain and all(name in self._now.known for name in node.inputs if name):
            try:
                arrays = fold(node, {name: self._now.known[name] for name in node.inputs if name}, self._model.opset)
            except CompileError:  # the importer says what is wrong with it
                return
            self._now.known.update((n, a) for n, a in zip(node.outputs, arrays, strict=False) if _is_small(a))

    def _number(self, name: str) -> int:
        array = self._now.known.get(name)
        if array is None or array.size != 1:
            raise _UnknownError
        return int(array.reshape(-1)[0])

    def _sequence(self, node: OnnxNode) -> None:
        known = self._now.lists.get(node.input(0))
        if known is None:
            raise _UnknownError
        if node.op == "ConcatFromSequence":
            self._joined(node, known)
            return
        index = node.input(1 if node.op == "SequenceAt" else 2)
        place = self._number(index) if index else len(known)
        if node.op == "SequenceInsert":
            place += len(known) if place < 0 else 0
            self._now.lists[node.output(0)] = (*known[:place], node.input(1), *known[place:])
        elif -len(known) <= place < len(known):
            self._alias(node, known[place], node.output(0))
        else:
            raise _UnknownError

    def _joined(self, node: OnnxNode, names: Sequence[str]) -> None:
        """Write the tensors of a sequence one behind the other, along an axis that they have or a new one."""
        axis = node.integer("axis", 0)
        if not names:
            raise _UnknownError
        if node.integer("new_axis", 0):
            names = [self._unsqueezed(node, name, axis) for name in names]
        self._emit(node, "Concat", names, node.output(0), axis=axis)

    def _unsqueezed(self, node: OnnxNode, name: str, axis: int) -> str:
        axes, new = self._name(f"{node.name}/axes"), self._name(f"{node.name}/{name}")
        self._now.constants[axes] = self._now.known[axes] = np.array([axis], np.int64)
        self._emit(node, "Unsqueeze", (name, axes), new)
        return new

    def _loop(self, node: OnnxNode) -> None:
        body: onnx.GraphProto = node.attrs["body"]
        count = self._number(node.input(0)) if node.input(0) else _TURNS + 1
        goes_on = bool(self._number(node.input(1))) if node.input(1) else True
        carried = list(node.inputs[2 : len(node.proto.input)])
        made: list[list[str]] = []
        while goes_on and len(made) < count:
            if len(made) >= _TURNS:
                raise _UnknownError
            prefix = f"{node.name}/{len(made)}"
            own = self._name(f"{prefix}/turn"), self._name(f"{prefix}/goes_on")
            for name, number in zip(own, (np.int64(len(made)), np.bool_(True)), strict=True):
                self._now.constants[name] = self._now.known[name] = np.array(number)
            given = dict(zip((value.name for value in body.input), (*own, *carried), strict=True))
            condition, *results = self._body(body, prefix, given)
            made.append(results[len(carried) :])
            carried = results[: len(carried)]
            goes_on = bool(self._number(condition))
        for output, name in zip(node.outputs, carried, strict=False):
            self._alias(node, name, output)
        for output, turns in zip(node.outputs[len(carried) :], zip(*made, strict=True), strict=True):
            if output:
                self._emit(node, "Concat", [self._unsqueezed(node, name, 0) for name in turns], output, axis=0)

    def _body(self, graph: onnx.GraphProto, prefix: str, given: Mapping[str, str]) -> list[str]:
        """Write the nodes of a graph, and return the names that its outputs have here."""
        names = dict(given)
        for tensor in graph.initializer:
            names[tensor.name] = new = self._name(f"{prefix}/{tensor.name}")
            self._now.constants[new] = array = tensor_array(tensor, f"weight {tensor.name}", self._folder)
            if _is_small(array):
                self._now.known[new] = array
        for index, proto in enumerate(graph.node):
            made = changed(proto)
            names.update((name, self._name(f"{prefix}/{name}")) for name in proto.output if name)
            _rename(made, names)
            label = self._name(f"{prefix}/{proto.name or f'{proto.op_type}_{index}'}.node")
            self._one(read_node((label, made), self._model.opset, self._folder))
        return [names.get(value.name, value.name) for value in graph.output]

    def _alias(self, node: OnnxNode, name: str, output: str) -> None:
        """Give a tensor, or a sequence, the name of an output of the file."""
        if not output:
            return
        if name in self._now.lists:
            self._now.lists[output] = self._now.lists[name]
            return
        self._emit(node, "Identity", (name,), output)

    def _emit(self, node: OnnxNode, op: str, inputs: Sequence[str], output: str, **attrs: int) -> None:
        name = self._name(f"{node.name}/{op}")
        made = new_node(name, op, inputs, (output,), attrs)
        self._now.nodes.append(made)
        self._learn(made)

    def _name(self, wanted: str) -> str:
        return free_name(wanted, self._now.names)


def _needed(model: OnnxModel) -> set[str]:
    """Return the names of all tensors that the outputs depend on."""
    return {name for node in reachable(model.nodes, model.outputs) for name in node.inputs}


def _is_small(array: Array) -> bool:
    return array.size <= _SMALL and array.dtype.kind in "iubf"


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Give everything that a node reads or makes its new name, in its own graphs too."""
    for operands in (node.input, node.output):
        operands[:] = [names.get(name, name) for name in operands]
    for graph in bodies(node):
        hidden = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        hidden |= {name for inner in graph.node for name in inner.output}
        outer = {old: new for old, new in names.items() if old not in hidden}
        for inner in graph.node:
            _rename(inner, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)
