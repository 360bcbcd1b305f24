"""Integer convolution: int8 forward, int8 errors backward, int8 weights updated in place.

Errors are int8 with one exponent per tensor: the real value is error * 2**exponent in the unit that the rewrite chose
(for the output of a convolution: its accumulator). An exponent is state of shape (2,): the exponent, and how many
updates in a row it was larger than needed. `peak` gathers the largest magnitude before saturation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import Overlap, op_def, operator, traits
from tinytrain_compile.ops.conv import (
    ConvAttrs,
    ConvGradInputAttrs,
    conv_grad_says,
    conv_says,
    forward_patch,
    gathers,
    gathers_error,
)
from tinytrain_compile.ops.describe import padding
from tinytrain_compile.ops.int8.conv_form import (
    backward_dense,
    backward_depthwise,
    column_bytes,
    dense_turn,
    error_patch,
    error_product_scratch,
    forward_dense,
    forward_depthwise,
    forward_product,
    four_taps_bytes,
    geometry,
    is_dense,
    is_depthwise,
    is_product,
    is_spread,
    lying,
    reads_ragged,
    spreads_error,
    stored_dtypes,
    turned_bytes,
)
from tinytrain_compile.ops.int8.error import BACKWARD, NO_CLAMP, MaskAttrs, error_infer, expect_dtypes, finish_error
from tinytrain_compile.ops.int8.rows import convolution_rows, error_rows
from tinytrain_compile.ops.int8.spread_form import map_room
from tinytrain_compile.ops.int8.tiles import LEAST_ROW_BYTES
from tinytrain_compile.ops.int8.window_form import PAIR, paired_errors, paired_room
from tinytrain_compile.ops.linear import WEIGHT, present_parts
from tinytrain_compile.ops.names import attrs_of, named, operand, result
from tinytrain_compile.ops.overlap import pixel_strips, row_strips
from tinytrain_compile.ops.owned import ErrorState

TILE_WIDTH = 2
"""Output pixels whose receptive fields an integer k x k kernel gathers at a time: its register tile's height."""
DILATED_BYTES = 8
"""Bytes for every element of a dilated window: windows of eight pixels on vectors, or of four as int16. With two
windows at a time a layer 128x16 to 16 takes 41,832 instructions on a Cortex-M55, with many 31,847."""
DILATED_MOST = 12288
"""Most bytes for two dilated windows as int16 and a third as int8; 7x7 14x14x32 takes 12,096 B without dilation."""
_WEIGHT, _CENTRED, _ERROR = 128, 255, 128
"""Largest magnitudes of int8 weights, of activations less their zero point, and of errors."""


@dataclass(frozen=True)
class QConvAttrs(Attrs):
    """conv: geometry (bias included); zero points of x and y; y is clamped to [low, high].

    shifts_down: all shifts are in -31..-1 (factors below 1/2) and no factor is 0, which shortens the kernel.
    above: a positive sum is stored above y_zero, even if it rounds to y_zero (the mask of a ReLU depends on it).
    once: a dense layer, whose sums are rounded once, as LiteRT does; those of convolutions are rounded twice.
    """

    conv: ConvAttrs
    x_zero: int
    y_zero: int
    low: int = -128
    high: int = 127
    shifts_down: bool = False
    above: bool = False
    once: bool = False


@dataclass(frozen=True)
class QConvGradInputAttrs(Attrs):
    """conv, input_hw: as ConvGradInput. mask: the clamp that the error goes through.

    probe: exponent, above that of the incoming error, with which no intermediate result can overflow.
    """

    conv: ConvAttrs
    input_hw: tuple[int, int]
    probe: int
    mask: MaskAttrs = NO_CLAMP


def integer_conv(x: Array, w: tuple[Array, ...], conv: ConvAttrs) -> Array:
    """Return the accumulator of a convolution of centred integers, exactly (float64 holds every sum below 2**53)."""
    plain = replace(conv, bias=False)
    arrays = (x.astype(np.float64), *(part.astype(np.float64) for part in w))
    return op_def("Conv").reference(arrays, plain)[0].astype(np.int64)


