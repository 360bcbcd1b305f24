"""Bytes of a .tflite file -> TfliteFile. Only this and rewrite.py use tflite and flatbuffers, which check no bounds.

Every table is read through _Checked, and every count is compared with the file before anything is made of it.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any

import flatbuffers.table
import numpy as np
import tflite

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.protobuf import check_dims, check_finite
from tinytrain_compile.frontend.tflite.file import ABSENT, Operator, Scales, Subgraph, Tensor, TfliteFile
from tinytrain_compile.ir.types import Array

MOST_OPERATORS, MOST_OPERANDS, MOST_SUBGRAPHS = 20_000, 1_000, 64
"""Far more than a network for a microcontroller has: a small hostile file cannot ask for much work."""
_HELD = frozenset(("float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool"))
"""Types of constants."""
UNREADABLE = (struct.error, ValueError, IndexError, TypeError, AttributeError, OverflowError, KeyError, RecursionError)
"""Exceptions of flatbuffers, its generated classes and numpy for offsets and lengths outside the file."""

_CONV = "Padding StrideH StrideW DilationHFactor DilationWFactor FusedActivationFunction"
_POOL = "Padding StrideH StrideW FilterHeight FilterWidth FusedActivationFunction"
_OPTIONS = {
    "ADD": ("AddOptions", "FusedActivationFunction"),
    "AVERAGE_POOL_2D": ("Pool2DOptions", _POOL),
    "CALL_ONCE": ("CallOnceOptions", "InitSubgraphIndex"),
    "CONCATENATION": ("ConcatenationOptions", "Axis FusedActivationFunction"),
    "CONV_2D": ("Conv2DOptions", _CONV),
    "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", _CONV),
    "FULLY_CONNECTED": ("FullyConnectedOptions", "FusedActivationFunction WeightsFormat"),
    "LEAKY_RELU": ("LeakyReluOptions", "Alpha"),
    "MAX_POOL_2D": ("Pool2DOptions", _POOL),
    "MUL": ("MulOptions", "FusedActivationFunction"),
    "PACK": ("PackOptions", "Axis"),
    "RESIZE_BILINEAR": ("ResizeBilinearOptions", "AlignCorners HalfPixelCenters"),
    "RESIZE_NEAREST_NEIGHBOR": ("ResizeNearestNeighborOptions", "AlignCorners HalfPixelCenters"),
    "SOFTMAX": ("SoftmaxOptions", "Beta"),
    "STRIDED_SLICE": ("StridedSliceOptions", "BeginMask EndMask EllipsisMask NewAxisMask ShrinkAxisMask Offset"),
    "SUB": ("SubOptions", "FusedActivationFunction"),
    "TRANSPOSE_CONV": ("TransposeConvOptions", "Padding StrideH StrideW FusedActivationFunction"),
    "VAR_HANDLE": ("VarHandleOptions", "SharedName Container"),
}
"""Operator -> its class of options, and which of them count here. What they say too is in the shapes of others."""


def _names(enum: type) -> dict[int, str]:
    return {value: name for name, value in vars(enum).items() if isinstance(value, int)}


_BUFFER_FIELD = 8
"""Place of Tensor.buffer in the schema's table of fields."""
_OPERATORS, _TYPES, _CHOICES = map(_names, (tflite.BuiltinOperator, tflite.TensorType, tflite.BuiltinOptions))


def parse(name: str, data: bytes) -> TfliteFile:
    """Return what a file holds. E0214 for a damaged one; E0216, E0217, E0204 ... as for tensors of an ONNX file."""
    try:
        return _Reader(name, data).file()
    except UNREADABLE as problem:
        raise damaged(name, "an offset or a length leads out of it") from problem


def damaged(name: str, what: str) -> CompileError:
    """Return E0214."""
    return CompileError("E0214", name, f"the file breaks off or is garbled: {what}", "copy or download it again")


def held_bytes(data: bytes) -> list[tuple[int, int]]:
    """Return where in a sound file the data of its constants lie: start and size."""
    buffers = _Reader("", data).buffers
    held = [one._tab for one in buffers if one.DataLength()]
    return [(int(tab.Vector(tab.Offset(4))), int(tab.VectorLen(tab.Offset(4)))) for tab in held]


@dataclass(frozen=True)
class Place:
    """Place of a tensor's data in a file, in bytes. alone: no other tensor shares them.

    index: place of the number of its buffer; buffers: how many the file has.
    """

    start: int
    size: int
    alone: bool
    index: int
    buffers: int


