"""Looking at lowered TIR: the kind of a node, the name of an intrinsic, and what lies below a node."""

from __future__ import annotations

import math
from typing import Any

_TWO_OPERANDS = (
    *("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Max", "Min"),
    *("LT", "LE", "GT", "GE", "EQ", "NE", "And", "Or"),
    *("LShift", "RShift", "BitwiseAnd", "BitwiseXor", "BitwiseOr"),
)


def kind_of(node: Any) -> str:
    """The class name of a TIR node."""
    return type(node).__name__


def op_name(call: Any) -> str:
    """The op's own name: TVM files intrinsics under "tirx." or "prim."."""
    return (str(call.op.name) if hasattr(call.op, "name") else str(call.op)).rpartition(".")[2]


def elements(buffer: Any) -> int:
    """How many elements a buffer has."""
    return math.prod(int(dim) for dim in buffer.shape)


def children(node: Any) -> list[Any]:
    """The statements and expressions directly below a TIR node."""
    kind = kind_of(node)
    if kind in _TWO_OPERANDS:
        return [node.a, node.b]
    fields: dict[str, tuple[str, ...]] = {
        "SeqStmt": ("seq",),
        "For": ("min", "extent", "body"),
        "BufferStore": ("value", "indices"),
        "TensorLoad": ("indices",),
        "Bind": ("value",),
        "AttrStmt": ("body",),
        "Evaluate": ("value",),
        "IfThenElse": ("condition", "then_case", "else_case"),
        "Cast": ("value",),
        "Call": ("args",),
        "Not": ("a",),
        "Select": ("condition", "true_value", "false_value"),
    }
    found: list[Any] = []
    for name in fields.get(kind, ()):
        item = getattr(node, name)
        if item is None:
            continue
        found.extend(item if name in ("seq", "indices", "args") else [item])
    return found


def buffers_of(node: Any) -> set[Any]:
    """What a statement stores to, loads from or hands to helpers."""
    found = set[Any]().union(*(buffers_of(child) for child in children(node)))
    if kind_of(node) == "TensorLoad":
        found.add(node.source)
    return found | ({node.buffer} if kind_of(node) == "BufferStore" else set())
