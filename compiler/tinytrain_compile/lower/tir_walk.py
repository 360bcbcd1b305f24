"""Queries on lowered TIR: calls of intrinsics and of helpers, operators of two operands, and a node's children.

Code that visits every node of a kernel compares `type`: `isinstance` of TVM's classes takes several times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Generic, TypeGuard, TypeVar, cast

from tvm import ir, sym, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

Tir = Expr | Stmt
_Kept = TypeVar("_Kept")
_TWO_OPERANDS = frozenset[type](
    (
        *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Max, tirx.Min),
        *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or),
        *(tirx.LShift, tirx.RShift, tirx.BitwiseAnd, tirx.BitwiseXor, tirx.BitwiseOr),
    )
)


def kind_of(node: Tir) -> str:
    """Return the class name of a TIR node."""
    return type(node).__name__


def has_two_operands(node: Tir) -> TypeGuard[tirx.Add]:
    """Tell whether this is an operator of two operands, `a` and `b`."""
    return type(node) in _TWO_OPERANDS


def op_name(call: ir.Call) -> str:
    """Return the op's own name: TVM files intrinsics under "tirx." or "prim."."""
    return (call.op.name if isinstance(call.op, ir.Op) else str(call.op)).rpartition(".")[2]


def is_call(node: Tir | None, *names: str) -> TypeGuard[ir.Call]:
    """Tell whether this is a call of one of these intrinsics."""
    return type(node) is ir.Call and op_name(node) in names


def is_helper(node: Tir) -> TypeGuard[ir.Call]:
    """Tell whether this is a call of a helper of the runtime."""
    return is_call(node, "call_extern", "call_pure_extern")


def helper_name(call: ir.Call) -> str:
    """Return the C function that is called; its operands are the arguments after the first."""
    name = call.args[0]
    assert isinstance(name, ir.StringImm)
    return name.value


def addressed(call: ir.Call) -> ir.TensorLoad:
    """Return the element whose address an address_of returns."""
    element = call.args[0]
    assert isinstance(element, ir.TensorLoad)
    return element


def accessed(node: Tir) -> tuple[Buffer, Sequence[Expr]] | None:
    """Return (buffer, index of each axis) that a statement stores to or an expression loads from; None for others."""
    if type(node) is tirx.BufferStore:
        return node.buffer, node.indices
    return (node.source, node.indices) if type(node) is ir.TensorLoad else None


def declared(node: tirx.DeclBuffer) -> Buffer:
    """Return the buffer of which a declared one is another view."""
    data = node.data
    assert isinstance(data, ir.Call) and isinstance(data.args[0], ir.Var)
    return cast(Buffer, data.args[0])


def elements(buffer: Buffer) -> int:
    """Return how many elements a buffer has; the most, if its size depends on the number of rows of a call."""
    return math.prod(_most(dim) for dim in buffer.shape)


def _most(extent: Expr | int) -> int:
    """Return the largest value of an extent such as min(count * 32, 8); TypeError if it has no bound."""
    if isinstance(extent, int | tirx.IntImm):
        return int(extent)
    bound = sym.Analyzer().const_int_bound(extent).max_value
    if bound >= 1 << 31:
        raise TypeError(f"a buffer of {extent} elements")
    return bound


def children(node: Tir) -> list[Tir]:
    """Return the statements and expressions directly below a TIR node."""
    names, several = _fields(type(node))
    found = [child for name in names if (child := getattr(node, name)) is not None]
    return found + getattr(node, several)[:] if several else found  # a slice is read twice as fast as an iterator


_FIELDS: dict[type, tuple[tuple[str, ...], str]] = {
    tirx.SeqStmt: ((), "seq"),
    tirx.For: (("min", "extent", "body"), ""),
    tirx.BufferStore: (("value",), "indices"),
    tirx.Bind: (("value",), ""),
    tirx.Evaluate: (("value",), ""),
    tirx.AttrStmt: (("body",), ""),
    tirx.IfThenElse: (("condition", "then_case", "else_case"), ""),
    **dict.fromkeys(_TWO_OPERANDS, (("a", "b"), "")),
    ir.TensorLoad: ((), "indices"),
    tirx.Cast: (("value",), ""),
    ir.Call: ((), "args"),
    tirx.Not: (("a",), ""),
    tirx.Select: (("condition", "true_value", "false_value"), ""),
}
"""Class -> fields with one node each, and a field with several."""


@cache
def _fields(kind: type) -> tuple[tuple[str, ...], str]:
    """Return the fields of a class or its base. By class, since `isinstance` of TVM's nodes takes microseconds."""
    return next((fields for base in kind.__mro__ if (fields := _FIELDS.get(base)) is not None), ((), ""))


class ByNode(Generic[_Kept]):
    """Dict of facts about variables and buffers, by the node's identity.

    TVM makes a new Python object each time a node is read, and compares two of them by building and evaluating an
    expression. Here nodes are equal if their addresses are, which holds as long as one of them is kept.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tir, _Kept]] = {}

    def __contains__(self, node: Tir) -> bool:
        return hash(node) in self._kept

    def __getitem__(self, node: Tir) -> _Kept:
        return self._kept[hash(node)][1]

    def __setitem__(self, node: Tir, value: _Kept) -> None:
        self._kept[hash(node)] = node, value


def buffers_of(node: Tir) -> set[Buffer]:
    """Return the buffers that a statement stores to, loads from or passes to helpers."""
    found = set[Buffer]().union(*(buffers_of(child) for child in children(node)))
    if (access := accessed(node)) is not None:
        found.add(access[0])
    return found


def variables(node: Tir) -> set[ir.Var]:
    """Return all variables that a node uses."""
    if isinstance(node, ir.Var):
        return {node}
    return set[ir.Var]().union(*(variables(child) for child in children(node)))


def has_calls(node: Tir) -> bool:
    """Tell whether something is called in a statement or an expression."""
    return isinstance(node, ir.Call) or any(map(has_calls, children(node)))
