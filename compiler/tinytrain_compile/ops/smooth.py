"""Activations without corners, or with one at 0, that are made of exponentials; and their backward ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs
from tinytrain_compile.ops import scalar_math
from tinytrain_compile.ops.activation import activation, activation_grad, sigmoid
from tinytrain_compile.ops.elementwise import from_input, from_output
from tinytrain_compile.ops.exact import F32, scaled, shifted


@dataclass(frozen=True)
class EluAttrs(Attrs):
    """scale x above 0, scale alpha (exp(rate x) - 1) below; none negative. Selu and Celu are such functions."""

    alpha: float = 1.0
    scale: float = 1.0
    rate: float = 1.0


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _exact_softplus(x: Array) -> Array:
    return np.where(x > 0, x, F32(0)) + scalar_math.log1p(scalar_math.exp(np.where(x > 0, 0 - x, x)))


activation(
    "Softplus",
    "log(1 + exp(x)), as max(x, 0) + log1p(exp(-|x|)).",
    lambda x, _: _softplus(x),
    from_input("SoftplusGrad"),
    exact=lambda x, _: _exact_softplus(x),
)
activation_grad(
    "SoftplusGrad",
    "dy sigmoid(x)",
    lambda dy, x, _: dy * sigmoid(x),
    "x",
    exact=lambda dy, x, _: dy * scalar_math.sigmoid(x),
)


def _mish_slope(x: Array, s: Array, t: Array) -> Array:
    return t + x * s * (1 - t * t)


activation(
    "Mish",
    "x tanh(softplus(x))",
    lambda x, _: x * np.tanh(_softplus(x)),
    from_input("MishGrad"),
    exact=lambda x, _: x * scalar_math.tanh(_exact_softplus(x)),
)
activation_grad(
    "MishGrad",
    "dy (t + x s (1 - t^2)), s = sigmoid(x), t = tanh(softplus(x))",
    lambda dy, x, _: dy * _mish_slope(x, sigmoid(x), np.tanh(_softplus(x))),
    "x",
    exact=lambda dy, x, _: dy * _mish_slope(x, scalar_math.sigmoid(x), scalar_math.tanh(_exact_softplus(x))),
)

activation(
    "Softsign",
    "x / (1 + |x|)",
    lambda x, _: x / (1 + np.abs(x)),
    from_output("SoftsignGrad"),
)
activation_grad("SoftsignGrad", "dy (1 - |y|)^2", lambda dy, y, _: dy * ((1 - np.abs(y)) * (1 - np.abs(y))), "y")


def _elu(x: Array, attrs: EluAttrs, exp: Any) -> Array:
    below = scaled_by(exp(scaled_by(np.where(x > 0, 0, x), attrs.rate)) - 1, attrs.scale * attrs.alpha)
    return np.where(x > 0, scaled_by(x, attrs.scale), below)


def scaled_by(x: Array, factor: float) -> Array:
    """x times a constant, in the dtype of x."""
    return scaled(x, factor) if x.dtype == np.float32 else x * factor


def _elu_grad(dy: Array, y: Array, attrs: EluAttrs) -> Array:
    limit = attrs.scale * attrs.alpha
    risen = shifted(y, limit) if y.dtype == np.float32 else y + limit
    return np.where(y > 0, scaled_by(dy, attrs.scale), dy * scaled_by(risen, attrs.rate))


activation(
    "Elu",
    "scale x if x > 0 else scale alpha (exp(rate x) - 1)",
    lambda x, attrs: _elu(x, attrs, np.exp),
    from_output("EluGrad"),
    EluAttrs,
    exact=lambda x, attrs: _elu(x, attrs, scalar_math.exp),
)
activation_grad(
    "EluGrad",
    "scale dy if y > 0 else dy rate (y + scale alpha)",
    _elu_grad,
    "y",
    EluAttrs,
)
