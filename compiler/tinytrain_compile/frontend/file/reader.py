"""Model file -> protobuf, with an error that says what is wrong with the file."""

from __future__ import annotations

import errno
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import read_file

MAX_FILE_BYTES = 1 << 30

_IR_VERSION_TAG = 0x08
"""First byte of every ONNX file that a protobuf library wrote: field 1 (ir_version), a varint."""


def read_proto(path: Path) -> onnx.ModelProto:
    """Parse a model file. Errors: E0201 unreadable, E0213 not ONNX, E0214 damaged, E0217 too large, E0202 no graph."""
    data = _read(path)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        if data[:1] == bytes([_IR_VERSION_TAG]):
            raise _damaged(path.name) from error
        raise _not_onnx(path) from error
    if not _is_text(proto):
        raise _damaged(path.name)
    if not proto.HasField("graph"):
        if proto.ir_version == 0:
            raise _not_onnx(path)
        raise CompileError("E0202", path.name, "the model has no graph", "export the model again")
    return proto


def _is_text(message: Message) -> bool:
    """Whether all strings of a message are UTF-8 (protobuf hands out bytes where they are not)."""
    for field, value in message.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        for item in value if field.is_repeated else (value,):
            if isinstance(item, bytes) or (isinstance(item, Message) and not _is_text(item)):
                return False
    return True


def _damaged(name: str) -> CompileError:
    """The error for a file that begins well and breaks off."""
    return CompileError("E0214", name, "the file breaks off or is garbled", "copy or download it again")


def _read(path: Path) -> bytes:
    """The bytes of a model, which may come through a pipe."""
    try:
        return read_file(path, MAX_FILE_BYTES, pipe=True)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise CompileError("E0217", path.name, "the file is larger than 1 GB", "train a smaller model") from error
        reason = error.strerror or "unreadable"
        raise CompileError("E0201", str(path), f"cannot read the model ({reason})", "check the path") from error


def _not_onnx(path: Path) -> CompileError:
    return CompileError("E0213", path.name, "this is not an ONNX file", "give a model in ONNX protobuf form (.onnx)")
