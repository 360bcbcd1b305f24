"""Low-rank copies of activations: matrix products along an axis."""

from __future__ import annotations

from collections.abc import Callable

from tvm import s_tir, te
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    Index,
    KernelSpec,
    kernel,
    plain,
    reduce_axes,
    tensor,
    tensors,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.linear import matrix_product, product_schedule
from tinytrain_compile.lower.schedules import HINT, best_tile
from tinytrain_compile.ops.names import attrs_of, operand, result
from tinytrain_compile.ops.subspace import GroupAttrs, ModeAttrs, fibre_block, mode_form

SUMS = 4
"""Fewest rows or columns of a product on vectors."""
ROWS = 6
"""Rows of a subspace in a turn of a loop; each has two sums, or one if the other extent is odd."""


@kernel("ModeProduct")
def mode_product(node: Node, context: KernelContext) -> KernelSpec:
    """Compute a product with rows of x if the axis is the last one, else one for each outer index."""
    attrs = attrs_of(node, ModeAttrs)
    shape = mode_form(operand(node, "x").shape, attrs.axis)
    outer, length, inner = shape
    long = result(node, "y").shape[attrs.axis]
    u = tensor(node, "u")

    def weight(row: Index, term: Index) -> Expr:
        return u[term, row] if attrs.expand else u[row, term]

    if inner == 1:
        x = tensor(node, "x", (outer, length))
        extents, apart = (outer, long, length), (True, not attrs.expand)
        return matrix_product([x, u], extents, lambda i, a: x[i, a], lambda a, j: weight(j, a), context, apart=apart)
    x = tensor(node, "x", shape)
    (k,) = reduce_axes(length)
    acc = te.compute((outer, long, inner), lambda g, i, j: total(weight(i, k) * x[g, k, j], [k]), "acc")
    out = te.compute((outer, long, inner), lambda *i: acc(*i), "out")
    lanes = context.uses_float_vectors and max(long, inner) >= SUMS
    apart = (not attrs.expand, False)
    return KernelSpec([x, u], [out], product_schedule((long, inner), context, lanes, long=1, apart=apart, first=1))


@kernel("SubspaceGradWeight")
def subspace_grad_weight(node: Node, context: KernelContext) -> KernelSpec:
    """Compute a product whose right factor depends on the row's group."""
    attrs = attrs_of(node, GroupAttrs)
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
    """Compute it on float32."""
    return power_spec(node, lambda x: x)


def power_spec(node: Node, read: Callable[[Expr], Expr]) -> KernelSpec:
    """Compute some fibres at a time: their products with the subspace in scratch, then their terms of every row.

    read: an element of x as float32.
    """
    attrs = attrs_of(node, ModeAttrs)
    shape = mode_form(operand(node, "x").shape, attrs.axis)
    outer, length, inner = shape
    x, u = tensor(node, "x", shape), tensor(node, "u")
    rank, count = operand(node, "u").shape[0], outer * inner

    def fibre(f: Index, c: Index) -> Expr:
        return read(x[f, c, 0] if inner == 1 else x[f // inner, c, f % inner])

    (e,) = reduce_axes(length, prefix="e")
    (f,) = reduce_axes(count, prefix="f")
    along = te.compute((count, rank), lambda i, k: total(fibre(i, e) * u[k, e], [e]), "along")
    p = te.compute((rank, length), lambda k, c: total(along[f, k] * fibre(f, c), [f]), "p")
    return KernelSpec([x, u], [p], lambda sch: _by_blocks(sch, rank, count))


def _by_blocks(sch: s_tir.Schedule, rank: int, count: int) -> None:
    """Take a block of fibres at a time: its terms of a tile of rows and neighbours are summed in registers."""
    block = sch.get_sblock("p")
    k, c, f = sch.get_loops(block)
    length = int(sch.get(c).extent)
    blocks, few = sch.split(f, [None, fibre_block(count)])
    tiles, rows = sch.split(k, [None, best_tile(rank, ROWS)])
    columns, pair = sch.split(c, [None, _pair(length)])
    sch.reorder(blocks, tiles, columns, few, pair, rows)
    sch.unroll(pair)
    sch.unroll(rows)
    start = sch.decompose_reduction(block, blocks)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    _peeled(sch, tiles, rank)
    _in_scratch(sch, blocks, rank, fibre_block(count))


def _in_scratch(sch: s_tir.Schedule, blocks: LoopRV, rank: int, block: int) -> None:
    """Compute products of a block of fibres with some rows of the subspace, two (in an odd block one) at a time."""
    along = sch.get_sblock("along")
    sch.compute_at(along, blocks, preserve_unit_loops=True)
    sch.set_scope(along, 0, "local")
    _, few, row, term = sch.get_loops(along)
    fibres, pair = sch.split(few, [None, _pair(block)])
    tiles, rows = sch.split(row, [None, best_tile(rank, ROWS)])
    sch.reorder(fibres, tiles, term, pair, rows)
    sch.unroll(pair)
    sch.unroll(rows)
    start = sch.decompose_reduction(along, term)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    _peeled(sch, tiles, rank)


def _peeled(sch: s_tir.Schedule, tiles: LoopRV, rank: int) -> None:
    """Give rows after the last whole tile code of their own."""
    if rank % best_tile(rank, ROWS):
        sch.annotate(tiles, HINT, 1)


def _pair(extent: int) -> int:
    return 2 if extent % 2 == 0 else 1


@kernel("KeepSubspace")
def keep_subspace(node: Node, _context: KernelContext) -> KernelSpec:
    """Copy it."""
    u, new = tensors(node, "u", "new")
    return KernelSpec([u, new], [te.compute(u.shape, lambda i, j: new[i, j], "out")], plain)
