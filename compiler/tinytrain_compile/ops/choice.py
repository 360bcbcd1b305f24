"""Choosing between numbers: comparisons, masks, the larger of two and the largest of many.

A truth value is a uint8, 0 or 1. Comparisons have no gradient; a choice passes its own to what was chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, DType, Layout, Node, TensorType, Value
from tinytrain_compile.ops.arithmetic import Arithmetic
from tinytrain_compile.ops.base import (
    ELEMENTWISE,
    GradientContext,
    GradientRule,
    InferRule,
    NonDifferentiable,
    Samples,
    operator,
)
from tinytrain_compile.ops.elementwise import elementwise
from tinytrain_compile.ops.exact import largest_of
from tinytrain_compile.ops.names import (
    BACKWARD,
    emits,
    expect_float,
    expect_same_shape,
    expect_truth,
    kept_layout,
    like,
    only,
    operand,
)
from tinytrain_compile.ops.repeat import along


@dataclass(frozen=True)
class ReduceMaxAttrs(Attrs):
    """The axes to go over (increasing; kept as 1). smallest: the least element instead of the largest."""

    axes: tuple[int, ...]
    smallest: bool = False


STEP = NonDifferentiable("a truth value is piecewise constant", flat=True)

# ---- inference ------------------------------------------------------------------------------------------------------


def broadcast_type(values: tuple[Value, ...], dtype: DType) -> tuple[TensorType, ...]:
    """Infer one output of the operands' common shape, and of the layout of an operand that has it."""
    shape = tuple(np.broadcast_shapes(*(value.shape for value in values)))
    layouts: list[Layout] = [value.layout for value in values if value.shape == shape]
    return (TensorType(shape, dtype, layouts[0] if layouts else ""),)


