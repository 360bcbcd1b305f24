"""Squares of integer gradients, their total, and clipped rates."""

from __future__ import annotations

from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    address,
    call_int,
    channel_rows,
    f32,
    flat_tensor,
    i32,
    kernel,
    plain,
    reduce_axes,
    select,
    tensor,
    tensors,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.schedules import scalars
from tinytrain_compile.ops.clip import SquareTotalAttrs
from tinytrain_compile.ops.int8.clip import WORDS, square_limit
from tinytrain_compile.ops.names import attrs_of, operand


@kernel("QRowSquares")
def qrow_squares(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one channel at a time: both words of its sum."""
    channels, row = channel_rows(operand(node, "g"))
    g, (k,), limit = tensor(node, "g", (channels, row)), reduce_axes(row), i32(square_limit(row))

    def square(o: Expr, _one: Expr) -> Expr:
        return total(call_int("tt_limited_square", g[o, k], limit, dtype="int64"), [k])

    acc = te.compute((channels, 1), square, "acc")
    out = te.compute((channels, WORDS), lambda o, word: call_int("tt_word", acc[o, 0], i32(word)), "out")
    return KernelSpec([g], [out], _by_channel)


def _by_channel(sch: s_tir.Schedule) -> None:
    sums, (outer, words) = sch.get_sblock("acc"), sch.get_loops(sch.get_sblock("out"))
    sch.compute_at(sums, outer, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")
    sch.decompose_reduction(sums, sch.get_loops(sums)[1])
    sch.unroll(words)


@kernel("QSquareTotal")
def qsquare_total(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute one sum over channels, in their order."""
    attrs = attrs_of(node, SquareTotalAttrs)
    before, (rows, multiplier, shift, p) = flat_tensor(node, "total"), tensors(node, "rows", "multiplier", "shift", "p")
    (k,) = reduce_axes(operand(node, "shift").elements)
    exponent = i32(shift[k]) + p[0] * i32(2)
    term = call_int("tt_squares_of", address(rows, k, 0), multiplier[k], exponent, dtype="float32")
    acc = te.compute((1,), lambda _i: total(term, [k]), "acc")
    out = te.compute((1,), lambda i: acc[i] if attrs.fresh else before[i] + acc[i], "out")
    return KernelSpec([before, rows, multiplier, shift, p], [out], scalars("acc"))


@kernel("QClipRate")
def qclip_rate(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute pairs of multiplier and shift, of which the second is divided by the factor."""
    rate, factor = tensor(node, "rate"), flat_tensor(node, "factor")

    def number(i: Expr) -> Expr:
        first = i - tirx.indexmod(i, 2)
        by = select(tirx.EQ(first, 2), f32(1) / factor[0], factor[0])
        return call_int("tt_times", rate[first], rate[first + 1], by, tirx.indexmod(i, 2))

    return KernelSpec([rate, factor], [te.compute(rate.shape, number, "out")], plain)
