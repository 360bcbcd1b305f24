"""Where those internal buffers of a kernel lie that do not become registers: one after the other in scratch."""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np
from tvm.tirx import Buffer

from tinytrain_compile.lower.printing.c_expr import C_TYPES
from tinytrain_compile.lower.tir_walk import elements

_ALIGNMENT = 8


class Scratch:
    """Places of buffers by name; the peeled end of a loop has a copy of a buffer in the same place.

    size_bytes: of all; dtype: their element type, "" if there are none.
    """

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        sizes: dict[str, int] = {}
        self.dtype, self.size_bytes = "", 0
        for buffer in buffers:
            dtype = str(buffer.dtype)
            if self.dtype not in ("", dtype):
                raise ValueError(f"a kernel has internal buffers of {self.dtype} and of {dtype}")
            self.dtype = dtype
            sizes[str(buffer.name)] = max(sizes.get(str(buffer.name), 0), elements(buffer))
        self._places: dict[str, int] = {}
        for name, count in sizes.items():
            width = np.dtype(self.dtype).itemsize
            self._places[name] = -(-self.size_bytes // _ALIGNMENT) * (_ALIGNMENT // width)
            self.size_bytes = (self._places[name] + count) * width

    @property
    def names(self) -> tuple[str, ...]:
        """Of the buffers."""
        return tuple(self._places)

    def named(self, name: str) -> str:
        """The C name of a buffer: the only one is called scratch."""
        return name if len(self._places) > 1 else "scratch"

    def parameter(self) -> list[str]:
        """Its declaration, if there is any."""
        return [f"{C_TYPES[self.dtype]} *restrict scratch"] if self.dtype else []

    def pointers(self, used: Container[str] | None) -> list[str]:
        """C statements: where buffers begin, if they are several; used: by a part of the function (None: by all)."""
        if len(self._places) < 2:
            return []
        places = [(name, f"scratch + {at}" if at else "scratch") for name, at in self._places.items()]
        return [f"{C_TYPES[self.dtype]} *const {n} = {place};" for n, place in places if used is None or n in used]
