"""Channels that a table chooses: cut out of a tensor, and scored."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import te, tirx
from tvm.ir import Var

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, kernel, plain, reduce_axes, tensor, tensors, total
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.shape import SUM_TILE
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.channels import TakeAttrs
from tinytrain_compile.ops.names import attrs_of, operand


@kernel("TakeChannels")
def take_channels(node: Node, _context: KernelContext) -> KernelSpec:
    """Move one channel after the other, looking up its place once. No place is outside the result."""
    attrs, value = attrs_of(node, TakeAttrs), operand(node, "x")
    *rest, count = value.shape
    rows = math.prod(rest)
    x, (place,) = tensor(node, "x", (rows, count)), tensors(node, "place")

    def copies(sources: Sequence[tirx.Buffer], targets: Sequence[tirx.Buffer]) -> tirx.Stmt:
        (data, places), (taken,) = sources, targets
        channel, row = Var("channel", "int32"), Var("row", "int32")
        to = tirx.min(places[(channel,)], tirx.const(attrs.count - 1, "int32"))
        copy = tirx.For(row, 0, rows, tirx.ForKind.SERIAL, tirx.BufferStore(taken, data[(row, channel)], [row, to]))
        chosen = tirx.IfThenElse(places[(channel,)] >= 0, copy, None)
        return tirx.For(channel, 0, count, tirx.ForKind.SERIAL, chosen)

    buffers = [tirx.decl_buffer(t.shape, t.dtype, t.op.name) for t in (x, place)]
    y = tirx.decl_buffer((rows, attrs.count), value.dtype, "y")
    out = te.extern([y.shape], [x, place], copies, "out", in_buffers=buffers, out_buffers=[y], dtype=value.dtype)
    return KernelSpec([x, place], [out], plain)


@kernel("ScoreChannels")
def score_channels(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute sums of squares of a few neighbours at a time."""
    *rest, count = operand(node, "x").shape
    x, (k,) = tensor(node, "x", (math.prod(rest), count)), reduce_axes(math.prod(rest))
    acc = te.compute((count,), lambda c: total(x[k, c] * x[k, c], [k]), "acc")
    out = te.compute((count,), lambda c: acc[c], "out")
    return KernelSpec([x], [out], lambda sch: tile_reduction(sch, {0: best_tile(count, SUM_TILE)}))


@kernel("AddScores")
def add_scores(node: Node, _context: KernelContext) -> KernelSpec:
    """Add one number per channel."""
    scores, more = tensors(node, "scores", "more")
    return KernelSpec([scores, more], [te.compute(scores.shape, lambda c: scores[c] + more[c], "out")], plain)