def _as_float(values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(replace(v, dtype="float32") for v in values)


# ---- overflow of the int32 sums ------------------------------------------------------------------------------------


def _conv_bound(inputs: tuple[Value, ...], attrs: QConvAttrs) -> int:
    return _CENTRED * _WEIGHT * _products(named("QConv", inputs, attrs)["x"], attrs.conv)


def _grad_bound(inputs: tuple[Value, ...], attrs: QConvGradInputAttrs) -> int:
    return _ERROR * _WEIGHT * _products(named("QConvGradInput", inputs, attrs)["g"], attrs.conv)


def _products(image: Value, conv: ConvAttrs) -> int:
    return conv.kernel[0] * conv.kernel[1] * (image.shape[3] // conv.groups)


# ---- QConv: (x, w, [w_rest], bias, multiplier, shift) -> y ---------------------------------------------------------


def _qconv_infer(inputs: tuple[Value, ...], attrs: QConvAttrs) -> tuple[TensorType, ...]:
    o = named("QConv", inputs, attrs)
    data, end = o.several("x", *WEIGHT), o.several("bias", "multiplier", "shift")
    expect_dtypes("QConv", (*data, *end), ("int8", *stored_dtypes(o["w"], attrs.conv.split), "int32", "int32", "int8"))
    (kind,) = op_def("Conv").infer(_as_float((*data, o["bias"])), attrs.conv)
    if any(v.shape != (kind.shape[3],) for v in end[1:]):
        raise ValueError("multiplier and shift are one per output channel")
    return (TensorType(kind.shape, "int8", "NHWC"),)


def _qconv(arrays: tuple[Array, ...], attrs: QConvAttrs) -> tuple[Array, ...]:
    o = named("QConv", arrays, attrs)
    acc = integer_conv(o["x"].astype(np.int64) - attrs.x_zero, o.several(*WEIGHT), attrs.conv) + o["bias"]
    rounded = fx.requantise_once if attrs.once else fx.requantise
    y = rounded(fx.saturate(acc), o["multiplier"], o["shift"])
    y = fx.above(y, acc) if attrs.above else y
    return (np.clip(y + attrs.y_zero, attrs.low, attrs.high).astype(np.int8),)


def _conv_scratch(node: Node) -> int:
    node = lying(node)
    paired = paired_room(node, bool(_conv_overlaps(node)))
    return max(_own_scratch(node), paired.scratch_bytes if paired else 0)


def _own_scratch(node: Node) -> int:
    conv = geometry(node)
    if is_product(conv):
        return forward_product(node).scratch_bytes
    if is_depthwise(node):
        return map_room(node)
    if is_dense(node):
        return forward_dense(node).scratch_bytes
    if gathers(conv):
        image, outputs = operand(node, "x").shape, result(node, "y").shape[3]
        patch = 2 * forward_patch(conv, image).elements(TILE_WIDTH)  # centred pixels take int16
        elements = math.prod(conv.kernel) * image[3]
        windows, two = DILATED_BYTES * elements + 4 * outputs, 6 * elements + image[3] + 2 * outputs
        room = max(LEAST_ROW_BYTES, two if two <= DILATED_MOST else 0)
        return patch if conv.dilations == (1, 1) else max(patch, min(windows, room))
    return 0


def _conv_overlaps(node: Node) -> tuple[Overlap, ...]:
    """Return which bytes may be shared: each turn first widens what it reads of the image. An image that is widened
    again for every part of the weights is needed until the end."""
    node = lying(node)
    conv, (*pixels, channels), outputs = geometry(node), operand(node, "x").shape, result(node, "y").shape[3]
    if reads_ragged(node):
        return ()
    if is_product(conv):
        tiles = forward_product(node)
        paired, unit = paired_room(node, False), tiles.unit(math.prod(pixels))
        if paired and (paired.kept < outputs or unit > PAIR):
            return ()
        if tiles.strip_axis == 1 and tiles.strip < outputs:
            return ()
        return pixel_strips(node, 1 if paired else unit)  # pairs begin anew in every image
    if is_depthwise(node):
        if is_spread(node):
            return ()  # vectors read the image again for every interleaved map
        return row_strips(node, forward_depthwise(node).strip, conv.strides[0], conv.pads[0], channels)
    if is_dense(node):
        turn = dense_turn(node)
        return row_strips(node, turn, conv.strides[0], conv.pads[0]) if turn else ()
    return ()


def _conv_macs(node: Node) -> int:
    conv = geometry(node)
    taps = conv.kernel[0] * conv.kernel[1]
    return result(node, "y").elements * taps * operand(node, "x").shape[3] // conv.groups


def centred_says(name: str, zero: object) -> str:
    """Return an operand minus its zero point as text; that of a kernel that reads it from a table is no number."""
    if not isinstance(zero, int):
        return f"({name} - {name}_zero)"
    return f"({name} {-zero:+d})".replace("+", "+ ").replace("-", "- ") if zero else name


def _qconv_says(node: Node) -> str:
    attrs, x = attrs_of(node, QConvAttrs), operand(node, "x").shape
    geometry = conv_says(attrs.conv, x, result(node, "y").shape[3])
    centred = centred_says("x", attrs.x_zero)
    total = f"y = requantised sum of {centred} * w + bias, clamped to {attrs.low}..{attrs.high}."
    return f"{geometry}. {total}{padding(*attrs.conv.pads[:2], x, 'x')}"


operator(
    "QConv",
    "int8 convolution: int32 sums of (x - zero) w plus bias, requantised per output channel and clamped.",
    _qconv_infer,
    _qconv,
    BACKWARD,
    QConvAttrs,
    scratch=_conv_scratch,
    accumulator=_conv_bound,
    macs=_conv_macs,
    overlaps=_conv_overlaps,
    rows=convolution_rows,
    inputs=("x", *WEIGHT, "bias", "multiplier", "shift"),
    present=lambda attrs: present_parts(attrs.conv.split),
    says=_qconv_says,
)


# ---- QConvGradInput: (peak, p_out, p_in, g, multiplier, shift, w, [w_rest], [mask]) -> (e, peak') ------------------


def _plain(attrs: QConvGradInputAttrs) -> ConvGradInputAttrs:
    return ConvGradInputAttrs(replace(attrs.conv, bias=False), attrs.input_hw)


def _grad_present(attrs: QConvGradInputAttrs) -> tuple[str, ...]:
    return present_parts(attrs.conv.split) + attrs.mask.operands


def _grad_infer(inputs: tuple[Value, ...], attrs: QConvGradInputAttrs) -> tuple[TensorType, ...]:
    o = named("QConvGradInput", inputs, attrs)
    data = o.several("g", *WEIGHT)
    expect_dtypes("QConvGradInput", data, ("int8", *stored_dtypes(o["w"], attrs.conv.split)))
    (out,) = op_def("ConvGradInput").infer(_as_float(data), _plain(attrs))
    if any(v.shape != (out.shape[3],) for v in o.several("multiplier", "shift")):
        raise ValueError("QConvGradInput: multiplier and shift are one per input channel")
    return error_infer("QConvGradInput", out, inputs, attrs, attrs.mask)


def _grad(arrays: tuple[Array, ...], attrs: QConvGradInputAttrs) -> tuple[Array, ...]:
    o = named("QConvGradInput", arrays, attrs)
    data = tuple(a.astype(np.float64) for a in o.several("g", *WEIGHT))
    acc = op_def("ConvGradInput").reference(data, _plain(attrs))[0].astype(np.int64)
    exponent = o["shift"].astype(np.int64) + int(o["p_in"][0]) - int(o["p_out"][0])
    values = fx.requantise(fx.saturate(acc), o["multiplier"], exponent)
    return finish_error(values, o["peak"], o.get("mask"), attrs.mask)


def _grad_scratch(node: Node) -> int:
    node = lying(node)
    return max(_own_grad_scratch(node), four_taps_bytes(node))


COLUMN_BYTES = 8192
"""Most bytes of the weights that a data gradient with strides or dilations reads tap by tap. Widened rows take more:
5x5 15x15x21 from 31 takes 7,464 B without dilation, 3,200 B with it."""


def _own_grad_scratch(node: Node) -> int:
    conv = geometry(node)
    if is_product(conv):
        return error_product_scratch(node)
    if is_depthwise(node):
        return backward_depthwise(node).scratch_bytes
    if spreads_error(node):
        return map_room(node)
    rows, (_, height, width, _) = backward_dense(node), result(node, "error").shape
    copied = error_patch(node).elements(TILE_WIDTH) if gathers_error(conv, (height, width)) else 0
    turned = min(turned_bytes(node), LEAST_ROW_BYTES) if conv.groups == 1 and conv.split is None else 0
    columns = 0 if turned == 0 or (rows and conv.strides == (1, 1)) else column_bytes(node)
    spread = paired_errors(node, LEAST_ROW_BYTES) if columns and conv.strides == (1, 1) else None
    columns = spread.scratch_bytes if spread else columns
    return max(copied, rows.scratch_bytes if rows else 0, turned, columns if columns <= COLUMN_BYTES else 0)


def _grad_macs(node: Node) -> int:
    conv = geometry(node)
    taps = conv.kernel[0] * conv.kernel[1]
    return operand(node, "g").elements * taps * result(node, "error").shape[3] // conv.groups


def _qgrad_says(node: Node) -> str:
    attrs, g = attrs_of(node, QConvGradInputAttrs), operand(node, "g").shape
    text = conv_grad_says(attrs.conv, result(node, "error").shape, g, "g")
    return f"error = transposed convolution of {text} Requantised per channel to exponent p_out"


operator(
    "QConvGradInput",
    "int8 error of a convolution's data: int32 sums of g w, requantised per channel to exponent p_out, masked.",
    _grad_infer,
    _grad,
    BACKWARD,
    QConvGradInputAttrs,
    scratch=_grad_scratch,
    accumulator=_grad_bound,
    macs=_grad_macs,
    inputs=("peak", "p_out", "p_in", "g", "multiplier", "shift", *WEIGHT, "mask?"),
    outputs=("error", "peak"),
    present=_grad_present,
    error=ErrorState(("p_in",)),
    rows=error_rows,
    traits=traits("own_unit"),
    says=_qgrad_says,
)
