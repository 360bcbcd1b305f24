"""Activation functions and their backward ops. Relu is Clip(0, inf)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import scalar_math
from tinytrain_compile.ops._common import expect_float
from tinytrain_compile.ops.base import (
    ELEMENTWISE,
    GradientContext,
    GradientRule,
    NonDifferentiable,
    OpDef,
    ReferenceRule,
    register,
)
from tinytrain_compile.ops.elementwise import SECOND_ORDER, erf, from_input, from_output, same_infer, upstream
from tinytrain_compile.ops.exact import F32, clamp, scaled, shifted
from tinytrain_compile.ops.names import operand, result
from tinytrain_compile.ops.rows import element_rows


@dataclass(frozen=True)
class ClipAttrs(Attrs):
    """Bounds; infinite ones clip nothing on that side."""

    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class LeakyReluAttrs(Attrs):
    """Slope for negative inputs."""

    alpha: float = 0.01


@dataclass(frozen=True)
class HardSigmoidAttrs(Attrs):
    """clip(alpha x + beta, 0, 1)."""

    alpha: float = 0.2
    beta: float = 0.5


@dataclass(frozen=True)
class GeluAttrs(Attrs):
    """tanh: the tanh approximation instead of the exact form with erf."""

    tanh: bool = False


Rule = Callable[[Array, Any], Array]
"""(x, attributes) -> y"""
GradRule = Callable[[Array, Array, Any], Array]
"""(dy, x or y, attributes) -> dx"""


def _enter(
    name: str,
    doc: str,
    rules: tuple[ReferenceRule, ReferenceRule | None],
    gradient: GradientRule | NonDifferentiable,
    attrs: type[Attrs],
    inputs: tuple[str, ...],
    output: str,
) -> None:
    register(
        OpDef(
            name,
            doc,
            same_infer,
            rules[0],
            gradient,
            attrs,
            inputs=inputs,
            outputs=(output,),
            reuses=inputs,
            exact=rules[1],
            rows=element_rows,
            traits=ELEMENTWISE,
        )
    )


def activation(
    name: str,
    doc: str,
    function: Rule,
    gradient: GradientRule | NonDifferentiable,
    attrs: type[Attrs] = Attrs,
    exact: Rule | None = None,
) -> None:
    """Register an op of one operand that works element by element; exact: see OpDef."""

    def of(rule: Rule) -> ReferenceRule:
        return lambda arrays, attributes: tuple(rule(x, attributes) for x in arrays)

    _enter(name, doc, (of(function), None if exact is None else of(exact)), gradient, attrs, ("x",), "y")


def activation_grad(
    name: str, doc: str, function: GradRule, kept: str, attrs: type[Attrs] = Attrs, exact: GradRule | None = None
) -> None:
    """The backward op of an activation; kept: what it reads beside dy, "x" or "y" (or what has the sign of x)."""

    def of(rule: GradRule) -> ReferenceRule:
        def reference(arrays: tuple[Array, ...], attributes: Any) -> tuple[Array, ...]:
            dy, read = arrays
            return (rule(dy, read, attributes),)

        return reference

    rules = (of(function), None if exact is None else of(exact))
    _enter(name, doc, rules, SECOND_ORDER, attrs, ("dy", kept), "dx")


def inside(y: Array, attrs: ClipAttrs) -> Array:
    """Where a clip passes its gradient: strictly between its finite bounds (the clipped output tells)."""
    above = y > attrs.low if math.isfinite(attrs.low) else np.ones(y.shape, np.bool_)
    return above & (y < attrs.high) if math.isfinite(attrs.high) else above


activation(
    "Clip",
    "max(low, min(x, high)); Relu is Clip(0, inf).",
    lambda x, attrs: np.minimum(np.maximum(x, x.dtype.type(attrs.low)), x.dtype.type(attrs.high)),
    from_output("ClipGrad"),
    ClipAttrs,
    exact=lambda x, attrs: clamp(x, attrs.low, attrs.high),
)
activation_grad(
    "ClipGrad",
    "dy where low < y < high, else 0.",
    lambda dy, y, attrs: np.where(inside(y, attrs), dy, 0).astype(dy.dtype),
    "y",
    ClipAttrs,
)


def _leaky_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    attrs = node.attrs
    assert isinstance(attrs, LeakyReluAttrs)
    kept = result(node, "y") if attrs.alpha > 0 else operand(node, "x")  # the output has x's sign only for alpha > 0
    return {0: ctx.emit("LeakyReluGrad", (upstream(dys), kept), attrs)}


activation(
    "LeakyRelu",
    "x if x > 0 else alpha x",
    lambda x, attrs: np.where(x > 0, x, x * x.dtype.type(attrs.alpha)),
    _leaky_gradient,
    LeakyReluAttrs,
    exact=lambda x, attrs: np.where(x > 0, x, scaled(x, attrs.alpha)),
)
activation_grad(
    "LeakyReluGrad",
    "dy if v > 0 else alpha dy, v having the sign of x",
    lambda dy, v, attrs: np.where(v > 0, dy, dy * dy.dtype.type(attrs.alpha)),
    "v",
    LeakyReluAttrs,
    exact=lambda dy, v, attrs: np.where(v > 0, dy, scaled(dy, attrs.alpha)),
)


def _prelu_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    first, *_, slope = inputs  # x, or dy and x
    expect_float("PRelu", *inputs)
    if np.broadcast_shapes(first.shape, slope.shape) != first.shape:
        raise ValueError(f"slope {slope.shape} does not broadcast to {first.shape}")
    return (first.type,)


def _prelu(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    x, slope = arrays
    return (np.where(x > 0, x, x * slope),)


def _prelu_grad(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    dy, x, slope = arrays
    return (np.where(x > 0, dy, dy * slope),)


def _prelu_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    dy, (x, slope) = upstream(dys), node.inputs
    grads: dict[int, Value] = {}
    if ctx.wants(1):
        below = ctx.emit("Clip", (x,), ClipAttrs(high=0.0))
        grads[1] = ctx.sum_to(ctx.emit("Mul", (dy, below)), slope)
    if ctx.wants(0):
        grads[0] = ctx.emit("PReluGrad", (dy, x, slope))
    return grads


register(
    OpDef(
        "PRelu",
        "x if x > 0 else slope x; the slope broadcasts to x and is a parameter.",
        _prelu_infer,
        _prelu,
        _prelu_gradient,
        inputs=("x", "slope"),
        reuses=("x",),
        traits=ELEMENTWISE,
    )
)
register(
    OpDef(
        "PReluGrad",
        "dy if x > 0 else slope dy; operands (dy, x, slope).",
        _prelu_infer,
        _prelu_grad,
        SECOND_ORDER,
        inputs=("dy", "x", "slope"),
        outputs=("dx",),
        reuses=("dy", "x"),
        traits=ELEMENTWISE,
    )
)


def sigmoid(x: Array) -> Array:
    """The logistic function without overflow, in the dtype of x."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _silu_slope(x: Array) -> Array:
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


