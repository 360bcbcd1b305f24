"""Element-wise arithmetic: one loop over all elements, or nested loops where operands broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from tvm import te
from tvm.ir import Expr, Var

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Index,
    KernelRule,
    KernelSpec,
    Schedule,
    call,
    f32,
    kernel,
    placeholder,
    plain,
    select,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.row_blocks import NoRowsError, RowBlockSpec, few_rows, row_kernel
from tinytrain_compile.lower.schedules import four_at_a_time

SCALAR = KernelContext()
LIGHT, HEAVY = 4, 1
"""Vectors in a turn of the loop: of functions of a few instructions, and of others."""


def element_schedule(extent: Index, context: KernelContext, most: int) -> Schedule:
    """Of loops over elements, the last of this extent; most: see `unary`."""
    if not context.uses_float_vectors or most == 0 or (isinstance(extent, int) and extent < LANES):
        return plain
    return lambda sch: four_at_a_time(sch, most=most)


def element_kernel(*ops: str) -> Callable[[KernelRule], KernelRule]:
    """Enter a rule as the kernel of ops that work element by element: of all elements, and of a few rows of a map."""

    def enter(rule: KernelRule) -> KernelRule:
        kernel(*ops)(rule)
        row_kernel(*ops)(partial(_of_rows, rule))
        return rule

    return enter


def _of_rows(rule: KernelRule, node: Node, context: KernelContext, count: Var) -> RowBlockSpec:
    result = node.outputs[0]
    if len(result.shape) != 4 or any(value.shape != result.shape for value in node.inputs):
        raise NoRowsError(f"{node.name}: its operands are no maps")
    if context.uses_float_vectors and math.prod(result.shape[2:]) < LANES <= result.elements:
        raise NoRowsError(f"{node.name}: a row is no vector")
    maps = tuple(range(len(node.inputs)))
    return RowBlockSpec(rule(few_rows(node, count), context), count, maps, result.shape[1], in_place=True)


def element_loops(value: Value) -> tuple[Index, ...]:
    """Extents of the loops over a value's elements: one; of a number of rows that a call says, two."""
    shape: tuple[Index, ...] = value.shape
    if len(shape) == 4 and isinstance(shape[1], Expr):
        return shape[1], math.prod(value.shape[2:])
    return (value.elements,)


def pointwise(node: Node, function: Callable[..., Expr], context: KernelContext = SCALAR, most: int = 0) -> KernelSpec:
    """A kernel that applies a scalar function to every element of operands of one shape; most: see `unary`."""
    size = element_loops(node.outputs[0])
    inputs = [placeholder(v, name, size) for v, name in zip(node.inputs, ("a", "b", "c"), strict=False)]
    out = te.compute(size, lambda *i: function(*(x[i] for x in inputs)), "out")
    return KernelSpec(inputs, [out], element_schedule(size[-1], context, most))


def broadcast(node: Node, function: Callable[..., Expr], context: KernelContext = SCALAR, most: int = 0) -> KernelSpec:
    """As `pointwise`, for operands that broadcast to the output's shape by numpy's rules."""
    shape = node.outputs[0].shape
    if all(value.shape == shape for value in node.inputs):
        return pointwise(node, function, context, most)
    groups = _merge_axes(shape, [_aligned(v.shape, len(shape)) for v in node.inputs])
    extents = [math.prod(shape[i] for i in group) for group in groups] or [1]
    inputs: list[te.Tensor] = []
    for value, name in zip(node.inputs, ("a", "b", "c"), strict=False):
        aligned = _aligned(value.shape, len(shape))
        inputs.append(placeholder(value, name, [math.prod(aligned[i] for i in g) for g in groups] or [1]))

    def body(*index: Expr) -> Expr:
        loads = [x(*(i if int(dim) > 1 else 0 for i, dim in zip(index, x.shape, strict=True))) for x in inputs]
        return function(*loads)

    return KernelSpec(inputs, [te.compute(tuple(extents), body, "out")], element_schedule(extents[-1], context, most))


def _aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _merge_axes(shape: tuple[int, ...], operands: list[tuple[int, ...]]) -> list[list[int]]:
    """Neighbouring axes that every operand either spans or broadcasts alike become one loop."""
    groups: list[list[int]] = []
    patterns: list[tuple[bool, ...]] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        pattern = tuple(operand[axis] == 1 for operand in operands)
        if patterns and patterns[-1] == pattern:
            groups[-1].append(axis)
        else:
            groups.append([axis])
            patterns.append(pattern)
    return groups


def _binary(op: str, function: Callable[[Expr, Expr], Expr], most: int = 0) -> None:
    element_kernel(op)(lambda node, context: broadcast(node, function, context, most))


def unary(op: str, function: Callable[..., Expr], most: int = 0) -> None:
    """Enter the kernel of an op that works element by element: function(operand elements ...) -> element.

    most: vectors in a turn of the loop, where there are vectors; 0: lanes cannot do what is computed.
    """
    element_kernel(op)(lambda node, context: pointwise(node, function, context, most))


def magnitude(x: Expr) -> Expr:
    """|x|; NaN stays, -0 becomes 0."""
    return select(x > f32(0), x, f32(0) - x)


_binary("Add", lambda a, b: a + b, LIGHT)
_binary("Sub", lambda a, b: a - b, LIGHT)
_binary("Mul", lambda a, b: a * b, LIGHT)
_binary("Div", lambda a, b: a / b)
unary("Neg", lambda x: f32(0) - x, LIGHT)
unary("Abs", magnitude)
unary("AbsGrad", lambda dy, x: select(x > f32(0), dy, select(x < f32(0), f32(0) - dy, f32(0))))
unary("Sign", lambda x: select(x > f32(0), f32(1), select(x < f32(0), f32(-1), f32(0))))
unary("Sin", lambda x: call("tt_sinf", x))
unary("Cos", lambda x: call("tt_cosf", x))
unary("Sqrt", lambda x: call("tt_sqrtf", x))
unary("Exp", lambda x: call("tt_expf", x), HEAVY)
unary("Log", lambda x: call("tt_logf", x))
unary("Erf", lambda x: call("tt_erff", x), HEAVY)
unary("Norm", lambda x: call("tt_sqrtf", x))
unary("NormGrad", lambda dy, y: select(y > f32(0), dy / (y + y), f32(0)))
unary("SqrtGrad", lambda dy, y: dy / (y + y))
unary("ErfGrad", lambda dy, x: dy * (call("tt_expf", f32(0) - x * x) * f32(2 / math.sqrt(math.pi))), HEAVY)


__all__ = [
    "LIGHT",
    "KernelContext",
    "broadcast",
    "element_kernel",
    "element_schedule",
    "magnitude",
    "pointwise",
    "unary",
]
