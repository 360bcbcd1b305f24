"""Comparisons, masks, the larger of two and the largest of many."""

from __future__ import annotations

from collections.abc import Callable

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, f32, kernel, reduce_axes, select, tensor
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.elementwise import broadcast
from tinytrain_compile.lower.kernels.float32.normalise import AxisGroups
from tinytrain_compile.lower.kernels.float32.shape import SUM_TILE, axis_groups
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.choice import ReduceMaxAttrs
from tinytrain_compile.ops.names import attrs_of, operand


def _byte(value: int) -> Expr:
    return tirx.const(value, "uint8")


def _enter(op: str, function: Callable[..., Expr]) -> None:
    kernel(op)(lambda node, _context: broadcast(node, function))


def _truth(test: Callable[..., Expr]) -> Callable[..., Expr]:
    return lambda *operands: select(test(*operands), _byte(1), _byte(0))


_enter("Greater", _truth(lambda a, b: a > b))
_enter("GreaterOrEqual", _truth(lambda a, b: a >= b))
_enter("Equal", _truth(lambda a, b: tirx.EQ(a, b)))
_enter("And", tirx.bitwise_and)
_enter("Or", _truth(lambda a, b: tirx.Or(tirx.NE(a, _byte(0)), tirx.NE(b, _byte(0)))))
_enter("Xor", _truth(lambda a, b: tirx.NE(a, b)))
_enter("Not", _truth(lambda x: tirx.EQ(x, _byte(0))))
_enter("Where", lambda condition, a, b: select(tirx.NE(condition, _byte(0)), a, b))


@kernel("ReduceMax")
def reduce_max(node: Node, _context: KernelContext) -> KernelSpec:
    """Compute a few neighbouring maxima at a time; the smallest element is the largest of the negated ones."""
    attrs = attrs_of(node, ReduceMaxAttrs)
    groups = axis_groups(operand(node, "x").shape, attrs.axes)
    kept = [extent for extent, inside in groups if not inside] or [1]
    summed = [extent for extent, inside in groups if inside] or [1]
    extents = [extent for extent, _ in groups] if any(inside for _, inside in groups) else [*kept, 1]
    inside = [flag for _, flag in groups] if any(flag for _, flag in groups) else [*[False] * len(kept), True]
    x = tensor(node, "x", extents)
    axes = reduce_axes(*summed)

    def term(*index: Expr) -> Expr:
        rest, inner = iter(index), iter(axes)
        value = x[tuple(next(inner) if flag else next(rest) for flag in inside)]
        return te.max(f32(0) - value if attrs.smallest else value, list(axes))

    acc = te.compute(tuple(kept), term, "acc")
    out = te.compute(tuple(kept), lambda *i: f32(0) - acc[i] if attrs.smallest else acc[i], "out")
    tiles = {len(kept) - 1: best_tile(kept[-1], SUM_TILE)}
    return KernelSpec([x], [out], lambda sch: tile_reduction(sch, tiles))


@kernel("ReduceMaxGrad")
def reduce_max_grad(node: Node, context: KernelContext) -> KernelSpec:
    """Count how many elements share a gradient, then compute their shares."""
    attrs = attrs_of(node, ReduceMaxAttrs)
    groups = AxisGroups(operand(node, "x").shape, attrs.axes)
    dy, x, y = tensor(node, "dy", groups.kept), tensor(node, "x", groups.shape), tensor(node, "y", groups.kept)
    ties = groups.sum("ties", lambda g, at: select(tirx.EQ(x[at], y[g]), f32(1), f32(0)))
    share = groups.scalar("share", lambda g: dy[g] / ties[g])
    top = groups.scalar("top", lambda g: y[g])
    out = groups.rewrite(lambda g, at: select(tirx.EQ(x[at], top[g]), share[g], f32(0)))
    return KernelSpec([dy, x, y], [out], lambda sch: groups.schedule(sch, context, ("ties",), ("share", "top")))