def places(data: bytes) -> dict[str, Place]:
    """Return where the constants of a sound file's first subgraph are, by the names that `parse` gives them."""
    reader = _Reader("", data)
    graphs = reader.tensors()
    used = {one.Buffer(): reader.buffers[one.Buffer()] for graph in graphs for one in graph}  # others may be damaged
    starts = {k: int(one._tab.Vector(one._tab.Offset(4))) if one.DataLength() else 0 for k, one in used.items()}
    times = Counter(starts[one.Buffer()] for graph in graphs for one in graph)
    found = dict[str, Place]()
    for known, one in zip(reader.file().subgraphs[0].tensors, graphs[0], strict=True):
        buffer, field = one.Buffer(), one._tab.Offset(_BUFFER_FIELD)
        if known.data is not None and field:
            start, size = starts[buffer], reader.buffers[buffer].DataLength()
            place = int(one._tab.Pos + field)
            found[known.name] = Place(start, size, times[start] == 1, place, len(reader.buffers))
    return found


class _Checked(flatbuffers.table.Table):
    """A table whose reads lie inside the file: struct takes negative places for such from the end."""

    def Get(self, flags: Any, off: int) -> Any:
        if off < 0:
            raise ValueError("a place in front of the file")
        return super().Get(flags, off)

    def Indirect(self, off: int) -> int:
        if off < 0:
            raise ValueError("a place in front of the file")
        return super().Indirect(off)


