"""The model file itself, run node by node by onnx.reference: no code of the importer, which is judged by it.

Other floats are float32 there as well: in which of them a result was rounded is no question of what the file means.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper, version_converter
from onnx.reference import ReferenceEvaluator

from tinytrain_compile.frontend.evaluator.quantised import (
    SPELT_OPSET,
    is_qlinear,
    needs_spelling,
    real_op,
    result_scale,
    spelt_out,
)
from tinytrain_compile.frontend.evaluator.reference import (
    WIDENED,
    array_in_float64,
    doubt_of,
    in_float64,
    is_float,
    limit_of,
    own_operators,
    run_opset,
)
from tinytrain_compile.frontend.file.forms import array_in_float32, node_in_float32, with_output
from tinytrain_compile.frontend.file.model import LITERT, TIME_AXIS, changed
from tinytrain_compile.frontend.file.protobuf import live_part, reads
from tinytrain_compile.frontend.training_file.read import model_file, read_training_file
from tinytrain_compile.ir.types import Array

QDQ_OPS = frozenset(("DequantizeLinear", "QuantizeLinear"))
QDQ_OPSET = 21
"""onnx.reference has DequantizeLinear from opset 19, and its present form from this one."""


class EvaluatorLacksError(Exception):
    """What onnx.reference cannot compute: a node, or (node "") the whole file; `reason` is for the user."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node}: {reason}" if node else reason)
        self.node, self.reason = node, reason


