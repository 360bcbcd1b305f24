"""Convolutions on vectors whose shapes no schedule takes: odd output channels, dilated windows (tt_mve_conv.h)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import te, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import KernelSpec, call_int, plain, tensors
from tinytrain_compile.lower.kernels.int8.helium.product import copied_rows
from tinytrain_compile.lower.kernels.int8.operands import called, first, struct, written
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import forward_dense, forward_product, geometry, is_dense
from tinytrain_compile.ops.names import attrs_of, is_prepared, operand, result

_WORD = 4
"""Bytes of a correction."""


def end_of(attrs: QConvAttrs) -> Expr:
    """Return the tt_end8 of a layer."""
    return struct("tt_end8_of", (attrs.y_zero, attrs.low, attrs.high, attrs.shifts_down, attrs.above, attrs.once))


def odd_product(node: Node) -> KernelSpec | None:
    """Compute 1x1 of any number of output channels from four on; None for other nodes."""
    attrs, (*image, inputs), outputs = attrs_of(node, QConvAttrs), operand(node, "x").shape, result(node, "y").shape[3]
    pixels = math.prod(image)
    if not _takes(node) or pixels == 1 or inputs == 1:
        return None
    strip = copied_rows((pixels, outputs, inputs), forward_product(node), False)
    sizes = tuple(map(_number, (pixels, outputs, inputs, attrs.x_zero, strip)))

    def body(places: Sequence[Expr], tables: Expr) -> Stmt:
        return called("tt_product8", *places, tables, *sizes, end_of(attrs))

    return _called(node, strip * inputs, body)


def any_conv(node: Node) -> KernelSpec | None:
    """Compute k x k over all channels, dilated or not, of any number of output channels from four on.

    None for other nodes, and if the scratch of the plan does not hold a window.
    """
    attrs, (count, height, width, channels) = attrs_of(node, QConvAttrs), operand(node, "x").shape
    conv, (_, rows, columns, outputs) = attrs.conv, result(node, "y").shape
    if not _takes(node):
        return None
    strip = forward_dense(node).strip if is_dense(node) else 0
    run, corrections = conv.kernel[1] * channels, _WORD * outputs if attrs.x_zero else 0
    pitch = (columns - 1) * conv.strides[1] * channels + run
    copied = ((strip - 1) * conv.strides[0] + conv.kernel[0]) * pitch if strip else 0
    room = op_def(node.op).scratch(node) - corrections - copied
    window = conv.kernel[0] * run
    across = max((few for few in range(1, columns + 1) if columns % few == 0 and few * window <= room), default=0)
    if not across:
        return None
    image = (count, height, width, channels, outputs, *conv.pads[:2], *conv.kernel, *conv.strides, *conv.dilations)
    shape = struct("tt_conv_shape_of", (*image, rows, columns, strip, across, attrs.x_zero))

    def body(places: Sequence[Expr], tables: Expr) -> Stmt:
        return called("tt_conv8", *places, tables, shape, end_of(attrs))

    return _called(node, corrections + copied + across * window, body)


def _takes(node: Node) -> bool:
    conv = geometry(node)
    return conv.groups == 1 and conv.split is None and not is_prepared(node) and result(node, "y").shape[3] >= LANES


def _number(value: int) -> Expr:
    return tirx.const(value, "int32")


def _called(node: Node, scratch_bytes: int, body: Callable[[Sequence[Expr], Expr], Stmt]) -> KernelSpec:
    """Return the kernel that is one call. body: (places of y, scratch and x; tables of the channels) -> the call."""
    scratch = tirx.decl_buffer((scratch_bytes,), "int8", "windows")
    operands = tensors(node, "x", "w", "bias", "multiplier", "shift")

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        x, *tables = map(first, given)
        places = (first(y), first(scratch), x)
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), body(places, call_int("tt_conv_tables_of", *tables)))

    out: te.Tensor = written(operands, result(node, "y").shape, "int8", make)
    return KernelSpec(operands, [out], plain)