def _exact_silu_slope(x: Array) -> Array:
    s = scalar_math.sigmoid(x)
    return s * (1 + x * (1 - s))


activation(
    "Sigmoid",
    "1 / (1 + exp(-x))",
    lambda x, _: sigmoid(x),
    from_output("SigmoidGrad"),
    exact=lambda x, _: scalar_math.sigmoid(x),
)
activation_grad("SigmoidGrad", "dy y (1 - y)", lambda dy, y, _: dy * y * (1 - y), "y")
activation(
    "Tanh",
    "Hyperbolic tangent.",
    lambda x, _: np.tanh(x),
    from_output("TanhGrad"),
    exact=lambda x, _: scalar_math.tanh(x),
)
activation_grad("TanhGrad", "dy (1 - y^2)", lambda dy, y, _: dy * (1 - y * y), "y")
activation(
    "Silu",
    "x sigmoid(x), also called swish.",
    lambda x, _: x * sigmoid(x),
    from_input("SiluGrad"),
    exact=lambda x, _: x * scalar_math.sigmoid(x),
)
activation_grad(
    "SiluGrad",
    "dy s (1 + x (1 - s)), s = sigmoid(x)",
    lambda dy, x, _: dy * _silu_slope(x),
    "x",
    exact=lambda dy, x, _: dy * _exact_silu_slope(x),
)


def _hard_sigmoid(x: Array, attrs: HardSigmoidAttrs) -> Array:
    alpha, beta = x.dtype.type(attrs.alpha), x.dtype.type(attrs.beta)
    return np.clip(alpha * x + beta, 0, 1).astype(x.dtype)


