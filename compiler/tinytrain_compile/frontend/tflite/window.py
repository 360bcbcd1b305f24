"""A step of a .tflite file with rings -> its graph of the window (frontend/rings/unroll.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.rings.unroll import Unrolling, same_axis, size_at
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator, Subgraph, Tensor, TfliteFile
from tinytrain_compile.frontend.tflite.layers import SAME
from tinytrain_compile.frontend.tflite.rings import PATTERN, STATE, find_rings
from tinytrain_compile.frontend.tflite.slices import constant_bounds

_CONVS = frozenset(("CONV_2D", "DEPTHWISE_CONV_2D"))
_POOLS = frozenset(("AVERAGE_POOL_2D", "MAX_POOL_2D"))
_SLICES = frozenset(("SLICE", "STRIDED_SLICE"))
_ACTIVATIONS = "RELU RELU6 RELU_N1_TO_1 LEAKY_RELU PRELU LOGISTIC TANH HARD_SWISH SOFTMAX"
_OTHERS = "ADD SUB MUL QUANTIZE DEQUANTIZE CONCATENATION SPLIT SPLIT_V"
_ROW_BY_ROW = frozenset((*_ACTIVATIONS.split(), *_OTHERS.split()))
"""Operators that make each row of its own row, and keep the axes."""
_SHAPES = frozenset(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"))
_ENDS = frozenset(("FULLY_CONNECTED", "MEAN"))
"""Operators behind which there are no rows."""
_DATA_SECOND = {"SPLIT": 1}
"""Place of the data where it is not the first operand."""


def unrolled(file: TfliteFile, max_window: int) -> tuple[Subgraph, int]:
    """Return the stateless graph of a window, and the axis of time of its first input.

    max_window: frames of the input that it may have; 0: any.
    E0501 for state that is no ring, or an operator that rows cannot pass; E0217 for a longer window.
    """
    try:
        unrolling = _Unrolling(file)
        return unrolling.run(max_window), unrolling.rows[file.subgraphs[0].inputs[0]].axis
    except Refused as reason:
        what = f"{reason.attribute}: {reason.reason}, which cannot be computed row by row"
        raise CompileError("E0501", file.name, what, f"rings ({PATTERN}) and {reason.nearest}") from reason


@dataclass
class _Made:
    tensors: list[Tensor]
    operators: list[Operator] = field(default_factory=list[Operator])

    def add(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


class _Unrolling(Unrolling[int, Operator]):
    def __init__(self, file: TfliteFile) -> None:
        graph, rings = file.subgraphs[0], {ring.joined: ring for ring in find_rings(file)}
        state = {k for ring in rings.values() for k in ring.parts}
        operators = [
            one
            for k, one in enumerate(graph.operators)
            if (k not in state and one.op not in STATE) or (one.op == "CONCATENATION" and one.outputs[0] in rings)
        ]
        super().__init__(file.name, rings, operators, (graph.inputs, graph.outputs))
        self._graph = graph

    def run(self, max_window: int) -> Subgraph:
        self.count(max_window)
        tensors = enumerate(self._graph.tensors)
        made = _Made([replace(one, shape=self.lengthened(k)) for k, one in tensors])
        for operator in self.operators:
            self._rewrite(operator, made)
        return replace(self._graph, tensors=tuple(made.tensors), operators=tuple(made.operators))

    def shape(self, k: int) -> tuple[int, ...]:
        return self._graph.tensors[k].shape

    def size(self, k: int) -> int:
        return self._graph.tensors[k].itemsize

    def called(self, k: int) -> str:
        return self._graph.tensors[k].name

    def results(self, operator: Operator) -> Sequence[int]:
        return operator.outputs

    def across(self, operator: Operator, known: int, other: int, back: bool) -> int | None:
        axis = self.rows[known].axis
        if operator.op in _SHAPES:
            return same_axis(self.shape(known), self.shape(other), axis)
        if operator.op == "TRANSPOSE":
            perm = self._perm(operator)
            return perm[axis] if back else perm.index(axis)
        return None if operator.op in _ENDS else axis

    def _perm(self, operator: Operator) -> list[int]:
        data = None if operator.input(1) == ABSENT else self._graph.tensors[operator.input(1)].data
        if data is None:
            raise Refused(operator.op, "an operand is computed at run time", "constants")
        rank = len(self._graph.tensors[operator.inputs[0]].shape)
        perm = [int(one) % max(rank, 1) for one in data.reshape(-1)]
        if sorted(perm) != list(range(rank)):
            raise Refused(operator.op, f"its axes are {perm[:8]}", "every axis once")
        return perm

    def data(self, operator: Operator) -> list[int]:
        """Return what is computed of what an operator reads."""
        first = _DATA_SECOND.get(operator.op, 0)
        given = (
            operator.inputs if operator.op in _ROW_BY_ROW - {"SPLIT", "SPLIT_V"} else operator.inputs[first : first + 1]
        )
        return [k for k in given if k != ABSENT and self._graph.tensors[k].data is None]

    def check(self, operator: Operator, sources: Sequence[int]) -> None:
        axis = self.rows[sources[0]].axis
        if operator.op in (*_CONVS, *_POOLS):
            window, _ = self.window(operator)
            if axis not in (1, 2) or (operator.number("Padding") == SAME and window > 1):
                raise Refused(operator.op, "it pads or works along time", "convolutions without padding in time")
        elif operator.op in _ROW_BY_ROW:
            along = {"CONCATENATION": operator.number("Axis"), "SOFTMAX": -1}.get(operator.op)
            if operator.op in ("SPLIT", "SPLIT_V"):
                tables = [self._graph.tensors[k].data for k in operator.inputs]
                table = tables[0] if operator.op == "SPLIT" else tables[-1]
                along = None if table is None or not table.size else int(table.reshape(-1)[0])
            rank = len(self._graph.tensors[sources[0]].shape)
            if along is not None and along % rank == axis:
                raise Refused(operator.op, "it works along time", "the same in another axis")
            fixed = (self._graph.tensors[k] for k in operator.inputs if k != ABSENT and k not in self.rows)
            if operator.op not in ("SPLIT", "SPLIT_V") and any(size_at(one.shape, axis - rank) > 1 for one in fixed):
                raise Refused(operator.op, "an operand differs from row to row", "one that is the same for each row")
        elif operator.op in _SLICES:
            if operator.number("ShrinkAxisMask") >> axis & 1 or self._bounds(operator)[2] != 1:
                raise Refused(operator.op, "it takes single rows", "slices of rows in a row")
        elif operator.op not in (*_SHAPES, *_ENDS, "TRANSPOSE"):
            raise Refused(operator.op, "it is between a ring and the output", "operators that make a row of its row")

    def window(self, operator: Operator) -> tuple[int, int]:
        """Return how many rows of its input a row of an operator's result reads, and the step from row to row."""
        if operator.op not in (*_CONVS, *_POOLS):
            return 1, 1
        place, side = self.rows[operator.inputs[0]].axis, "H" if self.rows[operator.inputs[0]].axis == 1 else "W"
        stride = operator.number(f"Stride{side}")
        if operator.op in _POOLS:
            size, dilation = operator.number("FilterHeight" if side == "H" else "FilterWidth"), 1
        else:
            size = size_at(self._graph.tensors[operator.input(1)].shape, place)
            dilation = operator.number(f"Dilation{side}Factor")
        if min(stride, size, dilation) < 1:
            raise Refused(operator.op, f"stride {stride}, window {size}, dilation {dilation}", "sizes above 0")
        return (size - 1) * dilation + 1, stride

    def late(self, operator: Operator) -> int | None:
        return self.length(operator.inputs[0]) - self._bounds(operator)[1] if operator.op in _SLICES else None

    def _bounds(self, operator: Operator) -> tuple[int, int, int]:
        """Return the rows that a slice takes of a step."""
        return constant_bounds(self._graph, operator)[self.rows[operator.inputs[0]].axis]

    def _rewrite(self, operator: Operator, made: _Made) -> None:
        rows = [k for k in operator.outputs if k in self.rows]
        need = max((self.rows[k].need for k in rows), default=0)
        sources = [k for k in self.data(operator) if k in self.rows]
        if rows and not need:  # of rows that only later calls would read
            return
        if operator.op in _SLICES and sources:
            made.operators.append(self._slice(operator, made, need))
            return
        taken = {k: self._last(k, self.asked(operator, k, need), made) for k in sources}
        if operator.outputs[0] in self.rings:
            new = taken[operator.inputs[1]]
            made.operators.append(Operator(operator.name, "RESHAPE", (new,), operator.outputs))
            return
        made.operators.append(replace(operator, inputs=tuple(taken.get(k, k) for k in operator.inputs)))

    def _last(self, k: int, rows: int, made: _Made) -> int:
        """Return the last rows of a tensor: itself, or a slice of it."""
        there = self.rows[k].need
        if rows == there:
            return k
        tensor, axis = made.tensors[k], self.rows[k].axis
        shape = (*tensor.shape[:axis], rows, *tensor.shape[axis + 1 :])
        part = made.add(replace(tensor, name=f"{tensor.name}.last{rows}_{len(made.tensors)}", shape=shape))
        made.operators.append(_strided(tensor.name, k, part, _whole(tensor.shape, axis, (there - rows, there)), made))
        return part

    def _slice(self, operator: Operator, made: _Made, need: int) -> Operator:
        """Return the slice of a window that ends where that of a step ends."""
        source = operator.inputs[0]
        bounds = [(begin, end) for begin, end, _ in constant_bounds(self._graph, operator)]
        axis = self.rows[source].axis
        end = self.rows[source].need - (self.length(source) - bounds[axis][1])
        bounds[axis] = (end - need, end)
        return _strided(operator.name, source, operator.outputs[0], bounds, made)


def _whole(shape: Sequence[int], axis: int, rows: tuple[int, int]) -> list[tuple[int, int]]:
    return [rows if k == axis else (0, size) for k, size in enumerate(shape)]


def _strided(name: str, source: int, output: int, bounds: Sequence[tuple[int, int]], made: _Made) -> Operator:
    """Return a STRIDED_SLICE, its bounds added as constants."""
    tables = [[begin for begin, _ in bounds], [end for _, end in bounds], [1] * len(bounds)]
    held = [
        made.add(Tensor(f"{name}.bounds_{len(made.tensors)}", (len(bounds),), "int32", data=np.asarray(one, np.int32)))
        for one in tables
    ]
    masks: Mapping[str, int] = {}
    return Operator(name, "STRIDED_SLICE", (source, *held), (output,), masks)
