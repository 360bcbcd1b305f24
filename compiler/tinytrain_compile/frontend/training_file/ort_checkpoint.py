"""The checkpoint of ONNX Runtime's training, a flatbuffer: only its tables of weights, every offset checked.

A table begins with the distance back to its vtable, which says where each field lies. The root has the state of the
module as field 1; that has the trained weights as field 0 and the frozen ones as field 1; a tensor has its name (0),
dimensions (2), type (3, as in onnx.TensorProto) and bytes (4).
"""

from __future__ import annotations

import math
import struct

import numpy as np
import onnx

from tinytrain_compile.ir.types import Array

IDENTIFIER = b"ODTC"
_MOST_AXES = 16


class _Table:
    def __init__(self, data: bytes, place: int) -> None:
        self._data, self._place = data, place
        self._vtable = place - _number(data, place, "<i")
        self._size = _number(data, self._vtable, "<H")

    def field(self, index: int) -> int | None:
        """Where a field lies; None where it is absent."""
        slot = 4 + 2 * index
        if slot + 2 > self._size:
            return None
        offset = _number(self._data, self._vtable + slot, "<H")
        return self._place + offset if offset else None

    def target(self, index: int) -> int | None:
        """What a field that is an offset points to."""
        place = self.field(index)
        return None if place is None else place + _number(self._data, place, "<I")

    def table(self, index: int) -> _Table | None:
        """A field that is a table."""
        place = self.target(index)
        return None if place is None else _Table(self._data, place)

    def tables(self, index: int) -> list[_Table]:
        """A field that is a vector of tables."""
        place = self.target(index)
        if place is None:
            return []
        count = _number(self._data, place, "<I")
        if 4 * count > len(self._data):
            raise ValueError("a list is longer than the file")
        places = [place + 4 + 4 * i for i in range(count)]
        return [_Table(self._data, at + _number(self._data, at, "<I")) for at in places]

    def bytes(self, index: int, unit: int = 1) -> bytes:
        """A field that is a string, or a vector of numbers of so many bytes."""
        place = self.target(index)
        if place is None:
            return b""
        size = unit * _number(self._data, place, "<I")
        found = self._data[place + 4 : place + 4 + size]
        if len(found) != size:
            raise ValueError("a vector is longer than the file")
        return found

    def integer(self, index: int) -> int:
        """A field that is an int32."""
        place = self.field(index)
        return 0 if place is None else _number(self._data, place, "<i")


def checkpoint_tensors(data: bytes) -> dict[str, Array]:
    """Weights by name, trained and frozen ones; ValueError for what is no such file."""
    if data[4:8] != IDENTIFIER:
        raise ValueError("it is no checkpoint of ONNX Runtime")
    module = _Table(data, _number(data, 0, "<I")).table(1)
    if module is None:
        raise ValueError("it holds no weights")
    return dict(_tensor(table) for index in (0, 1) for table in module.tables(index))


def _tensor(table: _Table) -> tuple[str, Array]:
    name = table.bytes(0).decode("utf-8", "replace")
    dims = [int(v) for v in np.frombuffer(table.bytes(2, 8), "<i8")]
    kind = table.integer(3)
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except KeyError as problem:
        raise ValueError(f"weight {name} has type {kind}") from problem
    raw = table.bytes(4)
    if len(dims) > _MOST_AXES or min(dims, default=1) < 0 or math.prod(dims) * dtype.itemsize != len(raw):
        raise ValueError(f"weight {name} has dimensions {dims} and {len(raw)} bytes")
    return name, np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(dims)


def _number(data: bytes, place: int, form: str) -> int:
    if not 0 <= place <= len(data) - struct.calcsize(form):
        raise ValueError("an offset leads out of the file")
    return int(struct.unpack_from(form, data, place)[0])
