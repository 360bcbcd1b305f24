"""The table of kernels: how each op is computed, as a TE definition plus a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, te, tirx
from tvm.ir import Expr
from tvm.tirx import IterVar

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.lower.kernels.context import KernelContext

Index = Expr | int
"""A place along an axis, or an extent: a number, or an expression of loop variables and of what a call says."""
MapShape = tuple[int, Index, int, int]
"""(n, height, width, channels); the height may be what a call says, see streams/."""


@dataclass(frozen=True)
class KernelSpec:
    """inputs: one placeholder per node input; outputs: one tensor per node output; schedule: edits the loops in place.

    A placeholder may have any shape with the value's element count: the C sees plain pointers.
    An output that overwrites an input (OpDef.alias) may be None: then a helper that is called with the input's
    address (see `address`) writes it.
    """

    inputs: Sequence[te.Tensor]
    outputs: Sequence[te.Tensor | None]
    schedule: Callable[[s_tir.Schedule], None]


KernelRule = Callable[[Node, KernelContext], KernelSpec]
KERNELS: dict[str, KernelRule] = {}
VectorRule = Callable[[Node, KernelContext], "KernelSpec | None"]
VECTOR_KERNELS: dict[str, VectorRule] = {}
"""For targets with integer vectors: a rule gives None where the one of KERNELS is meant."""


def kernel(*ops: str) -> Callable[[KernelRule], KernelRule]:
    """Enter a rule as the kernel of these ops."""

    def enter(rule: KernelRule) -> KernelRule:
        for op in ops:
            if op in KERNELS:
                raise ValueError(f"op {op} has two kernels")
            KERNELS[op] = rule
        return rule

    return enter


def vector_kernel(*ops: str) -> Callable[[VectorRule], VectorRule]:
    """Enter a rule as the kernel of these ops where there are vectors."""

    def enter(rule: VectorRule) -> VectorRule:
        VECTOR_KERNELS.update(dict.fromkeys(ops, rule))
        return rule

    return enter


def kernel_spec(node: Node, context: KernelContext) -> KernelSpec:
    """How a node is computed on such a target."""
    rule = VECTOR_KERNELS.get(node.op) if context.lanes else None
    return (rule and rule(node, context)) or KERNELS[node.op](node, context)


def placeholder(value: Value, name: str, shape: Sequence[Index] | None = None) -> te.Tensor:
    """A kernel operand for a graph value; "bits" are bytes; `shape` may regroup its elements."""
    if value.dtype == "bits":
        return te.placeholder((value.size_bytes,), "uint8", name)
    return te.placeholder(tuple(shape or value.shape or (1,)), value.dtype, name)


def f32(value: float) -> Expr:
    """A float32 constant expression."""
    return tirx.const(float(value), "float32")


def call(function: str, *args: Expr | float) -> Expr:
    """A float32 scalar helper of tt_runtime.h."""
    return tirx.call_pure_extern("float32", function, *args)


def call_int(function: str, *args: Index, dtype: str = "int32") -> Expr:
    """An integer helper (tt_fixed.h, tt_qloss.h, tt_dsp.h); it may write through addresses among its arguments."""
    return tirx.call_extern(dtype, function, *args)


def address(operand: te.Tensor, *index: Index) -> Expr:
    """The address of an operand's element (its first without an index), for a helper that writes there."""
    element = operand(*(index or [0] * len(operand.shape)))
    return ir.Call("tirx.address_of", [element], ret_ty=ir.PointerType(ir.PrimType(str(operand.dtype))))


def i32(value: Index) -> Expr:
    """An int32 constant, or an expression widened to int32."""
    return tirx.const(value, "int32") if isinstance(value, int) else value.astype("int32")


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """A choice without side effects: both sides may be evaluated."""
    return tirx.Select(condition, yes, no)


def guarded(condition: Expr, value: Expr) -> Expr:
    """`value` where the condition holds, else 0 (and then `value` is not evaluated)."""
    dtype = str(value.ty.dtype if hasattr(value, "ty") else value.dtype)
    return tirx.if_then_else(condition, value, tirx.const(0, dtype))


def left_over(extent: Index, unit: int) -> int:
    """How many elements are behind whole units; none of a variable number, which streams/ ask for whole ones of."""
    return extent % unit if isinstance(extent, int) else 0


def both(tests: Iterable[Expr | None]) -> Expr | None:
    """All tests at once; None if there is none (a test may be missing)."""
    result: Expr | None = None
    for test in tests:
        if test is not None:
            result = test if result is None else tirx.And(result, test)
    return result


def guard(condition: Expr | None, value: Expr) -> Expr:
    """`value` where the condition, if there is one, holds, else 0."""
    return value if condition is None else guarded(condition, value)


def total(term: Expr, axes: Sequence[IterVar]) -> Expr:
    """A sum over reduction axes."""
    return te.sum(term, list(axes))


def reduce_axes(*extents: Index, prefix: str = "k") -> list[IterVar]:
    """Reduction axes of the given extents."""
    return [te.reduce_axis((0, extent), f"{prefix}{i}") for i, extent in enumerate(extents)]


def plain(_schedule: s_tir.Schedule) -> None:
    """The schedule of kernels whose default loops are right."""
