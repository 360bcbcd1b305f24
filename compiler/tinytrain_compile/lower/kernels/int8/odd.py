"""Convolutions over all channels whose shapes no schedule takes: odd maps and channels, dilated windows (tt_conv.h)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import te, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, call_int, i32, plain, tensors
from tinytrain_compile.lower.kernels.context import LOW_REGISTERS, KernelContext
from tinytrain_compile.lower.kernels.int8.operands import called, first, struct, written
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import forward_dense, forward_product, geometry, is_dense, is_product
from tinytrain_compile.ops.int8.tiles import DOT_TERMS
from tinytrain_compile.ops.names import attrs_of, is_prepared, operand, result

PAIR_BYTES = 6
"""Bytes for every element of a window: two pixels' as int16 and as int8."""
LEAST_INPUTS = 32
"""Elements of a window from which an odd number of outputs is worth two at a time: of 1x1 8x8, 32 inputs to 31 outputs
take 104,737 instead of 120,947 instructions on a Cortex-M4; 5x5 28x28x1 to 5 would take 200,932 instead of 177,846."""


def odd_conv(node: Node, context: KernelContext) -> KernelSpec | None:
    """Compute two pixels and two output channels at a time, whatever their numbers; None for nodes that have better
    kernels, and if the scratch of the plan does not hold the windows of two pixels."""
    attrs, (_, rows, columns, outputs) = attrs_of(node, QConvAttrs), result(node, "y").shape
    channels = operand(node, "x").shape[3]
    whole = is_dense(node) and columns % 2 == outputs % 2 == 0
    if attrs.conv.kernel[0] == 1 and context.isa.gpr <= LOW_REGISTERS:
        whole = False  # 1-D, 128x32 to 32 by five taps: 3,198,712 instead of 5,410,650 instructions on a Cortex-M0+
    if context.style.small or whole or not takes(node) or rows * columns == 1:
        return None
    if attrs.conv.kernel == (1, 1) and (outputs % 2 == 0 or channels % DOT_TERMS > 0 or channels < LEAST_INPUTS):
        return None
    if is_product(attrs.conv) and forward_product(node).direct:
        return None  # few pixels: their own tiles read weights as they lie, too
    if (outputs % 2 == 1 and window_elements(node) < LEAST_INPUTS) or (columns == 1 and not is_lying(node)):
        return None
    window, strip = window_elements(node), strip_rows(node)
    scratch_bytes = PAIR_BYTES * window + copied_bytes(node, strip)
    if scratch_bytes > op_def(node.op).scratch(node):
        return None
    numbers = (attrs.y_zero, attrs.low, attrs.high, int(attrs.shifts_down), int(attrs.above), int(attrs.once))

    def body(places: Sequence[Expr], operands: Sequence[Expr]) -> Stmt:
        w, *tables = operands
        by = call_int("tt_dense_ends_of", *tables, *map(i32, numbers))
        return called("tt_conv16", *places, w, shape_of(node, strip, 2), by)

    return called_once(node, ("int16", -(-scratch_bytes // 2)), body)


def takes(node: Node) -> bool:
    """Tell whether a layer reads all channels, its weights as they lie in the file."""
    conv = geometry(node)
    return conv.groups == 1 and conv.split is None and not is_prepared(node)


def strip_rows(node: Node) -> int:
    """Return the output rows whose input rows the plan lets a kernel copy together; 0: the image is read in place."""
    return forward_dense(node).strip if is_dense(node) and not is_product(geometry(node)) else 0


def window_elements(node: Node) -> int:
    """Return the elements under the taps of a pixel."""
    return math.prod(geometry(node).kernel) * operand(node, "x").shape[3]


def copied_bytes(node: Node, strip: int) -> int:
    """Return the bytes of the input rows of a strip, as int8."""
    conv, channels, columns = geometry(node), operand(node, "x").shape[3], result(node, "y").shape[2]
    pitch = ((columns - 1) * conv.strides[1] + conv.kernel[1]) * channels
    return ((strip - 1) * conv.strides[0] + conv.kernel[0]) * pitch if strip else 0


def is_lying(node: Node) -> bool:
    """Tell whether a layer of one column, read in place, may be taken for one of one row: its bytes are the same."""
    standing = operand(node, "x").shape[2] == result(node, "y").shape[2] == geometry(node).kernel[1] == 1
    return standing and strip_rows(node) == 0


def shape_of(node: Node, strip: int, across: int) -> Expr:
    """Return the tt_conv_shape of a layer, turned if it is lying."""
    attrs, (count, height, width, channels) = attrs_of(node, QConvAttrs), operand(node, "x").shape
    conv, (_, rows, columns, outputs) = attrs.conv, result(node, "y").shape
    pairs = ((height, width), conv.pads[:2], conv.kernel, conv.strides, conv.dilations, (rows, columns))
    size, pads, kernel, strides, dilations, out = (pair[::-1] if is_lying(node) else pair for pair in pairs)
    image = (count, *size, channels, outputs, *pads, *kernel, *strides, *dilations)
    return struct("tt_conv_shape_of", (*image, *out, strip, across, attrs.x_zero))


def called_once(
    node: Node, scratch: tuple[str, int], body: Callable[[Sequence[Expr], Sequence[Expr]], Stmt]
) -> KernelSpec:
    """Return the kernel that is one call. scratch: its type and size; body: (places of y, scratch and x; those of
    weights, bias, multiplier and shift) -> the call."""
    kind, size = scratch
    buffer = tirx.decl_buffer((size,), kind, "windows")
    operands = tensors(node, "x", "w", "bias", "multiplier", "shift")

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        x, *tables = map(first, given)
        return tirx.stmt_seq(tirx.AllocBuffer(buffer), body((first(y), first(buffer), x), tables))

    out: te.Tensor = written(operands, result(node, "y").shape, "int8", make)
    return KernelSpec(operands, [out], plain)
