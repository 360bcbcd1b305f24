"""A step of an ONNX file with explicit state -> the file of one window (unroll.py).

Nodes, weights and names stay those of the file, so that what is learned leads back to it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.forms import at_opset_13, inferred_types
from tinytrain_compile.frontend.file.guard import parse_model
from tinytrain_compile.frontend.file.model import (
    OPSET,
    TIME_AXIS,
    Links,
    OnnxModel,
    OnnxNode,
    Refused,
    new_node,
    reachable,
    rewritten,
)
from tinytrain_compile.frontend.file.protobuf import free_name
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.rings.explicit import PATTERN, Shapes, State, constant_rows, find_state
from tinytrain_compile.frontend.rings.unroll import MOST_FRAMES, Rows, Unrolling, same_axis, size_at
from tinytrain_compile.ir.types import Array

_WINDOWS = frozenset(("AveragePool", "Conv", "MaxPool"))
_ROWS = """
Abs Add Cast Clip Div Dropout Elu Erf Exp Gelu HardSigmoid HardSwish Identity LeakyRelu Log Max Min Mish Mul Neg PRelu
Pow Reciprocal Relu Selu Sigmoid Softplus Softsign Sqrt Sub Sum Tanh ThresholdedRelu Where
"""
_ROW_BY_ROW = frozenset(_ROWS.split())
"""Operators that make each number of a row of the numbers in the same row."""
_STORED = frozenset(("QuantizeLinear", "DequantizeLinear"))
_ALONG = {"Concat": 0, "Split": 0, "Softmax": -1, "LogSoftmax": -1, "LpNormalization": -1, "Hardmax": -1}
"""Operators that work along one axis, and its default."""
_CHANNELS = frozenset(("BatchNormalization", "LRN"))
"""Operators that treat axis 1 in its own way."""
_SHAPES = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze"))
_REDUCES = frozenset(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"))
_ENDS = frozenset(("Gemm", "GlobalAveragePool", "GlobalMaxPool"))
"""Operators behind which there are no rows."""
_SPATIAL = 2
"""The first spatial axis in ONNX."""
_MATRIX = 2
_FIRST_ALONE = _WINDOWS | _STORED | _CHANNELS | _SHAPES | _REDUCES | frozenset(("Gather", "Pad", "Slice", "Split"))
"""Operators whose first operand alone has rows."""
_OTHERS = frozenset(("LayerNormalization", "MatMul", "Transpose"))
_KNOWN = _FIRST_ALONE | _ROW_BY_ROW | _ENDS | _OTHERS | _ALONG.keys()


@dataclass(frozen=True, eq=False)
class Window:
    """A file of one window: of which step, with which state, and the rows of each input."""

    proto: onnx.ModelProto
    step: OnnxModel
    state: State
    rows: Mapping[str, Rows]


def in_one_window(
    proto: onnx.ModelProto, folder: Path, name: str, max_window: int | None, output: str
) -> Window | None:
    """Return the window of a file with state; None for any other.

    folder: of external data. max_window: frames of the input that it may have; 0: any; None: MOST_FRAMES. output: the
    one that counts, of several. Errors: E0501 with the pattern for other state; E0217.
    """
    try:
        model = parse_model(proto, name, folder, FrontendOptions())
        if model.opset < OPSET:
            model = parse_model(at_opset_13(model), name, folder, FrontendOptions())
    except CompileError:  # of a part that may not count, or shapes left open: who reads the file says so
        return None
    shapes = {key: shape for key, (shape, _) in inferred_types(model).items()}
    state = find_state(model, shapes, output)
    if state is None:
        return None
    try:
        return _Unrolling(model, shapes, state).run(MOST_FRAMES if max_window is None else max_window)
    except Refused as reason:
        what = f"{reason.attribute}: {reason.reason}, which cannot be computed row by row"
        raise CompileError("E0501", name, what, f"rings ({PATTERN}) and {reason.nearest}") from reason
    except (ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
        raise CompileError("E0212", name, f"it has state, and {error}", "check the attributes of its nodes") from error


class _Unrolling(Unrolling[str, OnnxNode]):
    def __init__(self, model: OnnxModel, shapes: Shapes, state: State) -> None:
        joined = (
            rewritten(node, (state.rings[node.output(0)].new,)) if node.output(0) in state.rings else node
            for node in model.nodes
        )
        super().__init__(
            model.name, state.rings, reachable(tuple(joined), state.outputs), (state.inputs, state.outputs)
        )
        self._model, self._state = model, state
        self._shapes = {**{name: array.shape for name, array in model.constants.items()}, **shapes}
        self._links = Links(model.nodes, model.outputs, model.constants)
        self._taken = {*self._shapes, *(name for node in model.nodes for name in (*node.inputs, *node.outputs))}
        self._made, self._tables = list[onnx.NodeProto](), list[onnx.TensorProto]()

    def run(self, max_window: int) -> Window:
        self.count(max_window)
        for node in self.operators:
            self._rewrite(node)
        made = onnx.ModelProto()
        made.CopyFrom(self._model.proto)
        graph, states = made.graph, {ring.variable for ring in self.rings.values()}
        _put(graph.node, self._made)
        _put(graph.input, [self._longer(value) for value in graph.input if value.name not in states])
        outputs = [value for value in graph.output if value.name in self._outputs]
        _put(graph.output, outputs or [onnx.ValueInfoProto(name=name) for name in self._outputs])
        _put(graph.value_info, [])
        graph.initializer.extend(self._tables)
        made.metadata_props.add(key=TIME_AXIS, value=str(self.rows[self._inputs[0]].axis))
        return Window(made, self._model, self._state, {name: self.rows[name] for name in self._inputs})

    def _longer(self, value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
        """Return what is declared of an input, with the rows of the window."""
        if value.name not in self._inputs:
            return value
        return helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, self.lengthened(value.name))

    # ---- what the format tells ----------------------------------------------------------------------------------

    def shape(self, k: str) -> tuple[int, ...]:
        if k not in self._shapes:
            raise Refused(k, "its shape is not known", "shapes that follow from the inputs")
        return self._shapes[k]

    def size(self, k: str) -> int:
        return np.dtype(np.float32).itemsize

    def called(self, k: str) -> str:
        return k

    def results(self, operator: OnnxNode) -> Sequence[str]:
        return [name for name in operator.outputs if name]

    def data(self, operator: OnnxNode) -> list[str]:
        given = operator.inputs[:1] if operator.op in _FIRST_ALONE else operator.inputs
        return [name for name in given if name and not self._links.is_constant(name)]

    def take_axis(self, k: str) -> bool:
        """Give an input of one moment the axis that an Unsqueeze or Reshape makes of it: the rows of the window."""
        readers = [node for node in self.operators if k in node.inputs]
        if len(readers) != 1 or readers[0].op not in ("Unsqueeze", "Reshape") or readers[0].output(0) not in self.rows:
            return False
        made = readers[0].output(0)
        self._shapes[k], self.rows[k] = self.shape(made), Rows(self.rows[made].axis)
        view = new_node(readers[0].name, "Identity", (k,), (made,))
        self.operators[self.operators.index(readers[0])] = view
        return True

    def across(self, operator: OnnxNode, known: str, other: str, back: bool) -> int | None:
        axis, rank = self.rows[known].axis, len(self.shape(known))
        if operator.op in _SHAPES:
            return same_axis(self.shape(known), self.shape(other), axis)
        if operator.op == "Transpose":
            perm = operator.integers("perm") or tuple(reversed(range(rank)))
            return perm[axis] if back else perm.index(axis)
        if operator.op in _REDUCES or operator.op == "Gather":
            return None if back else self._kept(operator, axis, rank)
        if operator.op == "MatMul":
            return None if axis == rank - 1 else axis
        return None if operator.op in _ENDS else axis - rank + len(self.shape(other))

    def _kept(self, operator: OnnxNode, axis: int, rank: int) -> int | None:
        """Return where an axis is behind an operator that may take away axes; None if it is one of these."""
        if operator.op == "Gather":
            gone = operator.integer("axis", 0) % rank
            change = len(self.shape(operator.input(1))) - 1
            return None if gone == axis else axis + change * (gone < axis)
        table = self._model.numbers(operator.input(1)) if operator.input(1) else None
        axes = operator.integers("axes") or (range(rank) if table is None else [int(one) for one in table.reshape(-1)])
        taken = {one % rank for one in axes}
        if axis in taken:
            return None
        return axis if operator.integer("keepdims", 1) else axis - sum(one < axis for one in taken)

    def check(self, operator: OnnxNode, sources: Sequence[str]) -> None:
        op, axis, rank = operator.op, self.rows[sources[0]].axis, len(self.shape(sources[0]))
        if op not in _KNOWN:
            raise Refused(op, "it is between a ring and the output", "operators that make a row of its row")
        if op in _FIRST_ALONE and any(name in self.rows for name in operator.inputs[1:]):
            raise Refused(op, "an operand that decides what it does has rows", "constants")
        if self._pads(operator, axis, rank):
            raise Refused(op, "it pads along time", "convolutions without padding in time")
        if self._works_along(operator, axis, rank):
            raise Refused(op, "it works along time", "the same in another axis")
        if op == "Slice" and self._bounds(operator)[axis][2] != 1:
            raise Refused(op, "it takes single rows", "slices of rows in a row")
        fixed = (name for name in operator.inputs if name and name not in self.rows)
        if op in _ROW_BY_ROW and any(size_at(self.shape(name), axis - rank) > 1 for name in fixed):
            raise Refused(op, "an operand differs from row to row", "one that is the same for each row")
        if op == "MatMul" and (len(sources) > 1 or len(self.shape(operator.input(1))) > _MATRIX):
            raise Refused(op, "it multiplies rows of one moment by those of others", "a matrix of weights")

    def _pads(self, node: OnnxNode, axis: int, rank: int) -> bool:
        """Tell whether a node pads along time, or may do so."""
        if node.op == "Pad":
            table = self._model.numbers(node.input(1))
            return bool(node.input(3)) or table is None or bool(table.reshape(-1)[axis::rank].any())
        if node.op not in _WINDOWS or axis < _SPATIAL:
            return False
        pads = node.integers("pads") or ()
        same = node.text("auto_pad", "NOTSET").startswith("SAME") and self.window(node)[0] > 1
        return same or any(pads[axis - _SPATIAL :: rank - _SPATIAL])

    @staticmethod
    def _works_along(node: OnnxNode, axis: int, rank: int) -> bool:
        """Tell whether a row of a node's result depends on more rows of its input than `window` says."""
        if node.op in (*_WINDOWS, *_CHANNELS):
            return axis < _SPATIAL
        if node.op == "LayerNormalization":
            return axis >= node.integer("axis", -1) % rank
        return node.op in _ALONG and node.integer("axis", _ALONG[node.op]) % rank == axis

    def window(self, operator: OnnxNode) -> tuple[int, int]:
        if operator.op not in _WINDOWS:
            return 1, 1
        at = self.rows[operator.input(0)].axis - _SPATIAL
        given = (operator.integers(name) for name in ("kernel_shape", "strides", "dilations"))
        kernel, strides, dilations = (None if one is None else one[at] for one in given)
        size = kernel or self.shape(operator.input(1))[_SPATIAL + at]
        return (size - 1) * (dilations or 1) + 1, strides or 1

    def late(self, operator: OnnxNode) -> int | None:
        if operator.op != "Slice":
            return None
        source = operator.input(0)
        return self.length(source) - self._bounds(operator)[self.rows[source].axis][1]

    def asked(self, operator: OnnxNode, source: str, need: int) -> int:
        moments = self._moments(operator)
        return super().asked(operator, source, need) if moments is None else self.length(source) - int(moments.min())

    def _moments(self, node: OnnxNode) -> Array | None:
        """Return the rows that a Gather takes of a step; None for any other node."""
        source = node.input(0)
        if node.op != "Gather" or source not in self.rows:
            return None
        along = node.integer("axis", 0) % len(self.shape(source)) == self.rows[source].axis
        table = self._model.numbers(node.input(1)) if along else None
        if table is None or not table.size:
            return None
        rows = self.length(source)
        if table.min() < -rows or table.max() >= rows:
            raise Refused(node.op, f"it takes rows beyond the {rows} that there are", "rows of its input")
        return table % rows

    def _bounds(self, node: OnnxNode) -> list[tuple[int, int, int]]:
        return constant_rows(self._model, node, self.shape(node.input(0)))

    # ---- the nodes of the window ------------------------------------------------------------------------------------

    def _rewrite(self, node: OnnxNode) -> None:
        results = [k for k in self.results(node) if k in self.rows]
        need, sources = max((self.rows[k].need for k in results), default=0), self.sources(node)
        if results and not need:  # of rows that only later calls would read
            return
        if node.op == "Slice" and sources:
            self._made.append(self._slice(node, need))
            return
        taken = {k: self._last(k, self.asked(node, k, need)) for k in sources}
        inputs = [taken.get(k, k) for k in node.inputs]
        if node.output(0) in self.rings:
            node = new_node(node.name, "Identity", inputs, node.outputs)
        elif node.op == "Reshape" and results:
            inputs[1] = self._table(node.output(0), "shape", self.lengthened(node.output(0)))
        elif (moments := self._moments(node)) is not None:
            inputs[1] = self._table(node.output(0), "moments", moments - moments.min())
        self._made.append(rewritten(node, inputs).proto)

    def _last(self, k: str, rows: int) -> str:
        """Return the last rows of a tensor: itself, or a slice of it."""
        there = self.rows[k].need
        if rows == there:
            return k
        part = free_name(f"{k}.last{rows}", self._taken)
        tables = [(there - rows,), (there,), (self.rows[k].axis,)]
        names = [self._table(part, what, one) for what, one in zip(("starts", "ends", "axes"), tables, strict=True)]
        self._made.append(helper.make_node("Slice", [k, *names], [part], name=part))
        return part

    def _slice(self, node: OnnxNode, need: int) -> onnx.NodeProto:
        """Return the slice of a window that ends where that of a step ends."""
        source = node.input(0)
        bounds, axis = self._bounds(node), self.rows[source].axis
        end = self.rows[source].need - (self.length(source) - bounds[axis][1])
        bounds[axis] = (end - need, end, 1)
        starts, ends, steps = zip(*bounds, strict=True)
        tables = {"starts": starts, "ends": ends, "axes": range(len(bounds)), "steps": steps}
        names = [self._table(node.output(0), what, one) for what, one in tables.items()]
        return rewritten(node, (source, *names)).proto

    def _table(self, beside: str, what: str, numbers: Sequence[int] | Array) -> str:
        name = free_name(f"{beside}.{what}", self._taken)
        self._tables.append(numpy_helper.from_array(np.asarray(numbers, np.int64), name))
        return name


def _put(field: Any, values: Sequence[Any]) -> None:
    """Fill a repeated field of a protobuf anew."""
    copies = [copy.deepcopy(value) for value in values]
    del field[:]
    field.extend(copies)
