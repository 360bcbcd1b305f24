"""Squares of a gradient by row, their total, and the factor that clips. Sums are made in the order of the operands."""

from __future__ import annotations

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    call,
    channel_rows,
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
from tinytrain_compile.lower.schedules import best_tile, scalars, tile_reduction
from tinytrain_compile.ops.clip import LARGEST, ClipAttrs, SquareTotalAttrs
from tinytrain_compile.ops.names import attrs_of, operand

ROW_TILE = 4
"""Rows that are summed together."""


@kernel("RowSquares")
def row_squares(node: Node, _context: KernelContext) -> KernelSpec:
    """Sum some rows at a time."""
    rows, length = channel_rows(operand(node, "g"))
    g = tensor(node, "g", (rows, length))
    if length == 1:
        return KernelSpec([g], [te.compute((rows,), lambda r: g[r, 0] * g[r, 0], "out")], plain)
    (k,) = reduce_axes(length)
    acc = te.compute((rows,), lambda r: total(g[r, k] * g[r, k], [k]), "acc")
    out = te.compute((rows,), lambda r: acc[r], "out")
    return KernelSpec([g], [out], lambda sch: tile_reduction(sch, {0: best_tile(rows, ROW_TILE)}))


@kernel("SquareTotal")
def square_total(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one sum."""
    attrs = attrs_of(node, SquareTotalAttrs)
    before, rows = flat_tensor(node, "total"), tensor(node, "rows")
    (k,) = reduce_axes(operand(node, "rows").elements)
    acc = te.compute((1,), lambda _i: total(rows[k], [k]), "acc")
    out = te.compute((1,), lambda i: acc[i] if attrs.fresh else before[i] + acc[i], "out")
    return KernelSpec([before, rows], [out], scalars("acc"))


@kernel("ClipFactor")
def clip_factor(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one number; NaN and infinity do not pass."""
    attrs = attrs_of(node, ClipAttrs)
    squares = flat_tensor(node, "squares")
    scale = flat_tensor(node, "scale") if attrs.scaled else None

    def factor(i: Expr) -> Expr:
        root = call("tt_sqrtf", squares[i])
        norm = root if scale is None else root * scale[i]
        clipped = select(norm > f32(attrs.norm), f32(attrs.norm) / norm, f32(1))
        return select(squares[i] <= f32(LARGEST), clipped, f32(0))

    return KernelSpec([squares] if scale is None else [squares, scale], [te.compute((1,), factor, "out")], plain)
