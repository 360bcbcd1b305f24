"""Protobuf of a model file: read with limits, tensors as arrays, graphs inside of nodes."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import helper, numpy_helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import MOST_DATA_BYTES, open_file, read_file
from tinytrain_compile.frontend.file.foreign import foreign
from tinytrain_compile.frontend.file.model import MICROSOFT
from tinytrain_compile.ir.types import Array

# ---- model files -----------------------------------------------------------------------------------------------------

_IR_VERSION_TAG = 0x08
"""First byte of every ONNX file that a protobuf library wrote: field 1 (ir_version), a varint."""


def read_proto(path: Path) -> onnx.ModelProto:
    """Parse an ONNX file. Errors: those of read_bytes and parse_proto."""
    return parse_proto(path, read_bytes(path))


def parse_proto(path: Path, data: bytes) -> onnx.ModelProto:
    """Parse the bytes of a file. Errors: E0213 not ONNX, E0214 damaged, E0202 no graph."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(path, data, damaged=data[:1] == bytes([_IR_VERSION_TAG])) from error
    if not _is_text(proto):
        raise _unreadable(path, data, damaged=True)
    if not proto.HasField("graph"):
        if proto.ir_version == 0 or foreign(path, data) is not None:
            raise _unreadable(path, data, damaged=False)
        raise CompileError("E0202", path.name, "the model has no graph", "export the model again")
    return proto


def _is_text(message: Message) -> bool:
    """Tell whether all strings of a message are UTF-8 (protobuf hands out bytes where they are not)."""
    for field, value in message.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        for item in value if field.is_repeated else (value,):
            if isinstance(item, bytes) or (isinstance(item, Message) and not _is_text(item)):
                return False
    return True


def _unreadable(path: Path, data: bytes, damaged: bool) -> CompileError:
    """Return the error for a file that is not ONNX. damaged: it begins like ONNX and breaks off."""
    known = foreign(path, data)
    if known is not None:
        return CompileError("E0213", path.name, *known)
    if damaged:
        return CompileError("E0214", path.name, "the file breaks off or is garbled", "copy or download it again")
    way = "export the model to a binary .onnx file (docs/pytorch-to-board.md)"
    return CompileError("E0213", path.name, "this is not an ONNX file", way)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a model, which may come through a pipe. E0201 unreadable, E0217 too large."""
    try:
        return read_file(path, MOST_DATA_BYTES, pipe=True)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise CompileError("E0217", path.name, "the file is larger than 1 GB", "train a smaller model") from error
        reason = error.strerror or "unreadable"
        way = f"allow it: chmod u+r {path}" if error.errno == errno.EACCES else "check the path"
        raise CompileError("E0201", str(path), f"cannot read the model ({reason})", way) from error


# ---- tensors ---------------------------------------------------------------------------------------------------------

MAX_RANK = 16
"""Axes of a tensor: numpy takes 32 at most, and says so in words of its own (test_hostile_files)."""
MAX_DIM, MAX_ELEMENTS = 2**31, 2**28
"""Indices of generated C are int32; and so many float32 are what a file may hold (MOST_DATA_BYTES)."""
MAX_EXTERNAL_BYTES = 1 << 40
"""Of a file with external data, of which only what a tensor needs is read."""

_T = onnx.TensorProto
_REAL = frozenset((_T.FLOAT, _T.DOUBLE, _T.FLOAT16, _T.BFLOAT16))
_INTEGERS = frozenset((_T.INT8, _T.UINT8, _T.INT16, _T.UINT16, _T.BOOL, _T.INT32, _T.INT64, _T.UINT32, _T.UINT64))
"""Element types that are read."""


def check_dims(where: str, dims: tuple[int, ...], allow_zero: bool = False) -> None:
    """Raise E0204, E0226 or E0217 unless dimensions are positive and their product is sane."""
    for dim in dims:
        if dim < 0 or (dim == 0 and not allow_zero):
            code = "E0204" if dim < 0 else "E0226"
            raise CompileError(code, where, f"dimension {dim} in shape {list(dims)}", "export with positive dimensions")
    if len(dims) > MAX_RANK or any(dim > MAX_DIM for dim in dims) or math.prod(dims) > MAX_ELEMENTS:
        raise CompileError(
            "E0217", where, f"shape {list(dims)} is too large", "use shapes that a microcontroller can hold"
        )


def tensor_array(tensor: onnx.TensorProto, where: str, folder: Path) -> Array:
    """Return the data of a tensor: dims, length and finiteness checked.

    External data read from inside `folder` only.
    """
    dims = tuple(int(d) for d in tensor.dims)
    if tensor.data_type not in _REAL | _INTEGERS:
        raise CompileError(
            "E0202", where, f"element type {tensor.data_type} is not read", "use float32 or integer tensors"
        )
    if tensor.HasField("segment"):
        raise CompileError("E0223", where, "the tensor comes in segments", "export the model again")
    empty = dims == (0,)  # how exporters leave an input out (the roi of a Resize)
    check_dims(where, dims, allow_zero=empty or tensor.data_type in _INTEGERS)
    if tensor.data_location == _T.EXTERNAL:
        array = external_array(tensor, where, folder)
    else:
        _check_length(tensor, where, dims)
        array = numpy_helper.to_array(tensor)
    array = with_finite_masks(array)
    check_finite(array, where)
    return array


def with_finite_masks(array: Array) -> Array:
    """Put the lowest float32 number in place of -infinity: masks hold that, and a softmax makes 0 of either."""
    if array.dtype.kind != "f" or array.size < 2 or not bool(np.isneginf(array).any()):
        return array
    return np.where(np.isneginf(array), np.finfo(np.float32).min, array).astype(np.float32)


def check_finite(array: Array, where: str) -> None:
    """Raise E0205 on NaN, and E0225 on infinity in anything but a single number (an open Clip bound)."""
    if array.dtype.kind != "f":
        return
    if bool(np.isnan(array).any()):
        raise CompileError("E0205", where, "holds NaN", "export the model from a sound checkpoint")
    if array.size > 1 and not bool(np.isfinite(array).all()):
        raise CompileError("E0225", where, "holds infinity", "use finite numbers")


def _check_length(tensor: onnx.TensorProto, where: str, dims: tuple[int, ...]) -> None:
    expected = math.prod(dims)
    if tensor.HasField("raw_data"):
        found = len(tensor.raw_data) / helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    else:
        found = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
    if found != expected:
        what = f"dims {list(dims)} need {expected} elements, the data holds {found:g}"
        raise CompileError("E0216", where, what, "copy or export the model again")


def external_array(tensor: onnx.TensorProto, where: str, folder: Path) -> Array:
    """Return what a tensor has in another file, inside `folder`."""
    dims = tuple(int(d) for d in tensor.dims)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _inside(entries.get("location", ""), where, folder)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    size = math.prod(dims) * dtype.itemsize
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(size)))
    except ValueError:
        offset = length = -1
    if not 0 <= offset < 1 << 62 or length != size:  # a seek takes 63 bits
        what = f"external data of {length} bytes at offset {offset}, shape {list(dims)} needs {size}"
        raise CompileError("E0216", where, what, "copy or export the model again")
    try:
        with open_file(path, MAX_EXTERNAL_BYTES) as stream:
            stream.seek(offset)
            data = stream.read(size)
    except FileNotFoundError as error:  # the model says its name: one that is like it would not do
        raise _missing(where, path.name, f"there is no such file in {path.parent}") from error
    except OSError as error:
        raise _missing(where, path.name, error.strerror or "unreadable") from error
    if len(data) != size:
        raise _missing(where, path.name, f"it ends {size - len(data)} bytes too early")
    return np.frombuffer(data, dtype=dtype.newbyteorder("<")).astype(dtype).reshape(dims)


def free_name(wanted: str, taken: set[str]) -> str:
    """Return a name that is not taken yet: this one, or a longer one; it is taken then."""
    while wanted in taken:
        wanted += "_"
    taken.add(wanted)
    return wanted


def type_name(number: int) -> str:
    """Return what onnx.TensorProto calls an element type, in small letters; "unknown (N)" for a number without."""
    kinds: Any = onnx.TensorProto.DataType
    return str(kinds.Name(number)).lower() if number in kinds.values() else f"unknown ({number})"


def _missing(where: str, name: str, why: str) -> CompileError:
    return CompileError("E0220", where, f"external data file {name}: {why}", "copy all files of the model together")


def _inside(location: str, where: str, folder: Path) -> Path:
    """Return the file, which must lie inside the model's folder even after links are followed."""
    relative = Path(location.replace("\\", "/"))
    outside = relative.is_absolute() or ".." in relative.parts or ":" in location
    try:
        target = (folder / relative).resolve()
        outside = outside or not target.is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, zero bytes, what no file name can hold
        what = f"external data at {location} cannot be a file"
        raise CompileError("E0210", where, what, "put the data file beside the model") from error
    if not location or outside:
        what = f"external data at {location or '(nowhere)'} is outside the model's folder"
        raise CompileError("E0210", where, what, "put the data file beside the model")
    return target


