"""Softmax and normalisation: per group a few sums in registers, then one pass that rewrites the group.

Every sum over a group is finished before the group's first element is written, and element i is read before it is
written. The in-place declarations in ops/normalise.py promise that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import s_tir, te
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV
from tvm.tirx import IterVar

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import KernelSpec, call, f32, kernel, reduce_axes, tensor, total
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.shape import axis_groups
from tinytrain_compile.lower.schedules import four_at_a_time
from tinytrain_compile.ops.names import attrs_of, operand
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs

_TWO = te.comm_reducer(lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda _a, _b: (f32(0), f32(0)), "two_sums")
"""Sum up two terms together."""


class AxisGroups:
    """A tensor as groups of elements: which loops run over groups (kept) and which inside one (summed)."""

    def __init__(self, shape: Sequence[int], axes: Sequence[int]) -> None:
        self._groups = axis_groups(shape, axes)
        self.kept = tuple(extent for extent, inside in self._groups if not inside) or (1,)
        self.summed = tuple(extent for extent, inside in self._groups if inside) or (1,)
        self.count = math.prod(self.summed)
        if all(inside for _, inside in self._groups):
            self._groups.insert(0, (1, False))
        if not any(inside for _, inside in self._groups):
            self._groups.append((1, True))
        self.shape = tuple(extent for extent, _ in self._groups)

    def index(self, kept: Sequence[Expr], summed: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the indices of the grouped tensor from indices of the group and of the element in it."""
        outer, inner = iter(kept), iter(summed)
        return tuple(next(inner) if inside else next(outer) for _, inside in self._groups)

    def outer(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the group's indices from indices of the grouped tensor."""
        return tuple(i for i, (_, inside) in zip(index, self._groups, strict=True) if not inside)

    def sum(self, name: str, term: Callable[..., Expr], reducer: Callable[..., Expr] = total) -> te.Tensor:
        """Return one sum per group of term(group's indices, index of the grouped tensor)."""
        axes = reduce_axes(*self.summed, prefix=f"{name}_k")
        return te.compute(self.kept, lambda *kept: reducer(term(kept, self.index(kept, axes)), axes), name)

    def two_sums(self, name: str, terms: Callable[..., tuple[Expr, Expr]]) -> tuple[te.Tensor, te.Tensor]:
        """Return two sums per group that one pass makes."""
        axes = reduce_axes(*self.summed, prefix=f"{name}_k")
        one, other = te.compute(self.kept, lambda *kept: _TWO(terms(kept, self.index(kept, axes)), axes), name)
        return one, other

    def scalar(self, name: str, value: Callable[..., Expr]) -> te.Tensor:
        """Return one number per group: value(group's indices)."""
        return te.compute(self.kept, lambda *kept: value(kept), name)

    def rewrite(self, value: Callable[..., Expr]) -> te.Tensor:
        """Return the output: value(group's indices, index of the grouped tensor)."""
        return te.compute(self.shape, lambda *index: value(self.outer(index), index), "out")

    def schedule(
        self, sch: s_tir.Schedule, context: KernelContext, sums: Sequence[str], scalars: Sequence[str] = ()
    ) -> None:
        """Put groups outside, elements inside; before a group's elements, its sums and then its scalars in
        registers."""
        loops = sch.get_loops(sch.get_sblock("out"))
        inside = [summed for _, summed in self._groups]
        outer = [loop for loop, summed in zip(loops, inside, strict=True) if not summed]
        sch.reorder(*outer, *[loop for loop, summed in zip(loops, inside, strict=True) if summed])
        self._attach(sch, outer[-1], sums, scalars)
        self.rewrite_on_lanes(sch, context)

    def rewrite_on_lanes(self, sch: s_tir.Schedule, context: KernelContext) -> None:
        """Rewrite neighbours in a group four at a time, if there are vectors."""
        if context.uses_float_vectors and self._groups[-1][1] and self.shape[-1] >= LANES:
            four_at_a_time(sch, most=1)

    def schedule_at(self, sch: s_tir.Schedule, anchor: str, sums: Sequence[str]) -> None:
        """Schedule as `schedule` does, inside the loops of `anchor`, a per-group statistic that is itself an output of
        the kernel."""
        last = sch.get_loops(sch.get_sblock(anchor))[-1]
        sch.reverse_compute_at(sch.get_sblock("out"), last, preserve_unit_loops=True)
        self._attach(sch, last, sums, ())

    def _attach(self, sch: s_tir.Schedule, loop: LoopRV, sums: Sequence[str], scalars: Sequence[str]) -> None:
        for name in reversed((*sums, *scalars)):
            block = sch.get_sblock(name)
            sch.compute_at(block, loop, preserve_unit_loops=True)
            for index in range(len(sch.get(block).writes)):
                sch.set_scope(block, index, "local")
            if name in sums:
                sch.decompose_reduction(block, sch.get_loops(block)[-len(self.summed)])


def _max(term: Expr, axes: Sequence[IterVar]) -> Expr:
    return te.max(term, list(axes))


def _axis_groups(node: Node) -> AxisGroups:
    attrs = attrs_of(node, AxisAttrs)
    return AxisGroups(node.outputs[0].shape, (attrs.axis,))


@kernel("Softmax", "LogSoftmax")
def softmax(node: Node, context: KernelContext) -> KernelSpec:
    """Compute the maximum, sum of exponentials, result: exp is computed twice rather than kept."""
    groups = _axis_groups(node)
    x = tensor(node, "x", groups.shape)
    top = groups.sum("top", lambda _g, at: x[at], _max)
    mass = groups.sum("mass", lambda g, at: call("tt_expf", x[at] - top[g]))
    if node.op == "Softmax":
        rest = groups.scalar("rest", lambda g: f32(1) / mass[g])
        out = groups.rewrite(lambda g, at: call("tt_expf", x[at] - top[g]) * rest[g])
    else:
        rest = groups.scalar("rest", lambda g: call("tt_logf", mass[g]))
        out = groups.rewrite(lambda g, at: (x[at] - top[g]) - rest[g])
    return KernelSpec([x], [out], lambda sch: groups.schedule(sch, context, ("top", "mass"), ("rest",)))


@kernel("SoftmaxGrad", "LogSoftmaxGrad")
def softmax_grad(node: Node, context: KernelContext) -> KernelSpec:
    """Compute one sum per group, then the result."""
    groups = _axis_groups(node)
    dy, y = tensor(node, "dy", groups.shape), tensor(node, "y", groups.shape)
    if node.op == "SoftmaxGrad":
        mean = groups.sum("mean", lambda _g, at: dy[at] * y[at])
        out = groups.rewrite(lambda g, at: y[at] * (dy[at] - mean[g]))
    else:
        mean = groups.sum("mean", lambda _g, at: dy[at])
        out = groups.rewrite(lambda g, at: dy[at] - call("tt_expf", y[at]) * mean[g])
    return KernelSpec([dy, y], [out], lambda sch: groups.schedule(sch, context, ("mean",)))


@kernel("Normalize")
def normalize(node: Node, context: KernelContext) -> KernelSpec:
    """Compute the mean, variance around it, then the normalised group; two passes, since cancellation would lose
    digits."""
    attrs = attrs_of(node, NormalizeAttrs)
    groups = AxisGroups(operand(node, "x").shape, attrs.axes)
    x = tensor(node, "x", groups.shape)
    share = f32(1.0 / groups.count)
    whole = groups.sum("whole", lambda _g, at: x[at])
    spread = groups.sum("spread", lambda g, at: _square(x[at] - whole[g] * share))

    def statistics(*g: Expr) -> tuple[Expr, Expr]:
        return whole[g] * share, f32(1) / call("tt_sqrtf", spread[g] * share + f32(attrs.epsilon))

    mean, rstd = te.compute(groups.kept, statistics, "group")  # one loop nest, blocks group_v0 and group_v1
    out = groups.rewrite(lambda g, at: (x[at] - mean[g]) * rstd[g])

    def schedule(sch: s_tir.Schedule) -> None:
        groups.schedule_at(sch, "group_v1", ("whole", "spread"))
        sch.set_scope(sch.get_sblock("group_v0"), 0, "local")
        groups.rewrite_on_lanes(sch, context)

    return KernelSpec([x], [out, rstd], schedule)


def _square(x: Expr) -> Expr:
    return x * x


@kernel("NormalizeGrad")
def normalize_grad(node: Node, context: KernelContext) -> KernelSpec:
    """Compute two means per group, then the result."""
    attrs = attrs_of(node, NormalizeAttrs)
    groups = AxisGroups(operand(node, "xhat").shape, attrs.axes)
    dy, xhat = tensor(node, "dxhat", groups.shape), tensor(node, "xhat", groups.shape)
    rstd = tensor(node, "rstd", groups.kept)
    share = f32(1.0 / groups.count)
    apart = context.uses_float_vectors  # a sum on lanes has a loop of its own
    if apart:
        total_dy = groups.sum("whole", lambda _g, at: dy[at])
        total_slope = groups.sum("slope", lambda _g, at: dy[at] * xhat[at])
    else:
        total_dy, total_slope = groups.two_sums("sums", lambda _g, at: (dy[at], dy[at] * xhat[at]))
    mean = groups.scalar("mean", lambda g: total_dy[g] * share)
    minus_slope = groups.scalar("minus_slope", lambda g: total_slope[g] * f32(-1.0 / groups.count))
    out = groups.rewrite(lambda g, at: rstd[g] * ((dy[at] - mean[g]) + xhat[at] * minus_slope[g]))
    sums, means = ("whole", "slope") if apart else ("sums",), ("mean", "minus_slope")
    return KernelSpec([dy, xhat, rstd], [out], lambda sch: groups.schedule(sch, context, sums, means))
