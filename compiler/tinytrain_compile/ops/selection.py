"""Operators along the last axis: the largest elements, elements named by an index, and running sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.base import NonDifferentiable, Samples, operator
from tinytrain_compile.ops.names import (
    BACKWARD,
    WrongTypeError,
    emits,
    expect_float,
    expect_indices,
    kept_layout,
)
from tinytrain_compile.ops.repeat import along


@dataclass(frozen=True)
class TopAttrs(Attrs):
    """Number of elements to choose; smallest: choose the smallest instead of the largest."""

    count: int
    smallest: bool = False


@dataclass(frozen=True)
class TakeAlongAttrs(Attrs):
    """Length of the axis to choose from."""

    size: int


@dataclass(frozen=True)
class CumSumAttrs(Attrs):
    """The axis to go along. exclusive: without the element itself; reverse: from the end."""

    axis: int
    exclusive: bool = False
    reverse: bool = False


def _last(op: str, value: Value) -> int:
    if not value.shape:
        raise ValueError(f"{op} needs an axis, {value.name!r} has none")
    return len(value.shape) - 1


def _infer_top(inputs: tuple[Value, ...], attrs: TopAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    expect_float("TopIndices", x)
    if not 0 < attrs.count <= x.shape[_last("TopIndices", x)]:
        raise ValueError(f"TopIndices: {attrs.count} elements of shape {x.shape}")
    return (TensorType((*x.shape[:-1], attrs.count), "int32", kept_layout(x, len(x.shape))),)


def _infer_take(inputs: tuple[Value, ...], attrs: TakeAlongAttrs) -> tuple[TensorType, ...]:
    x, index = inputs
    expect_float("TakeAlong", x)
    expect_indices("TakeAlong", index)
    if x.shape[_last("TakeAlong", x) :] != (attrs.size,) or index.shape[:-1] != x.shape[:-1] or not index.shape:
        raise ValueError(f"TakeAlong: indices {index.shape} do not choose from {x.shape}")
    return (TensorType(index.shape, "float32", kept_layout(x, len(x.shape))),)


def _infer_take_grad(inputs: tuple[Value, ...], attrs: TakeAlongAttrs) -> tuple[TensorType, ...]:
    dy, index = inputs
    expect_float("TakeAlongGrad", dy)
    expect_indices("TakeAlongGrad", index)
    if dy.shape != index.shape or not dy.shape or attrs.size < 1:
        raise ValueError(f"TakeAlongGrad: gradient {dy.shape} does not belong to indices {index.shape}")
    return (TensorType((*dy.shape[:-1], attrs.size), "float32", kept_layout(dy, len(dy.shape))),)


def _infer_sum(inputs: tuple[Value, ...], attrs: CumSumAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    if x.dtype not in ("float32", "int32"):
        raise WrongTypeError(f"CumSum needs numbers, {x.name!r} is {x.dtype}")
    if not 0 <= attrs.axis < len(x.shape):
        raise ValueError(f"CumSum: axis {attrs.axis} of shape {x.shape}")
    return (TensorType(x.shape, x.dtype, kept_layout(x, len(x.shape))),)


def _top(arrays: tuple[Any, ...], attrs: TopAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    order = np.argsort(x if attrs.smallest else 0 - x, axis=-1, kind="stable")
    return (np.ascontiguousarray(order[..., : attrs.count]).astype(np.int32),)


def _take(arrays: tuple[Any, ...], attrs: TakeAlongAttrs) -> tuple[Array, ...]:
    x, index = arrays
    return (np.take_along_axis(x, np.clip(index, 0, attrs.size - 1), -1),)


def _take_grad(arrays: tuple[Any, ...], attrs: TakeAlongAttrs) -> tuple[Array, ...]:
    dy, index = arrays
    rows = np.zeros((dy.size // dy.shape[-1], attrs.size), dy.dtype)
    places = np.clip(index, 0, attrs.size - 1).reshape(len(rows), -1)
    np.add.at(rows, (np.arange(len(rows))[:, None], places), dy.reshape(places.shape))  # one after the other
    return (rows.reshape(*dy.shape[:-1], attrs.size),)


def _cumulate(arrays: tuple[Any, ...], attrs: CumSumAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    rows = np.moveaxis(x, attrs.axis, 0)
    rows = rows[::-1] if attrs.reverse else rows
    sums = np.add.accumulate(np.concatenate([np.zeros_like(rows[:1]), rows]), 0, dtype=x.dtype)
    sums = sums[:-1] if attrs.exclusive else sums[1:]
    return (np.ascontiguousarray(np.moveaxis(sums[::-1] if attrs.reverse else sums, 0, attrs.axis)),)


def _of_each(node: Node, attrs: Attrs, _count: int) -> Attrs:
    return along(attrs, (len(node.inputs[0].shape) - 1,))


operator(
    "TopIndices",
    "Where the largest (or smallest) elements of the last axis are, in their order; of equal ones the first.",
    _infer_top,
    _top,
    NonDifferentiable("a choice is piecewise constant", flat=True),
    TopAttrs,
    samples=Samples(_of_each),
    inputs=("x",),
)
operator(
    "TakeAlong",
    "Elements of the last axis by an index for each; an index counts as 0 below 0 and as the last above that.",
    _infer_take,
    _take,
    emits("TakeAlongGrad", "index"),
    TakeAlongAttrs,
    samples=Samples(_of_each),
    inputs=("x", "index"),
)
operator(
    "TakeAlongGrad",
    "Gradient of TakeAlong: every element the sum of the gradients at the places that it went to.",
    _infer_take_grad,
    _take_grad,
    BACKWARD,
    TakeAlongAttrs,
    inputs=("dy", "index"),
    outputs=("dx",),
)
operator(
    "CumSum",
    "Running sums along an axis.",
    _infer_sum,
    _cumulate,
    emits("CumSum", attrs=lambda _node, a: replace(a, reverse=not a.reverse)),
    CumSumAttrs,
    samples=Samples(lambda _node, attrs, _count: along(attrs, (attrs.axis,))),
    inputs=("x",),
)
