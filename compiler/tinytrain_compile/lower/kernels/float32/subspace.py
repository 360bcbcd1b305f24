"""Low-rank copies of activations: matrix products along an axis, and rows made orthonormal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import s_tir, te, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt, Var

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    Index,
    KernelSpec,
    call,
    f32,
    kernel,
    plain,
    reduce_axes,
    tensor,
    tensors,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.linear import matrix_product, product_schedule
from tinytrain_compile.lower.schedules import best_tile
from tinytrain_compile.ops.names import operand, result
from tinytrain_compile.ops.subspace import LARGEST, PASSES, VANISHED, GroupAttrs, ModeAttrs, fibre_block, mode_form

SUMS = 4
"""Rows of a subspace in a turn of a loop."""


@kernel("ModeProduct")
def mode_product(node: Node, context: KernelContext) -> KernelSpec:
    """A product with rows of x where the axis is the last one, else one for each outer index."""
    attrs = node.attrs
    assert isinstance(attrs, ModeAttrs)
    shape = mode_form(operand(node, "x").shape, attrs.axis)
    outer, length, inner = shape
    long = result(node, "y").shape[attrs.axis]
    u = tensor(node, "u")

    def weight(row: Index, term: Index) -> Expr:
        return u[term, row] if attrs.expand else u[row, term]

    if inner == 1:
        x = tensor(node, "x", (outer, length))
        extents, apart = (outer, long, length), (True, not attrs.expand)
        return matrix_product(
            [x, u], extents, lambda i, a: x[i, a], lambda a, j: weight(j, a), context, apart=apart
        )
    x = tensor(node, "x", shape)
    (k,) = reduce_axes(length)
    acc = te.compute((outer, long, inner), lambda g, i, j: total(weight(i, k) * x[g, k, j], [k]), "acc")
    out = te.compute((outer, long, inner), lambda *i: acc(*i), "out")
    lanes = context.uses_float_vectors and max(long, inner) >= SUMS
    apart = (not attrs.expand, False)
    return KernelSpec([x, u], [out], product_schedule((long, inner), context, lanes, long=1, apart=apart, first=1))


@kernel("SubspaceGradWeight")
def subspace_grad_weight(node: Node, context: KernelContext) -> KernelSpec:
    """A product whose right factor depends on the row's group."""
    attrs = node.attrs
    assert isinstance(attrs, GroupAttrs)
    dw, u = result(node, "dw"), tensor(node, "u")
    rank, columns = operand(node, "u").shape[0], dw.shape[-1]
    rows = dw.elements // columns
    dz = tensor(node, "dz", (rows, rank))
    (k,) = reduce_axes(rank)
    group = rows // attrs.groups

    def term(i: Expr, j: Expr) -> Expr:
        first = 0 if attrs.groups == 1 else i // group * columns
        return total(dz[i, k] * u[k, first + j], [k])

    acc = te.compute((rows, columns), term, "acc")
    out = te.compute((rows, columns), lambda i, j: acc[i, j], "out")
    one = attrs.groups == 1
    lanes = context.uses_float_vectors and one and max(rows, columns) >= SUMS
    schedule = product_schedule((rows, columns), context, lanes, long=1, apart=(one, False))
    return KernelSpec([dz, u], [out], schedule)


