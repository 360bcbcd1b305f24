"""Integer convolutions: the float kernels' loops over int32 sums, with an epilogue that makes int8 of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    Elements,
    Finish,
    KernelSpec,
    Load,
    MapShape,
    guarded,
    i16,
    i32,
    kernel,
    map_shape,
    numbers,
    peels,
    reduce_axes,
    tensor,
    tensors,
    total,
    weight_of,
)
from tinytrain_compile.lower.kernels.context import LOW_REGISTERS, KernelContext
from tinytrain_compile.lower.kernels.float32.conv import TapWindow, grouped, grouped_grad_input
from tinytrain_compile.lower.kernels.int8.dense import dense_forward, gradient_rows, row_gradient
from tinytrain_compile.lower.kernels.int8.depthwise import depthwise, depthwise_gradient
from tinytrain_compile.lower.kernels.int8.dsp.maps import paired_depthwise
from tinytrain_compile.lower.kernels.int8.dsp.product import PackedOperand, packed_product
from tinytrain_compile.lower.kernels.int8.dsp.rows import direct_maps, line_conv
from tinytrain_compile.lower.kernels.int8.dsp.windows import RowBlock, dense_rows, row_conv
from tinytrain_compile.lower.kernels.int8.large_tiles import convolve, product, row_strip
from tinytrain_compile.lower.kernels.int8.odd import odd_conv
from tinytrain_compile.lower.kernels.int8.operands import Centred, ErrorLayer, requantised_end, tile_end
from tinytrain_compile.lower.kernels.int8.spread import spread_depthwise
from tinytrain_compile.lower.kernels.int8.strided import strided_gradient
from tinytrain_compile.lower.kernels.patches import PatchForm, patch_conv
from tinytrain_compile.lower.schedules import best_tile, tile_reduction
from tinytrain_compile.ops.conv import forward_patch, gathers, gathers_error
from tinytrain_compile.ops.conv_form import Patch
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import (
    error_patch,
    error_product,
    forward_lines,
    forward_product,
    forward_row_lines,
    geometry,
    is_dense,
    is_depthwise,
    is_product,
    lying,
    reads_ragged,
    spread_columns,
)
from tinytrain_compile.ops.int8.prepared import prepared_shape
from tinytrain_compile.ops.int8.spread_form import has_even_maps
from tinytrain_compile.ops.names import attrs_of, is_prepared, operand, result

FEW_TAPS = 9
"""Taps up to which interleaved maps of whole columns need no copy each, without products in pairs: 3x3 14x14x16 with
dilation 2 takes 154,901 instead of 180,966 instructions on a Cortex-M3."""
RAGGED_TILE = 4
"""Outputs that share a number of the pixel: their sums and the number fill six registers of a Cortex-M."""

# ---- forward --------------------------------------------------------------------------------------------------------


@numbers("QConv")
def conv_numbers(node: Node, context: KernelContext) -> tuple[Node, tuple[str, ...]]:
    """Return the zero point of an image whose rows are copied to scratch, except with few registers."""
    copied = is_dense(node) and not is_product(attrs_of(node, QConvAttrs).conv)
    return node, ("x_zero",) if copied and not context.uses_vectors and context.isa.gpr > LOW_REGISTERS else ()


@kernel("QConv")
def qconv(node: Node, context: KernelContext) -> KernelSpec:
    """Compute sums of (x - zero) w, plus bias, requantised per channel; k x k gathers centred pixels as int16."""
    node = lying(node)
    attrs = attrs_of(node, QConvAttrs)
    if (spec := dense_forward(node, context) or odd_conv(node, context)) is not None:
        return spec
    conv, shape, image = attrs.conv, map_shape(result(node, "y")), operand(node, "x").shape
    weights, whole = weight_of(node, conv.split)
    bias, multiplier, shift = tensors(node, "bias", "multiplier", "shift")
    n, height, width, channels = image

    finish, stages = requantised_end(node, (bias, multiplier, shift))
    if reads_ragged(node):
        return ragged_sums(node, [bias, multiplier, shift])
    if is_product(conv):
        pixels = n * height * width
        x = tensor(node, "x", (pixels, channels))
        extents, (weights, right) = (pixels, shape[3], channels), forward_weight(node)
        left = PackedOperand(lambda i, a: x[i, a], -attrs.x_zero, channels)
        made = product(node, extents, left, right, finish, stages) if context.has_large_tiles else None
        tiles, end = forward_product(node), tile_end(node)
        made = made or packed_product(extents, left, right, finish, tiles, context.style, stages, end=end)
        out, schedule = made
        return KernelSpec([x, *weights, bias, multiplier, shift], [out], schedule)
    if is_dense(node):
        return dense_kernel(node, [bias, multiplier, shift], finish, context, stages)
    x = tensor(node, "x")
    if is_depthwise(node) and (spec := _whole_maps(node, context)) is not None:
        return spec
    if is_depthwise(node) and _pays(node, context):
        out, schedule = depthwise(node, x, whole, finish, context.style, stages)
        return KernelSpec([x, *weights, bias, multiplier, shift], [out], schedule)
    window = TapWindow(conv, (height, width))
    return any_windows(node, context, (x, x), shape, (window, forward_patch(conv, image), None))


def _whole_maps(node: Node, context: KernelContext) -> KernelSpec | None:
    """Return the call that computes a depthwise layer, None if loops do it as well."""
    if context.style.small:
        return None
    if context.isa.dsp and (spec := paired_depthwise(node)) is not None:
        return spec
    odd = operand(node, "x").shape[2] % 2 == 1  # a copy has no whole tiles
    if context.isa.dsp and (odd or not context.isa.dual_issue) and (spec := direct_maps(node)) is not None:
        return spec
    few = not context.isa.dsp and math.prod(geometry(node).kernel) <= FEW_TAPS and has_even_maps(node)
    return None if few else spread_depthwise(node, context.isa.dsp)


def _pays(node: Node, context: KernelContext) -> bool:
    """Tell whether a copy of a channel's image pays: with zeros between dilated taps, only for products in pairs."""
    columns, _ = spread_columns(node)
    kernel = geometry(node).kernel[1]
    return columns == kernel or (context.isa.dsp and -(-columns // 2) <= kernel + 1)


def ragged_sums(node: Node, operands: Sequence[te.Tensor]) -> KernelSpec:
    """Compute a 1x1 convolution of one pixel whose rows of weights are no whole words: nothing is worth a copy."""
    outputs, inputs = operand(node, "w").shape[0], operand(node, "w").shape[3]
    x, w = tensor(node, "x", (inputs,)), tensor(node, "w", (outputs, inputs))
    zero, (finish, _) = attrs_of(node, QConvAttrs).x_zero, requantised_end(node, operands)
    (k,) = reduce_axes(inputs)
    acc = te.compute((1, outputs), lambda _i, j: total((i32(x[k]) - i32(zero)) * i32(w[j, k]), [k]), "acc")
    out = te.compute((1, outputs), lambda i, j: finish(acc[i, j], i, j), "out")
    tile = {1: best_tile(outputs, RAGGED_TILE)}
    return KernelSpec([x, w, *operands], [out], lambda sch: tile_reduction(sch, tile))


Taps = tuple[TapWindow, Patch, Callable[[Expr], Expr] | None]
"""(pixels under taps, their patch, which rows of it exist if the patch does not tell)"""


def any_windows(
    node: Node, context: KernelContext, image: tuple[te.Tensor, Elements], shape: MapShape, taps: Taps
) -> KernelSpec:
    """Compute k x k with several groups, dilations, or a weight in two parts; image: the placeholder, and how it is
    read."""
    attrs, (given, x), (window, patch, row_exists) = attrs_of(node, QConvAttrs), image, taps
    conv, operands = attrs.conv, tensors(node, "bias", "multiplier", "shift")
    data, (finish, _) = Centred(x, attrs.x_zero), requantised_end(node, operands, stays=False)
    weights, whole = weight_of(node, conv.split)

    def weight(*index: Expr) -> Expr:
        return i32(whole(*index))

    if conv.groups == 1:
        copies = gathers(conv)
        form = PatchForm(shape, context.integer_tile, copies, peels(conv.split))

        def element(*index: Expr) -> Expr:
            return data[index].astype("int16") if copies else data[index]

        out, schedule = patch_conv(patch, form, element, weight, finish, i32, row_exists=row_exists)
    else:
        out, schedule = grouped(shape, conv, data, weight, window.forward, finish)
    return KernelSpec([given, *weights, *operands], [out], schedule)


def forward_weight(node: Node) -> tuple[list[te.Tensor], PackedOperand]:
    """Return a 1x1 weight by (output channel, input channel): its parts, and how it is read."""
    attrs, outputs, channels = attrs_of(node, QConvAttrs), result(node, "y").shape[3], operand(node, "x").shape[3]
    if attrs.conv.split is not None:
        weights, whole = weight_of(node, attrs.conv.split)
        return weights, PackedOperand(lambda j, a: whole(j, 0, 0, a), peel=peels(attrs.conv.split))
    if is_prepared(node):
        return ready_weight(node)
    w = tensor(node, "w", (outputs, channels))
    return [w], PackedOperand(lambda j, a: w[j, a], pitch=channels)


def ready_weight(node: Node) -> tuple[list[te.Tensor], PackedOperand]:
    """Return a prepared 1x1 weight in flash: the table, and how it is read."""
    table = tensor(node, "w", prepared_shape(node))
    return [table], PackedOperand(lambda j, a: table[j, a], ready=table)


def dense_kernel(
    node: Node,
    operands: list[te.Tensor],
    finish: Finish,
    context: KernelContext,
    stages: Sequence[te.Tensor],
    block: RowBlock | None = None,
) -> KernelSpec:
    """Compute k x k over all channels: a row of taps is a run of neighbours in a row of the image minus its zero
    point."""
    attrs = attrs_of(node, QConvAttrs)
    conv, image = attrs.conv, operand(node, "x").shape
    channels = image[3]
    run = conv.kernel[1] * channels
    ready = tensor(node, "w", prepared_shape(node)) if is_prepared(node) else None
    w = tensor(node, "w", (result(node, "y").shape[3], conv.kernel[0], run)) if ready is None else ready
    x, shape, tiles, read = dense_rows(node, block)

    def element(*place: Expr) -> Expr:
        inside, value = read(*place)
        return guarded(inside, value.astype("int16") - i16(attrs.x_zero))

    pitches = (conv.strides[0], conv.strides[1] * channels)

    def weight(o: Expr, _p: Expr, _q: Expr, r: Expr, f: Expr) -> Expr:
        return w[o, r, f]

    end = tile_end(node)
    lines = None
    if context.isa.dsp and not context.style.small:
        lines = forward_lines(node) if block is None else forward_row_lines(node)
    if lines is not None and end is not None:
        out, schedule = line_conv(shape, pitches[0], element, lambda o, r, f: w[o, r, f], finish, lines, stages, end)
        return KernelSpec([x, w, *operands], [out], schedule)
    if context.has_large_tiles and (strip := row_strip(node, shape, tiles, conv.strides[0])):
        w, inside = tensor(node, "w", (shape[3], tiles.taps, run)), (conv.pads[0], conv.pads[0] + image[1])

        def tap(o: Expr, r: Expr, _t: Expr, k: Expr) -> Expr:
            return w[o, r, k]

        taps = (shape, pitches, element, tap, (1, run))
        out, schedule = convolve(*taps, inside, finish, tiles, strip, stages)
        return KernelSpec([x, w, *operands], [out], schedule)
    out, schedule = row_conv(shape, pitches, element, weight, run, finish, tiles, context.style, stages, ready=ready)
    return KernelSpec([x, w, *operands], [out], schedule)


# ---- errors ---------------------------------------------------------------------------------------------------------


@kernel("QConvGradInput")
def qconv_grad_input(node: Node, context: KernelContext) -> KernelSpec:
    """Compute sums of g w, requantised per input channel to the exponent of the resulting error."""
    node = lying(node)
    if (strided := strided_gradient(node, context)) is not None:
        return strided
    attrs = attrs_of(node, QConvGradInputAttrs)
    conv, shape, error = attrs.conv, map_shape(result(node, "error")), operand(node, "g").shape
    out_c, pixels, flat = error[3], shape[0] * shape[1] * shape[2], is_product(conv)
    tiles = None if flat else gradient_rows(node, context)
    kept = flat or is_depthwise(node) or tiles is not None
    layer = ErrorLayer(node, (pixels, shape[3]) if flat else shape, kept)
    whole, finish, stages, style = layer.whole, layer.finish, layer.stages, context.style
    g = tensor(node, "g", (pixels, out_c) if flat else None)

    def weight(*index: Expr) -> Expr:
        return i32(whole(*index))

    if flat:
        extents = (pixels, shape[3], out_c)
        left = PackedOperand(lambda i, a: g[i, a], pitch=out_c)
        right = transposed_weight(node, layer.weights, whole, context.layout.transposed)
        made = product(node, extents, left, right, finish, stages) if context.has_large_tiles else None
        tiles = error_product(node)
        return layer.spec(g, made or packed_product(extents, left, right, finish, tiles, style, stages))
    if tiles is not None:
        g = tensor(node, "g", (*error[:2], error[2] * out_c))
        strip = row_strip(node, shape, tiles, 1) if context.has_large_tiles else 0
        return layer.spec(g, row_gradient(node, g, whole, finish, tiles, style, stages, strip=strip))
    window = TapWindow(conv, attrs.input_hw)
    if conv.groups == 1:
        patch, copies = error_patch(node), gathers_error(conv, attrs.input_hw)
        form = PatchForm(shape, context.integer_tile, copies, peels(conv.split), runs=False)
        computed = patch_conv(patch, form, lambda *i: g[i], lambda o, r, s, a: weight(a, r, s, o), finish, i32)
    elif is_depthwise(node):
        computed = depthwise_gradient(node, g, whole, finish, style, stages)
    else:
        computed = grouped_grad_input(shape, conv, Centred(g), weight, window.backward, finish)
    return layer.spec(g, computed)


def transposed_weight(node: Node, weights: list[te.Tensor], whole: Load, transposed: bool) -> PackedOperand:
    """Return a 1x1 weight by (input channel, output channel); one in one part is regrouped to a matrix in `weights`."""
    attrs = attrs_of(node, QConvGradInputAttrs)
    if attrs.conv.split is not None:
        return PackedOperand(lambda j, a: whole(a, 0, 0, j), peel=peels(attrs.conv.split))
    if is_prepared(node):
        weights[:], right = ready_weight(node)
        return right
    out_c, _, _, in_c = operand(node, "w").shape
    if transposed:
        rows = weights[0] = tensor(node, "w", (in_c, out_c))
        return PackedOperand(lambda j, a: rows[j, a], pitch=out_c)
    matrix = weights[0] = tensor(node, "w", (out_c, in_c))
    return PackedOperand(lambda j, a: matrix[a, j], pitch=in_c, columns=True)
