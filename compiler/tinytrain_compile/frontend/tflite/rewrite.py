"""A .tflite file with other numbers in its constants; all else keeps its bytes.

Data that one tensor has alone are overwritten. A tensor that shares its data gets a buffer of its own: a new root with
a longer list of buffers is put in front of the file, since offsets of this format lead forwards.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import flatbuffers.table

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.tflite.reader import UNREADABLE, damaged, places
from tinytrain_compile.ir.types import Array

_ALIGNMENT = 16
"""Alignment of data in a file in bytes, by the schema."""
_IDENTIFIER = b"TFL3"
_VERSION, _BUFFERS, _FIELDS = 0, 4, 8
"""Fields of Model: the only number, the list of buffers, and how many there are; all others are offsets."""


def with_constants(name: str, data: bytes, constants: Mapping[str, Array]) -> bytes:
    """Return a file that has been read, with these numbers. constants: in the types and shapes that tensors have.

    E0112 for a tensor that it has not, E0214 for a damaged root.
    """
    try:
        return _written(name, data, constants)
    except UNREADABLE as problem:
        raise damaged(name, "an offset beside its graph leads out of it") from problem


def _written(name: str, data: bytes, constants: Mapping[str, Array]) -> bytes:
    known, made, fresh = places(data), bytearray(data), list[bytes]()
    for tensor, array in constants.items():
        place, held = known.get(tensor), array.astype(array.dtype.newbyteorder("<")).tobytes()
        if place is None or place.size != len(held):
            what = "the file holds no such constant" if place is None else f"{place.size} B became {len(held)}"
            raise CompileError("E0112", f"weight {tensor}", what, "please report this model")
        if held == data[place.start : place.start + place.size]:
            continue
        if place.alone:
            made[place.start : place.start + place.size] = held
        else:
            struct.pack_into("<I", made, place.index, place.buffers + len(fresh))
            fresh.append(held)
    return _with_buffers(name, bytes(made), fresh) if fresh else bytes(made)


def _with_buffers(name: str, data: bytes, fresh: Sequence[bytes]) -> bytes:
    """Return a file with further buffers. E0112 for fields of a newer schema, whose kinds are unknown."""
    root = flatbuffers.table.Table(data, struct.unpack_from("<I", data)[0])
    if struct.unpack_from("<H", data, root.Pos - struct.unpack_from("<i", data, root.Pos)[0])[0] > _slot(_FIELDS):
        what = "its schema is newer than this program, and tensors share a buffer"
        raise CompileError("E0112", name, what, "convert the model with a buffer for each tensor")
    data += bytes(-len(data) % _ALIGNMENT)
    builder = flatbuffers.Builder(len(data) + sum(map(len, fresh)) + 1024)
    while builder.head < len(data):
        builder.growByteBuffer()
    builder.Bytes[builder.head - len(data) : builder.head] = data  # the file, as if it had been built here
    builder.head, builder.minalign = builder.head - len(data), _ALIGNMENT

    def old(place: int) -> int:
        """Return what the builder calls that to which the offset at a place leads."""
        return len(data) - root.Indirect(place)

    at = {field: root.Pos + root.Offset(_slot(field)) for field in range(_FIELDS) if root.Offset(_slot(field))}
    added = [_buffer(builder, one) for one in fresh]
    first = root.Indirect(at[_BUFFERS])
    buffers = [*(old(first + 4 * k) for k in range(1, struct.unpack_from("<I", data, first)[0] + 1)), *added]
    builder.StartVector(4, len(buffers), 4)
    for one in reversed(buffers):
        builder.PrependUOffsetTRelative(one)
    offsets = {field: old(place) for field, place in at.items()} | {_BUFFERS: builder.EndVector()}
    builder.StartObject(_FIELDS)
    for field, offset in offsets.items():
        if field == _VERSION:
            builder.PrependUint32Slot(field, struct.unpack_from("<I", data, at[field])[0], 0)
        else:
            builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    builder.Finish(builder.EndObject(), _IDENTIFIER)
    return bytes(builder.Output())


def _slot(field: int) -> int:
    return 4 + 2 * field


def _buffer(builder: Any, data: bytes) -> int:
    """Add a table Buffer, whose first field is its data."""
    builder.StartVector(1, len(data), _ALIGNMENT)
    builder.head -= len(data)
    builder.Bytes[builder.head : builder.head + len(data)] = data
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    return builder.EndObject()
