"""Constant tables as C arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from tinytrain_compile.ir.types import Array

C_TYPES = {"float32": "float", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t"}

_ALIGNED = {"int16_t": "_Alignas(8) "}
"""Tables of pairs of weights are read by several words at a time (tt_dot4)."""


def array_text(data: Array) -> str:
    """The elements of an array as C initialisers, at most 120 columns wide; floats read back to the same bits."""
    if data.dtype == np.float32:
        texts: Iterable[str] = (float_text(value) for value in data.ravel().tolist())
    else:
        texts = map(str, data.ravel().tolist())
    lines: list[str] = []
    line = "   "
    for text in texts:
        if len(line) + len(text) + 2 > 120:
            lines.append(line)
            line = "   "
        line += f" {text},"
    lines.append(line)
    return "\n".join(lines)


def float_text(value: float) -> str:
    """A C float constant that reads back to the same bits."""
    if math.isinf(value):
        return "__builtin_inff()" if value > 0 else "-__builtin_inff()"
    text = str(np.float32(value))
    return text + "f" if any(c in text for c in ".e") else text + ".0f"


def table(name: str, data: Array) -> str:
    """Definition of one constant table."""
    ctype = C_TYPES[str(data.dtype)]
    return f"{_ALIGNED.get(ctype, '')}const {ctype} {name}[{data.size}] = {{\n{array_text(data)}\n}};\n"


def declaration(name: str, data: Array) -> str:
    """Declaration of one constant table."""
    return f"extern const {C_TYPES[str(data.dtype)]} {name}[{data.size}];"
