"""Pooling: a few channels at a time, so that the border tests of a tap are paid once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import s_tir, te, tirx
from tvm.ir import Expr
from tvm.tirx import IterVar

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    Index,
    KernelSpec,
    both,
    f32,
    guard,
    i32,
    kernel,
    reduce_axes,
    select,
    tensor,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.names import operand, result
from tinytrain_compile.ops.pool import PoolAttrs, PoolGradAttrs, taps_in_range

CHANNEL_TILE = 4
LOWEST = float(np.finfo(np.float32).min)
BELOW_INT8 = -1000
"""What padding counts as among int8 numbers: -128 is an ordinary one."""


def _integer(value: int) -> Expr:
    return tirx.const(value, "int32")


class PoolWindow:
    """Index arithmetic between windows and the image that they slide over."""

    def __init__(self, attrs: PoolAttrs, image_hw: tuple[int, int]) -> None:
        self._attrs = attrs
        self._image = image_hw

    def pixel(self, window: Sequence[Expr], tap: Sequence[Expr]) -> tuple[Expr, Expr, Expr | None]:
        """(row, column, test or None) of the image pixel under a tap of a window."""
        at: list[Expr] = []
        tests: list[Expr] = []
        for axis in (0, 1):
            a = self._attrs
            begin, stride, dilation = a.pads[axis], a.strides[axis], a.dilations[axis]
            index = window[axis] * stride + tap[axis] * dilation - begin
            at.append(index)
            if begin:
                tests.append(index >= 0)
            if (a.output_hw[axis] - 1) * stride + (a.kernel[axis] - 1) * dilation - begin >= self._image[axis]:
                tests.append(index < self._image[axis])
        return at[0], at[1], both(tests)

    def candidates(self, axis: int) -> int:
        """How many windows have to be looked at for one pixel of an axis."""
        a = self._attrs
        if a.dilations[axis] > 1:
            return a.kernel[axis]
        if a.output_hw[axis] == 1:
            return 1
        return -(-a.kernel[axis] // a.strides[axis])

    def covering(self, axis: int, pixel: Expr, candidate: Expr) -> tuple[Expr, Expr, list[Expr]]:
        """(window, tap, tests) of a candidate window that may cover a pixel of an axis."""
        a = self._attrs
        stride, windows, taps = a.strides[axis], a.output_hw[axis], a.kernel[axis]
        place = pixel + a.pads[axis]
        if windows == 1 and a.dilations[axis] == 1:
            return _integer(0), place, [place < taps] if self._image[axis] - 1 + a.pads[axis] >= taps else []
        if a.dilations[axis] > 1:
            offset = place - candidate * a.dilations[axis]
            tests = [offset >= 0, tirx.EQ(tirx.indexmod(offset, stride), 0), offset < windows * stride]
            return tirx.indexdiv(offset, stride), candidate, tests
        window = tirx.indexdiv(place, stride) - candidate
        tap = tirx.indexmod(place, stride) + candidate * stride
        tests: list[Expr] = []
        if self.candidates(axis) > 1:
            tests.append(window >= 0)
        if (self._image[axis] - 1 + a.pads[axis]) // stride >= windows:
            tests.append(window < windows)
        if self.candidates(axis) * stride > taps:
            tests.append(tap < taps)
        return window, tap, tests

    def taps(self, axis: int, window: Expr) -> Index:
        """How many taps of a window count for a mean: an int, or an expression where it varies."""
        a = self._attrs
        counts = taps_in_range(a, axis, self._image[axis])
        if counts.min() == counts.max():
            return int(counts[0])
        begin, end = a.pads[axis], a.pads[axis + 2]
        low, high = (-begin, self._image[axis] + end) if a.count_include_pad else (0, self._image[axis])
        start = window * a.strides[axis] - begin
        if a.dilations[axis] == 1:
            return tirx.min(start + a.kernel[axis], _integer(high)) - tirx.max(start, _integer(low))
        places = [start + tap * a.dilations[axis] for tap in range(a.kernel[axis])]
        return sum((select(tirx.And(p >= low, p < high), _integer(1), _integer(0)) for p in places), start=_integer(0))

    def mean(self, value: Expr, window: Sequence[Expr]) -> Expr:
        """`value` divided by the number of taps of a window that count."""
        rows, columns = self.taps(0, window[0]), self.taps(1, window[1])
        if isinstance(rows, int) and isinstance(columns, int):
            return value * f32(1.0 / (rows * columns))
        return value / i32(rows * columns).astype("float32")


def channel_tiles(channels: int) -> dict[int, int]:
    """Tile sizes of an image: a few channels at a time."""
    return {3: best_tile(channels, CHANNEL_TILE)}


def _forward(node: Node) -> tuple[PoolAttrs, PoolWindow, te.Tensor, tuple[int, ...]]:
    attrs = node.attrs
    assert isinstance(attrs, PoolAttrs)
    _, height, width, _ = operand(node, "x").shape
    return attrs, PoolWindow(attrs, (height, width)), tensor(node, "x"), node.outputs[0].shape


@kernel("MaxPool")
def max_pool(node: Node, _context: KernelContext) -> KernelSpec:
    """The largest tap that lies in the image."""
    attrs, window, x, shape = _forward(node)
    r, s = reduce_axes(*attrs.kernel)
    lowest = tirx.const(-128, "int8") if operand(node, "x").dtype == "int8" else f32(LOWEST)

    def best(b: Expr, y: Expr, q: Expr, c: Expr) -> Expr:
        row, column, inside = window.pixel((y, q), (r, s))
        value = x[b, row, column, c]
        return te.max(value if inside is None else tirx.if_then_else(inside, value, lowest), [r, s])

    acc = te.compute(shape, best, "acc")
    out = te.compute(shape, lambda *i: acc[i], "out")
    return KernelSpec([x], [out], lambda sch: tile_reduction(sch, channel_tiles(shape[3])))


def _first_largest(lowest: Expr) -> Callable[[tuple[Expr, ...], Sequence[IterVar]], tuple[Expr, ...]]:
    """Reducer of (tap, value) pairs that keeps the first of equal values; all are above `lowest`."""

    def combine(kept: tuple[Expr, ...], new: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        better = new[1] > kept[1]
        return select(better, new[0], kept[0]), select(better, new[1], kept[1])

    return te.comm_reducer(combine, lambda _index, _value: (_integer(0), lowest), "first_largest")


@kernel("MaxPoolIndex")
def max_pool_index(node: Node, _context: KernelContext) -> KernelSpec:
    """Which tap of each window was largest."""
    attrs, window, x, shape = _forward(node)
    r, s = reduce_axes(*attrs.kernel)
    integer = operand(node, "x").dtype == "int8"
    lowest = i32(BELOW_INT8) if integer else f32(LOWEST)

    def best(b: Expr, y: Expr, q: Expr, c: Expr) -> tuple[Expr, ...]:
        row, column, inside = window.pixel((y, q), (r, s))
        value = x[b, row, column, c].astype("int32") if integer else x[b, row, column, c]
        value = value if inside is None else tirx.if_then_else(inside, value, lowest)
        return _first_largest(lowest)((r * attrs.kernel[1] + s, value), [r, s])

    tap, _ = te.compute(shape, best, "acc")
    out = te.compute(shape, lambda *i: tap[i].astype(result(node, "index").dtype), "out")

    def schedule(sch: s_tir.Schedule) -> None:
        sch.set_scope(sch.get_sblock("acc"), 1, "local")
        tile_reduction(sch, channel_tiles(shape[3]))

    return KernelSpec([x], [out], schedule)


def _backward(node: Node) -> tuple[PoolGradAttrs, PoolWindow, te.Tensor, tuple[int, ...]]:
    attrs = node.attrs
    assert isinstance(attrs, PoolGradAttrs)
    return attrs, PoolWindow(attrs.pool, attrs.input_hw), tensor(node, "dy"), result(node, "dx").shape


@kernel("MaxPoolGrad")
def max_pool_grad(node: Node, _context: KernelContext) -> KernelSpec:
    """Every pixel collects from the windows in which it won (int8: at most one)."""
    attrs, window, dy, shape = _backward(node)
    index = tensor(node, "index")
    if operand(node, "dy").dtype == "int8":
        return _collect([dy, index], shape, won_gradient(attrs, window, index, lambda *i: i32(dy[i]), i32(0)), "int8")
    return _collect([dy, index], shape, won_gradient(attrs, window, index, lambda *i: dy[i], f32(0)))


def won_gradient(
    attrs: PoolGradAttrs, window: PoolWindow, index: te.Tensor, gradient: Callable[..., Expr], zero: Expr
) -> Callable[..., Expr]:
    """Sum of the gradients of the windows that a pixel won, as a function of the pixel's indices."""
    r, s = reduce_axes(window.candidates(0), window.candidates(1))

    def term(b: Expr, y: Expr, q: Expr, c: Expr) -> Expr:
        row, tap_row, tests = window.covering(0, y, r)
        column, tap_column, more = window.covering(1, q, s)
        won = tirx.EQ(index[b, row, column, c].astype("int32"), tap_row * attrs.pool.kernel[1] + tap_column)
        value = select(won, gradient(b, row, column, c), zero)
        inside = both([*tests, *more])
        return total(guard(inside, value), [r, s])

    return term


