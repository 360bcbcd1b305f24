"""Writes .tflite files without TensorFlow: tensors, buffers, operators, options, by the builders of PyPI tflite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

KINDS = {"float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "int8": 9}
RESOURCE = 13


@dataclass
class _Graph:
    tensors: list[tuple[Any, ...]] = field(default_factory=list)
    operators: list[tuple[Any, ...]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


class TfliteWriter:
    """A file in the making. `sub()` begins a further subgraph, to which what follows belongs."""

    def __init__(self) -> None:
        self.graphs = [_Graph()]
        self._buffers: list[bytes] = [b""]
        self._codes: list[str] = []

    @property
    def _graph(self) -> _Graph:
        return self.graphs[-1]

    def sub(self) -> int:
        self.graphs.append(_Graph())
        return len(self.graphs) - 1

    def tensor(
        self,
        name: str,
        shape: Any,
        kind: str = "int8",
        scale: Any = None,
        zero: Any = 0,
        data: Any = None,
        axis: int = 0,
        buffer: int | None = None,
    ) -> int:
        """A tensor; its index. scale, zero: numbers, or one for each index of the axis; buffer: to share."""
        if data is not None and buffer is None:
            self._buffers.append(np.ascontiguousarray(data).tobytes())
            buffer = len(self._buffers) - 1
        self._graph.tensors.append((name, list(shape), kind, scale, zero, axis, buffer or 0))
        return len(self._graph.tensors) - 1

    def count_of_buffers(self) -> int:
        return len(self._buffers)

    def change_buffer(self, index: int, change: Callable[[bytes], bytes]) -> None:
        self._buffers[index] = change(self._buffers[index])

    def constant(self, name: str, data: Any) -> int:
        """An int32 table."""
        data = np.asarray(data, np.int32)
        return self.tensor(name, data.shape, "int32", data=data)

    def operator(self, op: str, inputs: list[int], outputs: list[int], kind: str = "", **options: Any) -> None:
        """kind: class of the options, without "Options"."""
        if op not in self._codes:
            self._codes.append(op)
        self._graph.operators.append((self._codes.index(op), inputs, outputs, kind, options))

    def ends(self, inputs: list[int], outputs: list[int]) -> None:
        self._graph.inputs, self._graph.outputs = inputs, outputs

    def data(self) -> bytes:
        """The bytes of the file."""
        builder = flatbuffers.Builder(1024)
        buffers = [self._buffer(builder, one) for one in self._buffers]
        codes = [self._code(builder, one) for one in self._codes]
        graphs = [self._subgraph(builder, one) for one in self.graphs]
        parts = {
            "OperatorCodes": _offsets(builder, codes),
            "Subgraphs": _offsets(builder, graphs),
            "Description": builder.CreateString("made by testing/networks/tflite_file.py"),
            "Buffers": _offsets(builder, buffers),
        }
        builder.Finish(_table(builder, "Model", Version=3, **parts), b"TFL3")
        return bytes(builder.Output())

    @staticmethod
    def _buffer(builder: Any, data: bytes) -> int:
        return _table(builder, "Buffer", **({"Data": _bytes(builder, data)} if data else {}))

    @staticmethod
    def _code(builder: Any, op: str) -> int:
        number = getattr(tflite.BuiltinOperator, op, None)
        more = {}
        if number is None:
            number, more = tflite.BuiltinOperator.CUSTOM, {"CustomCode": builder.CreateString(op)}
        return _table(
            builder, "OperatorCode", DeprecatedBuiltinCode=min(number, 127), BuiltinCode=number, Version=1, **more
        )

    def _subgraph(self, builder: Any, graph: _Graph) -> int:
        tensors = [self._tensor(builder, *one) for one in graph.tensors]
        operators = [self._operator(builder, *one) for one in graph.operators]
        return _table(
            builder,
            "SubGraph",
            Tensors=_offsets(builder, tensors),
            Inputs=builder.CreateNumpyVector(np.asarray(graph.inputs, np.int32)),
            Outputs=builder.CreateNumpyVector(np.asarray(graph.outputs, np.int32)),
            Operators=_offsets(builder, operators),
        )

    @staticmethod
    def _tensor(
        builder: Any, name: str, shape: list[int], kind: str, scale: Any, zero: Any, axis: int, buffer: int
    ) -> int:
        parts: dict[str, Any] = {"Name": builder.CreateString(name)}
        parts["Shape"] = builder.CreateNumpyVector(np.asarray(shape, np.int32))
        if scale is not None:
            scales = np.asarray(scale, np.float32).reshape(-1)
            zeros = np.broadcast_to(np.asarray(zero, np.int64), scales.shape)
            parts["Quantization"] = _table(
                builder,
                "QuantizationParameters",
                Scale=builder.CreateNumpyVector(scales),
                ZeroPoint=builder.CreateNumpyVector(np.ascontiguousarray(zeros)),
                QuantizedDimension=axis,
            )
        return _table(builder, "Tensor", Type=KINDS.get(kind, RESOURCE), Buffer=buffer, **parts)

    @staticmethod
    def _operator(builder: Any, code: int, inputs: list[int], outputs: list[int], kind: str, given: Any) -> int:
        parts: dict[str, Any] = {}
        if kind:
            held = {k: builder.CreateString(v) if isinstance(v, str) else v for k, v in given.items()}
            parts["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, f"{kind}Options")
            parts["BuiltinOptions"] = _table(builder, f"{kind}Options", **held)
        return _table(
            builder,
            "Operator",
            OpcodeIndex=code,
            Inputs=builder.CreateNumpyVector(np.asarray(inputs, np.int32)),
            Outputs=builder.CreateNumpyVector(np.asarray(outputs, np.int32)),
            **parts,
        )


def _table(builder: Any, kind: str, **fields: Any) -> int:
    getattr(tflite, f"{kind}Start")(builder)
    for name, value in fields.items():
        getattr(tflite, f"{kind}Add{name}")(builder, value)
    return getattr(tflite, f"{kind}End")(builder)


def _offsets(builder: Any, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for one in reversed(offsets):
        builder.PrependUOffsetTRelative(one)
    return builder.EndVector()


def _bytes(builder: Any, data: bytes) -> int:
    builder.StartVector(1, len(data), 16)
    builder.head = builder.head - len(data)
    builder.Bytes[builder.head : builder.head + len(data)] = data
    return builder.EndVector()
