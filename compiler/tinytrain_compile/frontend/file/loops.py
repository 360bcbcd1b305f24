"""Loops that take a known number of steps, written out: each step is a copy of the body.

That is how Keras's GRU comes through tf2onnx. What decides when a Loop ends is computed here, from the constants of the
file; a Loop whose end depends on the data stays, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tinytrain_compile.frontend.file.folding import FOLDABLE
from tinytrain_compile.ir.types import Array

MOST_NODES = 20_000
"""Nodes that a Loop is written out to, at most."""
_SMALL = 64
"""Elements of what is looked at: counters and shapes."""
_AXES_AS_INPUT = 13
"""Opset from which those of Unsqueeze are no attribute."""


def without_loops(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every Loop written out whose end is known; itself if there is none."""
    if not any(node.op_type == "Loop" and not node.domain for node in proto.graph.node):
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    writer = _Writer(made)
    del made.graph.node[:]
    for node in proto.graph.node:
        steps = writer.written_out(node) if node.op_type == "Loop" and not node.domain else None
        for one in [node] if steps is None else steps.nodes:
            writer.learn(one)
            made.graph.node.append(one)
        if steps is not None:
            made.graph.initializer.extend(steps.constants)
    return made


@dataclass
class _Steps:
    """What a Loop becomes."""

    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    constants: list[onnx.TensorProto] = field(default_factory=list[onnx.TensorProto])


class _Writer:
    """Writes Loops out, one after another; `known` are the small constants so far."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._opset = max((entry.version for entry in model.opset_import if not entry.domain), default=1)
        self.known: dict[str, Array] = {}
        for tensor in model.graph.initializer:
            self._keep(tensor)

    def learn(self, node: onnx.NodeProto) -> None:
        """Compute a node whose operands are small constants."""
        if node.domain or node.op_type not in FOLDABLE or not all(name in self.known for name in node.input if name):
            return
        try:
            evaluator: Any = ReferenceEvaluator(node, opsets={"": self._opset})
            results = evaluator.run(None, {name: self.known[name] for name in node.input if name})
        except Exception:  # the evaluator raises whatever numpy raises; the importer complains of the node
            return
        arrays = zip(node.output, map(np.asarray, results), strict=False)
        self.known.update((name, array) for name, array in arrays if array.size <= _SMALL)

    def written_out(self, loop: onnx.NodeProto) -> _Steps | None:
        """The steps of a Loop; None if its end is not known, or its body has control flow of its own."""
        body = next((a.g for a in loop.attribute if a.name == "body"), onnx.GraphProto())
        count = len(body.input) - 2
        nested = any(a.HasField("g") or a.graphs for node in body.node for a in node.attribute)
        if nested or count < 0 or len(loop.input) != len(body.input) or len(body.output) <= count:
            return None
        if loop.input[0] and loop.input[0] not in self.known:
            return None
        made = _Steps([], [self._keep(_named(one, f"{loop.output[0]}.{one.name}")) for one in body.initializer])
        local = {one.name: f"{loop.output[0]}.{one.name}" for one in body.initializer}
        most = int(self.known[loop.input[0]].reshape(())) if loop.input[0] else MOST_NODES
        state, scanned, going = list(loop.input[2:]), list[list[str]](), self._truth(loop.input[1])
        while going and len(scanned) < most:
            if len(made.nodes) > MOST_NODES:
                return None
            going, state, scans = self._step(loop.output[0], body, len(scanned), state, local, made)
            scanned.append(scans)
        if going is None or not scanned:
            return None
        self._end(loop, state, scanned, made)
        return made

    def _step(
        self, loop: str, body: onnx.GraphProto, index: int, state: list[str], local: Mapping[str, str], made: _Steps
    ) -> tuple[bool | None, list[str], list[str]]:
        """Write a copy of the body; whether there is another step, the state behind it, and what it gives away."""
        names = dict(local)
        for value, number in ((body.input[0], np.asarray(index, np.int64)), (body.input[1], np.asarray(True))):
            names[value.name] = f"{loop}.{index}.{value.name}"
            made.constants.append(self._keep(numpy_helper.from_array(number, names[value.name])))
        names.update(zip((value.name for value in body.input[2:]), state, strict=True))
        for node in body.node:
            names.update((name, f"{loop}.{index}.{name}") for name in node.output if name)
            one = onnx.NodeProto()
            one.CopyFrom(node)
            one.name = f"{loop}.{index}.{node.name}"
            one.input[:] = [names.get(name, name) for name in node.input]
            one.output[:] = [names.get(name, name) for name in node.output]
            self.learn(one)
            made.nodes.append(one)
        results = [names.get(value.name, value.name) for value in body.output]
        return self._truth(results[0]), results[1 : len(state) + 1], results[len(state) + 1 :]

    def _end(self, loop: onnx.NodeProto, state: list[str], scanned: list[list[str]], made: _Steps) -> None:
        """Give the results of the last step, and those of all steps side by side, the names that the Loop gives."""
        axis = self._keep(numpy_helper.from_array(np.zeros(1, np.int64), f"{loop.output[0]}.axis"))
        made.constants.append(axis)
        for name, last in zip(loop.output, state, strict=False):
            made.nodes += [helper.make_node("Identity", [last], [name], name=name)] if name else []
        for place, name in enumerate(loop.output[len(state) :]):
            parts = [scans[place] for scans in scanned]
            rows = [f"{name}.{index}" for index in range(len(parts))]
            for part, one in zip(parts, rows, strict=True):
                inputs = [part, axis.name] if self._opset >= _AXES_AS_INPUT else [part]
                axes: dict[str, Any] = {} if self._opset >= _AXES_AS_INPUT else {"axes": [0]}
                made.nodes.append(helper.make_node("Unsqueeze", inputs, [one], name=one, **axes))
            made.nodes.append(helper.make_node("Concat", rows, [name], name=name, axis=0))

    def _truth(self, name: str) -> bool | None:
        """What a condition is; None if that is not known, True if it is left out."""
        return True if not name else bool(self.known[name].reshape(())) if name in self.known else None

    def _keep(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        """Remember a small constant."""
        elements = int(np.prod(tensor.dims, dtype=np.int64)) if all(dim >= 0 for dim in tensor.dims) else -1
        if 0 <= elements <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            try:
                self.known[tensor.name] = numpy_helper.to_array(tensor)
            except Exception:  # damaged; the guard says so
                self.known.pop(tensor.name, None)
        return tensor


def _named(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    made = onnx.TensorProto()
    made.CopyFrom(tensor)
    made.name = name
    return made
