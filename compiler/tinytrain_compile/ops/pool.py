"""Pooling over windows of NHWC images.

The gradient of a maximum needs only the index of the tap that won. MaxPoolIndex is emitted with the backward graph but
depends on the forward input alone, so the planner runs it early and the input dies. One byte per window lives until the
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.base import GradientContext, NonDifferentiable, Overlap, operator, traits
from tinytrain_compile.ops.describe import padding, times, window
from tinytrain_compile.ops.exact import F32, LOWEST, largest_of, sequential_sum
from tinytrain_compile.ops.names import BACKWARD, attrs_of, emits, expect_float, only, operand
from tinytrain_compile.ops.overlap import windows
from tinytrain_compile.ops.rows import RowForm, window_rows


@dataclass(frozen=True)
class PoolAttrs(Attrs):
    """A sliding window. pads = (top, left, bottom, right); output_hw is explicit (ceil_mode is resolved before)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int] = (1, 1)
    output_hw: tuple[int, int] = (1, 1)
    count_include_pad: bool = False


@dataclass(frozen=True)
class PoolGradAttrs(Attrs):
    """The forward window and the height and width of the forward input."""

    pool: PoolAttrs
    input_hw: tuple[int, int]


def taps_in_range(attrs: PoolAttrs, axis: int, size: int) -> Array:
    """Return how many taps of each window count on an axis (0 height, 1 width) of `size` elements.

    Only real elements count, or with count_include_pad everything inside the padded extent (ONNX AveragePool).
    """
    low, high = attrs.pads[axis], attrs.pads[axis + 2]
    first, last = (-low, size + high) if attrs.count_include_pad else (0, size)
    starts = np.arange(attrs.output_hw[axis]) * attrs.strides[axis] - low
    taps = starts[:, None] + np.arange(attrs.kernel[axis])[None, :] * attrs.dilations[axis]
    return ((taps >= first) & (taps < last)).sum(axis=1)


# ---- inference ------------------------------------------------------------------------------------------------------


def _check_window(op: str, attrs: PoolAttrs, hw: tuple[int, int]) -> None:
    if min(*attrs.kernel, *attrs.strides, *attrs.dilations, *attrs.output_hw) < 1 or min(attrs.pads) < 0:
        raise ValueError(f"{op}: window {attrs} makes no sense")
    for axis in (0, 1):
        starts = np.arange(attrs.output_hw[axis]) * attrs.strides[axis] - attrs.pads[axis]
        taps = starts[:, None] + np.arange(attrs.kernel[axis])[None, :] * attrs.dilations[axis]
        if not ((taps >= 0) & (taps < hw[axis])).any(axis=1).all():
            raise ValueError(f"{op}: a window lies wholly in the padding (input {hw}, {attrs})")


def _image(op: str, x: Value) -> tuple[int, int, int, int]:
    if len(x.shape) != 4:
        raise ValueError(f"{op} needs an NHWC image, got shape {x.shape}")
    n, h, w, c = x.shape
    return n, h, w, c


def _infer_pool(op: str, inputs: tuple[Value, ...], attrs: PoolAttrs) -> tuple[int, int, int, int]:
    (x,) = inputs
    n, h, w, c = _image(op, x)
    if x.dtype != "int8" or op == "AveragePool":
        expect_float(op, x)
    _check_window(op, attrs, (h, w))
    return n, *attrs.output_hw, c


def _infer_max_pool(inputs: tuple[Value, ...], attrs: PoolAttrs) -> tuple[TensorType, ...]:
    (x,) = inputs
    return (TensorType(_infer_pool("MaxPool", inputs, attrs), x.dtype, "NHWC"),)


def _infer_average_pool(inputs: tuple[Value, ...], attrs: PoolAttrs) -> tuple[TensorType, ...]:
    return (TensorType(_infer_pool("AveragePool", inputs, attrs), "float32", "NHWC"),)


def _fits_a_byte(attrs: PoolAttrs) -> bool:
    return attrs.kernel[0] * attrs.kernel[1] <= 256


def _infer_max_pool_index(inputs: tuple[Value, ...], attrs: PoolAttrs) -> tuple[TensorType, ...]:
    shape = _infer_pool("MaxPoolIndex", inputs, attrs)
    return (TensorType(shape, "uint8" if _fits_a_byte(attrs) else "int32", "NHWC"),)


