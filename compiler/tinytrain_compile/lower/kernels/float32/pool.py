"""Pooling: a few channels at a time, which share the border tests of a tap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import s_tir, te, tirx
from tvm.ir import Expr, Var
from tvm.tirx import Buffer, IterVar, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Elements,
    Index,
    KernelSpec,
    MapShape,
    Schedule,
    both,
    call,
    call_int,
    called,
    f32,
    first,
    guard,
    i32,
    kernel,
    map_shape,
    plain,
    reduce_axes,
    select,
    tensor,
    total,
    written,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.row_blocks import (
    NoRowsError,
    RowBlockSpec,
    RowImage,
    row_kernel,
    windows_of,
    with_table,
)
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.names import attrs_of, operand, operands, result
from tinytrain_compile.ops.pool import PoolAttrs, PoolGradAttrs, taps_in_range

CHANNEL_TILE = 4
"""Most channels computed at a time. Measured on a step of 1.6 M instructions with an average pool of 16 channels
(Cortex-M4, --count): 2 needs 0.07 % more instructions and 100 bytes of code less, 8 needs 0.4 % less and 136 bytes
more."""
LOWEST = float(np.finfo(np.float32).min)
BELOW_INT8 = -1000
"""Value of padding among int8 numbers, below all of them: -128 is an ordinary one."""


def _integer(value: int) -> Expr:
    return tirx.const(value, "int32")


class PoolWindow:
    """Index arithmetic between windows and the image that they slide over."""

    def __init__(self, attrs: PoolAttrs, image_hw: tuple[int, int]) -> None:
        self._attrs = attrs
        self._image = image_hw

    def pixel(self, window: Sequence[Expr], tap: Sequence[Expr]) -> tuple[Expr, Expr, Expr | None]:
        """Return (row, column, test or None) of the image pixel under a tap of a window."""
        (row, row_in), (column, column_in) = (self.along(axis, window[axis], tap[axis]) for axis in (0, 1))
        return row, column, both([row_in, column_in])

    def along(self, axis: int, window: Expr, tap: Expr) -> tuple[Expr, Expr | None]:
        """Return (index on an axis, test or None) of the pixel under a tap of a window."""
        a = self._attrs
        index = window * a.strides[axis] + tap * a.dilations[axis] - a.pads[axis]
        before, behind = self.beyond(axis)
        return index, both([index >= 0 if before else None, index < self._image[axis] if behind else None])

    def beyond(self, axis: int) -> tuple[bool, bool]:
        """Tell whether windows reach beyond the first, and beyond the last element of an axis."""
        a = self._attrs
        last = (a.output_hw[axis] - 1) * a.strides[axis] + (a.kernel[axis] - 1) * a.dilations[axis] - a.pads[axis]
        return a.pads[axis] > 0, last >= self._image[axis]

    def candidates(self, axis: int) -> int:
        """Return the most windows that may cover one pixel of an axis."""
        a = self._attrs
        if a.dilations[axis] > 1:
            return a.kernel[axis]
        if a.output_hw[axis] == 1:
            return 1
        return -(-a.kernel[axis] // a.strides[axis])

    def covering(self, axis: int, pixel: Expr, candidate: Expr) -> tuple[Expr, Expr, list[Expr]]:
        """Return (window, tap, tests) of a candidate window that may cover a pixel of an axis."""
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
        """Return how many taps of a window count for a mean: an int, or an expression if it varies."""
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
        """Return `value` divided by the number of taps of a window that count."""
        rows, columns = self.taps(0, window[0]), self.taps(1, window[1])
        if isinstance(rows, int) and isinstance(columns, int):
            return value * f32(1.0 / (rows * columns))
        return value / i32(rows * columns).astype("float32")


class RowWindow(PoolWindow):
    """Index arithmetic for a few rows of windows: the table tells which of the rows under them are in the image."""

    def __init__(self, attrs: PoolAttrs, image_hw: tuple[int, int], image: RowImage) -> None:
        super().__init__(attrs, image_hw)
        self._rows = image

    def along(self, axis: int, window: Expr, tap: Expr) -> tuple[Expr, Expr | None]:
        """Count rows from the first row of the call."""
        if axis == 1:
            return super().along(axis, window, tap)
        row = window * self._attrs.strides[0] + tap * self._attrs.dilations[0]
        return row, self._rows.exists(row) if any(self.beyond(0)) else None

    def taps(self, axis: int, window: Expr) -> Index:
        """Assume that all taps that count are in the image if their number varies along rows."""
        counts = taps_in_range(self._attrs, 0, self._image[0])
        if axis == 1 or counts.min() == counts.max():
            return super().taps(axis, window)
        if self._attrs.count_include_pad:  # the table does not tell rows of the padding from those beyond it
            raise NoRowsError("a mean of rows in the padding, of which not every window has as many")
        rows = (self.along(0, window, _integer(tap))[0] for tap in range(self._attrs.kernel[0]))
        return sum((select(self._rows.exists(row), _integer(1), _integer(0)) for row in rows), start=_integer(0))


Helper = Callable[[PoolAttrs, tuple[int, int]], "tuple[str, tuple[float, ...]] | None"]
"""(window, height and width of the image) -> the helper for whole maps and its numbers; None: there is none."""


@dataclass(frozen=True)
class _Forward:
    """A forward pool. x: the image under the windows; given: its placeholder; shape: of the result."""

    context: KernelContext
    attrs: PoolAttrs
    window: PoolWindow
    x: Elements
    given: te.Tensor
    shape: MapShape


def _kernel(
    op: str, helpers: Helper = lambda _attrs, _hw: None
) -> Callable[[Callable[[Node, _Forward], KernelSpec]], None]:
    """Enter a rule as the kernel of an op: for the whole map, and for a few rows."""

    def enter(rule: Callable[[Node, _Forward], KernelSpec]) -> None:
        def whole(node: Node, context: KernelContext) -> KernelSpec:
            x, (attrs, image_hw) = tensor(node, "x"), _window(node)
            helper = helpers(attrs, image_hw)
            if helper is not None and (spec := _in_one_call(node, context, helper, attrs, [x])):
                return spec
            return rule(node, _Forward(context, attrs, PoolWindow(attrs, image_hw), x, x, map_shape(node.outputs[0])))

        def of_rows(node: Node, context: KernelContext, count: Var) -> RowBlockSpec:
            (attrs, image_hw), image = _window(node), RowImage(operand(node, "x"))
            _, rows, width, channels = map_shape(node.outputs[0])
            window = RowWindow(attrs, image_hw, image)
            spec = rule(node, _Forward(context, attrs, window, image, image.flat, (1, count, width, channels)))
            reach = (attrs.kernel[0] - 1) * attrs.dilations[0] + 1
            windows = windows_of(rows, image_hw[0], reach, attrs.strides[0], attrs.pads[0])
            return RowBlockSpec(with_table(spec, image.row_at), count, (0,), rows, windows)

        kernel(op)(whole)
        row_kernel(op)(of_rows)

    return enter


def _in_one_call(
    node: Node, context: KernelContext, helper: tuple[str, tuple[float, ...]], pool: PoolAttrs, inputs: list[te.Tensor]
) -> KernelSpec | None:
    """Return the kernel of a whole float32 map that is one call (tt_pool.h); None if there are dilations."""
    if pool.dilations != (1, 1) or node.outputs[0].dtype != "float32" or context.style.small:
        return None
    image = operand(node, "x") if "x" in operands(node) else node.outputs[0]
    geometry = (*image.shape, *pool.pads[:2], *pool.kernel, *pool.strides, *pool.output_hw)
    windows, (name, numbers) = call_int("tt_windows_of", *(i32(number) for number in geometry)), helper
    if name != "tt_max_pool_grad":
        fpv5 = name == "tt_max_pool" and context.isa.fpv5
        name += "_f32x4" if _on_vectors(context, image.shape[3]) else "_fpv5" if fpv5 else ""

    def body(out: Buffer, given: Sequence[Buffer]) -> Stmt:
        return called(name, first(out), *map(first, given), *map(f32, numbers), windows)

    return KernelSpec(inputs, [written(inputs, node.outputs[0].shape, "float32", body)], plain)


def _window(node: Node) -> tuple[PoolAttrs, tuple[int, int]]:
    attrs, (_, height, width, _) = attrs_of(node, PoolAttrs), operand(node, "x").shape
    return attrs, (height, width)


def channel_tiles(channels: int) -> dict[int, int]:
    """Tile an image: a few channels at a time."""
    return {3: best_tile(channels, CHANNEL_TILE)}


def _on_vectors(context: KernelContext, channels: int) -> bool:
    return context.uses_float_vectors and channels >= LANES


def _schedule(context: KernelContext, channels: int) -> Schedule:
    """Return the schedule of a forward pool: a row of a map has the bits that the whole map has (tt_pool.h)."""
    if _on_vectors(context, channels):
        return lambda sch: tile_reduction(sch, {3: LANES}, lanes=3)
    return lambda sch: tile_reduction(sch, channel_tiles(channels))


@_kernel("MaxPool", lambda _attrs, _hw: ("tt_max_pool", ()))
def max_pool(node: Node, of: _Forward) -> KernelSpec:
    """Compute the largest tap that is in the image."""
    attrs, window, x, shape = of.attrs, of.window, of.x, of.shape
    r, s = reduce_axes(*attrs.kernel)
    integer = operand(node, "x").dtype == "int8"
    lowest = tirx.const(-128, "int8") if integer else f32(LOWEST)

    def best(b: Expr, y: Expr, q: Expr, c: Expr) -> Expr:
        row, column, inside = window.pixel((y, q), (r, s))
        value = x[b, row, column, c]
        return te.max(value if inside is None else tirx.if_then_else(inside, value, lowest), [r, s])

    acc = te.compute(shape, best, "acc")
    out = te.compute(shape, lambda *i: acc[i] if integer else call("tt_unsigned_zero", acc[i]), "out")
    if integer:
        return KernelSpec([of.given], [out], lambda sch: tile_reduction(sch, channel_tiles(shape[3])))
    return KernelSpec([of.given], [out], _schedule(of.context, shape[3]))


def _first_largest(lowest: Expr) -> Callable[[tuple[Expr, ...], Sequence[IterVar]], tuple[Expr, ...]]:
    """Return the reducer of (tap, value) pairs that keeps the first of equal values; all are above `lowest`."""

    def combine(kept: tuple[Expr, ...], new: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        better = new[1] > kept[1]
        return select(better, new[0], kept[0]), select(better, new[1], kept[1])

    return te.comm_reducer(combine, lambda _index, _value: (_integer(0), lowest), "first_largest")


@_kernel("MaxPoolIndex")
def max_pool_index(node: Node, of: _Forward) -> KernelSpec:
    """Compute which tap of each window was largest."""
    attrs, window, x, shape = of.attrs, of.window, of.x, of.shape
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

    return KernelSpec([of.given], [out], schedule)


def _backward(node: Node) -> tuple[PoolGradAttrs, PoolWindow, te.Tensor, tuple[int, ...]]:
    attrs = attrs_of(node, PoolGradAttrs)
    return attrs, PoolWindow(attrs.pool, attrs.input_hw), tensor(node, "dy"), result(node, "dx").shape


@kernel("MaxPoolGrad")
def max_pool_grad(node: Node, context: KernelContext) -> KernelSpec:
    """Collect, for every pixel, from the windows in which it won (int8: at most one)."""
    attrs, window, dy, shape = _backward(node)
    index = tensor(node, "index")
    if operand(node, "dy").dtype == "int8":
        return _collect(
            [dy, index],
            shape,
            won_gradient(attrs, window, index, lambda *i: i32(dy[i]), i32(0)),
            lambda sums: sums.astype("int8"),
        )
    if str(index.dtype) == "uint8" and (
        spec := _in_one_call(node, context, ("tt_max_pool_grad", ()), attrs.pool, [dy, index])
    ):
        return spec
    return _collect([dy, index], shape, won_gradient(attrs, window, index, lambda *i: dy[i], f32(0)))


def won_gradient(
    attrs: PoolGradAttrs, window: PoolWindow, index: te.Tensor, gradient: Callable[..., Expr], zero: Expr
) -> Callable[..., Expr]:
    """Return the sum of the gradients of the windows that a pixel won, as a function of the pixel's indices."""
    r, s = reduce_axes(window.candidates(0), window.candidates(1))

    def term(b: Expr, y: Expr, q: Expr, c: Expr) -> Expr:
        row, tap_row, tests = window.covering(0, y, r)
        column, tap_column, more = window.covering(1, q, s)
        won = tirx.EQ(index[b, row, column, c].astype("int32"), tap_row * attrs.pool.kernel[1] + tap_column)
        value = select(won, gradient(b, row, column, c), zero)
        inside = both([*tests, *more])
        return total(guard(inside, value), [r, s])

    return term


