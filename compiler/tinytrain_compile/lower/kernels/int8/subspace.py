"""Low-rank copies of int8 activations: float32 sums of elements read as integers, or int32 sums."""

from __future__ import annotations

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    call_int,
    f32,
    i32,
    kernel,
    reduce_axes,
    tensor,
    tensors,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.linear import product_schedule
from tinytrain_compile.lower.kernels.float32.subspace import power_spec
from tinytrain_compile.lower.kernels.int8.operands import Centred, kept_factors
from tinytrain_compile.ops.int8.subspace import QModeAttrs, QModeInt8Attrs
from tinytrain_compile.ops.names import attrs_of, operand, result
from tinytrain_compile.ops.subspace import mode_form


def _steps(node: Node, element: Expr) -> Expr:
    """Return q - zero as float32."""
    attrs = attrs_of(node, QModeAttrs)
    return (i32(element) - i32(attrs.zero)).astype("float32")


@kernel("QSubspacePower")
def subspace_power(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute it as for float32."""
    return power_spec(node, lambda element: _steps(node, element))


@kernel("QModeProduct")
def mode_product(node: Node, context: KernelContext) -> KernelSpec:
    """Compute sums of an outer index at a time, in register tiles."""
    return _product(node, context)


@kernel("QModeExpand")
def mode_expand(node: Node, context: KernelContext) -> KernelSpec:
    """Compute a mode product rounded to int8."""
    return _product(node, context)


def _product(node: Node, context: KernelContext) -> KernelSpec:
    """Compute a product with rows of x if the axis is the last one, else one for each outer index."""
    attrs = attrs_of(node, QModeAttrs)
    outer, length, inner = mode_form(operand(node, "x").shape, attrs.axis)
    long, (k,), u = result(node, "y").shape[attrs.axis], reduce_axes(length), tensor(node, "u")

    def finish(value: Expr) -> Expr:
        if not attrs.expand:
            return value
        return call_int("tt_quantise", value, f32(1.0), i32(attrs.zero), i32(-128), i32(127), dtype="int8")

    def term(row: Expr, element: Expr) -> Expr:
        factor = u[k, row] if attrs.expand else u[row, k]
        return total(factor * (element if attrs.expand else _steps(node, element)), [k])

    if inner == 1:
        x = tensor(node, "x", (outer, length))
        acc = te.compute((outer, long), lambda i, j: term(j, x[i, k]), "acc")
        schedule = product_schedule((outer, long), context, vectors=False)
    else:
        x = tensor(node, "x", (outer, length, inner))
        acc = te.compute((outer, long, inner), lambda g, i, j: term(i, x[g, k, j]), "acc")
        schedule = product_schedule((long, inner), context, vectors=False, long=1, first=1)
    return KernelSpec([x, u], [te.compute(acc.shape, lambda *i: finish(acc[i]), "out")], schedule)


@kernel("QModeProductInt8")
def along(node: Node, context: KernelContext) -> KernelSpec:
    """Compute sums of an outer index at a time, in register tiles."""
    attrs = attrs_of(node, QModeInt8Attrs)
    outer, length, inner = mode_form(operand(node, "x").shape, attrs.axis)
    rows = result(node, "y").shape[attrs.axis]
    x, (matrix, multiplier, shift) = (
        tensor(node, "x", (outer, length, inner)),
        tensors(node, "matrix", "multiplier", "shift"),
    )
    data, (k,) = Centred(x, attrs.x_zero), reduce_axes(length)
    factor, _ = kept_factors(multiplier, lambda row: i32(shift[row]), kept=False)
    limits = (i32(attrs.y_zero), i32(attrs.low), i32(attrs.high))

    def finish(g: Expr, i: Expr, j: Expr) -> Expr:
        return call_int("tt_requantise8", acc[g, i, j], i32(0), *factor(i), *limits, dtype="int8")

    acc = te.compute((outer, rows, inner), lambda g, i, j: total(i32(matrix[i, k]) * data[g, k, j], [k]), "acc")
    out = te.compute((outer, rows, inner), finish, "out")
    schedule = product_schedule((rows, inner), context, vectors=False, long=1, first=1)
    return KernelSpec([x, matrix, multiplier, shift], [out], schedule)
