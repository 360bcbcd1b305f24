"""Float kernels of windows and products for a few rows of a map at a time; those of elements are in elementwise.py.

Every sum has the terms of the whole map's kernel in the same order, on vectors if that kernel uses vectors.
"""

from __future__ import annotations

from dataclasses import replace

from tvm import te
from tvm.ir import Expr, Var

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    MapShape,
    Schedule,
    map_shape,
    reduce_axes,
    total,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.conv import Layer, TapWindow
from tinytrain_compile.lower.kernels.float32.linear import product_schedule
from tinytrain_compile.lower.kernels.row_blocks import (
    NoRowsError,
    RowBlockSpec,
    RowImage,
    row_kernel,
    windows_of,
    with_table,
)
from tinytrain_compile.ops.conv import ConvAttrs, forward_patch, is_product
from tinytrain_compile.ops.conv_form import Patch
from tinytrain_compile.ops.names import operand, result


class RowTaps(TapWindow):
    """Index arithmetic for a few rows of pixels: rows under taps count from the call's first, and the table tells which
    of them are in the image."""

    def __init__(self, conv: ConvAttrs, image_hw: tuple[int, int], image: RowImage) -> None:
        super().__init__(conv, image_hw)
        self._rows = image
        self.row_exists = image.exists if any(self.beyond(0)) else None

    def along(self, axis: int, position: Expr, tap: Expr) -> tuple[Expr, Expr | None]:
        """See TapWindow."""
        if axis == 1:
            return super().along(axis, position, tap)
        row = position * self.conv.strides[0] + tap * self.conv.dilations[0]
        return row, self.row_exists(row) if self.row_exists is not None else None

    def patch(self) -> Patch:
        """Return the copy that a dense kernel makes: the table has the rows of the border."""
        whole = forward_patch(self.conv, (1, *self.image_hw, self._rows.channels))
        return replace(whole, rows=replace(whole.rows, ahead=0))


@row_kernel("Conv")
def conv(node: Node, context: KernelContext, count: Var) -> RowBlockSpec:
    """Forward convolution of every form."""
    layer, (_, height, width, _) = Layer(node, context), map_shape(operand(node, "x"))
    _, rows, across, out_c = map_shape(result(node, "y"))
    if is_product(layer.attrs):
        return RowBlockSpec(_product(node, layer, context, count), count, (0,), rows)
    attrs, image, shape = layer.attrs, RowImage(operand(node, "x")), (1, count, across, out_c)
    if attrs.groups == 1:
        out, schedule = _dense(layer, image, (height, width), shape)
    else:
        out, schedule = _in_groups(layer, image, (height, width), shape)
    spec = KernelSpec([image.flat, *layer.operands], [out], schedule)
    reach, step = (attrs.kernel[0] - 1) * attrs.dilations[0] + 1, attrs.strides[0]
    windows = windows_of(rows, height, reach, step, attrs.pads[0])
    return RowBlockSpec(with_table(spec, image.row_at), count, (0,), rows, windows)


def _product(node: Node, layer: Layer, context: KernelContext, count: Expr) -> KernelSpec:
    (*_, width, channels), (_, rows, _, out_c) = operand(node, "x").shape, map_shape(result(node, "y"))
    x, split = te.placeholder((count, width, channels), "float32", "x"), layer.attrs.split is not None
    (axis,) = reduce_axes(channels)
    sums = te.compute(
        (count, width, out_c), lambda y, i, j: total(x[y, i, axis] * layer.weight(j, 0, 0, axis), [axis]), "acc"
    )
    out = te.compute((count, width, out_c), lambda *i: layer.finish(sums(*i), *i), "out")
    vectors = context.uses_float_vectors and not split and max(rows * width, out_c) >= LANES
    if vectors and max(width, out_c) < LANES:
        raise NoRowsError(f"{node.name}: a row is no vector")
    schedule = product_schedule((width, out_c), context, vectors, split, apart=(True, True), first=1)
    return KernelSpec([x, *layer.operands], [out], schedule)


def _dense(layer: Layer, image: RowImage, image_hw: tuple[int, int], shape: MapShape) -> tuple[te.Tensor, Schedule]:
    window = RowTaps(layer.attrs, image_hw, image)
    return layer.dense(shape, window.patch(), lambda *i: image[i], window.row_exists)


def _in_groups(layer: Layer, image: RowImage, image_hw: tuple[int, int], shape: MapShape) -> tuple[te.Tensor, Schedule]:
    return layer.in_groups(shape, image, RowTaps(layer.attrs, image_hw, image).forward)
