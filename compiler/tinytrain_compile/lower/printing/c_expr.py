"""C expressions: text with its precedence, operators of TIR, literals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tvm import ir, tirx

C_TYPES = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
    "int32": "int32_t",
    "uint32": "uint32_t",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "float32": "float",
    "bool": "bool",
}
BINARY = {
    "Mul": ("*", 12),
    "Div": ("/", 12),
    "Mod": ("%", 12),
    "FloorDiv": ("/", 12),  # operands are never negative where these survive simplification: asserted by kernels' tests
    "FloorMod": ("%", 12),
    "Add": ("+", 11),
    "Sub": ("-", 11),
    "LT": ("<", 9),
    "LE": ("<=", 9),
    "GT": (">", 9),
    "GE": (">=", 9),
    "EQ": ("==", 8),
    "NE": ("!=", 8),
    "And": ("&&", 4),
    "Or": ("||", 3),
    "LShift": ("<<", 10),
    "RShift": (">>", 10),
    "BitwiseAnd": ("&", 7),
    "BitwiseXor": ("^", 6),
    "BitwiseOr": ("|", 5),
}
BITWISE = {
    "shift_left": ("<<", 10),
    "shift_right": (">>", 10),
    "bitwise_and": ("&", 7),
    "bitwise_xor": ("^", 6),
    "bitwise_or": ("|", 5),
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
SHORT = ("int8", "uint8", "int16", "uint16")
EXACT_TYPE = (ir.TensorLoad, tirx.Cast, tirx.IntImm)
ATOM, UNARY, TERNARY = 15, 14, 2


class Expr(NamedTuple):
    """C text, its precedence, the loop variables it reads, and whether it reads memory."""

    text: str
    level: int = ATOM
    variables: frozenset[str] = frozenset()
    loads: bool = False

    def at(self, level: int) -> str:
        """The text, in parentheses if it binds less tightly than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def join(text: str, level: int, parts: Sequence[Expr], loads: bool = False) -> Expr:
    """An expression of these parts."""
    variables = frozenset[str]().union(*(p.variables for p in parts))
    return Expr(text, level, variables, loads or any(p.loads for p in parts))


def dtype_of(node: ir.Expr) -> str:
    """The element type of an expression."""
    return str(node.ty.dtype)


def float_literal(value: float) -> str:
    """A float32 constant that reads back to the same bits."""
    text = str(np.float32(value))
    if not np.isfinite(value):
        raise ValueError(f"no C literal for {value}")
    return text + ("f" if any(c in text for c in ".e") else ".0f")
