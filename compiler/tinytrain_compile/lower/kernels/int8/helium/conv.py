"""Integer kernels on vectors, for layers with whole vectors of channels: equal to int8/conv.py, to the byte."""

from __future__ import annotations

import functools
import math

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import (
    Finish,
    Index,
    KernelSpec,
    address,
    call_int,
    i32,
    tensor,
    tensors,
    vector_kernel,
    weight_of,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.depthwise import depthwise, depthwise_gradient
from tinytrain_compile.lower.kernels.int8.dsp.windows import RowBlock, dense_rows
from tinytrain_compile.lower.kernels.int8.helium.gradients import any_gradient
from tinytrain_compile.lower.kernels.int8.helium.odd import any_conv, odd_product
from tinytrain_compile.lower.kernels.int8.helium.product import (
    Epilogue,
    VectorOperand,
    channel_product,
    copied_rows,
    fits,
    kept_lanes,
    patch_product,
)
from tinytrain_compile.lower.kernels.int8.helium.taps import gathered_depthwise, gathered_gradient
from tinytrain_compile.lower.kernels.int8.helium.windows import band_depthwise, band_gradient, image_of
from tinytrain_compile.lower.kernels.int8.operands import Keep, end_numbers, kept_here, mask_operand
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import (
    backward_depthwise,
    forward_depthwise,
    forward_product,
    geometry,
    is_dense,
    is_depthwise,
    is_product,
    lying,
    spreads_error,
)
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.tiles import DepthwiseTiles
from tinytrain_compile.ops.names import attrs_of, operand, result

FEW = 16
"""TT_FEW of tt_mve_conv.h: elements of a window whose weights stay in registers."""
MOST_TAPS, LARGEST_STEP = 8, 40
"""Most taps, and largest step, of tt_dot16_x4."""


@vector_kernel("QConv")
def vector_conv(node: Node, context: KernelContext) -> KernelSpec | None:
    """Compute 1x1: pixels that the plan may overwrite are copied, weights are read in place. k x k: see
    any_conv and vector_dense."""
    node = lying(node)
    attrs = attrs_of(node, QConvAttrs)
    if is_depthwise(node):
        return vector_depthwise(node, context)
    conv, shape = attrs.conv, result(node, "y").shape
    *image, channels = operand(node, "x").shape
    extents = (math.prod(image), shape[3], channels)
    if not is_product(conv):
        return any_conv(node) or vector_dense(node)
    if not fits(extents):
        return odd_product(node)
    if channels <= FEW and (few := odd_product(node)) is not None:
        return few
    sliced = conv.split is not None
    weights, whole = weight_of(node, conv.split)
    operands = tensors(node, "bias", "multiplier", "shift")
    kept, finish = requantised(attrs, operands, "tt_clamp_x4")
    x = tensor(node, "x", (extents[0] * channels,))
    if sliced:
        right = VectorOperand(lambda j, a: whole(j, 0, 0, a), "pieced")
    else:
        weights = [tensor(node, "w", (shape[3], channels))]
        right = VectorOperand(lambda j, a: weights[0][j, a])
    strip = copied_rows(extents, forward_product(node), sliced)
    end = Epilogue(finish, attrs.x_zero, kept)
    out, schedule = channel_product(extents, VectorOperand(lambda e: x[e], "copied"), right, end, strip, False)
    return KernelSpec([x, *weights, *operands], [out], schedule)


def vector_dense(node: Node, block: RowBlock | None = None) -> KernelSpec | None:
    """Compute k x k over all channels: copy the rows of the image with their border, then the patches of a few
    pixels."""
    attrs, (*image, channels), shape = attrs_of(node, QConvAttrs), operand(node, "x").shape, result(node, "y").shape
    conv, run = attrs.conv, attrs.conv.kernel[1] * channels
    if not (is_dense(node) and fits((math.prod(image), shape[3], conv.kernel[0] * run))):
        return None
    w = tensor(node, "w", (shape[3], conv.kernel[0] * run))
    x, shape, tiles, read = dense_rows(node, block)
    operands = tensors(node, "bias", "multiplier", "shift")
    kept, finish = requantised(attrs, operands, "tt_clamp_x4")

    def element(*place: Expr) -> Expr:
        return tirx.if_then_else(*read(*place), tirx.const(attrs.x_zero, "int8"))

    pitches, end = (conv.strides[0], conv.strides[1] * channels), Epilogue(finish, attrs.x_zero, kept)
    out, schedule = patch_product(shape, pitches, element, lambda o, k: w[o, k], run, end, tiles)
    return KernelSpec([x, w, *operands], [out], schedule)


def _on_rows(node: Node, tiles: DepthwiseTiles, step: int) -> bool:
    """Tell whether tt_dot16_x4 can compute four pixels of a row with a row of taps, and rows are whole fours."""
    columns = -(-geometry(node).kernel[1] // tiles.phases[1])
    wide = node.outputs[0].shape[2] // (tiles.phases[1] * tiles.dilations[1])
    return wide % LANES == 0 and 1 < columns <= MOST_TAPS and step <= LARGEST_STEP


def vector_depthwise(node: Node, context: KernelContext, block: RowBlock | None = None) -> KernelSpec | None:
    """Compute depthwise: four pixels of a row of a channel at a time."""
    attrs = attrs_of(node, QConvAttrs)
    if block is None and (made := gathered_depthwise(node)) is not None:
        return made
    if (bands := band_depthwise(node, block)) is not None:
        return bands
    if not _on_rows(node, forward_depthwise(node), attrs.conv.strides[1]):
        return None
    weights, whole = weight_of(node, attrs.conv.split)
    x, operands = image_of(node, "x", block), tensors(node, "bias", "multiplier", "shift")
    kept, finish = requantised(attrs, operands, "tt_clamp")
    out, schedule = depthwise(node, x, whole, finish, context.style, kept, True, block)
    return KernelSpec([x, *weights, *operands], [out], schedule)


def near(clamp: str, shift: Expr) -> Expr:
    """Return a shift for helpers on vectors, clamped by tt_clamp or its twin."""
    return call_int(clamp, shift, i32(-31), i32(31))


def requantised(attrs: QConvAttrs, operands: list[te.Tensor], clamp: str) -> tuple[list[te.Tensor], Finish]:
    """Return (tables kept per channel, the end of its sums); operands: bias, multiplier, shift."""
    bias, multiplier, shift = operands
    kept = [kept_lanes(bias, "kept_bias"), kept_lanes(multiplier, "kept_multiplier")]
    if attrs.shifts_down:
        kept.append(kept_lanes(shift, "kept_shift"))
    else:
        kept.append(kept_lanes(shift, "kept_shift", lambda c: near(clamp, i32(shift[c]))))
    helper = f"tt_requantise8{'_down' if attrs.shifts_down else ''}{'_above' if attrs.above else ''}_x4"
    if attrs.once:
        helper = "tt_requantise8_once_x4"

    def finish(acc: Expr, *index: Expr) -> Expr:
        factors = [table[index[-1]] for table in kept]
        return call_int(helper, acc, *factors, *end_numbers(attrs), dtype="int8")

    return kept, finish


def vector_product(node: Node, x: te.Tensor, extents: tuple[Index, int, int]) -> KernelSpec | None:
    """Compute 1x1 of a variable number of pixels; these and weights are read in place."""
    attrs = attrs_of(node, QConvAttrs)
    if not fits(extents):
        return None
    w, operands = tensor(node, "w", extents[1:]), tensors(node, "bias", "multiplier", "shift")
    kept, finish = requantised(attrs, operands, "tt_clamp_x4")
    left, right, end = (
        VectorOperand(lambda i, a: x[i, a]),
        VectorOperand(lambda j, a: w[j, a]),
        Epilogue(finish, attrs.x_zero, kept),
    )
    out, schedule = channel_product(extents, left, right, end, None, True)
    return KernelSpec([x, w, *operands], [out], schedule)


@vector_kernel("QConvGradInput")
def vector_grad_input(node: Node, context: KernelContext) -> KernelSpec | None:
    """Compute 1x1: errors are read in place; weights of four input channels are transposed at a time."""
    node = lying(node)
    attrs = attrs_of(node, QConvGradInputAttrs)
    if is_depthwise(node):
        return vector_depthwise_gradient(node, context)
    if spreads_error(node):
        return gathered_gradient(node) or band_gradient(node, None)
    pixels = math.prod(result(node, "error").shape[:3])
    product = vector_error_product(node, context, pixels, pixels, False) if is_product(attrs.conv) else None
    return product or (None if context.layout.transposed else any_gradient(node))


def vector_error_product(
    node: Node, context: KernelContext, pixels: Index, strip: int | None, stays: bool
) -> KernelSpec | None:
    """Compute the data gradient of a 1x1 convolution for `pixels` pixels, a variable if there is no strip.

    stays: all transposed weights are already in scratch.
    """
    attrs, channels, out_c = (
        attrs_of(node, QConvGradInputAttrs),
        result(node, "error").shape[3],
        operand(node, "g").shape[3],
    )
    extents = (pixels, channels, out_c)
    if not fits(extents):
        return None
    conv, sliced = attrs.conv, attrs.conv.split is not None
    g = te.placeholder((pixels, out_c), "int8", "g")
    if sliced:
        weights, whole = weight_of(node, conv.split)
        right = VectorOperand(lambda j, a: whole(a, 0, 0, j), "pieced")
    elif context.layout.transposed:
        weights = [tensor(node, "w", (channels, out_c))]
        right = VectorOperand(lambda j, a: weights[0][j, a])
    else:
        weights = [tensor(node, "w", (out_c, channels))]
        right = VectorOperand(lambda j, a: weights[0][a, j], "transposed", channels)
    masks, keep = mask_lanes(node, attrs.mask, (extents[0], channels))
    error = ErrorEnd(node, keep, "tt_clamp_x4")
    left, end = VectorOperand(lambda i, a: g[i, a]), Epilogue(error.finish, 0, error.kept)
    out, schedule = channel_product(extents, left, right, end, strip, stays)
    operands = [*error.exponents, g, *error.factor, *weights, *masks]
    return KernelSpec(operands, [out, None], schedule)


def vector_depthwise_gradient(node: Node, context: KernelContext, block: RowBlock | None = None) -> KernelSpec | None:
    """Compute depthwise: four pixels of a row (of a phase) at a time; each one's mask is tested separately."""
    attrs = attrs_of(node, QConvGradInputAttrs)
    if (bands := band_gradient(node, block)) is not None:
        return bands
    if not _on_rows(node, backward_depthwise(node), 1):
        return None
    weights, whole = weight_of(node, attrs.conv.split)
    masks, keep = mask_operand(node, attrs.mask, result(node, "error").shape)

    def kept(*index: Expr) -> Expr:
        assert keep is not None
        return call_int("tt_keep_x4", keep(*index), dtype="bool")

    error, g = ErrorEnd(node, kept if keep else None, "tt_clamp"), image_of(node, "g", block)
    out, schedule = depthwise_gradient(node, g, whole, error.finish, context.style, error.kept, True, block)
    operands = [*error.exponents, g, *error.factor, *weights, *masks]
    return KernelSpec(operands, [out, None], schedule)


class ErrorEnd:
    """The end of an error's sums: operands peak, p_out, p_in, multiplier and shift of a node.

    lift: bits by which the sums are multiplied.
    """

    def __init__(self, node: Node, keep: Keep | None, clamp: str, lift: int = 0) -> None:
        self.exponents = tensors(node, "peak", "p_out", "p_in")
        self.factor = tensors(node, "multiplier", "shift")
        self._keep = keep
        (_, p_out, p_in), (multiplier, shift) = self.exponents, self.factor

        def exponent(c: Expr) -> Expr:
            return near(clamp, i32(shift[c]) + (p_in[0] - p_out[0] - i32(lift)))

        self.kept = [kept_lanes(multiplier, "kept_multiplier"), kept_lanes(shift, "kept_shift", exponent)]

    def finish(self, acc: Expr, *index: Expr) -> Expr:
        """Return an int8 error of a sum; index: of the element."""
        operands = (kept_here(self._keep, index), acc, *(table[index[-1]] for table in self.kept))
        return call_int("tt_rescaled_error_x4", *operands, address(self.exponents[0]), dtype="int8")


def mask_lanes(node: Node, attrs: MaskAttrs, shape: tuple[Index, ...]) -> tuple[list[te.Tensor], Keep | None]:
    """Return mask_operand for four neighbours that are tested together: their bits are in one byte."""
    if not attrs.kind:
        return [], None
    if attrs.kind == "value":
        value = tensor(node, "mask", shape)
        limits = (i32(attrs.low), i32(attrs.high))

        def passed(*index: Expr) -> Expr:
            return call_int("tt_passes_x4", i32(value[index]), *limits, dtype="bool")

        return [value], passed
    bits = tensor(node, "mask")

    def four(*index: Expr) -> Expr:
        flat = functools.reduce(lambda done, axis: done * axis[1] + axis[0], zip(index, shape, strict=True), i32(0))
        return call_int("tt_bits_x4", i32(bits[tirx.indexdiv(flat, 8)]) >> tirx.indexmod(flat, 8), dtype="bool")

    return [bits], four
