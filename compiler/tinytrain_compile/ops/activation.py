"""Activation functions and their backward operators, and masks of clips. Relu is Clip(0, inf)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.arithmetic import REFERENCE, Arithmetic
from tinytrain_compile.ops.base import Bounds, GradientContext, NonDifferentiable, operator, traits
from tinytrain_compile.ops.describe import number
from tinytrain_compile.ops.elementwise import (
    HEAVY,
    LIGHT,
    SECOND_ORDER,
    Slope,
    backward,
    elementwise,
    unary,
    upstream,
)
from tinytrain_compile.ops.names import attrs_of, expect_float, operand, result
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


@dataclass(frozen=True)
class EluAttrs(Attrs):
    """scale x above 0, scale alpha (exp(rate x) - 1) below; no attribute is negative. Examples: Selu and Celu."""

    alpha: float = 1.0
    scale: float = 1.0
    rate: float = 1.0


# ---- lines with corners ---------------------------------------------------------------------------------------------


def _clip_grad(m: Arithmetic, dy: Any, y: Any, a: ClipAttrs) -> Any:
    """Pass the gradient if the clipped output is strictly between finite bounds."""
    inside = m.inside(y, a.low, a.high)
    return dy if inside is None else m.where(inside, dy, 0.0)


def _clip_says(node: Node) -> str:
    a = attrs_of(node, ClipAttrs)
    text = "x" if a.low == -math.inf else f"max(x, {number(a.low)})"
    return f"y = {text if a.high == math.inf else f'min({text}, {number(a.high)})'}"


def _inside(a: ClipAttrs) -> str:
    """Write the condition under which y is strictly between finite bounds."""
    if a.low == -math.inf:
        return "true" if a.high == math.inf else f"y < {number(a.high)}"
    above = f"y > {number(a.low)}"
    return above if a.high == math.inf else f"{above} && y < {number(a.high)}"


def _clip_grad_says(node: Node) -> str:
    return f"dx = {_inside(attrs_of(node, ClipAttrs))} ? dy : 0"


def _mask_says(node: Node) -> str:
    return f"mask = {_inside(attrs_of(node, ClipAttrs))}, a bit per element: kept for the backward pass instead of y"


_OF_CLAMP = traits("elementwise", "read_output", "through_clamp")
unary(
    "Clip",
    "max(low, min(x, high)); Relu is Clip(0, inf).",
    lambda m, x, a: m.clamp(x, a.low, a.high),
    Slope("y", "dy where low < y < high, else 0.", _clip_grad, LIGHT, _OF_CLAMP, _clip_grad_says),
    ClipAttrs,
    LIGHT,
    traits("elementwise", "ieee", "clamps", "between"),
    says=_clip_says,
)


def _leaky_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    attrs = attrs_of(node, LeakyReluAttrs)
    kept = result(node, "y") if attrs.alpha > 0 else operand(node, "x")  # the output has x's sign only for alpha > 0
    return {0: ctx.emit("LeakyReluGrad", (upstream(dys), kept), attrs)}


unary(
    "LeakyRelu",
    "x if x > 0 else alpha x",
    lambda m, x, a: m.where(x > 0, x, m.scaled(x, a.alpha)),
    _leaky_gradient,
    LeakyReluAttrs,
    LIGHT,
)
backward(
    "LeakyReluGrad",
    Slope(
        "v",
        "dy if v > 0 else alpha dy, v having the sign of x",
        lambda m, dy, v, a: m.where(v > 0, dy, m.scaled(dy, a.alpha)),
        LIGHT,
    ),
    LeakyReluAttrs,
)


def _prelu_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    first, *_, slope = inputs  # x, or dy and x
    expect_float("PRelu", *inputs)
    if np.broadcast_shapes(first.shape, slope.shape) != first.shape:
        raise ValueError(f"slope {slope.shape} does not broadcast to {first.shape}")
    return (first.type,)


def _prelu_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    dy, (x, slope) = upstream(dys), node.inputs
    grads: dict[int, Value] = {}
    if ctx.wants(1):
        below = ctx.emit("Clip", (x,), ClipAttrs(high=0.0))
        grads[1] = ctx.sum_to(ctx.emit("Mul", (dy, below)), slope)
    if ctx.wants(0):
        grads[0] = ctx.emit("PReluGrad", (dy, x, slope))
    return grads


elementwise(
    "PRelu",
    "x if x > 0 else slope x; the slope broadcasts to x and is a parameter.",
    lambda m, x, slope: m.where(x > 0, x, x * slope),
    _prelu_gradient,
    ("x", "slope"),
    infer=_prelu_infer,
    reuses=("x",),
    by_rows=False,
)
elementwise(
    "PReluGrad",
    "dy if x > 0 else slope dy; operands (dy, x, slope).",
    lambda m, dy, x, slope: m.where(x > 0, dy, dy * slope),
    SECOND_ORDER,
    ("dy", "x", "slope"),
    output="dx",
    infer=_prelu_infer,
    reuses=("dy", "x"),
    by_rows=False,
)
unary(
    "HardSigmoid",
    "clip(alpha x + beta, 0, 1)",
    lambda m, x, a: m.clamp(m.shifted(m.scaled(x, a.alpha), a.beta), 0.0, 1.0),
    Slope(
        "y",
        "alpha dy where 0 < y < 1, else 0.",
        lambda m, dy, y, a: m.where(m.both(y > 0, y < 1), m.scaled(dy, a.alpha), 0.0),
    ),
    HardSigmoidAttrs,
    bounds=Bounds(0.0, 1.0, reached=True),
)
unary(
    "HardSwish",
    "x clip(x / 6 + 1/2, 0, 1)",
    lambda m, x: x * m.clamp(x * (1 / 6) + 0.5, 0.0, 1.0),
    Slope(
        "x",
        "dy times the slope of HardSwish at x",
        lambda m, dy, x: dy * m.where(x <= -3, 0.0, m.where(x >= 3, 1.0, x * (1 / 3) + 0.5)),
    ),
    lanes=LIGHT,
)


# ---- made of exponentials -------------------------------------------------------------------------------------------


def _silu_grad(m: Arithmetic, dy: Any, x: Any) -> Any:
    s = m.sigmoid(x)
    return dy * (s * (1 + x * (1 - s)))


unary(
    "Sigmoid",
    "1 / (1 + exp(-x))",
    lambda m, x: m.sigmoid(x),
    Slope("y", "dy y (1 - y)", lambda _m, dy, y: dy * y * (1 - y), LIGHT),
    lanes=HEAVY,
    traits=traits("elementwise", "link"),
    bounds=Bounds(0.0, 1.0),
)
unary(
    "Tanh",
    "Hyperbolic tangent.",
    lambda m, x: m.tanh(x),
    Slope("y", "dy (1 - y^2)", lambda _m, dy, y: dy * (1 - y * y), LIGHT),
    lanes=HEAVY,
    bounds=Bounds(-1.0, 1.0),
)
unary(
    "Silu",
    "x sigmoid(x), also called swish.",
    lambda m, x: x * m.sigmoid(x),
    Slope("x", "dy s (1 + x (1 - s)), s = sigmoid(x)", _silu_grad, HEAVY),
    lanes=HEAVY,
)

_TANH_SCALE, _TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715
"""Constant of Hendrycks and Gimpel, 2016 (arXiv 1606.08415), which ONNX uses too."""


def _gelu_tanh(m: Arithmetic, x: Any) -> Any:
    return m.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x))


def _normal(m: Arithmetic, x: Any) -> Any:
    """Return the normal distribution function."""
    return 0.5 * (1 + m.erf(x * math.sqrt(0.5)))


def _gelu(m: Arithmetic, x: Any, a: GeluAttrs) -> Any:
    return 0.5 * x * (1 + _gelu_tanh(m, x)) if a.tanh else x * _normal(m, x)


def _gelu_grad(m: Arithmetic, dy: Any, x: Any, a: GeluAttrs) -> Any:
    if a.tanh:
        t = _gelu_tanh(m, x)
        inner = _TANH_SCALE * (1 + (3 * _TANH_CUBIC) * x * x)
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)
    density = m.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return dy * (_normal(m, x) + x * density)


def _gelu_lanes(a: GeluAttrs) -> int:
    return 0 if a.tanh else HEAVY


unary(
    "Gelu",
    "x times the normal distribution function (exact or tanh form).",
    _gelu,
    Slope("x", "dy times the slope of Gelu at x", _gelu_grad, _gelu_lanes),
    GeluAttrs,
    _gelu_lanes,
)


def _softplus(m: Arithmetic, x: Any) -> Any:
    return m.where(x > 0, x, 0.0) + m.log1p(m.exp(m.where(x > 0, 0 - x, x)))


def _mish_grad(m: Arithmetic, dy: Any, x: Any) -> Any:
    s, t = m.sigmoid(x), m.tanh(_softplus(m, x))
    return dy * (t + x * s * (1 - t * t))


unary(
    "Softplus",
    "log(1 + exp(x)), as max(x, 0) + log1p(exp(-|x|)).",
    _softplus,
    Slope("x", "dy sigmoid(x)", lambda m, dy, x: dy * m.sigmoid(x)),
)
unary(
    "Mish",
    "x tanh(softplus(x))",
    lambda m, x: x * m.tanh(_softplus(m, x)),
    Slope("x", "dy (t + x s (1 - t^2)), s = sigmoid(x), t = tanh(softplus(x))", _mish_grad),
)
unary(
    "Softsign",
    "x / (1 + |x|)",
    lambda m, x: x / (1 + m.abs(x)),
    Slope("y", "dy (1 - |y|)^2", lambda m, dy, y: dy * ((1 - m.abs(y)) * (1 - m.abs(y)))),
)


def _elu(m: Arithmetic, x: Any, a: EluAttrs) -> Any:
    power = m.exp(m.scaled(m.where(x > 0, 0.0, x), a.rate))
    return m.where(x > 0, m.scaled(x, a.scale), m.scaled(power - 1, a.scale * a.alpha))


def _elu_grad(m: Arithmetic, dy: Any, y: Any, a: EluAttrs) -> Any:
    below = dy * m.scaled(m.shifted(y, a.scale * a.alpha), a.rate)
    return m.where(y > 0, m.scaled(dy, a.scale), below)


unary(
    "Elu",
    "scale x if x > 0 else scale alpha (exp(rate x) - 1)",
    _elu,
    Slope("y", "scale dy if y > 0 else dy rate (y + scale alpha)", _elu_grad),
    EluAttrs,
)


# ---- masks: a bit per element, kept for the backward pass instead of the output of a clip ---------------------------


def inside(y: Array, attrs: ClipAttrs) -> Array:
    """Tell which elements a clip passes the gradient of."""
    found = REFERENCE.inside(y, attrs.low, attrs.high)
    return np.ones(y.shape, np.bool_) if found is None else found


def _mask_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    (y,) = inputs
    return (TensorType(y.shape, "bits", y.layout),)


def _mask(arrays: tuple[Array, ...], attrs: ClipAttrs) -> tuple[Array, ...]:
    (y,) = arrays
    return (np.packbits(inside(y, attrs).ravel(), bitorder="little"),)


operator(
    "ClipMask",
    "One bit per element: low < y < high. Kept for the backward pass instead of y (32 times smaller).",
    _mask_infer,
    _mask,
    NonDifferentiable("a mask is piecewise constant"),
    ClipAttrs,
    rows=element_rows,
    inputs=("y",),
    outputs=("mask",),
    says=_mask_says,
    traits=traits("read_output", "marks"),
)


def _masked_infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    dy, mask = inputs
    if dy.shape != mask.shape or mask.dtype != "bits":
        raise ValueError(f"expected a gradient and its mask, got {dy.type} and {mask.type}")
    return (dy.type,)


def _masked(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    dy, bits = arrays
    keep = np.unpackbits(bits.astype(np.uint8), count=dy.size, bitorder="little").reshape(dy.shape)
    return (np.where(keep, dy, 0).astype(dy.dtype),)


operator(
    "MaskedGrad",
    "dx = dy where the bit of mask is set, else 0.",
    _masked_infer,
    _masked,
    SECOND_ORDER,
    inputs=("dy", "mask"),
    outputs=("dx",),
    reuses=("dy",),
    traits=traits("through_clamp"),
)