@kernel("SubspacePower")
def subspace_power(node: Node, _context: KernelContext) -> KernelSpec:
    """Some fibres at a time: their products with the subspace in scratch, then what these add to every row."""
    attrs = node.attrs
    assert isinstance(attrs, ModeAttrs)
    shape = mode_form(operand(node, "x").shape, attrs.axis)
    outer, length, inner = shape
    x, u = tensor(node, "x", shape), tensor(node, "u")
    rank, count = operand(node, "u").shape[0], outer * inner

    def fibre(f: Index, c: Index) -> Expr:
        return x[f, c, 0] if inner == 1 else x[f // inner, c, f % inner]

    (e,) = reduce_axes(length, prefix="e")
    (f,) = reduce_axes(count, prefix="f")
    along = te.compute((count, rank), lambda i, k: total(fibre(i, e) * u[k, e], [e]), "along")
    p = te.compute((rank, length), lambda k, c: total(along[f, k] * fibre(f, c), [f]), "p")

    def schedule(sch: s_tir.Schedule) -> None:
        block = sch.get_sblock("p")
        k, c, f = sch.get_loops(block)
        blocks, few = sch.split(f, [None, fibre_block(count)])
        tiles, rows = sch.split(k, [None, _divisor(rank)])
        sch.reorder(blocks, tiles, c, few, rows)
        sch.unroll(rows)
        start = sch.decompose_reduction(block, blocks)
        sch.unroll(sch.get_loops(start)[-1])
        _in_scratch(sch, blocks, rank)

    return KernelSpec([x, u], [p], schedule)


def _in_scratch(sch: s_tir.Schedule, blocks: object, rank: int) -> None:
    """Products of a block of fibres, `SUMS` rows of the subspace at a time."""
    along = sch.get_sblock("along")
    sch.compute_at(along, blocks, preserve_unit_loops=True)
    sch.set_scope(along, 0, "local")
    _, few, row, term = sch.get_loops(along)
    tiles, rows = sch.split(row, [None, _divisor(rank)])
    sch.reorder(few, tiles, term, rows)
    sch.unroll(rows)
    start = sch.decompose_reduction(along, term)
    sch.unroll(sch.get_loops(start)[-1])


def _divisor(rank: int) -> int:
    return max(size for size in range(1, SUMS + 1) if rank % size == 0)


@kernel("KeepSubspace")
def keep_subspace(node: Node, _context: KernelContext) -> KernelSpec:
    """A copy."""
    u, new = tensors(node, "u", "new")
    return KernelSpec([u, new], [te.compute(u.shape, lambda i, j: new[i, j], "out")], plain)


# ---- orthonormal rows: written as loops, since every row depends on those before it ---------------------------------

Body = Callable[[Var], Stmt]


def _loop(name: str, extent: Index, body: Body) -> Stmt:
    var = Var(name, "int32")
    return tirx.For(var, 0, extent, tirx.ForKind.SERIAL, body(var))


class _Rows:
    """Statements about rows of a matrix: `u` the buffer, `length` of a row, scalars by name."""

    def __init__(self, u: Buffer, length: int) -> None:
        self.u, self.length = u, length
        self.scalars = {n: tirx.decl_buffer((1,), "float32", n, scope="local") for n in ("first", "squares", "dot")}
        self.scalars |= {n: tirx.decl_buffer((1,), "float32", n, scope="local") for n in ("least", "covered")}
        self.place = tirx.decl_buffer((1,), "int32", "place", scope="local")

    def get(self, name: str) -> Expr:
        return self.scalars[name][0]

    def set(self, name: str, value: Expr) -> Stmt:
        return tirx.BufferStore(self.scalars[name], value, [0])

    def dot(self, name: str, a: Index, b: Index) -> Stmt:
        """The scalar becomes the product of two rows."""
        more = lambda c: self.set(name, self.get(name) + self.u[a, c] * self.u[b, c])  # noqa: E731
        return tirx.stmt_seq(self.set(name, f32(0)), _loop("column", self.length, more))

    def orthogonal(self, k: Var) -> Stmt:
        """Row k without what lies in the span of those before it, and the sum of its squares."""

        def less(j: Var) -> Stmt:
            def element(c: Var) -> Stmt:
                return tirx.BufferStore(self.u, self.u[k, c] - self.get("dot") * self.u[j, c], [k, c])

            return tirx.stmt_seq(self.dot("dot", j, k), _loop("column", self.length, element))

        passes = _loop("again", PASSES, lambda _: _loop("other", k, less))
        return tirx.stmt_seq(passes, self.dot("squares", k, k))

    def uncovered(self, k: Var) -> Stmt:
        """Row k becomes the axis of which the rows before cover least."""

        def judge(c: Var) -> Stmt:
            def more(j: Var) -> Stmt:
                return self.set("covered", self.get("covered") + self.u[j, c] * self.u[j, c])

            better = tirx.stmt_seq(self.set("least", self.get("covered")), tirx.BufferStore(self.place, c, [0]))
            less = tirx.LT(self.get("covered"), self.get("least"))
            zero = tirx.BufferStore(self.u, f32(0), [k, c])
            known = (self.set("covered", f32(0)), _loop("other", k, more))
            return tirx.stmt_seq(*known, tirx.IfThenElse(less, better, None), zero)

        start = (self.set("least", f32(LARGEST)), tirx.BufferStore(self.place, 0, [0]))
        axis = tirx.BufferStore(self.u, f32(1), [k, self.place[0]])
        return tirx.stmt_seq(*start, _loop("column", self.length, judge), axis)

    def normal(self, k: Var) -> Stmt:
        """Row k over the root of its squares."""
        root = self.set("dot", f32(1) / call("tt_sqrtf", self.get("squares")))
        scaled = lambda c: tirx.BufferStore(self.u, self.u[k, c] * self.get("dot"), [k, c])  # noqa: E731
        return tirx.stmt_seq(root, _loop("column", self.length, scaled))

    def where_vanished(self, instead: Stmt) -> Stmt:
        """`instead` unless something is left of a row. A flag: TVM turns "not greater" into "less", which no NaN is."""
        squares, first = self.get("squares"), self.get("first")
        left = tirx.And(tirx.GT(squares, f32(VANISHED) * first), tirx.LE(squares, f32(LARGEST)))
        flag = (tirx.BufferStore(self.place, 1, [0]), tirx.IfThenElse(left, tirx.BufferStore(self.place, 0, [0]), None))
        return tirx.stmt_seq(*flag, tirx.IfThenElse(tirx.EQ(self.place[0], 1), instead, None))

    def allocated(self, body: Stmt) -> Stmt:
        return tirx.stmt_seq(*(tirx.AllocBuffer(b) for b in (*self.scalars.values(), self.place)), body)


@kernel("Orthonormalize")
def orthonormalize(node: Node, _context: KernelContext) -> KernelSpec:
    """Row by row: its squares, what the rows before leave of it, the axis instead where that is nothing, its length."""
    p = tensor(node, "p")
    rank, length = operand(node, "p").shape

    def rows(sources: Sequence[Buffer], targets: Sequence[Buffer]) -> Stmt:
        m = _Rows(targets[0], length)

        def row(k: Var) -> Stmt:
            copy = _loop("column", length, lambda c: tirx.BufferStore(m.u, sources[0][k, c], [k, c]))
            instead = tirx.stmt_seq(m.uncovered(k), m.orthogonal(k))
            checked = m.where_vanished(instead)
            return tirx.stmt_seq(copy, m.dot("first", k, k), m.orthogonal(k), checked, m.normal(k))

        return m.allocated(_loop("row", rank, row))

    source, target = (tirx.decl_buffer(p.shape, "float32", name) for name in ("p", "u"))
    out = te.extern([p.shape], [p], rows, "out", in_buffers=[source], out_buffers=[target], dtype="float32")
    return KernelSpec([p], [out], plain)
