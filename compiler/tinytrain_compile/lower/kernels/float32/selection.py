"""Elements chosen by their place along an axis, and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import te, tirx
from tvm.ir import Expr, Var
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    Index,
    KernelSpec,
    f32,
    kernel,
    plain,
    reduce_axes,
    select,
    tensor,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.embedding import row_of
from tinytrain_compile.lower.kernels.float32.integers import wrapped
from tinytrain_compile.ops.names import attrs_of, operand
from tinytrain_compile.ops.selection import CumSumAttrs, TakeAlongAttrs, TopAttrs


def _loop(name: str, extent: Index, body: Callable[[Var], Stmt]) -> Stmt:
    var = Var(name, "int32")
    return tirx.For(var, 0, extent, tirx.ForKind.SERIAL, body(var))


def _written(node: Node, x: te.Tensor, shape: tuple[int, ...], body: Callable[[Buffer, Buffer], Stmt]) -> KernelSpec:
    """Make a kernel of one operand and one result whose loops are written out."""
    dtype = node.outputs[0].dtype
    source, y = tirx.decl_buffer(x.shape, x.dtype, x.op.name), tirx.decl_buffer(shape, dtype, "y")

    def whole(sources: Sequence[Buffer], targets: Sequence[Buffer]) -> Stmt:
        return body(sources[0], targets[0])

    out = te.extern([y.shape], [x], whole, "out", in_buffers=[source], out_buffers=[y], dtype=dtype)
    return KernelSpec([x], [out], plain)


@kernel("CumSum")
def cumsum(node: Node, _context: KernelContext) -> KernelSpec:
    """Keep one sum in a register, for each run along the axis."""
    attrs = attrs_of(node, CumSumAttrs)
    shape, dtype = operand(node, "x").shape, node.outputs[0].dtype
    outer, size, inner = math.prod(shape[: attrs.axis]), shape[attrs.axis], math.prod(shape[attrs.axis + 1 :])
    x = tensor(node, "x", (outer, size, inner))
    total_of = tirx.decl_buffer((1,), dtype, "total", scope="local")

    def add(a: Expr, b: Expr) -> Expr:
        return a + b

    def body(source: Buffer, y: Buffer) -> Stmt:
        def step(row: Var, column: Var, i: Var) -> Stmt:
            at = [row, size - 1 - i if attrs.reverse else i, column]
            now, value = total_of[(0,)], source[tuple(at)]
            more = tirx.BufferStore(total_of, now + value if dtype == "float32" else wrapped(add, now, value), [0])
            store = tirx.BufferStore(y, total_of[(0,)], at)
            return tirx.stmt_seq(*((store, more) if attrs.exclusive else (more, store)))

        def run(row: Var, column: Var) -> Stmt:
            start = tirx.BufferStore(total_of, tirx.const(0, dtype), [0])
            return tirx.stmt_seq(start, _loop("i", size, lambda i: step(row, column, i)))

        loops = _loop("row", outer, lambda row: _loop("column", inner, lambda column: run(row, column)))
        return tirx.stmt_seq(tirx.AllocBuffer(total_of), loops)

    return _written(node, x, (outer, size, inner), body)


@kernel("TopIndices")
def top_indices(node: Node, _context: KernelContext) -> KernelSpec:
    """Search all elements once for each place in the order: take the best of those after the previous one."""
    attrs, shape = attrs_of(node, TopAttrs), operand(node, "x").shape
    rows, size = math.prod(shape[:-1]), shape[-1]
    x = tensor(node, "x", (rows, size))
    best, before = (tirx.decl_buffer((1,), "int32", name, scope="local") for name in ("best", "before"))

    def ahead(a: Expr, b: Expr) -> Expr:
        return a < b if attrs.smallest else a > b

    def body(source: Buffer, y: Buffer) -> Stmt:
        def look(row: Var, place: Var, i: Var) -> Stmt:
            now = best[(0,)]
            known = source[row, tirx.max(now, 0)]
            last = source[row, before[(0,)]]
            value = source[row, i]
            behind = tirx.if_then_else(tirx.EQ(last, value), before[(0,)] < i, ahead(last, value))
            left = tirx.Or(tirx.EQ(place, 0), behind)
            better = tirx.Or(now < 0, ahead(value, known))
            return tirx.IfThenElse(tirx.And(left, better), tirx.BufferStore(best, i, [0]), None)

        def choose(row: Var, place: Var) -> Stmt:
            start = tirx.BufferStore(best, tirx.const(-1, "int32"), [0])
            keep = tirx.BufferStore(before, tirx.max(best[(0,)], 0), [0])
            store = tirx.BufferStore(y, before[(0,)], [row, place])
            return tirx.stmt_seq(start, _loop("i", size, lambda i: look(row, place, i)), keep, store)

        def of_row(row: Var) -> Stmt:
            start = tirx.BufferStore(before, tirx.const(0, "int32"), [0])
            return tirx.stmt_seq(start, _loop("place", attrs.count, lambda place: choose(row, place)))

        return tirx.stmt_seq(tirx.AllocBuffer(best), tirx.AllocBuffer(before), _loop("row", rows, of_row))

    return _written(node, x, (rows, attrs.count), body)


@kernel("TakeAlong")
def take_along(node: Node, _context: KernelContext) -> KernelSpec:
    """Copy one element after the other."""
    count, (*_, size) = node.outputs[0].shape[-1], operand(node, "x").shape
    rows = node.outputs[0].elements // count
    x, index = tensor(node, "x", (rows, size)), tensor(node, "index", (rows, count))
    out = te.compute((rows, count), lambda i, j: x[i, row_of(index[i, j], size)], "out")
    return KernelSpec([x, index], [out], plain)


@kernel("TakeAlongGrad")
def take_along_grad(node: Node, _context: KernelContext) -> KernelSpec:
    """Sum, for every element, the gradients at the places that have its index, in their order."""
    attrs, value = attrs_of(node, TakeAlongAttrs), operand(node, "dy")
    count = value.shape[-1]
    rows = value.elements // count
    dy, index = tensor(node, "dy", (rows, count)), tensor(node, "index", (rows, count))
    (k,) = reduce_axes(count)

    def term(i: Expr, j: Expr) -> Expr:
        return total(select(tirx.EQ(row_of(index[i, k], attrs.size), j), dy[i, k], f32(0)), [k])

    return KernelSpec([dy, index], [te.compute((rows, attrs.size), term, "out")], plain)