def _infer_floats(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_float("the larger of two", *inputs)
    return broadcast_type(inputs, "float32")


def _infer_comparison(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    if any(value.dtype != "int32" for value in inputs):
        expect_float("a comparison", *inputs)
    return broadcast_type(inputs, "uint8")


def _infer_equal(inputs: tuple[Value, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    if all(value.dtype == "uint8" for value in inputs):
        return broadcast_type(inputs, "uint8")
    return _infer_comparison(inputs, attrs)


def _infer_logic(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    expect_truth("a logical operator", *inputs)
    return broadcast_type(inputs, "uint8")


def _infer_where(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    condition, *chosen = inputs
    expect_truth("Where", condition)
    if len({value.dtype for value in chosen}) > 1 or chosen[0].dtype not in ("int32", "uint8"):
        expect_float("Where", *chosen)
    return broadcast_type(inputs, chosen[0].dtype)


def _infer_reduce_max(inputs: tuple[Value, ...], attrs: ReduceMaxAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    expect_float("ReduceMax", x)
    axes = attrs.axes
    if list(axes) != sorted(set(axes)) or any(not 0 <= axis < len(x.shape) for axis in axes):
        raise ValueError(f"ReduceMax: axes {axes} of shape {x.shape}")
    shape = tuple(1 if axis in axes else dim for axis, dim in enumerate(x.shape))
    return (TensorType(shape, "float32", kept_layout(x, len(shape))),)


def _infer_reduce_max_grad(inputs: tuple[Value, ...], attrs: ReduceMaxAttrs) -> tuple[TensorType, ...]:
    dy, x, y = inputs
    expect_same_shape("ReduceMaxGrad", dy, y)
    if _infer_reduce_max((x,), attrs)[0].shape != dy.shape:
        raise ValueError(f"ReduceMaxGrad: gradient {dy.shape} does not belong to {x.shape} over {attrs.axes}")
    return like(x)


# ---- the larger of two ----------------------------------------------------------------------------------------------


def _two_gradient(larger: bool) -> GradientRule:
    def rule(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
        dy, (a, b) = only(dys), node.inputs
        found: dict[int, Value] = {}
        for index, (own, other) in enumerate(((a, b), (b, a))):
            if ctx.wants(index):
                pair = (own, other) if larger else (other, own)
                found[index] = ctx.sum_to(ctx.emit("MaximumGrad", (dy, *pair)), own)
        return found

    return rule


def _larger(m: Arithmetic, a: Any, b: Any) -> Any:
    return m.where(a > b, a, m.where(a <= b, b, a + b))  # a + b: a NaN stays


def _smaller(m: Arithmetic, a: Any, b: Any) -> Any:
    return m.where(a < b, a, m.where(a >= b, b, a + b))


_PAIR: dict[str, Any] = {"inputs": ("a", "b"), "infer": _infer_floats, "by_rows": False}
_HALF = "where they are equal each has half of the gradient."
elementwise("Maximum", f"The larger of a and b; {_HALF}", _larger, _two_gradient(True), **_PAIR)
elementwise("Minimum", f"The smaller of a and b; {_HALF}", _smaller, _two_gradient(False), **_PAIR)
elementwise(
    "MaximumGrad",
    "dy where a > b, dy / 2 where a = b, else 0.",
    lambda m, dy, a, b: m.where(a > b, dy, m.where(m.equal(a, b), dy * 0.5, 0.0)),
    BACKWARD,
    ("dy", "a", "b"),
    output="dx",
    infer=_infer_floats,
    by_rows=False,
)

# ---- truth values ---------------------------------------------------------------------------------------------------


def _truth(name: str, doc: str, function: Callable[[tuple[Any, ...]], Any], infer: InferRule, count: int = 2) -> None:
    names = ("a", "b")[:count]

    def reference(arrays: tuple[Any, ...], _attrs: Attrs) -> tuple[Array, ...]:
        return (np.asarray(function(arrays)).astype(np.uint8),)

    operator(
        name,
        doc,
        infer,
        reference,
        STEP,
        inputs=names,
        reuses=names if infer is _infer_logic else (),
        traits=ELEMENTWISE,
    )


_truth("Greater", "1 where a > b, else 0.", lambda v: v[0] > v[1], _infer_comparison)
_truth("GreaterOrEqual", "1 where a >= b, else 0.", lambda v: v[0] >= v[1], _infer_comparison)
_truth("Equal", "1 where a = b, else 0.", lambda v: v[0] == v[1], _infer_equal)
_truth("And", "1 where both are.", lambda v: v[0] & v[1], _infer_logic)
_truth("Or", "1 where one is.", lambda v: v[0] | v[1], _infer_logic)
_truth("Xor", "1 where they differ.", lambda v: v[0] ^ v[1], _infer_logic)
_truth("Not", "1 where a is 0.", lambda v: 1 - v[0], _infer_logic, 1)


def _where(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    condition, a, b = arrays
    return (np.where(condition != 0, a, b),)


def _where_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    dy, condition = only(dys), operand(node, "condition")
    nothing = ctx.constant("nothing", np.zeros((), np.float32))
    found: dict[int, Value] = {}
    for index, pair in ((1, (dy, nothing)), (2, (nothing, dy))):
        if ctx.wants(index):
            found[index] = ctx.sum_to(ctx.emit("Where", (condition, *pair)), node.inputs[index])
    return found


operator(
    "Where",
    "a where the condition is not 0, else b.",
    _infer_where,
    _where,
    _where_gradient,
    inputs=("condition", "a", "b"),
    reuses=("a", "b"),
    traits=ELEMENTWISE,
)

# ---- the largest of many --------------------------------------------------------------------------------------------


def _reduce_max(arrays: tuple[Any, ...], attrs: ReduceMaxAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (np.asarray((np.min if attrs.smallest else np.max)(x, axis=attrs.axes, keepdims=True)),)


def _reduce_max_exact(arrays: tuple[Any, ...], attrs: ReduceMaxAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    front = np.moveaxis(0 - x if attrs.smallest else x, attrs.axes, range(len(attrs.axes)))
    parts = front.reshape(-1, *front.shape[len(attrs.axes) :])
    best = np.expand_dims(largest_of(parts), attrs.axes)
    return (np.asarray(0 - best if attrs.smallest else best),)


def _reduce_max_grad(arrays: tuple[Any, ...], attrs: ReduceMaxAttrs) -> tuple[Array, ...]:
    dy, x, y = arrays
    ties = (x == y).astype(dy.dtype).sum(axis=attrs.axes, keepdims=True)
    return (np.where(x == y, dy / ties, 0).astype(dy.dtype),)


operator(
    "ReduceMax",
    "Largest (or smallest) element over axes that stay as 1; where several are, they share the gradient evenly.",
    _infer_reduce_max,
    _reduce_max,
    emits("ReduceMaxGrad", "x", "y"),
    ReduceMaxAttrs,
    exact=_reduce_max_exact,
    samples=Samples(lambda _node, attrs, _count: along(attrs, attrs.axes)),
    inputs=("x",),
)
operator(
    "ReduceMaxGrad",
    "Gradient of ReduceMax: dy, divided by how many elements of x equal y, for these.",
    _infer_reduce_max_grad,
    _reduce_max_grad,
    BACKWARD,
    ReduceMaxAttrs,
    inputs=("dy", "x", "y"),
    outputs=("dx",),
    reuses=("x",),
)
