"""Looking up rows of a table."""

from __future__ import annotations

import math

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    f32,
    flat_tensor,
    kernel,
    plain,
    reduce_axes,
    select,
    tensor,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.shape import SUM_TILE
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.embedding import GatherAttrs
from tinytrain_compile.ops.names import attrs_of, operand


def row_of(index: Expr, rows: int) -> Expr:
    """Return the row for an index, clamped to the table."""
    return tirx.max(tirx.min(index, tirx.const(rows - 1, "int32")), tirx.const(0, "int32"))


@kernel("Gather")
def gather(node: Node, _context: KernelContext) -> KernelSpec:
    """Copy one row after the other."""
    rows, *rest = operand(node, "table").shape
    places, width = operand(node, "index").elements, math.prod(rest)
    table, index = tensor(node, "table", (rows, width)), flat_tensor(node, "index")
    out = te.compute((places, width), lambda i, j: table[row_of(index[i], rows), j], "out")
    return KernelSpec([table, index], [out], plain)


@kernel("GatherGrad")
def gather_grad(node: Node, _context: KernelContext) -> KernelSpec:
    """Sum, for every row, the gradients at the places that have its index, in their order."""
    attrs = attrs_of(node, GatherAttrs)
    places = operand(node, "index").elements
    width = operand(node, "dy").elements // places
    dy, index = tensor(node, "dy", (places, width)), flat_tensor(node, "index")
    (k,) = reduce_axes(places)

    def term(row: Expr, j: Expr) -> Expr:
        mine = tirx.EQ(row_of(index[k], attrs.rows), row)
        return total(select(mine, dy[k, j], f32(0)), [k])

    acc = te.compute((attrs.rows, width), term, "acc")
    out = te.compute((attrs.rows, width), lambda *i: acc[i], "out")
    return KernelSpec([dy, index], [out], lambda sch: tile_reduction(sch, {1: best_tile(width, SUM_TILE)}))