def _share(attrs: PoolAttrs, image_hw: tuple[int, int]) -> float | None:
    """Return the inverse of the number of taps that count, if that is the same for all windows."""
    rows, columns = (taps_in_range(attrs, axis, image_hw[axis]) for axis in (0, 1))
    same = rows.min() == rows.max() and columns.min() == columns.max()
    return 1.0 / int(rows[0] * columns[0]) if same else None


def _mean_helper(attrs: PoolAttrs, image_hw: tuple[int, int]) -> tuple[str, tuple[float, ...]] | None:
    share = _share(attrs, image_hw)
    if share is not None:
        return "tt_average_pool", (share,)
    return None if attrs.count_include_pad else ("tt_average_pool_inside", ())


@_kernel("AveragePool", _mean_helper)
def average_pool(_node: Node, of: _Forward) -> KernelSpec:
    """Compute the sum of the taps that are in the image, divided by the number that counts."""
    attrs, window, x, shape = of.attrs, of.window, of.x, of.shape
    r, s = reduce_axes(*attrs.kernel)

    def term(b: Expr, y: Expr, q: Expr, c: Expr) -> Expr:
        row, column, inside = window.pixel((y, q), (r, s))
        value = x[b, row, column, c]
        return total(guard(inside, value), [r, s])

    acc = te.compute(shape, term, "acc")
    out = te.compute(shape, lambda b, y, q, c: window.mean(acc[b, y, q, c], (y, q)), "out")
    return KernelSpec([of.given], [out], _schedule(of.context, shape[3]))


