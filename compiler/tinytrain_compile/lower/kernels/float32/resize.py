"""Interpolation along an axis: a few neighbouring sums at a time."""

from __future__ import annotations

import math

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, kernel, reduce_axes, tensor, total
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.shape import SUM_TILE
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.names import attrs_of, operand
from tinytrain_compile.ops.resize import ResizeAttrs


@kernel("Resize")
def resize(node: Node, _context: KernelContext) -> KernelSpec:
    """Multiply each row of a table of weights by the elements from its place, which another table holds."""
    attrs = attrs_of(node, ResizeAttrs)
    shape = operand(node, "x").shape
    outer, inner = math.prod(shape[: attrs.axis]), math.prod(shape[attrs.axis + 1 :])
    x, first = tensor(node, "x", (outer, attrs.source, inner)), tensor(node, "first")
    weights = tensor(node, "weights")
    (k,) = reduce_axes(operand(node, "weights").shape[1])

    def element(o: Expr, i: Expr, j: Expr) -> Expr:
        return total(x[o, first[i] + k, j] * weights[i, k], [k])

    whole = (outer, attrs.target, inner)
    acc = te.compute(whole, element, "acc")
    out = te.compute(whole, lambda *index: acc[index], "out")
    return KernelSpec([x, first, weights], [out], lambda sch: tile_reduction(sch, {2: best_tile(inner, SUM_TILE)}))
