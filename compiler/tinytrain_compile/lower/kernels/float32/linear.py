"""Matrix products as register-tiled loops. One rule serves dense layers, their gradients and 1x1 convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tvm import s_tir, te, tirx

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import Features, KernelSpec, kernel, reduce_axes, total
from tinytrain_compile.lower.kernels.float32.lane_tiles import lane_tiles
from tinytrain_compile.lower.kernels.tensors import tensor, tensors, weight_parts
from tinytrain_compile.lower.printing.int_lanes import LANES
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.base import Split
from tinytrain_compile.ops.linear import GemmAttrs, MatMulAttrs, runs
from tinytrain_compile.ops.names import operand, result


class Elements(Protocol):
    """A tensor, or anything that is read like one."""

    @property
    def shape(self) -> Any:
        """Extents of its axes."""
        ...

    def __getitem__(self, index: Any, /) -> Any:
        """The element at an index."""
        ...


Load = Callable[..., Any]
"""index expressions -> element expression"""
Finish = Callable[..., Any]
"""(a finished sum, the indices of its output element) -> output element"""
PAIR = 2
"""Terms in a turn of a sum that reads pairs."""
Schedule = Callable[[s_tir.Schedule], None]


def whole_weight(parts: Sequence[te.Tensor], split: Split | None, out_axis: int, in_axis: int) -> Load:
    """Access to a weight by its own indices, whether it lies in one part or in two (see Split)."""
    first = parts[0]
    if split is None:
        return lambda *index: first[index]
    axis = out_axis if split.axis == "out" else in_axis
    pieces: list[tuple[int, te.Tensor, int]] = []  # (end of the run, the part it lies in, channel -> index offset)
    for part, channels in ((parts[0], split.channels), (parts[1], split.rest)):
        done = 0
        for start, count in runs(channels):
            pieces.append((start + count, part, done - start))
            done += count
    pieces.sort(key=lambda piece: piece[0])

    def load(*index: Any) -> Any:
        def element(part: te.Tensor, offset: int) -> Any:
            return part[(*index[:axis], index[axis] + offset, *index[axis + 1 :])]

        _, part, offset = pieces[-1]
        value = element(part, offset)
        for end, part, offset in reversed(pieces[:-1]):
            value = tirx.if_then_else(index[axis] < end, element(part, offset), value)
        return value

    return load


def matrix_product(
    inputs: Sequence[te.Tensor],
    extents: tuple[int, int, int],
    left: Load,
    right: Load,
    features: Features,
    bias: te.Tensor | None = None,
    peel: bool = False,
    long: int | None = None,
    apart: tuple[bool, bool] = (False, False),
) -> KernelSpec:
    """out[m,n] = sum_k left(m,k) right(k,n) + bias[n] in register tiles; extents (m, n, k).

    long: the axis (0 or 1) along which a factor's elements are neighbours in memory, if one is to be cut in long tiles.
    apart: see lane_tiles; such a factor's elements are neighbours along the sum.
    """
    m, n, k = extents
    (axis,) = reduce_axes(k)
    acc = te.compute((m, n), lambda i, j: total(left(i, axis) * right(axis, j), [axis]), "acc")
    finish = add_bias(bias)
    out = te.compute((m, n), lambda i, j: finish(acc[i, j], i, j), "out")
    if features.float_lanes and not peel and max(m, n) >= LANES:
        tile, lanes = lane_tiles((m, n), features, apart)
        return KernelSpec(inputs, [out], lambda sch: tile_reduction(sch, dict(enumerate(tile)), lanes=lanes))
    if features.pairs and not peel and any(apart):
        tiles, turn = dict(enumerate(paired_tile(m, n, features))), PAIR
    else:
        tiles, turn = product_tiles(m, n, features, long), 1
    turn = max(turn, vector_turn(m, n, tiles, features))
    return KernelSpec(inputs, [out], lambda sch: tile_reduction(sch, tiles, peel_reduction=peel, turn=turn))


def paired_tile(m: int, n: int, features: Features) -> tuple[int, int]:
    """Tile of m rows and n columns where a factor is read in pairs along the sum, in turns of two terms.

    Of the 32 registers of an FPU, the pairs of one side and one of the other leave room for 20 sums.
    """
    rows = best_tile(m, features.paired_tile[0])
    return rows, best_tile(n, features.paired_tile[1] - max(0, rows - features.paired_tile[0]))


def product_tiles(m: int, n: int, features: Features, long: int | None, first: int = 0) -> dict[int, int]:
    """Tiles of the axes `first` and the next one, of m rows and n columns; long: see matrix_product."""
    wanted = features.wide_tile if long == 0 else features.tile
    if long == 0 and features.pairs and n < wanted[1]:
        wanted = (min(math.prod(wanted) // n, 16), n)
    tile = [best_tile(extent, size) for extent, size in zip((m, n), wanted, strict=True)]
    if long is not None and features.ragged and 1 < tile[1 - long] <= min(wanted):
        tile[long] = best_tile((m, n)[long], wanted[long], ragged=True)
    return {first: tile[0], first + 1: tile[1]}


def vector_turn(m: int, n: int, tiles: Mapping[int, int], features: Features) -> int:
    """Terms of a sum in a turn of the innermost loop: several where one factor is a vector, whose tiles are small."""
    return features.style.vector_terms // math.prod(tiles.values()) if min(m, n) == 1 and features.fpu else 1


def add_bias(bias: te.Tensor | None) -> Finish:
    """The sum plus the bias of its channel (the last index)."""

    def finish(acc: Any, *index: Any) -> Any:
        return acc if bias is None else acc + bias[index[-1]]

    return finish


@kernel("Gemm")
def gemm(node: Node, features: Features) -> KernelSpec:
    """y = x w^T + bias."""
    attrs = node.attrs
    assert isinstance(attrs, GemmAttrs)
    x, weights, b = tensor(node, "x"), weight_parts(node), [tensor(node, "bias")] if attrs.bias else []
    w = whole_weight(weights, attrs.split, 0, 1)
    m, k = operand(node, "x").shape
    extents = (m, result(node, "y").shape[1], k)
    return matrix_product(
        [x, *weights, *b],
        extents,
        lambda i, a: x[i, a],
        lambda a, j: w(j, a),
        features,
        b[0] if b else None,
        attrs.split is not None,
        apart=(True, True),
    )


@kernel("GemmGradInput")
def gemm_grad_input(node: Node, features: Features) -> KernelSpec:
    """dx = dy w."""
    attrs = node.attrs
    assert isinstance(attrs, GemmAttrs)
    dy, weights = tensor(node, "dy"), weight_parts(node)
    w = whole_weight(weights, attrs.split, 0, 1)
    m, n = operand(node, "dy").shape
    extents = (m, result(node, "dx").shape[1], n)
    peel = attrs.split is not None
    return matrix_product(
        [dy, *weights],
        extents,
        lambda i, a: dy[i, a],
        lambda a, j: w(a, j),
        features,
        peel=peel,
        long=1,
        apart=(True, False),
    )


@kernel("GemmGradWeight")
def gemm_grad_weight(node: Node, features: Features) -> KernelSpec:
    """dw = dy^T x."""
    x, dy = tensors(node, "x", "dy")
    n, k = result(node, "dw").shape
    extents = (n, k, operand(node, "x").shape[0])
    return matrix_product([x, dy], extents, lambda i, a: dy[a, i], lambda a, j: x[a, j], features, long=0)


@kernel("MatMul")
def matmul(node: Node, features: Features) -> KernelSpec:
    """Batched product; the batch axes are merged into one outer loop."""
    attrs = node.attrs
    assert isinstance(attrs, MatMulAttrs)
    *batch, m, n = result(node, "y").shape
    count = 1
    for extent in batch:
        count *= extent
    a_shape = operand(node, "a").shape[-2:]
    a = tensor(node, "a", (count, *a_shape))
    b = tensor(node, "b", (count, *operand(node, "b").shape[-2:]))
    (k,) = reduce_axes(a_shape[0] if attrs.transpose_a else a_shape[1])

    def term(g: Any, i: Any, j: Any) -> Any:
        left = a[g, k, i] if attrs.transpose_a else a[g, i, k]
        right = b[g, j, k] if attrs.transpose_b else b[g, k, j]
        return total(left * right, [k])

    acc = te.compute((count, m, n), term, "acc")
    out = te.compute((count, m, n), lambda *i: acc(*i), "out")
    if features.float_lanes and max(m, n) >= LANES:
        (rows, columns), lanes = lane_tiles((m, n), features, (not attrs.transpose_a, attrs.transpose_b))
        return KernelSpec([a, b], [out], lambda sch: tile_reduction(sch, {1: rows, 2: columns}, lanes=1 + lanes))
    tiles, turn = product_tiles(m, n, features, None if attrs.transpose_b else 1, first=1), 1
    if features.pairs and (attrs.transpose_b or not attrs.transpose_a):
        tiles, turn = dict(enumerate(paired_tile(m, n, features), 1)), PAIR
    return KernelSpec([a, b], [out], lambda sch: tile_reduction(sch, tiles, turn=turn))