def _infer_pool_grad(op: str, dy: Value, attrs: PoolGradAttrs) -> tuple[TensorType, ...]:
    n, h, w, c = _image(op, dy)
    if dy.dtype != "int8" or op == "AveragePoolGrad":
        expect_float(op, dy)
    _check_window(op, attrs.pool, attrs.input_hw)
    if (h, w) != attrs.pool.output_hw:
        raise ValueError(f"{op}: gradient is {h}x{w}, the window gives {attrs.pool.output_hw}")
    return (TensorType((n, *attrs.input_hw, c), dy.dtype, "NHWC"),)


def always_full(attrs: PoolAttrs, hw: tuple[int, int]) -> bool:
    """Tell whether every window divides by all its taps and none extends past the padded image, as in a convolution."""
    for axis in (0, 1):
        padded = hw[axis] + attrs.pads[axis] + attrs.pads[axis + 2]
        reach = (attrs.output_hw[axis] - 1) * attrs.strides[axis] + (attrs.kernel[axis] - 1) * attrs.dilations[axis]
        if reach >= padded or taps_in_range(attrs, axis, hw[axis]).min() < attrs.kernel[axis]:
            return False
    return True


def overlap(attrs: PoolAttrs) -> bool:
    """Tell whether an element may be in several windows."""
    axes = zip(attrs.kernel, attrs.strides, attrs.dilations, attrs.output_hw, strict=True)
    return any(windows > 1 and (k - 1) * dilation + 1 > stride for k, stride, dilation, windows in axes)


def _infer_max_pool_grad(inputs: tuple[Value, ...], attrs: PoolGradAttrs) -> tuple[TensorType, ...]:
    dy, index = inputs
    if dy.dtype == "int8" and overlap(attrs.pool):
        raise ValueError("MaxPoolGrad: int8 gradients of windows that overlap would need a sum")
    return index_gradient("MaxPoolGrad", dy, index, attrs)


def index_gradient(op: str, dy: Value, index: Value, attrs: PoolGradAttrs) -> tuple[TensorType, ...]:
    """Return the type of the input's gradient; raise ValueError if gradient and index do not fit."""
    kind = _infer_pool_grad(op, dy, attrs)
    if index.shape != dy.shape or index.dtype != ("uint8" if _fits_a_byte(attrs.pool) else "int32"):
        raise ValueError(f"{op}: index {index.type} does not belong to gradient {dy.type}")
    return kind


def _infer_average_pool_grad(inputs: tuple[Value, ...], attrs: PoolGradAttrs) -> tuple[TensorType, ...]:
    (dy,) = inputs
    return _infer_pool_grad("AveragePoolGrad", dy, attrs)


# ---- references -----------------------------------------------------------------------------------------------------


def _padded_hw(attrs: PoolAttrs, hw: tuple[int, int]) -> tuple[int, int]:
    """Return the height and width of an image padded so that every tap of every window is inside."""
    ends = [
        (attrs.output_hw[a] - 1) * attrs.strides[a] + (attrs.kernel[a] - 1) * attrs.dilations[a] + 1 for a in (0, 1)
    ]
    return max(ends[0], hw[0] + attrs.pads[0]), max(ends[1], hw[1] + attrs.pads[1])


def _tap_slices(attrs: PoolAttrs) -> Iterator[tuple[slice, slice]]:
    """Yield, for each tap in row-major order, its places in the padded image for all windows."""
    (kh, kw), (sh, sw), (dh, dw), (oh, ow) = attrs.kernel, attrs.strides, attrs.dilations, attrs.output_hw
    for row in range(0, kh * dh, dh):
        for column in range(0, kw * dw, dw):
            yield slice(row, row + (oh - 1) * sh + 1, sh), slice(column, column + (ow - 1) * sw + 1, sw)


def _pad(x: Any, attrs: PoolAttrs, value: float) -> Any:
    n, h, w, c = x.shape
    top, left = attrs.pads[:2]
    padded = np.full((n, *_padded_hw(attrs, (h, w)), c), value, x.dtype)
    padded[:, top : top + h, left : left + w] = x
    return padded


def _crop(padded: Any, attrs: PoolGradAttrs) -> Any:
    (top, left), (h, w) = attrs.pool.pads[:2], attrs.input_hw
    return np.ascontiguousarray(padded[:, top : top + h, left : left + w])


def _taps(x: Any, attrs: PoolAttrs, value: float) -> Any:
    padded = _pad(x, attrs, value)
    return np.stack([padded[:, rows, columns] for rows, columns in _tap_slices(attrs)])