@kernel("AveragePoolGrad")
def average_pool_grad(node: Node, context: KernelContext) -> KernelSpec:
    """Compute, for every pixel, its share of the windows that cover it."""
    attrs, window, dy, shape = _backward(node)
    share = _share(attrs.pool, attrs.input_hw)
    if share is not None and (
        spec := _in_one_call(node, context, ("tt_average_pool_grad", (share,)), attrs.pool, [dy])
    ):
        return spec
    r, s = reduce_axes(window.candidates(0), window.candidates(1))

    def term(b: Expr, y: Expr, q: Expr, c: Expr) -> Expr:
        row, _, tests = window.covering(0, y, r)
        column, _, more = window.covering(1, q, s)
        value = dy[b, row, column, c] if share is not None else window.mean(dy[b, row, column, c], (row, column))
        inside = both([*tests, *more])
        return total(guard(inside, value), [r, s])

    return _collect([dy], shape, term, lambda sums: sums if share is None else sums * f32(share))


def _collect(
    inputs: list[te.Tensor],
    shape: tuple[int, ...],
    term: Callable[..., Expr],
    end: Callable[[Expr], Expr] = lambda x: x,
) -> KernelSpec:
    acc = te.compute(shape, term, "acc")
    out = te.compute(shape, lambda *i: end(acc[i]), "out")
    return KernelSpec(inputs, [out], lambda sch: tile_reduction(sch, channel_tiles(shape[3])))
