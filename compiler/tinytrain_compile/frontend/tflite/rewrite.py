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
from tinytrain_compile.frontend.tflite.reader import places
from tinytrain_compile.ir.types import Array

_ALIGNMENT = 16
"""Of data in a file, by the schema."""
_IDENTIFIER = b"TFL3"
_VERSION, _BUFFERS, _FIELDS = 0, 4, 8
"""Fields of Model: the only number, the list of buffers, and how many there are; all others are offsets."""


def with_constants(name: str, data: bytes, constants: Mapping[str, Array]) -> bytes:
    """Return a file that has been read, with these numbers. constants: in the types and shapes that tensors have.

    E0112 for a tensor that it has not.
    """
    known, made, fresh = places(data), bytearray(data), list[bytes]()
    buffers = _Root(data).count
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
            struct.pack_into("<I", made, place.index, buffers + len(fresh))
            fresh.append(held)
    return _Root(bytes(made)).with_buffers(name, fresh) if fresh else bytes(made)


class _Root:
    """The table Model of a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._table = flatbuffers.table.Table(data, struct.unpack_from("<I", data)[0])
        self._vector: int = self._table.Vector(self._table.Offset(_slot(_BUFFERS)))
        self.count: int = self._table.VectorLen(self._table.Offset(_slot(_BUFFERS)))

    def with_buffers(self, name: str, fresh: Sequence[bytes]) -> bytes:
        """Return the file with further buffers. E0112 for fields of a newer schema, whose kind is unknown."""
        size = struct.unpack_from("<H", self._data, self._table.Pos - struct.unpack_from("<i", self._data, self._table.Pos)[0])[0]
        if size > _slot(_FIELDS):
            what = "its schema is newer than this program, and two tensors share a buffer"
            raise CompileError("E0112", name, what, "convert the model without shared buffers")
        tail = self._data + bytes(-len(self._data) % _ALIGNMENT)
        builder: Any = flatbuffers.Builder(len(tail) + sum(map(len, fresh)) + 64 * (self.count + len(fresh) + 8))
        builder.Bytes[builder.head - len(tail) : builder.head] = tail  # the file, as what has been built so far
        builder.head, builder.minalign = builder.head - len(tail), _ALIGNMENT
        added = [_buffer(builder, one) for one in fresh]
        old = [len(tail) - self._table.Indirect(self._vector + 4 * k) for k in range(self.count)]
        builder.StartVector(4, len(old) + len(added), 4)
        for one in reversed([*old, *added]):
            builder.PrependUOffsetTRelative(one)
        buffers = builder.EndVector()
        builder.StartObject(_FIELDS)
        for field in range(_FIELDS):
            at = self._table.Offset(_slot(field))
            if field == _VERSION:
                builder.PrependUint32Slot(field, self._table.Get(flatbuffers.number_types.Uint32Flags, at + self._table.Pos) if at else 0, 0)
            elif field == _BUFFERS:
                builder.PrependUOffsetTRelativeSlot(field, buffers, 0)
            elif at:
                builder.PrependUOffsetTRelativeSlot(field, len(tail) - self._table.Indirect(self._table.Pos + at), 0)
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