def _divisor(attrs: PoolAttrs, hw: tuple[int, int], dtype: Any) -> Any:
    counts = np.multiply.outer(taps_in_range(attrs, 0, hw[0]), taps_in_range(attrs, 1, hw[1]))
    return counts.astype(dtype)[None, :, :, None]


def _max_pool(arrays: tuple[Any, ...], attrs: PoolAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (_candidates(x, attrs).max(axis=0).astype(x.dtype),)


def _candidates(x: Any, attrs: PoolAttrs) -> Any:
    """Return the taps of each window; padding is lower than any element."""
    return _taps(x.astype(np.int32), attrs, -1000) if x.dtype == np.int8 else _taps(x, attrs, -np.inf)


def _max_pool_index(arrays: tuple[Any, ...], attrs: PoolAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    index = _candidates(x, attrs).argmax(axis=0)
    return (index.astype(np.uint8 if _fits_a_byte(attrs) else np.int32),)


def max_pool_grad(arrays: tuple[Any, ...], attrs: PoolGradAttrs) -> tuple[Array, ...]:
    """Compute (gradient, index) -> (gradient of the input,), in the gradient's type."""
    dy, index = arrays
    padded = np.zeros((dy.shape[0], *_padded_hw(attrs.pool, attrs.input_hw), dy.shape[3]), dy.dtype)
    for tap, (rows, columns) in enumerate(_tap_slices(attrs.pool)):
        padded[:, rows, columns] += np.where(index == tap, dy, dy.dtype.type(0))
    return (_crop(padded, attrs),)


def _average_pool(arrays: tuple[Any, ...], attrs: PoolAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (_taps(x, attrs, 0.0).sum(axis=0) / _divisor(attrs, x.shape[1:3], x.dtype),)


def _average_pool_grad(arrays: tuple[Any, ...], attrs: PoolGradAttrs) -> tuple[Array, ...]:
    (dy,) = arrays
    return (_collected(dy / _divisor(attrs.pool, attrs.input_hw, dy.dtype), attrs),)


def _collected(share: Any, attrs: PoolGradAttrs) -> Array:
    """Return every pixel's sum over the windows that cover it, tap after tap."""
    padded = np.zeros((share.shape[0], *_padded_hw(attrs.pool, attrs.input_hw), share.shape[3]), share.dtype)
    for rows, columns in _tap_slices(attrs.pool):
        padded[:, rows, columns] += share
    return _crop(padded, attrs)


# ---- exact references -----------------------------------------------------------------------------------------------


def _inside_taps(x: Any, attrs: PoolAttrs) -> Any:
    """Tell whether each tap (first axis) of each window is in the image."""
    return _taps(np.ones((1, *x.shape[1:3], 1), np.bool_), attrs, 0.0)


def _max_pool_exact(arrays: tuple[Any, ...], attrs: PoolAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    if x.dtype == np.int8:
        return _max_pool(arrays, attrs)
    return (largest_of(_taps(x, attrs, 0.0), _inside_taps(x, attrs)) + F32(0),)  # -0 becomes 0


def _max_pool_index_exact(arrays: tuple[Any, ...], attrs: PoolAttrs) -> tuple[Array, ...]:
    """Return the index of the first largest tap; a NaN never wins."""
    (x,) = arrays
    if x.dtype == np.int8:
        return _max_pool_index(arrays, attrs)
    taps, inside = _taps(x, attrs, 0.0), _inside_taps(x, attrs)
    best, index = np.full(taps.shape[1:], LOWEST, F32), np.zeros(taps.shape[1:], np.int32)
    for tap, value in enumerate(taps):
        better = inside[tap] & (value > best)
        best, index = np.where(better, value, best), np.where(better, np.int32(tap), index)
    return (index.astype(np.uint8 if _fits_a_byte(attrs) else np.int32),)


def _exact_mean(total: Any, attrs: PoolAttrs, hw: tuple[int, int]) -> Any:
    """Divide sums by the taps that count; if all windows have equally many, multiply by the inverse."""
    counts = _divisor(attrs, hw, F32)
    return total * F32(1.0 / float(counts.max())) if counts.min() == counts.max() else total / counts


def _average_pool_exact(arrays: tuple[Any, ...], attrs: PoolAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (_exact_mean(sequential_sum(_taps(x, attrs, 0.0)), attrs, x.shape[1:3]),)


def _average_pool_grad_exact(arrays: tuple[Any, ...], attrs: PoolGradAttrs) -> tuple[Array, ...]:
    (dy,) = arrays
    counts = _divisor(attrs.pool, attrs.input_hw, F32)
    if counts.min() == counts.max():
        return (_collected(dy, attrs) * F32(1.0 / float(counts.max())),)
    return (_collected(dy / counts, attrs),)


# ---- gradients ------------------------------------------------------------------------------------------------------


def _grad_attrs(node: Node) -> PoolGradAttrs:
    _, h, w, _ = operand(node, "x").shape
    return PoolGradAttrs(attrs_of(node, PoolAttrs), (h, w))


def _max_pool_rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    index = ctx.emit("MaxPoolIndex", (operand(node, "x"),), node.attrs)
    return {0: ctx.emit("MaxPoolGrad", (only(gradients), index), _grad_attrs(node))}


def _overlaps(node: Node) -> tuple[Overlap, ...]:
    attrs = attrs_of(node, PoolAttrs)
    return windows(node, attrs.strides, attrs.pads)


def _rows(node: Node) -> RowForm | None:
    """Return the row form of a mean; its divisor depends on the row if part of the window is outside the image."""
    attrs = attrs_of(node, PoolAttrs)
    counts = taps_in_range(attrs, 0, operand(node, "x").shape[1])
    if node.op == "AveragePool" and attrs.count_include_pad and counts.min() != counts.max():
        return None
    return window_rows(attrs.kernel, attrs.strides, attrs.dilations, attrs.pads)


def _window_says(what: str) -> Callable[[Node], str]:
    """Return the rule of an operator that makes one number of each window."""

    def says(node: Node) -> str:
        a, x = attrs_of(node, PoolAttrs), operand(node, "x").shape
        geometry = f"{window(a.kernel, a.strides, a.pads, a.dilations)}, {x[3]} channels, {times(a.output_hw)}"
        return f"{what}: {geometry}.{padding(*a.pads[:2], x, 'x')}"

    return says


def _window_grad_says(what: str) -> Callable[[Node], str]:
    """Return the rule of the gradient of such an operator."""

    def says(node: Node) -> str:
        a = attrs_of(node, PoolGradAttrs).pool
        return f"{what}: {window(a.kernel, a.strides, a.pads, a.dilations)} in the forward pass"

    return says


operator(
    "MaxPool",
    "Largest element of each window (padding never wins).",
    _infer_max_pool,
    _max_pool,
    _max_pool_rule,
    PoolAttrs,
    exact=_max_pool_exact,
    overlaps=_overlaps,
    rows=_rows,
    inputs=("x",),
    says=_window_says("y = largest element of each window"),
    traits=traits("moves_data", "between"),
)
operator(
    "MaxPoolIndex",
    "Row-major position in its window of the first largest element: what the gradient of MaxPool keeps.",
    _infer_max_pool_index,
    _max_pool_index,
    NonDifferentiable("an index: piecewise constant in its input"),
    PoolAttrs,
    exact=_max_pool_index_exact,
    rows=_rows,
    inputs=("x",),
    outputs=("index",),
    says=_window_says("index = position in its window of the first largest element"),
    traits=traits("marks"),
)
operator(
    "MaxPoolGrad",
    "Gradient of MaxPool: each window's gradient goes to the element that won.",
    _infer_max_pool_grad,
    max_pool_grad,
    BACKWARD,
    PoolGradAttrs,
    inputs=("dy", "index"),
    outputs=("dx",),
    says=_window_grad_says("dx = sum of dy over the windows in which an element was the largest"),
    traits=traits("pool_gradient"),
)
operator(
    "AveragePool",
    "Mean of each window over its real (or, with count_include_pad, its padded) elements.",
    _infer_average_pool,
    _average_pool,
    emits("AveragePoolGrad", attrs=lambda node, _a: _grad_attrs(node)),
    PoolAttrs,
    exact=_average_pool_exact,
    overlaps=_overlaps,
    rows=_rows,
    inputs=("x",),
    says=_window_says("y = mean of each window"),
    traits=traits("requantised", "between"),
)
operator(
    "AveragePoolGrad",
    "Gradient of AveragePool: each window's gradient, divided as the mean was, to all its elements.",
    _infer_average_pool_grad,
    _average_pool_grad,
    BACKWARD,
    PoolGradAttrs,
    exact=_average_pool_grad_exact,
    inputs=("dy",),
    outputs=("dx",),
    says=_window_grad_says("dx = sum of dy over the windows of an element, each divided by the size of its window"),
    traits=traits("pool_gradient"),
)
