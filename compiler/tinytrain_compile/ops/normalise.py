"""Softmax and normalisation: ops that reduce over a group of elements and then rewrite the group.

In-place contract of every kernel of this file: the reductions over one group (the elements along `axis` or `axes`)
are finished before an element of the group is written, and after that element i is read before element i is written.
Groups do not overlap, so output 0 may share the memory of any tensor of its size that the kernel reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from tinytrain_compile.ir.types import Array, Attrs, TensorType, Value
from tinytrain_compile.ops.arithmetic import EXACT, REFERENCE, ArrayArithmetic
from tinytrain_compile.ops.base import Bounds, Samples, operator, traits
from tinytrain_compile.ops.names import BACKWARD, emits, expect_float, expect_same_shape, like
from tinytrain_compile.ops.repeat import along


@dataclass(frozen=True)
class AxisAttrs(Attrs):
    """The axis that is normalised (not negative)."""

    axis: int


@dataclass(frozen=True)
class NormalizeAttrs(Attrs):
    """The axes of one group (increasing), and the epsilon added to the variance."""

    axes: tuple[int, ...]
    epsilon: float


# ---- inference ------------------------------------------------------------------------------------------------------


def _infer_axis(op: str, inputs: tuple[Value, ...], attrs: AxisAttrs) -> tuple[TensorType, ...]:
    expect_float(op, *inputs)
    expect_same_shape(op, *inputs)
    first, *_ = inputs
    if not 0 <= attrs.axis < len(first.shape):
        raise ValueError(f"{op}: axis {attrs.axis} of shape {first.shape}")
    return like(first)


def _kept_shape(op: str, x: Value, attrs: NormalizeAttrs) -> tuple[int, ...]:
    rank = len(x.shape)
    if not attrs.axes or list(attrs.axes) != sorted(set(attrs.axes)) or not 0 <= attrs.axes[0] <= attrs.axes[-1] < rank:
        raise ValueError(f"{op}: axes {attrs.axes} of shape {x.shape}")
    if attrs.epsilon < 0.0:
        raise ValueError(f"{op}: epsilon {attrs.epsilon} is negative")
    return tuple(1 if axis in attrs.axes else dim for axis, dim in enumerate(x.shape))


def _infer_normalize(inputs: tuple[Value, ...], attrs: NormalizeAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    expect_float("Normalize", x)
    (normalised,) = like(x)
    return normalised, TensorType(_kept_shape("Normalize", x, attrs), "float32", normalised.layout)


def _infer_normalize_grad(inputs: tuple[Value, ...], attrs: NormalizeAttrs) -> tuple[TensorType, ...]:
    dxhat, xhat, rstd = inputs
    expect_float("NormalizeGrad", *inputs)
    expect_same_shape("NormalizeGrad", dxhat, xhat)
    if rstd.shape != _kept_shape("NormalizeGrad", dxhat, attrs):
        raise ValueError(f"NormalizeGrad: rstd {rstd.shape} does not belong to {dxhat.shape} over {attrs.axes}")
    return like(dxhat)


# ---- formulas: read as numpy, and as its exact twin -----------------------------------------------------------------


def _softmax(m: ArrayArithmetic, arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    power = m.exp(x - m.max(x, attrs.axis))
    return (power * (1 / m.sum(power, (attrs.axis,))),)


def _softmax_grad(m: ArrayArithmetic, arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    dy, y = arrays
    return (y * (dy - m.sum(dy * y, (attrs.axis,))),)


def _log_softmax(m: ArrayArithmetic, arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    below = x - m.max(x, attrs.axis)
    return (below - m.log(m.sum(m.exp(below), (attrs.axis,))),)


def _log_softmax_grad(m: ArrayArithmetic, arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    dy, y = arrays
    return (dy - m.exp(y) * m.sum(dy, (attrs.axis,)),)


def _normalize(m: ArrayArithmetic, arrays: tuple[Any, ...], attrs: NormalizeAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    share = 1.0 / math.prod(x.shape[axis] for axis in attrs.axes)
    centred = x - m.sum(x, attrs.axes) * share
    rstd = 1 / m.sqrt(m.shifted(m.sum(centred * centred, attrs.axes) * share, attrs.epsilon))
    return centred * rstd, rstd


def _normalize_grad(m: ArrayArithmetic, arrays: tuple[Any, ...], attrs: NormalizeAttrs) -> tuple[Array, ...]:
    """Differentiate as Ioffe and Szegedy (2015), section 3, in terms of the normalised value; exact with epsilon."""
    dxhat, xhat, rstd = arrays
    share = 1.0 / math.prod(xhat.shape[axis] for axis in attrs.axes)
    mean, slope = m.sum(dxhat, attrs.axes) * share, m.sum(dxhat * xhat, attrs.axes) * share
    return (rstd * ((dxhat - mean) - xhat * slope),)


# ---- operators ------------------------------------------------------------------------------------------------------


operator(
    "Softmax",
    "exp(x) / sum(exp(x)) along an axis.",
    partial(_infer_axis, "Softmax"),
    partial(_softmax, REFERENCE),
    emits("SoftmaxGrad", "y"),
    AxisAttrs,
    samples=Samples(lambda _node, attrs, _count: along(attrs, (attrs.axis,))),
    exact=partial(_softmax, EXACT),
    inputs=("x",),
    reuses=("x",),
    traits=traits("distribution", "cancels", "link"),
    bounds=Bounds(0.0, 1.0),
)
operator(
    "SoftmaxGrad",
    "Gradient of Softmax from its output: y * (dy - sum(dy * y)).",
    partial(_infer_axis, "SoftmaxGrad"),
    partial(_softmax_grad, REFERENCE),
    BACKWARD,
    AxisAttrs,
    exact=partial(_softmax_grad, EXACT),
    inputs=("dy", "y"),
    outputs=("dx",),
    reuses=("dy", "y"),
    traits=traits("cancels"),
)
operator(
    "LogSoftmax",
    "x - log(sum(exp(x))) along an axis.",
    partial(_infer_axis, "LogSoftmax"),
    partial(_log_softmax, REFERENCE),
    emits("LogSoftmaxGrad", "y"),
    AxisAttrs,
    samples=Samples(lambda _node, attrs, _count: along(attrs, (attrs.axis,))),
    exact=partial(_log_softmax, EXACT),
    inputs=("x",),
    reuses=("x",),
    traits=traits("distribution", "cancels", "link"),
)
operator(
    "LogSoftmaxGrad",
    "Gradient of LogSoftmax from its output: dy - exp(y) * sum(dy).",
    partial(_infer_axis, "LogSoftmaxGrad"),
    partial(_log_softmax_grad, REFERENCE),
    BACKWARD,
    AxisAttrs,
    exact=partial(_log_softmax_grad, EXACT),
    inputs=("dy", "y"),
    outputs=("dx",),
    reuses=("dy", "y"),
    traits=traits("cancels"),
)
operator(
    "Normalize",
    "(x - mean) * rstd and rstd = 1 / sqrt(variance + epsilon), both over a group of axes.",
    _infer_normalize,
    partial(_normalize, REFERENCE),
    emits("NormalizeGrad", "xhat", "rstd"),  # only the backward pass reads rstd, so it has no gradient
    NormalizeAttrs,
    samples=Samples(lambda _node, attrs, _count: along(attrs, attrs.axes)),
    exact=partial(_normalize, EXACT),
    inputs=("x",),
    outputs=("xhat", "rstd"),
    reuses=("x",),
    traits=traits("cancels"),
)
operator(
    "NormalizeGrad",
    "Gradient of Normalize from its outputs: rstd * (dxhat - mean(dxhat) - xhat * mean(dxhat * xhat)).",
    _infer_normalize_grad,
    partial(_normalize_grad, REFERENCE),
    BACKWARD,
    NormalizeAttrs,
    exact=partial(_normalize_grad, EXACT),
    inputs=("dxhat", "xhat", "rstd"),
    outputs=("dx",),
    reuses=("dxhat", "xhat"),
    traits=traits("cancels"),
)
