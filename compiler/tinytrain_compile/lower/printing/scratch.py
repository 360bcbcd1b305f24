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

    size_bytes: of all; dtype: the element type of the first, which the parameter has, "" if there are none.
    """

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        sizes: dict[str, int] = {}
        self._dtypes: dict[str, str] = {}
        self.size_bytes = 0
        for buffer in buffers:
            name = str(buffer.name)
            self._dtypes[name] = str(buffer.dtype)
            sizes[name] = max(sizes.get(name, 0), elements(buffer) * np.dtype(self._dtypes[name]).itemsize)
        self.dtype = next(iter(self._dtypes.values()), "")
        self._places: dict[str, int] = {}  # in bytes
        for name, count in sizes.items():
            self._places[name] = -(-self.size_bytes // _ALIGNMENT) * _ALIGNMENT
            self.size_bytes = self._places[name] + count

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
        return [self._pointer(name, at) for name, at in self._places.items() if used is None or name in used]

    def _pointer(self, name: str, at: int) -> str:
        """The declaration of a pointer to a buffer; one of another type than the parameter's is cast to it."""
        kind, elements_before = C_TYPES[self._dtypes[name]], at // np.dtype(self.dtype).itemsize
        place = f"scratch + {elements_before}" if at else "scratch"
        cast = "" if self._dtypes[name] == self.dtype else f"({kind} *)(void *)"
        return f"{kind} *const {name} = {f'{cast}({place})' if cast else place};"
