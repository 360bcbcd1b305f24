"""Integer kernels for a few rows of a map at a time."""

from __future__ import annotations

from dataclasses import replace

from tvm import te, tirx
from tvm.ir import Expr, Var

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import KernelSpec, kernel_spec, map_shape, tensors, weight_parts, whole_weight
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.float32.rows import RowTaps
from tinytrain_compile.lower.kernels.int8.conv import any_windows, dense_kernel, forward_weight, transposed_weight
from tinytrain_compile.lower.kernels.int8.dense import row_gradient
from tinytrain_compile.lower.kernels.int8.depthwise import depthwise, depthwise_gradient
from tinytrain_compile.lower.kernels.int8.dsp.product import PackedOperand, packed_product
from tinytrain_compile.lower.kernels.int8.dsp.rows import direct_rows
from tinytrain_compile.lower.kernels.int8.dsp.windows import RowBlock
from tinytrain_compile.lower.kernels.int8.helium.conv import (
    vector_dense,
    vector_depthwise,
    vector_depthwise_gradient,
    vector_error_product,
    vector_product,
)
from tinytrain_compile.lower.kernels.int8.operands import ErrorLayer, requantised_end, tile_end
from tinytrain_compile.lower.kernels.row_blocks import (
    NoRowsError,
    RowBlockSpec,
    RowImage,
    RowRule,
    Windows,
    few_rows,
    row_kernel,
    windows_of,
    with_table,
)
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import (
    backward_dense,
    backward_phases,
    error_patch,
    error_row_product,
    forward_row_product,
    is_dense,
    is_depthwise,
    is_product,
    is_spread,
)
from tinytrain_compile.ops.int8.pointwise import QRescaleAttrs
from tinytrain_compile.ops.names import attrs_of, operand, operands, position, result


def _row_block(node: Node, image: str, count: Var) -> RowBlock:
    flat = te.placeholder((tirx.Var("extent", "int32"),), operand(node, image).dtype, image)
    return RowBlock(count, flat, te.placeholder((tirx.Var("places", "int32"),), "int32", "row_at"))


# ---- forward --------------------------------------------------------------------------------------------------------


@row_kernel("QConv")
def _convolution(node: Node, context: KernelContext, count: Var) -> RowBlockSpec:
    attrs = attrs_of(node, QConvAttrs)
    conv, (_, height, width, _) = attrs.conv, operand(node, "x").shape
    _, rows, across, outputs = map_shape(result(node, "y"))
    if is_product(conv):
        return RowBlockSpec(_product(node, context, count), count, (position(node, "x"),), rows)
    block, weights, operands = (
        _row_block(node, "x", count),
        weight_parts(node),
        tensors(node, "bias", "multiplier", "shift"),
    )
    finish, stages = requantised_end(node, operands)
    if is_depthwise(node) and not is_spread(node):
        if context.uses_vectors:
            spec = vector_depthwise(node, context, block)
        else:
            spec = direct_rows(node, block) if context.isa.dsp and not context.style.small else None
        if spec is None:
            whole = whole_weight(weights, conv.split, 0, 3)
            out, schedule = depthwise(node, block.image, whole, finish, context.style, stages, block=block)
            spec = KernelSpec([block.image, *weights, *operands], [out], schedule)
    elif is_dense(node):
        spec = vector_dense(node, block) if context.uses_vectors else None
        spec = spec or dense_kernel(node, operands, finish, context, stages, block)
    else:
        found = RowImage(operand(node, "x"))
        taps, shape = RowTaps(conv, (height, width), found), (1, count, across, outputs)
        spec = any_windows(node, context, (found.flat, found), shape, (taps, taps.patch(), taps.row_exists))
        block = replace(block, row_at=found.row_at)
    windows = windows_of(rows, height, (conv.kernel[0] - 1) * conv.dilations[0] + 1, conv.strides[0], conv.pads[0])
    return RowBlockSpec(with_table(spec, block.row_at), count, (position(node, "x"),), rows, windows)


def _product(node: Node, context: KernelContext, count: Expr) -> KernelSpec:
    """Compute 1x1: if weights are few, all are widened beforehand, so a few pixels cost as much as in a map."""
    attrs = attrs_of(node, QConvAttrs)
    (_, _, width, channels), outputs = operand(node, "x").shape, result(node, "y").shape[3]
    x = te.placeholder((count * width, channels), "int8", "x")
    extents, sliced = (count * width, outputs, channels), attrs.conv.split is not None
    spec = vector_product(node, x, extents) if context.uses_vectors and not sliced else None
    if spec is not None:
        return spec
    operands = tensors(node, "bias", "multiplier", "shift")
    finish, stages = requantised_end(node, operands)
    weights, right = forward_weight(node)
    left, tiles = (
        PackedOperand(lambda i, a: x[i, a], -attrs.x_zero, channels),
        forward_row_product(node)[0],
    )
    end = tile_end(node)
    out, schedule = packed_product(extents, left, right, finish, tiles, context.style, stages, end=end)
    return KernelSpec([x, *weights, *operands], [out], schedule)


# ---- errors ---------------------------------------------------------------------------------------------------------