class _Reader:
    def __init__(self, name: str, data: bytes) -> None:
        self._name, self._data = name, data
        self._sound = set[tuple[int, str]]()
        self._model = self._checked(tflite.Model.GetRootAs(data, 0))
        self.buffers = self._tables(self._model, "Buffers")
        self._codes: list[str] = [self._code(one) for one in self._tables(self._model, "OperatorCodes")]

    def file(self) -> TfliteFile:
        graphs = self._tables(self._model, "Subgraphs", MOST_SUBGRAPHS)
        if not graphs:
            raise CompileError("E0202", self._name, "the model has no graph", "convert the model again")
        return TfliteFile(self._name, tuple(self._subgraph(index, graph) for index, graph in enumerate(graphs)))

    def tensors(self) -> list[list[Any]]:
        """Return the tables of the tensors of each subgraph."""
        return [self._tables(graph, "Tensors") for graph in self._tables(self._model, "Subgraphs", MOST_SUBGRAPHS)]

    # ---- tables -----------------------------------------------------------------------------------------------------

    def _checked(self, table: Any) -> Any:
        table._tab = _Checked(self._data, table._tab.Pos)
        return table

    def _tables(self, owner: Any, field: str, most: int = MOST_OPERATORS) -> list[Any]:
        count = getattr(owner, f"{field}Length")()
        if count > most:
            what = f"{count} {field.lower()}, {most} are read"
            raise CompileError("E0217", self._name, what, "use a model that a microcontroller can hold")
        return [self._checked(getattr(owner, field)(index)) for index in range(count)]

    def _vector(self, owner: Any, field: str, most: int = MOST_OPERANDS) -> list[Any]:
        count = getattr(owner, f"{field}Length")()
        if count > most:
            raise damaged(self._name, f"{count} elements in {field}")
        return getattr(owner, f"{field}AsNumpy")().tolist() if count else []

    def _indices(self, owner: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return which tensors an operator or a graph takes and gives."""
        return tuple(self._vector(owner, "Inputs")), tuple(self._vector(owner, "Outputs"))

    @staticmethod
    def _text(value: Any) -> str:
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""

    def _code(self, code: Any) -> str:
        """Return the operator: files of both ages of the schema, whose first had a byte for it."""
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = _OPERATORS.get(number, f"operator {number}")
        return f"CUSTOM {self._text(code.CustomCode())}" if name == "CUSTOM" else name

    # ---- parts ------------------------------------------------------------------------------------------------------

    def _subgraph(self, index: int, graph: Any) -> Subgraph:
        where = f"{self._name}, subgraph {index}" if index else self._name
        found = self._tables(graph, "Tensors")
        given = [self._text(one.Name()) for one in found]
        times = Counter(given)
        names = [one if one and times[one] == 1 else f"{one or 'tensor'}_{k}" for k, one in enumerate(given)]
        if len(set(names)) < len(names):
            names = [f"tensor_{k}" for k in range(len(names))]
        tensors = tuple(self._tensor(one, name) for one, name in zip(found, names, strict=True))
        inputs, outputs = self._indices(graph)
        operators = tuple(self._operator(k, one, tensors) for k, one in enumerate(self._tables(graph, "Operators")))
        used = {k for one in operators for k in (*one.inputs, *one.outputs)} - {ABSENT} | {*inputs, *outputs}
        wrong = next((k for k in sorted(used) if not 0 <= k < len(tensors)), None)
        if wrong is not None:
            raise damaged(where, f"it uses tensor {wrong}, and has {len(tensors)}")
        return Subgraph(tensors, operators, inputs, outputs)

    def _operator(self, index: int, operator: Any, tensors: tuple[Tensor, ...]) -> Operator:
        code = int(operator.OpcodeIndex())
        if code >= len(self._codes):
            raise damaged(self._name, f"operator {index} has code {code} of {len(self._codes)}")
        op = self._codes[code]
        inputs, outputs = self._indices(operator)
        named = next((tensors[k].name for k in (*outputs, *inputs) if 0 <= k < len(tensors)), str(index))
        return Operator(named, op, inputs, outputs, self._options(operator, op, named))

    def _options(self, operator: Any, op: str, name: str) -> dict[str, int | float | str]:
        if op not in _OPTIONS:
            return {}
        kind, fields = _OPTIONS[op]
        table, found = operator.BuiltinOptions(), _CHOICES.get(operator.BuiltinOptionsType())
        if table is None or found != kind:
            what = f"its options are {found}, not {kind}"
            raise CompileError("E0229", f"operator {name} ({op})", what, "convert the model again")
        options = getattr(tflite, kind)()
        options.Init(self._data, table.Pos)
        self._checked(options)
        values = {field: getattr(options, field)() for field in fields.split()}
        return {field: self._text(v) if v is None or isinstance(v, bytes) else v for field, v in values.items()}

    def _tensor(self, tensor: Any, name: str) -> Tensor:
        where = f"tensor {name}"
        kind = _TYPES.get(tensor.Type(), f"type {tensor.Type()}").lower()
        shape = tuple(self._vector(tensor, "Shape"))
        check_dims(where, shape)
        if tensor.Sparsity() is not None:
            raise CompileError("E0223", where, "sparse weights cannot be read", "convert with dense ones")
        return Tensor(name, shape, kind, self._scales(tensor, where), self._held(tensor, where, kind, shape),
                      bool(tensor.IsVariable()))  # fmt: skip

    def _scales(self, tensor: Any, where: str) -> Scales | None:
        found = tensor.Quantization()
        if found is None:
            return None
        self._checked(found)
        most = len(self._data) // 4
        scale = np.asarray(self._vector(found, "Scale", most), np.float32)
        zero = np.asarray(self._vector(found, "ZeroPoint", most), np.int64)
        if not scale.size:
            return None
        zero = zero if zero.size else np.zeros(1, np.int64)
        if not bool((np.isfinite(scale) & (scale > 0)).all()) or zero.size not in (1, scale.size):
            what = "a scale is not above 0" if zero.size in (1, scale.size) else f"{zero.size} zero points"
            raise CompileError("E0212", where, f"{what} ({scale.size} scales)", "convert the model again")
        return Scales(scale, zero, found.QuantizedDimension())

    def _held(self, tensor: Any, where: str, kind: str, shape: tuple[int, ...]) -> Array | None:
        """Return the data of a constant, a view of the file."""
        index = tensor.Buffer()
        if index >= len(self.buffers):
            raise damaged(self._name, f"{where} is in buffer {index} of {len(self.buffers)}")
        buffer = self.buffers[index]
        if buffer.Offset() > 1:
            what = "its data lie behind the file's tables"
            raise CompileError("E0223", where, what, "convert a model of less than 2 GB")
        if not buffer.DataLength():
            return None
        if kind not in _HELD:
            return None  # a type that no network here computes with: who reads it says so
        dtype = np.dtype(kind).newbyteorder("<")
        raw = buffer.DataAsNumpy()
        if raw.size != int(np.prod(shape, dtype=object)) * dtype.itemsize:
            what = f"shape {list(shape)} of {kind} against {raw.size} bytes of data"
            raise CompileError("E0216", where, what, "copy or convert the model again")
        if (index, kind) not in self._sound:  # tensors may share a buffer
            check_finite(raw.view(dtype), where)
            self._sound.add((index, kind))
        return raw.view(dtype).reshape(shape)
