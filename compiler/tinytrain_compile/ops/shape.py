"""Moving data: reshape, transpose, join, cut, pad, broadcast and sum along axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.base import (
    MOVES_DATA,
    GradientContext,
    NonDifferentiable,
    Overlap,
    Placed,
    Samples,
    operator,
    traits,
)
from tinytrain_compile.ops.describe import number, summed
from tinytrain_compile.ops.exact import scaled, sum_over
from tinytrain_compile.ops.names import attrs_of, emits, expect_float, kept_layout, only, operand
from tinytrain_compile.ops.overlap import embedded, never_upwards, within_concat
from tinytrain_compile.ops.owned import Owned
from tinytrain_compile.ops.repeat import along, repeat_places, repeat_shape
from tinytrain_compile.ops.rows import cut_starts, run_starts, slice_rows


@dataclass(frozen=True)
class ReshapeAttrs(Attrs):
    """The new shape, every dimension given."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class TransposeAttrs(Attrs):
    """Axis i of the output is axis perm[i] of the input."""

    perm: tuple[int, ...]


@dataclass(frozen=True)
class ConcatAttrs(Attrs):
    """The axis along which the inputs follow each other (not negative)."""

    axis: int


@dataclass(frozen=True)
class SliceAttrs(Attrs):
    """Per axis: y[i] = x[starts + i * steps] for i < sizes. Steps may be negative, never zero."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class EmbedAttrs(Attrs):
    """A tensor of `shape` filled with `value`, in which y[starts + i * steps] = x[i]."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    shape: tuple[int, ...]
    value: float = 0.0