@kernel("AveragePool")
def average_pool(node: Node, _context: KernelContext) -> KernelSpec:
    """The sum of the taps that lie in the image, divided by the number that counts."""
    attrs, window, x, shape = _forward(node)
    r, s = reduce_axes(*attrs.kernel)

    def term(b: Expr, y: Expr, q: Expr, c: Expr) -> Expr:
        row, column, inside = window.pixel((y, q), (r, s))
        value = x[b, row, column, c]
        return total(guard(inside, value), [r, s])

    acc = te.compute(shape, term, "acc")
    out = te.compute(shape, lambda b, y, q, c: window.mean(acc[b, y, q, c], (y, q)), "out")
    return KernelSpec([x], [out], lambda sch: tile_reduction(sch, channel_tiles(shape[3])))


@kernel("AveragePoolGrad")
def average_pool_grad(node: Node, _context: KernelContext) -> KernelSpec:
    """Every pixel collects its share of the windows that cover it."""
    _, window, dy, shape = _backward(node)
    r, s = reduce_axes(window.candidates(0), window.candidates(1))

    def term(b: Expr, y: Expr, q: Expr, c: Expr) -> Expr:
        row, _, tests = window.covering(0, y, r)
        column, _, more = window.covering(1, q, s)
        value = window.mean(dy[b, row, column, c], (row, column))
        inside = both([*tests, *more])
        return total(guard(inside, value), [r, s])

    return _collect([dy], shape, term)


def _collect(
    inputs: list[te.Tensor], shape: tuple[int, ...], term: Callable[..., Expr], dtype: str = "float32"
) -> KernelSpec:
    acc = te.compute(shape, term, "acc")
    out = te.compute(shape, lambda *i: acc[i].astype(dtype), "out")
    return KernelSpec(inputs, [out], lambda sch: tile_reduction(sch, channel_tiles(shape[3])))
