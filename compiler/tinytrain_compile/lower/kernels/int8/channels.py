"""Scores of channels, of integers."""

from __future__ import annotations

import math

from tvm import te

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, call, i32, kernel, reduce_axes, tensor, tensors, total
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.update import CHANNEL_TILE
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.names import operand


@kernel("QScoreChannels")
def qscore_channels(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute sums of squares in integers, then two products for each channel."""
    *rest, count = operand(node, "x").shape
    p, unit = tensors(node, "p", "unit")
    x = tensor(node, "x", (math.prod(rest), count))
    (k,) = reduce_axes(math.prod(rest))
    acc = te.compute((count,), lambda c: total(i32(x[k, c]) * i32(x[k, c]), [k]), "acc")
    factor = call("tt_exponent_factor", p[0] * i32(2))
    out = te.compute((count,), lambda c: acc[c].astype("float32") * factor * unit[c], "out")
    tiles = {0: best_tile(count, CHANNEL_TILE)}
    return KernelSpec([x, p, unit], [out], lambda sch: tile_reduction(sch, tiles))