activation(
    "HardSigmoid",
    "clip(alpha x + beta, 0, 1)",
    lambda x, attrs: _hard_sigmoid(x, attrs),
    from_output("HardSigmoidGrad"),
    HardSigmoidAttrs,
    exact=lambda x, attrs: clamp(shifted(scaled(x, attrs.alpha), attrs.beta), 0, 1),
)
activation_grad(
    "HardSigmoidGrad",
    "alpha dy where 0 < y < 1, else 0.",
    lambda dy, y, attrs: np.where((y > 0) & (y < 1), dy * dy.dtype.type(attrs.alpha), 0).astype(dy.dtype),
    "y",
    HardSigmoidAttrs,
    exact=lambda dy, y, attrs: np.where((y > 0) & (y < 1), scaled(dy, attrs.alpha), F32(0)),
)


def _hard_swish_slope(x: Array) -> Array:
    slope = x / 3 + x.dtype.type(0.5)
    return np.where(x <= -3, 0, np.where(x >= 3, 1, slope)).astype(x.dtype)


def _exact_hard_swish_slope(x: Array) -> Array:
    slope = x * F32(1 / 3) + F32(0.5)
    return np.where(x <= -3, F32(0), np.where(x >= 3, F32(1), slope))


activation(
    "HardSwish",
    "x clip(x / 6 + 1/2, 0, 1)",
    lambda x, _: x * np.clip(x * x.dtype.type(1 / 6) + x.dtype.type(0.5), 0, 1),
    from_input("HardSwishGrad"),
    exact=lambda x, _: x * clamp(x * F32(1 / 6) + F32(0.5), 0, 1),
)
activation_grad(
    "HardSwishGrad",
    "dy times the slope of HardSwish at x",
    lambda dy, x, _: dy * _hard_swish_slope(x),
    "x",
    exact=lambda dy, x, _: dy * _exact_hard_swish_slope(x),
)

_TANH_SCALE, _TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715


def _gelu(x: Array, attrs: GeluAttrs) -> Array:
    one = x.dtype.type
    if attrs.tanh:
        return one(0.5) * x * (1 + np.tanh(one(_TANH_SCALE) * (x + one(_TANH_CUBIC) * x * x * x)))
    return one(0.5) * x * (1 + erf(x * one(math.sqrt(0.5))))


def _gelu_slope(x: Array, attrs: GeluAttrs) -> Array:
    one = x.dtype.type
    if attrs.tanh:
        t = np.tanh(one(_TANH_SCALE) * (x + one(_TANH_CUBIC) * x * x * x))
        return one(0.5) * (1 + t) + one(0.5) * x * (1 - t * t) * one(_TANH_SCALE) * (1 + one(3 * _TANH_CUBIC) * x * x)
    density = np.exp(-one(0.5) * x * x) * one(1 / math.sqrt(2 * math.pi))
    return one(0.5) * (1 + erf(x * one(math.sqrt(0.5)))) + x * density


def _exact_gelu_tanh(x: Array) -> Array:
    return scalar_math.tanh(F32(_TANH_SCALE) * (x + F32(_TANH_CUBIC) * x * x * x))


def _exact_normal(x: Array) -> Array:
    return F32(0.5) * (1 + scalar_math.erf(x * F32(math.sqrt(0.5))))


def _exact_gelu(x: Array, attrs: GeluAttrs) -> Array:
    return F32(0.5) * x * (1 + _exact_gelu_tanh(x)) if attrs.tanh else x * _exact_normal(x)


def _exact_gelu_slope(x: Array, attrs: GeluAttrs) -> Array:
    if attrs.tanh:
        t = _exact_gelu_tanh(x)
        inner = F32(_TANH_SCALE) * (1 + F32(3 * _TANH_CUBIC) * x * x)
        return F32(0.5) * (1 + t) + F32(0.5) * x * (1 - t * t) * inner
    density = scalar_math.exp(F32(-0.5) * x * x) * F32(1 / math.sqrt(2 * math.pi))
    return _exact_normal(x) + x * density


activation(
    "Gelu",
    "x times the normal distribution function (exact or tanh form).",
    lambda x, attrs: _gelu(x, attrs),
    from_input("GeluGrad"),
    GeluAttrs,
    exact=lambda x, attrs: _exact_gelu(x, attrs),
)
activation_grad(
    "GeluGrad",
    "dy times the slope of Gelu at x",
    lambda dy, x, attrs: dy * _gelu_slope(x, attrs),
    "x",
    GeluAttrs,
    exact=lambda dy, x, attrs: dy * _exact_gelu_slope(x, attrs),
)