@dataclass(frozen=True, eq=False)
class FileNode:
    """A node as it stands in the file, or as onnx's version converter writes it for a newer opset.

    result_scale: place of the scale of the integers that it makes; opset: the first to run it with (0: the file's).
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: onnx.NodeProto
    result_scale: int | None = None
    opset: int = 0

    @property
    def meaning(self) -> str:
        """Return the operator that it stands for on real numbers: Conv for a QLinearConv."""
        return real_op(self.proto)


class FileModel:
    """Nodes that the outputs depend on, in the file's order, and how to run one.

    inputs: name -> numpy type; constants: data of initializers; quantised: whether any node stores integers.
    is_unrolled: whether it is the window of a file with explicit state.
    """

    def __init__(self, path: Path, output: str = "", weights: Path | None = None, wide: bool = False) -> None:
        """Read a file. CompileError if it cannot be read, EvaluatorLacksError if onnx cannot make it ready to run.

        output: the one that counts, of several. Of a training graph it is the part up to the loss, with its weights as
        they are at first (weights: where these are). wide: compute in float64, whatever the file says.
        """
        read, _ = read_training_file(path, weights, output=output)
        has_state = any(entry.key == TIME_AXIS for entry in read.metadata_props)
        self.is_unrolled = has_state and read.producer_name != LITERT
        self._take(with_output(read, output) if output else read, model_file(path).parent, wide)

    @classmethod
    def of(cls, proto: onnx.ModelProto, folder: Path) -> FileModel:
        """Return a model that is in memory, as it is: no part of it is a step of a window. folder: of its data."""
        made = cls.__new__(cls)
        made.is_unrolled = False
        made._take(proto, folder, wide=False)
        return made

    def _take(self, read: onnx.ModelProto, folder: Path, wide: bool) -> None:
        proto = _for_the_evaluator(read, folder)
        graph = proto.graph
        self._opsets = list(proto.opset_import)
        self._opset = max((entry.version for entry in self._opsets if not entry.domain), default=0)
        self._evaluators: dict[tuple[str, str], Any] = {}
        self.outputs = tuple(value.name for value in graph.output)
        self._wide = wide
        self.nodes = _needed(graph.node, self.outputs, in_float64 if wide else node_in_float32)
        self.quantised = any(node.op in QDQ_OPS or is_qlinear(node.proto) for node in self.nodes)
        self.constants: Mapping[str, Array] = {
            t.name: self._array(numpy_helper.to_array(t), f"weight {t.name}") for t in graph.initializer
        }
        self._dims = {v.name: v.type.tensor_type.shape.dim for v in graph.input}
        self.inputs = {
            value.name: self._kind(np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)))
            for value in graph.input
            if value.name not in self.constants
        }

    def _array(self, array: Array, where: str) -> Array:
        """Return the numbers of the file as they are computed with."""
        return array_in_float64(array) if self._wide else array_in_float32(array, where)

    def _kind(self, kind: np.dtype[Any]) -> np.dtype[Any]:
        """Return the numpy type of an input as it is fed."""
        return np.dtype(np.float64) if self._wide and is_float(kind) else kind

    def batch_of(self, name: str) -> int:
        """Return samples that an input takes; 1 if the file leaves it open."""
        dims = self._dims.get(name)
        return max(dims[0].dim_value, 1) if dims else 1

    def outputs_of(self, feeds: Mapping[str, Array]) -> tuple[Array, ...]:
        """Return the outputs on these inputs; EvaluatorLacksError as `run`."""
        values = {**self.constants, **feeds}
        for node in self.nodes:
            values.update(zip(node.outputs, self.run(node, values), strict=True))
        return tuple(values[name] for name in self.outputs)

    def run(
        self, node: FileNode, values: Mapping[str, Array], unrounded: Mapping[str, Array] | None = None
    ) -> tuple[Array, ...]:
        """Return outputs of one node by place (no elements where the node leaves one out); EvaluatorLacksError where
        onnx.reference has no answer, or no good one.

        unrounded: real numbers to be taken for those of stored integers.
        """
        given = [name for name in node.inputs if name in (unrounded or {})]
        if node.op == "DequantizeLinear" and given and unrounded is not None:
            return (unrounded[given[0]],)
        if needs_spelling(node.proto, values) or (given and is_qlinear(node.proto)):
            return self.spelt_out(node, values, lambda part, known: self.run(part, known, unrounded))
        return self._plain(node, values)

    def spelt_out(
        self,
        node: FileNode,
        values: Mapping[str, Array],
        run: Callable[[FileNode, Mapping[str, Array]], tuple[Array, ...]],
    ) -> tuple[Array, ...]:
        """Run a node that onnx.reference lacks, or that reads what is no stored integer here, part by part."""
        local = dict(values)
        try:
            parts = [_file_node(proto, SPELT_OPSET) for proto in spelt_out(node.proto, values)]
        except ValueError as problem:
            raise EvaluatorLacksError(f"node {node.name} ({node.op})", str(problem)) from problem
        for part in parts:
            local.update(zip(part.outputs, run(part, local), strict=True))
        return tuple(local[name] for name in node.outputs)

    def _plain(self, node: FileNode, values: Mapping[str, Array]) -> tuple[Array, ...]:
        operands = {name: values[name] for name in node.inputs if name}
        given = [operands[name] for name in node.inputs if name]
        limit = limit_of(node.proto, given, max(self._opset, node.opset))
        if limit:
            raise EvaluatorLacksError(f"node {node.name} ({node.op})", limit)
        if node.op in WIDENED:
            operands = {name: a.astype(np.float64) if a.dtype == np.float32 else a for name, a in operands.items()}
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = self._evaluator(node, operands).run(None, operands)
        except Exception as problem:  # the evaluator raises whatever numpy raises, and its own kinds
            reason = " ".join(f"{type(problem).__name__}: {problem}".split())
            raise EvaluatorLacksError(f"node {node.name} ({node.op})", f"onnx.reference: {reason[:120]}") from problem
        doubt = doubt_of(node.proto, given, results)
        if doubt:
            raise EvaluatorLacksError(f"node {node.name} ({node.op})", doubt)
        kind = given[0].dtype if node.op in WIDENED else None
        found = iter(results)
        return tuple(np.asarray(next(found), dtype=kind) if name else np.zeros(0) for name in node.outputs)

    def _evaluator(self, node: FileNode, operands: Mapping[str, Array]) -> Any:
        """Return a model of this one node, with the opsets of the file; the operands tell its input types."""
        key = node.op, next(name for name in node.outputs if name)
        if key not in self._evaluators:
            kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in operands.items()}
            inputs = [helper.make_tensor_value_info(name, kinds[name], operands[name].shape) for name in operands]
            outputs = [onnx.ValueInfoProto(name=name) for name in node.outputs if name]
            first = max(run_opset(node.op, self._opset), node.opset)
            opsets = [helper.make_opsetid(o.domain, max(o.version, 0 if o.domain else first)) for o in self._opsets]
            graph = helper.make_graph([node.proto], "node", inputs, outputs)
            own = own_operators(self._wide)
            self._evaluators[key] = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets), new_ops=own)
        return self._evaluators[key]


def _file_node(proto: onnx.NodeProto, opset: int = 0) -> FileNode:
    name = proto.name or f"{proto.op_type}_{next((name for name in proto.output if name), '')}"
    return FileNode(name, proto.op_type, reads(proto), tuple(proto.output), proto, result_scale(proto), opset)


def _say_length(tensor: onnx.TensorProto) -> None:
    """Add the length that its shape needs to external data without one: onnx would read all the rest of the file."""
    if external_data_helper.uses_external_data(tensor) and all(entry.key != "length" for entry in tensor.external_data):
        size = math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        tensor.external_data.append(onnx.StringStringEntryProto(key="length", value=str(size)))


def _for_the_evaluator(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Put weights into the message, one opset per domain (the last, as onnx's tools have it), 21 for Q/DQ."""
    try:
        for tensor in proto.graph.initializer:
            _say_length(tensor)
        external_data_helper.load_external_data_for_model(proto, str(folder))
    except Exception as problem:  # onnx's own rules for such files are not quite ours
        raise EvaluatorLacksError("", f"onnx does not read its external data ({problem})") from problem
    versions = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in proto.opset_import}
    del proto.opset_import[:]
    proto.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())
    for node in proto.graph.node:
        node.domain = "" if node.domain == "ai.onnx" or node.op_type in QDQ_OPS else node.domain  # onnxruntime's too
    if versions.get("", 0) >= QDQ_OPSET or not any(node.op_type in QDQ_OPS for node in proto.graph.node):
        return proto
    try:
        return version_converter.convert_version(proto, QDQ_OPSET)
    except Exception as problem:  # ConvertError, RuntimeError of the C++ part
        reason = " ".join(str(problem).split())[:120]
        raise EvaluatorLacksError("", f"onnx's version converter does not bring it to opset 21 ({reason})") from problem


def _without_chance(proto: onnx.NodeProto) -> onnx.NodeProto:
    """Return a Dropout in training mode as it is in an inference, which is what can be compared."""
    return changed(proto, proto.input[:2]) if proto.op_type == "Dropout" and len(proto.input) > 2 else proto


def _needed(
    protos: Iterable[onnx.NodeProto], outputs: tuple[str, ...], form: Callable[[onnx.NodeProto], onnx.NodeProto]
) -> tuple[FileNode, ...]:
    """Return the nodes that the outputs depend on: in the file's order if that is a topological one. form: of each."""
    nodes = [_file_node(proto) for proto in live_part([_without_chance(form(proto)) for proto in protos], outputs)[0]]
    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    reads = {i: {makers[name] for name in node.inputs if name in makers} for i, node in enumerate(nodes)}
    if all(other <= index for index in reads for other in reads[index]):
        return tuple(nodes)
    try:
        return tuple(nodes[index] for index in TopologicalSorter(reads).static_order())
    except CycleError as problem:
        raise EvaluatorLacksError("", "its nodes form a circle") from problem
