"""Optimizer steps: one loop over the parameter, which is overwritten in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Attrs, Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Finish,
    KernelSpec,
    Load,
    call,
    f32,
    flat_tensor,
    kernel,
    plain,
    select,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.schedules import four_at_a_time
from tinytrain_compile.ops.names import Named, named, operands
from tinytrain_compile.ops.update import AdamAttrs, AdaptiveAttrs, SetAttrs, SgdAttrs

Results = Sequence[te.Tensor | None]
"""What an update makes, as its op lists it: the weight first, which is computed last. None: a helper writes it."""
UpdateRule = Callable[[str, Any, Named[te.Tensor], Load, Finish], Results]
"""(op, attributes, operands but the gradient, the gradient's element at an index, what ends the computation of a
weight) -> results."""
UPDATES: dict[str, UpdateRule] = {}
ON_VECTORS = ("Accumulate", "Clear", "SgdUpdate", "MomentumUpdate")
"""Those without roots and quotients, for which there are no vectors."""


def _update(*ops: str) -> Callable[[UpdateRule], UpdateRule]:
    """Enter a rule as what these ops compute, and as their kernels."""

    def enter(rule: UpdateRule) -> UpdateRule:
        for op in ops:
            UPDATES[op] = rule
            kernel(op)(_from_stored)
        return rule

    return enter


def _from_stored(node: Node, context: KernelContext) -> KernelSpec:
    """All that an update makes in one loop over the elements of a stored gradient."""
    inputs = named(node.op, [flat_tensor(node, name) for name in operands(node)], node.attrs)
    g = inputs["g"]
    results = UPDATES[node.op](node.op, node.attrs, inputs, lambda *i: g[i], as_it_is)
    return KernelSpec([*inputs.values()], results, _schedule(node, context, *stages(results)))


def as_it_is(weight: Expr, *_index: Expr) -> Expr:
    """The end of a weight that is stored and nothing else."""
    return weight


def stages(results: Results) -> list[str]:
    """Names of what an update computes, in this order."""
    return [str(result.op.name) for result in (*results[1:], results[0]) if result is not None]


def _gradient(w: Expr, g: Expr, scale: te.Tensor | None, decay: float) -> Expr:
    g = g if scale is None else g * scale[0]
    return g + f32(decay) * w if decay else g


def _blend(old: Expr, share: float, new: Expr) -> Expr:
    return f32(share) * old + new if share else new


@_update("SgdUpdate")
def sgd(_op: str, attrs: SgdAttrs, inputs: Named[te.Tensor], g: Load, end: Finish) -> Results:
    """w -= rate (g + decay w)."""
    w, rate, scale = inputs["w"], inputs["rate"], inputs.get("scale")

    def weight(*i: Expr) -> Expr:
        return end(w[i] - rate[0] * _gradient(w[i], g(*i), scale, attrs.weight_decay), *i)

    return [te.compute(w.shape, weight, "out")]


@_update("MomentumUpdate")
def momentum(_op: str, attrs: SgdAttrs, inputs: Named[te.Tensor], g: Load, end: Finish) -> Results:
    """v = momentum v + g; w -= rate v (v is stored first, then read back)."""
    w, v, rate, scale, gain = inputs["w"], inputs["v"], inputs["rate"], inputs.get("scale"), inputs.get("gain")

    def step(*i: Expr) -> Expr:
        return _gradient(w[i], g(*i), scale, attrs.weight_decay)

    def share(*i: Expr) -> Expr:
        return step(*i) if gain is None else gain[0] * step(*i)

    def move(*i: Expr) -> Expr:
        return step(*i) + f32(attrs.momentum) * velocity[i] if attrs.nesterov else velocity[i]

    velocity = te.compute(v.shape, lambda *i: _blend(v[i], attrs.momentum, share(*i)), "v_new")
    weight = te.compute(w.shape, lambda *i: end(w[i] - rate[0] * move(*i), *i), "out")
    return [weight, velocity]


def _schedule(node: Node, context: KernelContext, *names: str) -> Callable[[s_tir.Schedule], None]:
    """Several stages over the same elements in one loop, on vectors if there are."""
    if node.op in ON_VECTORS and context.uses_float_vectors and node.outputs[0].elements >= LANES:
        return lambda sch: four_at_a_time(sch, *names, most=1)
    return lambda sch: _fuse(sch, *names)


def _fuse(sch: s_tir.Schedule, *names: str) -> None:
    if len(names) > 1:
        sch.merge(*(sch.get_loops(sch.get_sblock(name))[0] for name in names))


@_update("AdamUpdate")
def adam(_op: str, attrs: AdamAttrs, inputs: Named[te.Tensor], g: Load, end: Finish) -> Results:
    """Both moments, then the weight."""
    w, m, v, rate, power = inputs.several("w", "m", "v", "rate", "power")
    scale = inputs.get("scale")
    decay = 0.0 if attrs.decoupled else attrs.weight_decay

    def grad(*i: Expr) -> Expr:
        return _gradient(w[i], g(*i), scale, decay)

    first = te.compute(m.shape, lambda *i: _blend(m[i], attrs.beta1, f32(1 - attrs.beta1) * grad(*i)), "m_new")
    second = te.compute(
        v.shape, lambda *i: _blend(v[i], attrs.beta2, f32(1 - attrs.beta2) * (grad(*i) * grad(*i))), "v_new"
    )

    def share(index: int) -> Expr:
        return select(tirx.EQ(power[index], f32(0)), f32(1), power[index]) if attrs.late else power[index]

    def step(*i: Expr) -> Expr:
        if attrs.raw:
            root = call("tt_sqrtf", second[i]) + f32(attrs.epsilon)
            move = first[i] / share(0) * call("tt_sqrtf", share(1)) / root
        else:
            root = call("tt_sqrtf", second[i] / share(1)) + f32(attrs.epsilon)
            move = first[i] / share(0) / root
        if attrs.decoupled and attrs.weight_decay and not attrs.after:
            move = move + f32(attrs.weight_decay) * w[i]
        moved = w[i] - rate[0] * move
        if attrs.decoupled and attrs.weight_decay and attrs.after:
            moved = moved - rate[0] * (f32(attrs.weight_decay) * moved)
        return end(moved, *i)

    return [te.compute(w.shape, step, "out"), first, second]


@kernel("AdamTick")
def adam_tick(node: Node, _context: KernelContext) -> KernelSpec:
    """What both moments are divided by advances by one step."""
    attrs = node.attrs
    assert isinstance(attrs, AdamAttrs)
    power = flat_tensor(node, "power")
    rates = (f32(1 - attrs.beta1), f32(1 - attrs.beta2))
    out = te.compute(
        (2,), lambda i: power[i] + te.if_then_else(i < 1, rates[0], rates[1]) * (f32(1) - power[i]), "power_new"
    )
    return KernelSpec([power], [out], plain)


@kernel("SetState")
def set_state(node: Node, _context: KernelContext) -> KernelSpec:
    """A constant."""
    attrs = node.attrs
    assert isinstance(attrs, SetAttrs)
    x = flat_tensor(node, "x")
    return KernelSpec([x], [te.compute(x.shape, lambda _i: f32(attrs.value), "out")], plain)


@_update("AdagradUpdate", "RmsPropUpdate", "RmsPropMomentumUpdate", "RmsPropCenteredUpdate")
def adaptive(op: str, attrs: AdaptiveAttrs, inputs: Named[te.Tensor], g: Load, end: Finish) -> Results:
    """Squares of gradients, then the velocity if there is one, then the weight."""
    w, s, rate, scale = inputs["w"], inputs["s"], inputs["rate"], inputs.get("scale")

    def grad(*i: Expr) -> Expr:
        return _gradient(w[i], g(*i), scale, attrs.weight_decay)

    def squares(*i: Expr) -> Expr:
        square = grad(*i) * grad(*i)
        return s[i] + square if op == "AdagradUpdate" else _blend(s[i], attrs.alpha, f32(1 - attrs.alpha) * square)

    total = te.compute(s.shape, squares, "s_new")
    mean = None
    if "a" in inputs:
        a = inputs["a"]
        mean = te.compute(a.shape, lambda *i: _blend(a[i], attrs.alpha, f32(1 - attrs.alpha) * grad(*i)), "a_new")

    def spread(*i: Expr) -> Expr:
        if mean is None:
            return total[i]
        rest = total[i] - mean[i] * mean[i]
        return select(rest < f32(0), f32(0), rest)

    def step(*i: Expr) -> Expr:
        return grad(*i) / (call("tt_sqrtf", spread(*i)) + f32(attrs.epsilon))

    kept = [total] if mean is None else [total, mean]
    if "v" not in inputs:
        return [te.compute(w.shape, lambda *i: end(w[i] - rate[0] * step(*i), *i), "out"), *kept]
    v = inputs["v"]
    velocity = te.compute(v.shape, lambda *i: _blend(v[i], attrs.momentum, step(*i)), "v_new")
    return [te.compute(w.shape, lambda *i: end(w[i] - rate[0] * velocity[i], *i), "out"), *kept, velocity]


@_update("Accumulate")
def accumulate(_op: str, _attrs: Attrs, inputs: Named[te.Tensor], g: Load, end: Finish) -> Results:
    """acc += g."""
    acc = inputs["acc"]
    return [te.compute(acc.shape, lambda *i: end(acc[i] + g(*i), *i), "out")]


@kernel("Clear")
def clear(node: Node, context: KernelContext) -> KernelSpec:
    """acc = 0."""
    acc = flat_tensor(node, "acc")
    out = te.compute(acc.shape, lambda _i: f32(0), "out")
    return KernelSpec([acc], [out], _schedule(node, context, "out"))
