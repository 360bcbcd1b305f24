"""Softmax and normalisation: ops that reduce over a group of elements and then rewrite the group.

In-place contract of every kernel of this file: the reductions over one group (the elements along `axis` or `axes`)
are finished before an element of the group is written, and after that element i is read before element i is written.
Groups do not overlap, so output 0 may share the memory of any tensor of its size that the kernel reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import scalar_math
from tinytrain_compile.ops.base import GradientContext, OpDef, Samples, register
from tinytrain_compile.ops.exact import F32, max_over, shifted, sum_over
from tinytrain_compile.ops.names import BACKWARD, expect_float, expect_same_shape, like, only, result
from tinytrain_compile.ops.repeat import along


@dataclass(frozen=True)
class AxisAttrs(Attrs):
    """The axis that is normalised (not negative)."""

    axis: int


@dataclass(frozen=True)
class NormalizeAttrs(Attrs):
    """The axes of one group (increasing), and what is added to the variance."""

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


def _infer_softmax(inputs: tuple[Value, ...], attrs: AxisAttrs) -> tuple[TensorType, ...]:
    return _infer_axis("Softmax", inputs, attrs)


def _infer_softmax_grad(inputs: tuple[Value, ...], attrs: AxisAttrs) -> tuple[TensorType, ...]:
    return _infer_axis("SoftmaxGrad", inputs, attrs)


def _infer_log_softmax(inputs: tuple[Value, ...], attrs: AxisAttrs) -> tuple[TensorType, ...]:
    return _infer_axis("LogSoftmax", inputs, attrs)


def _infer_log_softmax_grad(inputs: tuple[Value, ...], attrs: AxisAttrs) -> tuple[TensorType, ...]:
    return _infer_axis("LogSoftmaxGrad", inputs, attrs)


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


# ---- references -----------------------------------------------------------------------------------------------------


def _softmax(arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    power = np.exp(x - x.max(axis=attrs.axis, keepdims=True))
    return (power / power.sum(axis=attrs.axis, keepdims=True),)


def _softmax_grad(arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    dy, y = arrays
    return (y * (dy - (dy * y).sum(axis=attrs.axis, keepdims=True)),)


def _log_softmax(arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    shifted = x - x.max(axis=attrs.axis, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=attrs.axis, keepdims=True)),)


def _log_softmax_grad(arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    dy, y = arrays
    return (dy - np.exp(y) * dy.sum(axis=attrs.axis, keepdims=True),)


def _normalize(arrays: tuple[Any, ...], attrs: NormalizeAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    centred = x - x.mean(axis=attrs.axes, keepdims=True)
    variance = (centred * centred).mean(axis=attrs.axes, keepdims=True)
    rstd = x.dtype.type(1) / np.sqrt(variance + x.dtype.type(attrs.epsilon))
    return centred * rstd, rstd


def _normalize_grad(arrays: tuple[Any, ...], attrs: NormalizeAttrs) -> tuple[Array, ...]:
    """Ioffe and Szegedy (2015), section 3, in terms of the normalised value; exact with epsilon."""
    dxhat, xhat, rstd = arrays
    mean = dxhat.mean(axis=attrs.axes, keepdims=True)
    slope = (dxhat * xhat).mean(axis=attrs.axes, keepdims=True)
    return (rstd * (dxhat - mean - xhat * slope),)


# ---- exact references -----------------------------------------------------------------------------------------------


def _softmax_exact(arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    power = scalar_math.exp(x - max_over(x, attrs.axis))
    return (power * (1 / sum_over(power, (attrs.axis,))),)


def _softmax_grad_exact(arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    dy, y = arrays
    return (y * (dy - sum_over(dy * y, (attrs.axis,))),)


def _log_softmax_exact(arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    shifted_x = x - max_over(x, attrs.axis)
    return (shifted_x - scalar_math.log(sum_over(scalar_math.exp(shifted_x), (attrs.axis,))),)


def _log_softmax_grad_exact(arrays: tuple[Any, ...], attrs: AxisAttrs) -> tuple[Array, ...]:
    dy, y = arrays
    return (dy - scalar_math.exp(y) * sum_over(dy, (attrs.axis,)),)


def _share(shape: tuple[int, ...], axes: tuple[int, ...]) -> Any:
    return F32(1.0 / math.prod(shape[axis] for axis in axes))


def _normalize_exact(arrays: tuple[Any, ...], attrs: NormalizeAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    share = _share(x.shape, attrs.axes)
    centred = x - sum_over(x, attrs.axes) * share
    rstd = 1 / scalar_math.sqrt(shifted(sum_over(centred * centred, attrs.axes) * share, attrs.epsilon))
    return centred * rstd, rstd


def _normalize_grad_exact(arrays: tuple[Any, ...], attrs: NormalizeAttrs) -> tuple[Array, ...]:
    dxhat, xhat, rstd = arrays
    share = _share(xhat.shape, attrs.axes)
    mean, slope = sum_over(dxhat, attrs.axes) * share, sum_over(dxhat * xhat, attrs.axes) * share
    return (rstd * ((dxhat - mean) - xhat * slope),)


# ---- gradients ------------------------------------------------------------------------------------------------------


def _softmax_rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    return {0: ctx.emit("SoftmaxGrad", (only(gradients), result(node, "y")), node.attrs)}


def _log_softmax_rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    return {0: ctx.emit("LogSoftmaxGrad", (only(gradients), result(node, "y")), node.attrs)}


def _normalize_rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    # rstd only feeds the backward pass: nothing in a forward graph reads it, so it never has a gradient.
    xhat, rstd = node.outputs
    return {0: ctx.emit("NormalizeGrad", (only(gradients), xhat, rstd), node.attrs)}


register(
    OpDef(
        "Softmax",
        "exp(x) / sum(exp(x)) along an axis.",
        _infer_softmax,
        _softmax,
        _softmax_rule,
        AxisAttrs,
        samples=Samples(lambda _node, attrs, _count: along(attrs, (attrs.axis,))),
        exact=_softmax_exact,
        inputs=("x",),
        reuses=("x",),
    )
)
register(
    OpDef(
        "SoftmaxGrad",
        "Gradient of Softmax from its output: y * (dy - sum(dy * y)).",
        _infer_softmax_grad,
        _softmax_grad,
        BACKWARD,
        AxisAttrs,
        exact=_softmax_grad_exact,
        inputs=("dy", "y"),
        outputs=("dx",),
        reuses=("dy", "y"),
    )
)
register(
    OpDef(
        "LogSoftmax",
        "x - log(sum(exp(x))) along an axis.",
        _infer_log_softmax,
        _log_softmax,
        _log_softmax_rule,
        AxisAttrs,
        samples=Samples(lambda _node, attrs, _count: along(attrs, (attrs.axis,))),
        exact=_log_softmax_exact,
        inputs=("x",),
        reuses=("x",),
    )
)
register(
    OpDef(
        "LogSoftmaxGrad",
        "Gradient of LogSoftmax from its output: dy - exp(y) * sum(dy).",
        _infer_log_softmax_grad,
        _log_softmax_grad,
        BACKWARD,
        AxisAttrs,
        exact=_log_softmax_grad_exact,
        inputs=("dy", "y"),
        outputs=("dx",),
        reuses=("dy", "y"),
    )
)
register(
    OpDef(
        "Normalize",
        "(x - mean) * rstd and rstd = 1 / sqrt(variance + epsilon), both over a group of axes.",
        _infer_normalize,
        _normalize,
        _normalize_rule,
        NormalizeAttrs,
        samples=Samples(lambda _node, attrs, _count: along(attrs, attrs.axes)),
        exact=_normalize_exact,
        inputs=("x",),
        outputs=("xhat", "rstd"),
        reuses=("x",),
    )
)
register(
    OpDef(
        "NormalizeGrad",
        "Gradient of Normalize from its outputs: rstd * (dxhat - mean(dxhat) - xhat * mean(dxhat * xhat)).",
        _infer_normalize_grad,
        _normalize_grad,
        BACKWARD,
        NormalizeAttrs,
        exact=_normalize_grad_exact,
        inputs=("dxhat", "xhat", "rstd"),
        outputs=("dx",),
        reuses=("dxhat", "xhat"),
    )
)
