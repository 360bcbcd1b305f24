"""A step of a network with rings -> the network of the window that one output depends on.

A ring becomes the sequence that passes through it, so every operator runs over more rows, and each weight is there
once. How many rows of a tensor count follows backwards from the output (`need`). An operator that reads fewer rows
than there are takes the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Refused
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator, Subgraph, Tensor, TfliteFile
from tinytrain_compile.frontend.tflite.layers import SAME
from tinytrain_compile.frontend.tflite.rings import PATTERN, STATE, Ring, find_rings
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


def unrolled(file: TfliteFile, max_window: int) -> Subgraph:
    """Return the stateless graph of a window. max_window: frames of the input that it may have; 0: any.

    E0501 for state that is no ring, or an operator that rows cannot pass; E0217 for a longer window.
    """
    try:
        return _Unrolling(file).run(max_window)
    except Refused as reason:
        what = f"{reason.attribute}: {reason.reason}, which cannot be computed row by row"
        raise CompileError("E0501", file.name, what, f"rings ({PATTERN}) and {reason.nearest}") from reason


@dataclass
class _Rows:
    """Rows of one tensor. axis: time axis; fresh: rows that a step adds; need: rows that the output depends on."""

    axis: int
    fresh: int = 0
    need: int = 0


@dataclass
class _Made:
    tensors: list[Tensor]
    operators: list[Operator] = field(default_factory=list[Operator])

    def add(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


class _Unrolling:
    def __init__(self, file: TfliteFile) -> None:
        self._file, self._graph = file, file.subgraphs[0]
        self._rings = {ring.joined: ring for ring in find_rings(file)}
        state = {k for ring in self._rings.values() for k in ring.parts}
        self._operators = [
            one
            for k, one in enumerate(self._graph.operators)
            if (k not in state and one.op not in STATE) or (one.op == "CONCATENATION" and one.outputs[0] in self._rings)
        ]
        self._rows = dict[int, _Rows]()

    def run(self, max_window: int) -> Subgraph:
        self._find_axes()
        for operator in self._operators:
            self._count(operator)
        self._find_need()
        self._check_length(max_window)
        made = _Made([self._lengthened(k, one) for k, one in enumerate(self._graph.tensors)])
        for operator in self._operators:
            self._rewrite(operator, made)
        return replace(self._graph, tensors=tuple(made.tensors), operators=tuple(made.operators))

    # ---- the axis of time -------------------------------------------------------------------------------------------

    def _find_axes(self) -> None:
        """Find the axis of every tensor that has rows: from the rings back to the input, then to the output."""
        for ring in self._rings.values():
            self._rows[ring.joined], self._rows[ring.new] = _Rows(ring.axis), _Rows(ring.axis)
        for operator in reversed(self._operators):
            for k in operator.outputs:
                if k in self._rows:
                    for source in self._data(operator):
                        self._pass(k, source, operator, back=True)
        for operator in self._operators:
            for source in self._data(operator):
                for k in operator.outputs if source in self._rows else ():
                    self._pass(source, k, operator, back=False)
        for k in self._graph.inputs:
            if k not in self._rows:
                raise Refused(self._graph.tensors[k].name, "no ring depends on this input", "one input of frames")

    def _pass(self, known: int, other: int, operator: Operator, back: bool) -> None:
        """Give a tensor the axis that corresponds to that of another across an operator, if there is one."""
        axis = self._rows[known].axis
        if operator.op in _SHAPES:
            found = _same_axis(self._graph.tensors[known].shape, self._graph.tensors[other].shape, axis)
        elif operator.op == "TRANSPOSE":
            perm = self._perm(operator)
            found = perm[axis] if back else perm.index(axis)
        else:
            found = None if operator.op in _ENDS else axis
        if found is not None and found < len(self._graph.tensors[other].shape):
            self._rows.setdefault(other, _Rows(found))

    def _perm(self, operator: Operator) -> list[int]:
        data = None if operator.input(1) == ABSENT else self._graph.tensors[operator.input(1)].data
        if data is None:
            raise Refused(operator.op, "an operand is computed at run time", "constants")
        rank = len(self._graph.tensors[operator.inputs[0]].shape)
        perm = [int(one) % max(rank, 1) for one in data.reshape(-1)]
        if sorted(perm) != list(range(rank)):
            raise Refused(operator.op, f"its axes are {perm[:8]}", "every axis once")
        return perm

    def _data(self, operator: Operator) -> list[int]:
        """Return what is computed of what an operator reads."""
        first = _DATA_SECOND.get(operator.op, 0)
        given = (
            operator.inputs if operator.op in _ROW_BY_ROW - {"SPLIT", "SPLIT_V"} else operator.inputs[first : first + 1]
        )
        return [k for k in given if k != ABSENT and self._graph.tensors[k].data is None]

    # ---- rows of a step ---------------------------------------------------------------------------------------------

    def _length(self, k: int) -> int:
        return self._graph.tensors[k].shape[self._rows[k].axis]

    def _count(self, operator: Operator) -> None:
        """Count rows that a step adds; Refused for an operator whose rows would not be those of the sequence."""
        for k in self._graph.inputs:
            self._rows[k].fresh = self._length(k)
        sources = [k for k in self._data(operator) if k in self._rows]
        if not sources:
            return
        if operator.outputs[0] in self._rings:
            self._enter(self._rings[operator.outputs[0]])
            return
        self._check(operator, sources)
        fresh = {self._rows[k].fresh for k in sources}
        window, stride = self._window(operator)
        if len(fresh) != 1 or any(one % stride for one in fresh) or (self._length(sources[0]) - window) % stride:
            raise Refused(operator.op, f"{sorted(fresh)} new rows by strides of {stride}", "strides that divide a step")
        for k in operator.outputs:
            if k in self._rows:
                self._rows[k].fresh = fresh.copy().pop() // stride

    def _enter(self, ring: Ring) -> None:
        fresh = self._rows[ring.new].fresh
        if self._length(ring.new) != fresh or self._length(ring.joined) != fresh + ring.rows:
            what = f"{self._length(ring.new)} rows enter the ring {ring.variable}, of which {fresh} are new"
            raise Refused("CONCATENATION", what, "rings that take each row once")
        self._rows[ring.joined].fresh = fresh

    def _check(self, operator: Operator, sources: Sequence[int]) -> None:
        axis = self._rows[sources[0]].axis
        if operator.op in (*_CONVS, *_POOLS):
            window, _ = self._window(operator)
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
            fixed = (self._graph.tensors[k] for k in operator.inputs if k != ABSENT and k not in self._rows)
            if operator.op not in ("SPLIT", "SPLIT_V") and any(_size_at(one.shape, axis - rank) > 1 for one in fixed):
                raise Refused(operator.op, "an operand differs from row to row", "one that is the same for each row")
        elif operator.op in _SLICES:
            if operator.number("ShrinkAxisMask") >> axis & 1 or self._bounds(operator)[2] != 1:
                raise Refused(operator.op, "it takes single rows", "slices of rows in a row")
        elif operator.op not in (*_SHAPES, *_ENDS, "TRANSPOSE"):
            raise Refused(operator.op, "it is between a ring and the output", "operators that make a row of its row")

    def _window(self, operator: Operator) -> tuple[int, int]:
        """Return how many rows of its input a row of an operator's result reads, and the step from row to row."""
        if operator.op not in (*_CONVS, *_POOLS):
            return 1, 1
        place, side = self._rows[operator.inputs[0]].axis, "H" if self._rows[operator.inputs[0]].axis == 1 else "W"
        stride = operator.number(f"Stride{side}")
        if operator.op in _POOLS:
            size, dilation = operator.number("FilterHeight" if side == "H" else "FilterWidth"), 1
        else:
            size = _size_at(self._graph.tensors[operator.input(1)].shape, place)
            dilation = operator.number(f"Dilation{side}Factor")
        if min(stride, size, dilation) < 1:
            raise Refused(operator.op, f"stride {stride}, window {size}, dilation {dilation}", "sizes above 0")
        return (size - 1) * dilation + 1, stride

    def _bounds(self, operator: Operator) -> tuple[int, int, int]:
        """Return the rows that a slice takes of a step."""
        return constant_bounds(self._graph, operator)[self._rows[operator.inputs[0]].axis]

    # ---- rows of the window -----------------------------------------------------------------------------------------

    def _find_need(self) -> None:
        for k in self._graph.outputs:
            if k in self._rows:
                self._rows[k].need = self._length(k)
        for operator in reversed(self._operators):
            results = [k for k in operator.outputs if k in self._rows]
            need = max((self._rows[k].need for k in results), default=0)
            for k in results:
                self._rows[k].need = need
            for k in self._data(operator):
                if k in self._rows and (need or not results):
                    self._rows[k].need = max(self._rows[k].need, self._asked(operator, k, need))

    def _asked(self, operator: Operator, source: int, need: int) -> int:
        """Return rows of an operand that so many rows of an operator's result depend on."""
        if not any(k in self._rows for k in operator.outputs):
            return self._length(source)
        if operator.op in _SLICES:
            return need + self._length(source) - self._bounds(operator)[1]
        window, stride = self._window(operator)
        return (need - 1) * stride + window

    def _check_length(self, max_window: int) -> None:
        frames = max(self._rows[k].need for k in self._graph.inputs)
        sizes = [self._lengthened(k, one).size for k, one in enumerate(self._graph.tensors) if k in self._rows]
        if 0 < max_window < frames:
            what = f"its output depends on a window of {frames} frames, whose activations take {sum(sizes):,} B"
            raise CompileError("E0217", self._file.name, what, f"--max-window {frames}, if there is so much memory")

    def _lengthened(self, k: int, tensor: Tensor) -> Tensor:
        if k not in self._rows or not self._rows[k].need:
            return tensor
        axis = self._rows[k].axis
        return replace(tensor, shape=(*tensor.shape[:axis], self._rows[k].need, *tensor.shape[axis + 1 :]))

    def _rewrite(self, operator: Operator, made: _Made) -> None:
        rows = [k for k in operator.outputs if k in self._rows]
        need = max((self._rows[k].need for k in rows), default=0)
        sources = [k for k in self._data(operator) if k in self._rows]
        if rows and not need:  # of rows that only later calls would read
            return
        if operator.op in _SLICES and sources:
            made.operators.append(self._slice(operator, made, need))
            return
        taken = {k: self._last(k, self._asked(operator, k, need), made) for k in sources}
        if operator.outputs[0] in self._rings:
            new = taken[operator.inputs[1]]
            made.operators.append(Operator(operator.name, "RESHAPE", (new,), operator.outputs))
            return
        made.operators.append(replace(operator, inputs=tuple(taken.get(k, k) for k in operator.inputs)))

    def _last(self, k: int, rows: int, made: _Made) -> int:
        """Return the last rows of a tensor: itself, or a slice of it."""
        there = self._rows[k].need
        if rows == there:
            return k
        tensor, axis = made.tensors[k], self._rows[k].axis
        shape = (*tensor.shape[:axis], rows, *tensor.shape[axis + 1 :])
        part = made.add(replace(tensor, name=f"{tensor.name}.last{rows}_{len(made.tensors)}", shape=shape))
        made.operators.append(_strided(tensor.name, k, part, _whole(tensor.shape, axis, (there - rows, there)), made))
        return part

    def _slice(self, operator: Operator, made: _Made, need: int) -> Operator:
        """Return the slice of a window that ends where that of a step ends."""
        source = operator.inputs[0]
        bounds = [(begin, end) for begin, end, _ in constant_bounds(self._graph, operator)]
        axis = self._rows[source].axis
        end = self._rows[source].need - (self._length(source) - bounds[axis][1])
        bounds[axis] = (end - need, end)
        return _strided(operator.name, source, operator.outputs[0], bounds, made)


def _same_axis(shape: Sequence[int], other: Sequence[int], axis: int) -> int | None:
    """Return the axis that a Reshape leaves as it is: as many elements in front of it, and as long."""
    before = int(np.prod(shape[:axis], dtype=object))
    places = range(1, len(other))
    fitting = (k for k in places if other[k] == shape[axis] and int(np.prod(other[:k], dtype=object)) == before)
    return next(fitting, None)


def _size_at(shape: Sequence[int], axis: int) -> int:
    return shape[axis] if -len(shape) <= axis < len(shape) else 1


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
