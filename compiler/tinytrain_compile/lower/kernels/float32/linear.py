"""Matrix products as register-tiled loops. One rule serves dense layers, their gradients and 1x1 convolutions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Finish,
    KernelSpec,
    Load,
    Schedule,
    kernel,
    peels,
    reduce_axes,
    tensor,
    tensors,
    total,
    weight_parts,
    whole_weight,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.vector_tiles import vector_tiles
from tinytrain_compile.lower.schedules import best_tile, tile_elements, tile_reduction
from tinytrain_compile.ops.linear import GEMM_GRAD_WEIGHT, GemmAttrs, MatMulAttrs
from tinytrain_compile.ops.names import attrs_of, operand, result

PAIR_TERMS = 2
"""Terms in a turn of a sum that reads pairs."""
ONE_SAMPLE_TILE = (8, 4)
"""Tile (rows, columns) of the weight gradient of one sample, in pairs along a row."""


def matrix_product(
    inputs: Sequence[te.Tensor],
    extents: tuple[int, int, int],
    left: Load,
    right: Load,
    context: KernelContext,
    bias: te.Tensor | None = None,
    peel: bool = False,
    long: int | None = None,
    apart: tuple[bool, bool] = (False, False),
) -> KernelSpec:
    """Compute out[m,n] = sum_k left(m,k) right(k,n) + bias[n] in register tiles; extents (m, n, k).

    long: the axis (0 or 1) along which a factor's elements are neighbours in memory, if one is to be cut in long tiles.
    apart: see vector_tiles; such a factor's elements are neighbours along the sum.
    """
    m, n, k = extents
    (axis,) = reduce_axes(k)
    acc = te.compute((m, n), lambda i, j: total(left(i, axis) * right(axis, j), [axis]), "acc")
    finish = add_bias(bias)
    out = te.compute((m, n), lambda i, j: finish(acc[i, j], i, j), "out")
    lanes = context.uses_float_vectors and not peel and max(m, n) >= LANES
    return KernelSpec(inputs, [out], product_schedule((m, n), context, lanes, peel, long, apart))


def product_schedule(
    extents: tuple[int, int],
    context: KernelContext,
    vectors: bool,
    peel: bool = False,
    long: int | None = None,
    apart: tuple[bool, bool] = (False, False),
    first: int = 0,
) -> Schedule:
    """Return the schedule of a product whose axes `first` and the next one have m rows and n columns; vectors: whether
    it uses vectors."""
    m, n = extents
    if vectors:
        tile, lanes = vector_tiles(extents, context, apart)
        return lambda sch: tile_reduction(sch, dict(enumerate(tile, first)), lanes=first + lanes)
    if context.uses_float_pairs and not peel and any(apart):
        tiles, turn = dict(enumerate(paired_tile(m, n, context), first)), PAIR_TERMS
    else:
        tiles, turn = product_tiles(m, n, context, long, first), 1
    turn = max(turn, vector_turn(m, n, tiles, context))
    return lambda sch: tile_reduction(sch, tiles, peel_reduction=peel, turn=turn)


def paired_tile(m: int, n: int, context: KernelContext) -> tuple[int, int]:
    """Return the tile of m rows and n columns for a factor read in pairs along the sum, in turns of two terms.

    Of an FPU's 32 registers, 20 remain for sums besides the pairs of one side and one pair of the other.
    """
    rows = best_tile(m, context.paired_tile[0])
    return rows, best_tile(n, context.paired_tile[1] - max(0, rows - context.paired_tile[0]))


def product_tiles(m: int, n: int, context: KernelContext, long: int | None, first: int = 0) -> dict[int, int]:
    """Return the tiles of the axes `first` and the next one, of m rows and n columns; long: see matrix_product."""
    wanted = context.wide_tile if long == 0 else context.tile
    if long == 0 and context.uses_float_pairs and n < wanted[1]:
        wanted = (min(math.prod(wanted) // n, 16), n)
    tile = [best_tile(extent, size) for extent, size in zip((m, n), wanted, strict=True)]
    if long is not None and context.ragged and 1 < tile[1 - long] <= min(wanted):
        tile[long] = best_tile((m, n)[long], wanted[long], ragged=True)
    return {first: tile[0], first + 1: tile[1]}


def vector_turn(m: int, n: int, tiles: Mapping[int, int], context: KernelContext) -> int:
    """Return the terms of a sum per turn of the innermost loop: several if a factor is a vector, as tiles are small."""
    return context.style.vector_terms // math.prod(tiles.values()) if min(m, n) == 1 and context.isa.fpu else 1


def add_bias(bias: te.Tensor | None) -> Finish:
    """Return the sum plus the bias of its channel (the last index)."""

    def finish(acc: Expr, *index: Expr) -> Expr:
        return acc if bias is None else acc + bias[index[-1]]

    return finish


@kernel("Gemm")
def gemm(node: Node, context: KernelContext) -> KernelSpec:
    """Compute y = x w^T + bias."""
    attrs = attrs_of(node, GemmAttrs)
    x, weights, b = tensor(node, "x"), weight_parts(node), [tensor(node, "bias")] if attrs.bias else []
    w = whole_weight(weights, attrs.split, 0, 1)
    m, k = operand(node, "x").shape
    extents = (m, result(node, "y").shape[1], k)
    return matrix_product(
        [x, *weights, *b],
        extents,
        lambda i, a: x[i, a],
        lambda a, j: w(j, a),
        context,
        b[0] if b else None,
        peels(attrs.split),
        apart=(True, True),
    )


@kernel("GemmGradInput")
def gemm_grad_input(node: Node, context: KernelContext) -> KernelSpec:
    """Compute dx = dy w."""
    attrs = attrs_of(node, GemmAttrs)
    dy, weights = tensor(node, "dy"), weight_parts(node)
    w = whole_weight(weights, attrs.split, 0, 1)
    m, n = operand(node, "dy").shape
    extents = (m, result(node, "dx").shape[1], n)
    peel = peels(attrs.split)
    return matrix_product(
        [dy, *weights],
        extents,
        lambda i, a: dy[i, a],
        lambda a, j: w(a, j),
        context,
        peel=peel,
        long=1,
        apart=(True, False),
    )


@kernel("GemmGradWeight")
def gemm_grad_weight(node: Node, context: KernelContext) -> KernelSpec:
    """Compute dw = dy^T x."""
    x, dy = tensors(node, "x", "dy")
    n, k = result(node, "dw").shape
    extents = (n, k, operand(node, "x").shape[0])
    if of_one_sample(node):
        return _outer_product(x, dy, (n, k), context)
    return matrix_product([x, dy], extents, lambda i, a: dy[a, i], lambda a, j: x[a, j], context, long=0)


def of_one_sample(node: Node) -> bool:
    """Tell whether this is a dense layer's weight gradient whose elements are products, not sums."""
    return node.op == GEMM_GRAD_WEIGHT.name and operand(node, "x").shape[0] == 1