@dataclass(frozen=True)
class ExpandAttrs(Attrs):
    """The shape to broadcast to, and a factor."""

    shape: tuple[int, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class ReduceAttrs(Attrs):
    """The axes to sum over (increasing; kept as 1), and a factor: 1/n makes it a mean."""

    axes: tuple[int, ...]
    scale: float = 1.0


# ---- inference ------------------------------------------------------------------------------------------------------


def _infer_reshape(inputs: tuple[Value, ...], attrs: ReshapeAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    if any(dim < 1 for dim in attrs.shape) or math.prod(attrs.shape) != x.elements:
        raise ValueError(f"Reshape: {x.shape} has {x.elements} elements, {attrs.shape} has not")
    return (TensorType(attrs.shape, x.dtype),)


def _infer_transpose(inputs: tuple[Value, ...], attrs: TransposeAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    if sorted(attrs.perm) != list(range(len(x.shape))):
        raise ValueError(f"Transpose: {attrs.perm} is not a permutation of the axes of {x.shape}")
    return (TensorType(tuple(x.shape[axis] for axis in attrs.perm), x.dtype),)


def _infer_concat(inputs: tuple[Value, ...], attrs: ConcatAttrs) -> tuple[TensorType, ...]:
    (first, *_), axis = inputs, attrs.axis
    if not 0 <= axis < len(first.shape):
        raise ValueError(f"Concat: axis {axis} of shape {first.shape}")
    for x in inputs:
        others = [(*v.shape[:axis], *v.shape[axis + 1 :]) for v in (x, first)]
        if len(x.shape) != len(first.shape) or others[0] != others[1] or x.dtype != first.dtype:
            raise ValueError(f"Concat: {x.type} does not join {first.type} on axis {axis}")
    total = sum(x.shape[axis] for x in inputs)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return (TensorType(shape, first.dtype, kept_layout(first, len(shape))),)


def _check_places(
    op: str, starts: tuple[int, ...], steps: tuple[int, ...], sizes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """Check that every place starts + i * steps lies inside `shape`."""
    if not len(starts) == len(steps) == len(sizes) == len(shape):
        raise ValueError(f"{op}: {starts}, {steps} and {sizes} do not have one entry per axis of {shape}")
    for start, step, size, dim in zip(starts, steps, sizes, shape, strict=True):
        last = start + (size - 1) * step
        if step == 0 or size < 1 or not (0 <= start < dim and 0 <= last < dim):
            raise ValueError(f"{op}: {size} elements from {start} in steps of {step} do not lie in an axis of {dim}")


def _infer_slice(inputs: tuple[Value, ...], attrs: SliceAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    _check_places("Slice", attrs.starts, attrs.steps, attrs.sizes, x.shape)
    return (TensorType(attrs.sizes, x.dtype, kept_layout(x, len(attrs.sizes))),)


def _infer_embed(inputs: tuple[Value, ...], attrs: EmbedAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    _check_places("Embed", attrs.starts, attrs.steps, x.shape, attrs.shape)
    return (TensorType(attrs.shape, x.dtype, kept_layout(x, len(attrs.shape))),)


def _infer_push_rows(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    ring, x = inputs
    if x.dtype != ring.dtype or x.elements > ring.elements:
        raise ValueError(f"PushRows: {x.type} does not go into a ring of {ring.type}")
    return (ring.type,)


def _stretched(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of `target` that broadcasting `source` to it adds or stretches; ValueError if it does not
    broadcast."""
    added = len(target) - len(source)
    if added < 0:
        raise ValueError(f"Expand: {source} has more axes than {target}")
    axes = list(range(added))
    for axis, (have, want) in enumerate(zip(source, target[added:], strict=True), start=added):
        if have not in (1, want) or want < 1:
            raise ValueError(f"Expand: {source} does not broadcast to {target}")
        if have != want:
            axes.append(axis)
    return tuple(axes)


def _infer_expand(inputs: tuple[Value, ...], attrs: ExpandAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    _stretched(x.shape, attrs.shape)
    if attrs.scale != 1.0:
        expect_float("Expand", x)
    return (TensorType(attrs.shape, x.dtype, kept_layout(x, len(attrs.shape))),)


def _infer_reduce(inputs: tuple[Value, ...], attrs: ReduceAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    expect_float("Reduce", x)
    if list(attrs.axes) != sorted(set(attrs.axes)) or any(not 0 <= axis < len(x.shape) for axis in attrs.axes):
        raise ValueError(f"Reduce: axes {attrs.axes} of shape {x.shape}")
    shape = tuple(1 if axis in attrs.axes else dim for axis, dim in enumerate(x.shape))
    return (TensorType(shape, x.dtype, kept_layout(x, len(shape))),)


# ---- references -----------------------------------------------------------------------------------------------------


def _reshape(arrays: tuple[Any, ...], attrs: ReshapeAttrs) -> tuple[Array, ...]:
    return (arrays[0].reshape(attrs.shape),)


def _transpose(arrays: tuple[Any, ...], attrs: TransposeAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (np.ascontiguousarray(x.transpose(attrs.perm)).reshape([x.shape[i] for i in attrs.perm]),)


def _concat(arrays: tuple[Any, ...], attrs: ConcatAttrs) -> tuple[Array, ...]:
    return (np.concatenate(arrays, axis=attrs.axis),)


def _places(starts: tuple[int, ...], steps: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """Return an index that selects (or writes) these places of an array."""
    axes = [start + step * np.arange(size) for start, step, size in zip(starts, steps, sizes, strict=True)]
    return np.ix_(*axes)


def _slice(arrays: tuple[Any, ...], attrs: SliceAttrs) -> tuple[Array, ...]:
    return (np.array(arrays[0][_places(attrs.starts, attrs.steps, attrs.sizes)]),)


def _embed(arrays: tuple[Any, ...], attrs: EmbedAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    y = np.full(attrs.shape, attrs.value, x.dtype)
    y[_places(attrs.starts, attrs.steps, x.shape)] = x
    return (y,)


def _push_rows(arrays: tuple[Any, ...], _attrs: Attrs) -> tuple[Array, ...]:
    ring, x = arrays
    return (np.asarray(np.append(ring.ravel()[x.size :], x)).reshape(ring.shape),)


def _expand(arrays: tuple[Any, ...], attrs: ExpandAttrs) -> tuple[Array, ...]:
    (x,) = (np.array(np.broadcast_to(array, attrs.shape)) for array in arrays)
    return (x if attrs.scale == 1.0 else x * x.dtype.type(attrs.scale),)


def _reduce(arrays: tuple[Any, ...], attrs: ReduceAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (np.asarray(np.sum(x, axis=attrs.axes, keepdims=True) * x.dtype.type(attrs.scale)),)


def _expand_exact(arrays: tuple[Any, ...], attrs: ExpandAttrs) -> tuple[Array, ...]:
    (x,) = (np.array(np.broadcast_to(array, attrs.shape)) for array in arrays)
    return (x if attrs.scale == 1.0 else scaled(x, attrs.scale),)  # integers stay integers


def _reduce_exact(arrays: tuple[Any, ...], attrs: ReduceAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    several = any(x.shape[axis] > 1 for axis in attrs.axes)  # else a plain product, not a sum that starts at 0
    return (np.asarray(scaled(sum_over(x, attrs.axes) if several else x, attrs.scale)),)


# ---- gradients ------------------------------------------------------------------------------------------------------


def _concat_rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    dy, axis, offset = only(gradients), attrs_of(node, ConcatAttrs).axis, 0
    result: dict[int, Value] = {}
    for index, x in enumerate(node.inputs):
        starts = tuple(offset if i == axis else 0 for i in range(len(x.shape)))
        if ctx.wants(index):
            result[index] = ctx.emit("Slice", (dy,), SliceAttrs(starts, (1,) * len(x.shape), x.shape))
        offset += x.shape[axis]
    return result


def _expand_rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    assert isinstance(node.attrs, ExpandAttrs)
    x = operand(node, "x")
    axes = _stretched(x.shape, node.attrs.shape)
    dx = ctx.emit("Reduce", (only(gradients),), ReduceAttrs(axes, node.attrs.scale))
    return {0: dx if dx.shape == x.shape else ctx.emit("Reshape", (dx,), ReshapeAttrs(x.shape))}


def _slice_starts(node: Node) -> tuple[int, ...] | None:
    attrs = attrs_of(node, SliceAttrs)
    return cut_starts(node, attrs.starts, attrs.steps, attrs.sizes)


def _embed_overlaps(node: Node) -> tuple[Overlap, ...]:
    attrs = attrs_of(node, EmbedAttrs)
    return embedded(node, attrs.starts, attrs.steps)


# Expand and Reduce may run in place only when sizes agree: then nothing is stretched or summed, and both are
# element-wise multiplications that read element i before they write it.


def _transpose_says(node: Node) -> str:
    return f"y = x with its axes in the order {', '.join(map(str, attrs_of(node, TransposeAttrs).perm))}"


def _concat_says(node: Node) -> str:
    return f"y = the inputs one after the other along axis {attrs_of(node, ConcatAttrs).axis}"


def _slice_says(node: Node) -> str:
    a = attrs_of(node, SliceAttrs)
    return f"y = x from ({', '.join(map(str, a.starts))}) in steps of ({', '.join(map(str, a.steps))})"


def _embed_says(node: Node) -> str:
    a = attrs_of(node, EmbedAttrs)
    places = f"from ({', '.join(map(str, a.starts))}) in steps of ({', '.join(map(str, a.steps))})"
    return f"y = {number(a.value)}, with x placed {places}"


def _expand_says(node: Node) -> str:
    scale = attrs_of(node, ExpandAttrs).scale
    return f"y = x repeated{'' if scale == 1 else f', times {number(scale)}'}"


def _reduce_says(node: Node) -> str:
    a, shape = attrs_of(node, ReduceAttrs), operand(node, "x").shape
    count = math.prod(shape[axis] for axis in a.axes)
    mean = count > 1 and math.isclose(a.scale * count, 1.0, rel_tol=1e-6)
    factor = "" if mean or a.scale == 1 else f", times {number(a.scale)}"
    return f"y = {'mean' if mean else 'sum'} of x over {summed(a.axes, shape)}{factor}"


operator(
    "Reshape",
    "The same elements in another shape.",
    _infer_reshape,
    _reshape,
    emits("Reshape", attrs=lambda node, _a: ReshapeAttrs(operand(node, "x").shape)),
    ReshapeAttrs,
    samples=Samples(repeat_shape),
    placed=Placed(True, lambda _node: (0,)),
    inputs=("x",),
    traits=traits("moves_data", "keeps_channels", "rearranges", "between"),
)
operator(
    "Transpose",
    "Axes in another order.",
    _infer_transpose,
    _transpose,
    emits("Transpose", attrs=lambda _node, a: TransposeAttrs(tuple(map(a.perm.index, range(len(a.perm)))))),
    TransposeAttrs,
    samples=Samples(lambda _node, attrs, _count: along(attrs, attrs.perm[1:])),
    inputs=("x",),
    traits=traits("moves_data", "rearranges", "between"),
    says=_transpose_says,
)


operator(
    "Concat",
    "Inputs one after the other along an axis.",
    _infer_concat,
    _concat,
    _concat_rule,
    ConcatAttrs,
    placed=Placed(starts=lambda node: run_starts(node, attrs_of(node, ConcatAttrs).axis), as_view="ConcatView"),
    overlaps=lambda node: within_concat(node, attrs_of(node, ConcatAttrs).axis),
    samples=Samples(lambda _node, attrs, _count: along(attrs, (attrs.axis,))),
    inputs=("x*",),
    traits=traits("moves_data", "keeps_channels"),
    says=_concat_says,
)
operator(
    "Slice",
    "Regularly spaced elements of a tensor.",
    _infer_slice,
    _slice,
    emits("Embed", attrs=lambda node, a: EmbedAttrs(a.starts, a.steps, operand(node, "x").shape)),
    SliceAttrs,
    placed=Placed(starts=_slice_starts, as_view="SliceView"),
    overlaps=lambda node: never_upwards(attrs_of(node, SliceAttrs).steps),
    rows=slice_rows,
    samples=Samples(repeat_places),
    inputs=("x",),
    traits=traits("moves_data", "keeps_channels", "between", "cuts"),
    says=_slice_says,
)
operator(
    "PushRows",
    "ring = its rows but the first, and after them x: the latest rows of a stream.",
    _infer_push_rows,
    _push_rows,
    NonDifferentiable("updates are not part of the differentiated function"),
    inputs=("ring", "x"),
    outputs=("ring",),
    owned=Owned({"ring": "SUM"}, "integer"),
)
operator(
    "Embed",
    "A constant tensor with the input at regularly spaced places: constant padding, and the gradient of Slice.",
    _infer_embed,
    _embed,
    emits("Slice", attrs=lambda node, a: SliceAttrs(a.starts, a.steps, operand(node, "x").shape)),
    EmbedAttrs,
    overlaps=_embed_overlaps,
    samples=Samples(repeat_places),
    inputs=("x",),
    traits=MOVES_DATA,
    says=_embed_says,
)
operator(
    "Expand",
    "Broadcast to a shape, times a constant.",
    _infer_expand,
    _expand,
    _expand_rule,
    ExpandAttrs,
    exact=_expand_exact,
    samples=Samples(repeat_shape),
    inputs=("x",),
    reuses=("x",),
    traits=traits("repeats"),
    says=_expand_says,
)
operator(
    "Reduce",
    "Sum over axes that stay as 1, times a constant.",
    _infer_reduce,
    _reduce,
    emits("Expand", attrs=lambda node, a: ExpandAttrs(operand(node, "x").shape, a.scale)),
    ReduceAttrs,
    exact=_reduce_exact,
    samples=Samples(lambda _node, attrs, _count: along(attrs, attrs.axes), lambda attrs: 0 in attrs.axes),
    inputs=("x",),
    reuses=("x",),
    traits=traits("requantised", "reduces"),
    says=_reduce_says,
)