# ---- graphs inside of nodes ------------------------------------------------------------------------------------------
# Graphs inside of nodes: the body of a Loop, the branches of an If.


def bodies(node: onnx.NodeProto) -> tuple[onnx.GraphProto, ...]:
    """Return the graphs that a node holds."""
    return tuple(graph for a in node.attribute for graph in (*((a.g,) if a.HasField("g") else ()), *a.graphs))


def reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return everything that a node reads: its inputs, then what its graphs take from outside."""
    captured = dict.fromkeys(name for body in bodies(node) for name in _free(body))
    return (*node.input, *(name for name in captured if name not in node.input))


def live_part(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """Return the nodes that tensors depend on, in the given order, and the names of these tensors and all that is read.

    Names of results are unique.
    """
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    kept, pending = set[int](), [*outputs]
    read = set(pending)
    while pending:
        index = makers.get(pending.pop())
        if index is not None and index not in kept:
            kept.add(index)
            pending += reads(nodes[index])
            read.update(reads(nodes[index]))
    return [nodes[index] for index in sorted(kept)], read - {""}


def _free(graph: onnx.GraphProto) -> Iterable[str]:
    made = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        yield from (name for name in reads(node) if name and name not in made)
        made.update(node.output)
    yield from (value.name for value in graph.output if value.name not in made)


def is_accumulator(node: onnx.NodeProto) -> bool:
    """Tell whether a node of onnxruntime's adds up gradients over micro-batches."""
    return node.op_type == "InPlaceAccumulatorV2" and node.domain == MICROSOFT


def is_gradient_graph(proto: onnx.ModelProto) -> bool:
    """Tell whether a model is a training graph: gradients end in accumulators."""
    return any(map(is_accumulator, proto.graph.node))
