"""Data gradients of convolutions that are one call: strides, dilations, odd maps and channels (tt_errors.h,
tt_mve_errors.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, called, first, i32, plain, tensors, written
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.dense import gradient_rows
from tinytrain_compile.lower.kernels.int8.large_tiles import SIDE
from tinytrain_compile.lower.kernels.int8.operands import conv_shape, kept_of
from tinytrain_compile.lower.kernels.int8.spread import spread_gradient
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
from tinytrain_compile.ops.int8.window_form import LEAST_ERRORS, PAIR, paired_errors
from tinytrain_compile.ops.names import attrs_of, is_prepared, operand, result

NARROW, DEEP = 12, 48
"""Pixels of a row up to which, and channels of the error from which on, widening weights for every strip costs more
than widening errors for every tap: 3x3 4x4x16 from 16 would take 61,712 instead of 52,301 instructions on a
Cortex-M7."""
FEW_PIXELS = 64
"""Pixels of an image from which on tt_pairs_error is faster than whole tiles, as it prepares more."""


def strided_gradient(node: Node, context: KernelContext) -> KernelSpec | None:
    """Compute the error of a convolution in one call; None if other kernels do it as well.

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
    if not vectors and (spec := spread_gradient(node, context.isa.dsp)) is not None:
        return spec
    outputs, channels = operand(node, "g").shape[3], result(node, "error").shape[3]
    if conv.groups == outputs == channels > 1:
        return error_call(node, any_maps, taps, "int16")
    if conv.groups > 1:
        return None
    cut = paired_errors(node, op_def(node.op).scratch(node)) if context.isa.dsp and _pairs_pay(node, context) else None
    if cut is not None:
        return error_call(node, "tt_pairs_error", -(-cut.scratch_bytes // 2), "int16", cut.kept)
    if not _any_strides_pay(node, context):
        return None
    before, pitch, rows = copied_rows(node)
    if context.has_large_tiles and channels % SIDE == 0 and 2 * rows * pitch <= op_def(node.op).scratch(node):
        return error_call(node, "tt_windows_error4", rows * pitch, "int16", before, pitch)
    if column_bytes(node) > op_def(node.op).scratch(node):
        return None
    return error_call(node, "tt_windows_error", column_bytes(node) // 2, "int16")


def _pairs_pay(node: Node, context: KernelContext) -> bool:
    """Tell whether pairs of windows are faster than tiles over widened rows.

    They are if the tiles are not two by two, which odd maps and odd numbers of channels cause. Whole tiles are as fast
    as pairs if two channels of the error are left beside blocks of four. On a Cortex-M7, 3x3 16x16x32 from 32 takes
    2,209,321 instead of 2,747,173 instructions and 14x14x8 from 15 237,654 instead of 261,024, but 16x16x14 from 22
    takes 879,587 instead of 799,919.
    """
    conv, outputs, (_, *image, channels) = geometry(node), operand(node, "g").shape[3], result(node, "error").shape
    if conv.strides != (1, 1):
        return False
    if has_odd_tiles(node, context):
        return True
    even = outputs % DOT_TERMS == PAIR or outputs <= DOT_TERMS or channels < LEAST_ERRORS
    return not is_product(conv) and not even and math.prod(image) >= FEW_PIXELS


def _any_strides_pay(node: Node, context: KernelContext) -> bool:
    """Tell whether pixels that the same taps reach are faster than tiles over widened rows.

    3x3 18x18x14 from 11 with stride 2 takes 424,150 instead of 583,100 instructions on a Cortex-M7.
    """
    conv, outputs = geometry(node), operand(node, "g").shape[3]
    if context.isa.dsp and has_odd_tiles(node, context):
        return True
    return not is_product(conv) and (
        backward_dense(node) is None or (conv.strides != (1, 1) and outputs % DOT_TERMS == 0)
    )


def has_odd_tiles(node: Node, context: KernelContext) -> bool:
    """Tell whether a data gradient over all channels has no tiles of two pixels and two channels, or slow ones.

    They are slow if weights are widened again for every strip, but rows are odd or short: 5x5 12x12x18 from 17 takes
    1,528,256 instead of 2,905,611 instructions on a Cortex-M7 by pixels that the same taps reach, 3x3 8x8x64 from 64
    2,597,520 instead of 3,317,352, but 18x18x30 from 36 9,707,899 instead of 9,134,343.
    """
    outputs, (_, _, width, channels) = operand(node, "g").shape[3], result(node, "error").shape
    if is_product(geometry(node)):
        return channels % PAIR > 0
    tiles = gradient_rows(node, context)
    if tiles is None or tiles.tile != (PAIR, PAIR):
        return True
    deep = outputs % DOT_TERMS == 0 and outputs >= DEEP and width <= NARROW
    return not tiles.weights_first and (outputs % PAIR > 0 or deep)


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
