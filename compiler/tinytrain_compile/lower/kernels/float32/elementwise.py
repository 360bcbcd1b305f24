"""Formulas of elements as kernels: one loop over all elements, or nested loops if operands broadcast; and masks."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import te, tirx
from tvm.ir import Expr, Var

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Index,
    KernelRule,
    KernelSpec,
    Schedule,
    address,
    call,
    call_int,
    f32,
    flat_tensor,
    kernel,
    left_over,
    placeholder,
    plain,
    select,
    tensor,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.row_blocks import NoRowsError, RowBlockSpec, few_rows, row_kernel
from tinytrain_compile.lower.schedules import four_at_a_time
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.arithmetic import Arithmetic
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.elementwise import FORMULAS, LIGHT, Elementwise
from tinytrain_compile.ops.names import attrs_of, operand, result
from tinytrain_compile.ops.rows import element_rows

SCALAR = KernelContext()

# ---- the arithmetic of formulas (ops/arithmetic.py) as expressions of TE ---------------------------------------------


def clamp(x: Expr, low: float, high: float) -> Expr:
    """Keep x between bounds; comparisons are written so that NaN passes through."""
    if math.isfinite(low):
        x = select(x < f32(low), f32(low), x)
    if math.isfinite(high):
        x = select(x > f32(high), f32(high), x)
    return x


def _element(value: Any) -> Expr:
    """Return an element; numbers of a formula become float32 constants."""
    return f32(value) if isinstance(value, int | float) else value


def _where(condition: Expr, yes: Any, no: Any) -> Expr:
    return select(condition, _element(yes), _element(no))


def _magnitude(x: Expr) -> Expr:
    """Return |x|; NaN stays, -0 becomes 0."""
    return select(x > f32(0), x, f32(0) - x)


TE = Arithmetic(
    where=_where,
    both=tirx.And,
    equal=lambda left, right: tirx.EQ(_element(left), _element(right)),
    clamp=clamp,
    scaled=lambda x, factor: x * f32(factor),
    shifted=lambda x, addend: x + f32(addend),
    abs=_magnitude,
    exp=partial(call, "tt_expf"),
    log=partial(call, "tt_logf"),
    log1p=partial(call, "tt_log1pf"),
    sqrt=partial(call, "tt_sqrtf"),
    tanh=partial(call, "tt_tanhf"),
    erf=partial(call, "tt_erff"),
    sin=partial(call, "tt_sinf"),
    cos=partial(call, "tt_cosf"),
    sigmoid=partial(call, "tt_sigmoidf"),
    power=partial(call, "tt_powf"),
)


# ---- loops over elements ---------------------------------------------------------------------------------------------


def element_schedule(extent: Index, context: KernelContext, most: int) -> Schedule:
    """Return the schedule of loops over elements, the last of this extent; most: see Elementwise.lanes."""
    if not context.uses_float_vectors or most == 0 or (isinstance(extent, int) and extent < LANES):
        return plain
    return lambda sch: four_at_a_time(sch, most=most)


def element_kernel(*ops: str) -> Callable[[KernelRule], KernelRule]:
    """Enter a rule as the kernel of elementwise ops: for all elements, and for a few rows of a map."""

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
    """Return the extents of the loops over a value's elements: one, or two if a call has a variable number of rows."""
    shape: tuple[Index, ...] = value.shape
    if len(shape) == 4 and isinstance(shape[1], Expr):
        return shape[1], math.prod(value.shape[2:])
    return (value.elements,)


def pointwise(node: Node, function: Callable[..., Expr], context: KernelContext = SCALAR, most: int = 0) -> KernelSpec:
    """Apply a function to every element of operands of one shape; most: see Elementwise.lanes."""
    size = element_loops(node.outputs[0])
    inputs = [placeholder(v, name, size) for v, name in zip(node.inputs, ("a", "b", "c"), strict=False)]
    out = te.compute(size, lambda *i: function(*(x[i] for x in inputs)), "out")
    return KernelSpec(inputs, [out], element_schedule(size[-1], context, most))


def broadcast(node: Node, function: Callable[..., Expr], context: KernelContext = SCALAR, most: int = 0) -> KernelSpec:
    """Apply a function as `pointwise` does, for operands that broadcast to the output's shape by numpy's rules."""
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
    """Merge neighbouring axes that every operand either spans or broadcasts alike into one loop."""
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


def _by_formula(op: str, formula: Elementwise) -> None:
    def rule(node: Node, context: KernelContext) -> KernelSpec:
        def element(*operands: Expr) -> Expr:
            return formula.of(TE, operands, node.attrs)

        return broadcast(node, element, context, formula.lanes_of(node.attrs))

    has_rows = op_def(op).rows is element_rows
    (element_kernel if has_rows else kernel)(op)(rule)


for _op, _formula in FORMULAS.items():
    _by_formula(_op, _formula)


# ---- masks -----------------------------------------------------------------------------------------------------------


def packed(
    node: Node, inside: Callable[[Expr], Expr | None], eight: Callable[[Expr], Expr] | None = None
) -> KernelSpec:
    """Compute one bit per element, eight to a byte, the first in the lowest bit; `inside` tests an element (None:
    always).

    eight: makes a whole byte of the address of its first element.
    """
    size = operand(node, "y").elements
    last = left_over(size, 8)
    x = flat_tensor(node, "y")

    def byte(b: Expr) -> Expr:
        if eight is not None and not last:
            return eight(address(x, b * 8))
        bits: list[Expr] = []
        for j in range(8):
            one, zero = tirx.const(1 << j, "int32"), tirx.const(0, "int32")
            test = inside(x[b * 8 + j])
            bit = select(test, one, zero) if test is not None else one
            if last and j >= last:
                bit = tirx.if_then_else(b * 8 + j < size, bit, zero)
            bits.append(bit)
        return functools.reduce(operator.add, bits).astype("uint8")

    return KernelSpec([x], [te.compute((result(node, "mask").size_bytes,), byte, "mask")], plain)


@element_kernel("ClipMask")
def clip_mask(node: Node, context: KernelContext) -> KernelSpec:
    """Compute a bit for every element that the clip did not change."""
    attrs = attrs_of(node, ClipAttrs)
    return packed(
        node, lambda y: TE.inside(y, attrs.low, attrs.high), _eight(attrs) if context.uses_float_vectors else None
    )


def _eight(attrs: ClipAttrs) -> Callable[[Expr], Expr] | None:
    """Return the function that computes eight bits at a time on vectors, for a clip that has a lower bound."""
    if not math.isfinite(attrs.low):
        return None
    bounds = [f32(bound) for bound in (attrs.low, attrs.high) if math.isfinite(bound)]
    name = "tt_above8_f32" if len(bounds) == 1 else "tt_between8_f32"
    return lambda first: call_int(name, first, *bounds, dtype="uint8")


@kernel("MaskedGrad")
def masked_grad(node: Node, context: KernelContext) -> KernelSpec:
    """Pass elements of dy whose mask bit is set."""
    size = result(node, "dx").elements
    dy, mask = flat_tensor(node, "dy"), tensor(node, "mask")

    schedule = element_schedule(size, context, LIGHT)

    def element(i: Expr) -> Expr:
        bits = tirx.shift_right(mask[tirx.indexdiv(i, 8)].astype("int32"), tirx.indexmod(i, 8))
        if schedule is not plain:
            return call("tt_kept_f32x4", bits, dy[i])
        return select(tirx.NE(tirx.bitwise_and(bits, 1), 0), dy[i], f32(0))

    return KernelSpec([dy, mask], [te.compute((size,), element, "out")], schedule)