def _outer_product(x: te.Tensor, dy: te.Tensor, extents: tuple[int, int], context: KernelContext) -> KernelSpec:
    """Compute out[n,k] = dy[0,n] x[0,k] in tiles. No sum keeps it, so what uses an element multiplies by itself.

    The product is a helper's: an update adds it after it was rounded, as it adds a stored gradient.
    """
    acc = te.compute(extents, lambda i, j: tirx.call_extern("float32", "tt_rounded_product", dy[0, i], x[0, j]), "acc")
    out = te.compute(extents, lambda i, j: acc[i, j], "out")
    if context.uses_float_vectors and max(extents) >= LANES:
        tile, lanes = vector_tiles(extents, context, (False, False))
        return KernelSpec([x, dy], [out], lambda sch: tile_elements(sch, dict(enumerate(tile)), lanes=lanes))
    tiles = product_tiles(*extents, context, None)
    if context.uses_float_pairs:
        rows, columns = ONE_SAMPLE_TILE
        tiles = {0: best_tile(extents[0], rows), 1: min(columns, extents[1])}
    return KernelSpec([x, dy], [out], lambda sch: tile_elements(sch, tiles))


@kernel("MatMul")
def matmul(node: Node, context: KernelContext) -> KernelSpec:
    """Compute a batched product; the batch axes are merged into one outer loop."""
    attrs = attrs_of(node, MatMulAttrs)
    *batch, m, n = result(node, "y").shape
    count = 1
    for extent in batch:
        count *= extent
    a_shape = operand(node, "a").shape[-2:]
    a = tensor(node, "a", (count, *a_shape))
    b = tensor(node, "b", (count, *operand(node, "b").shape[-2:]))
    (k,) = reduce_axes(a_shape[0] if attrs.transpose_a else a_shape[1])

    def term(g: Expr, i: Expr, j: Expr) -> Expr:
        left = a[g, k, i] if attrs.transpose_a else a[g, i, k]
        right = b[g, j, k] if attrs.transpose_b else b[g, k, j]
        return total(left * right, [k])

    acc = te.compute((count, m, n), term, "acc")
    out = te.compute((count, m, n), lambda *i: acc(*i), "out")
    if context.uses_float_vectors and max(m, n) >= LANES:
        (rows, columns), lanes = vector_tiles((m, n), context, (not attrs.transpose_a, attrs.transpose_b))
        return KernelSpec([a, b], [out], lambda sch: tile_reduction(sch, {1: rows, 2: columns}, lanes=1 + lanes))
    tiles, turn = product_tiles(m, n, context, None if attrs.transpose_b else 1, first=1), 1
    if context.uses_float_pairs and (attrs.transpose_b or not attrs.transpose_a):
        tiles, turn = dict(enumerate(paired_tile(m, n, context), 1)), PAIR_TERMS
    return KernelSpec([a, b], [out], lambda sch: tile_reduction(sch, tiles, turn=turn))
