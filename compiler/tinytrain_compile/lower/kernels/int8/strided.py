"""Data gradients of convolutions with strides or dilations: one call each (tt_errors.h, tt_mve_errors.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, called, first, i32, plain, tensors, written
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.large_tiles import SIDE
from tinytrain_compile.lower.kernels.int8.operands import conv_shape, kept_of
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import (
    backward_dense,
    backward_phases,
    column_bytes,
    four_taps_bytes,
    geometry,
    is_depthwise,
    is_product,
)
from tinytrain_compile.ops.int8.tiles import DOT_TERMS
from tinytrain_compile.ops.names import attrs_of, is_prepared, operand, result


def strided_gradient(node: Node, context: KernelContext) -> KernelSpec | None:
    """Compute the error of a convolution with strides or dilations; None if other kernels do it as well.

    Depthwise 3x3 with stride 2 without products in pairs: the phases of a map that the stride divides take less, on
    32x32x64 11.3 instead of 14.5 instructions per multiply-accumulate on a Cortex-M3.
    """
    conv = geometry(node)
    if conv.split is not None or is_prepared(node) or context.style.small:
        return None
    vectors = context.isa.int_vectors
    any_maps = "tt_depthwise_error_x4" if vectors else "tt_depthwise_error"
    taps = 0 if vectors else four_taps_bytes(node) // 2
    if is_depthwise(node):
        taken = conv.kernel == (3, 3) and conv.strides == (2, 2) and max(conv.pads[:2]) < conv.kernel[0]
        better = context.isa.dsp or backward_phases(node) != conv.strides
        if taken and better:
            return error_call(node, "tt_depthwise_error3", 0)
        return error_call(node, any_maps, taps, "int16") if backward_phases(node) != conv.strides else None
    outputs, channels = operand(node, "g").shape[3], result(node, "error").shape[3]
    if conv.groups == outputs == channels > 1:
        return error_call(node, any_maps, taps, "int16")
    spread = backward_dense(node) is None or (conv.strides != (1, 1) and outputs % DOT_TERMS == 0)
    dense = conv.groups == 1 and not is_product(conv) and spread
    if not dense:
        return None
    before, pitch, rows = copied_rows(node)
    if context.has_large_tiles and channels % SIDE == 0 and 2 * rows * pitch <= op_def(node.op).scratch(node):
        return error_call(node, "tt_windows_error4", rows * pitch, "int16", before, pitch)
    if column_bytes(node) > op_def(node.op).scratch(node):
        return None
    return error_call(node, "tt_windows_error", column_bytes(node) // 2, "int16")


def copied_rows(node: Node) -> tuple[int, int, int]:
    """Return the rows of the error that tt_windows_error4 copies: (zeros before each, elements of each, their number).

    A window reaches as far before the error as its taps are apart, in steps of the stride, and one element farther
    behind it; the last of four pixels need not exist.
    """
    conv, (_, _, width, _), (_, _, wide, outputs) = (
        geometry(node),
        result(node, "error").shape,
        operand(node, "g").shape,
    )
    (down, right), (high, across) = conv.strides, conv.dilations
    before = (conv.kernel[1] - 1) * across // right
    beside = 2 * before + 1 + (SIDE - 1 if width % (SIDE * right) else 0)
    return before, (wide + beside) * outputs, -(-conv.kernel[0] * math.gcd(down, high) // down)


def error_call(
    node: Node, helper: str, elements: int, dtype: str = "int8", *numbers: int, together: tuple[int, int] = (0, 0)
) -> KernelSpec:
    """Return the data gradient that is one call.

    elements: of its scratch, if any; numbers: its last operands; together: see layer_shape.
    """
    attrs = attrs_of(node, QConvGradInputAttrs)
    scratch = [tirx.decl_buffer((elements,), dtype, "turned")] if elements else []
    inputs = tensors(node, "peak", "p_out", "p_in", "g", "multiplier", "shift", "w", *attrs.mask.operands)

    def body(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        peak, p_out, p_in, g, multiplier, shift, w, *others = given
        buffers = (y, *scratch, peak, g, w, multiplier, shift, *(others or [g]))
        shape = layer_shape(node, result(node, "error").shape, operand(node, "g").shape, together)
        call = called(
            helper, *map(first, buffers), p_in[(0,)] - p_out[(0,)], shape, kept_of(attrs.mask), *map(i32, numbers)
        )
        return tirx.stmt_seq(*map(tirx.AllocBuffer, scratch), call)

    return KernelSpec(inputs, [written(inputs, result(node, "error").shape, "int8", body), None], plain)


def layer_shape(
    node: Node,
    image: Sequence[int],
    error: Sequence[int],
    together: tuple[int, int] = (0, 0),
    zero: int = 0,
    flat: bool = False,
) -> Expr:
    """Return the tt_conv_shape of a layer. together: its strip and across; flat: all its pixels are one row."""
    conv, (count, height, width, channels), (_, high, wide, outputs) = geometry(node), image, error
    size, out = ((1, height * width), (1, high * wide)) if flat else ((height, width), (high, wide))
    steps = (conv.pads[:2], conv.kernel, conv.strides, conv.dilations)
    return conv_shape((count, *size, channels), (*out, outputs), steps, (*together, zero))