@row_kernel("QConvGradInput")
def _data_gradient(node: Node, context: KernelContext, count: Var) -> RowBlockSpec:
    attrs = attrs_of(node, QConvGradInputAttrs)
    conv, (_, rows, width, channels) = attrs.conv, result(node, "error").shape
    _check_mask(node, width * channels)
    maps = tuple(position(node, name) for name in ("g", *attrs.mask.operands))
    if is_product(conv):
        return RowBlockSpec(_error_product(node, context, count), count, maps, rows)
    if not is_depthwise(node):
        return _error_dense(node, context, count, maps)
    phases = backward_phases(node)
    block = _row_block(node, "g", count)
    spec = with_table(_error_depthwise(node, context, block), block.row_at)
    return RowBlockSpec(spec, count, maps, rows // phases[0], _error_windows(node))


def _error_product(node: Node, context: KernelContext, count: Expr) -> KernelSpec:
    (_, _, width, channels), out_c = result(node, "error").shape, operand(node, "g").shape[3]
    if context.uses_vectors:
        spec = vector_error_product(few_rows(node, count), context, count * width, None, error_row_product(node)[1])
        if spec is not None:
            return spec
    extents = (count * width, channels, out_c)
    layer, g = ErrorLayer(node, extents[:2], masked=few_rows(node, count)), te.placeholder(extents[::2], "int8", "g")
    right = transposed_weight(node, layer.weights, layer.whole, context.layout.transposed)
    left, tiles = PackedOperand(lambda i, a: g[i, a], pitch=out_c), error_row_product(node)[0]
    return layer.spec(g, packed_product(extents, left, right, layer.finish, tiles, context.style, layer.stages))


def _error_dense(node: Node, context: KernelContext, count: Var, maps: tuple[int, ...]) -> RowBlockSpec:
    tiles, along = backward_dense(node, by_rows=True), error_patch(node).rows
    block, shape = _row_block(node, "g", count), result(node, "error").shape
    if tiles is None:
        raise NoRowsError(f"{node.name}: taps leave holes between rows of the error")
    layer, g = ErrorLayer(node, shape, masked=few_rows(node, count * along.phases)), block.image
    computed = row_gradient(node, g, layer.whole, layer.finish, tiles, context.style, layer.stages, block)
    spec = layer.spec(g, computed)
    rows = shape[1] // along.phases
    windows = windows_of(rows, along.extent, along.window, 1, -along.ends[0], along.holes)
    return RowBlockSpec(with_table(spec, block.row_at), count, maps, rows, windows)


def _error_depthwise(node: Node, context: KernelContext, block: RowBlock) -> KernelSpec:
    if context.uses_vectors:
        spec = vector_depthwise_gradient(node, context, block)
        if spec is not None:
            return spec
    rows, g = few_rows(node, block.count * backward_phases(node)[0]), block.image
    layer = ErrorLayer(node, result(node, "error").shape, masked=rows)
    computed = depthwise_gradient(node, g, layer.whole, layer.finish, context.style, layer.stages, block=block)
    return layer.spec(g, computed)


def _error_windows(node: Node) -> Windows:
    """Return the rows of the channel image that depthwise_gradient reads: errors, zeros between them, and the
    border."""
    attrs = attrs_of(node, QConvGradInputAttrs)
    conv, phases, height = attrs.conv, backward_phases(node)[0], operand(node, "g").shape[1]
    taps, stride = -(-conv.kernel[0] // phases), conv.strides[0] // phases
    lead = (phases - 1 + conv.pads[0] % phases) // phases
    rows = result(node, "error").shape[1] // phases
    places = [y + conv.pads[0] // phases - (taps - 1) for y in range(rows - 1 + taps + lead)]
    sources = tuple(y // stride if 0 <= y < height * stride and y % stride == 0 else -1 for y in places)
    return Windows(sources, 1, taps + lead)


# ---- element by element ---------------------------------------------------------------------------------------------


def _of_elements(*maps: str) -> RowRule:
    """Return the rule of the whole map, for a node of `count` rows; maps: names of the operands that are maps."""

    def rule(node: Node, context: KernelContext, count: Var) -> RowBlockSpec:
        shape = node.outputs[0].shape
        if len(shape) != 4 or (isinstance(node.attrs, QRescaleAttrs) and node.attrs.axes):
            raise NoRowsError(f"{node.name}: no map, or a sum")
        names = (*maps, *(name for name in ("mask",) if name in operands(node)))
        _check_mask(node, shape[2] * shape[3])
        if shape[2] * shape[3] % LANES:
            context = context.without_int_vectors()
        places = tuple(position(node, name) for name in names)
        return RowBlockSpec(kernel_spec(few_rows(node, count), context), count, places, shape[1], in_place=True)

    return rule


row_kernel("QAdd", "ErrorAdd")(_of_elements("a", "b"))
row_kernel("QRescale")(_of_elements("x"))
row_kernel("ErrorScale")(_of_elements("e"))
row_kernel("QClipMask")(_of_elements("y"))


def _check_mask(node: Node, elements: int) -> None:
    """Raise NoRowsError if rows of bits do not begin at a byte."""
    bits = any(value.dtype == "bits" for value in (*node.inputs, *node.outputs))
    if bits and elements % 8:
        raise NoRowsError(f"{node.name}: rows of {elements} bits do not begin with a byte")
