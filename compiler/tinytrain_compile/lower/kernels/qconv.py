"""Integer convolutions: the float kernels' loops over int32 sums, with an epilogue that makes int8 of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import te, tirx

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    Features,
    KernelSpec,
    address,
    call_int,
    i32,
    kernel,
    placeholder,
)
from tinytrain_compile.lower.kernels.conv import (
    Dense,
    Window,
    dense,
    grouped,
    grouped_grad_input,
    guard,
    weight_parts,
    weight_sums,
    window_field,
)
from tinytrain_compile.lower.kernels.linear import Finish, Schedule, product, whole_weight
from tinytrain_compile.ops.conv import ConvAttrs, gathers
from tinytrain_compile.ops.qconv import GATHER_ROWS, MaskAttrs, QConvAttrs, QConvGradInputAttrs, QConvUpdateAttrs

FRACTION_BITS = 8
"""Of a weight, while an update is rounded."""
SCALE = ("multiplier", "shift", "rate", "p")
"""Operands that scale a gradient, see `step`."""
DEPTHWISE_TILE = 4
"""Channels of a depthwise weight that are summed together."""


class Centred:
    """An int8 operand, read as int32 less its zero point."""

    def __init__(self, tensor: te.Tensor, zero: int = 0) -> None:
        self._tensor, self._zero = tensor, zero
        self.shape: Any = tensor.shape

    def __getitem__(self, index: Any, /) -> Any:
        element = i32(self._tensor[index])
        return element - i32(self._zero) if self._zero else element


def tables(node: Node, first: int, names: Sequence[str]) -> list[te.Tensor]:
    """Operands in their own shapes, from input `first` on."""
    return [placeholder(node.inputs[first + i], name) for i, name in enumerate(names)]


def saturated(value: Any, zero: int, low: int, high: int) -> Any:
    """value + zero in [low, high], as int8."""
    return call_int("tt_saturate8", value, i32(zero), i32(low), i32(high), dtype="int8")


def is_product(conv: ConvAttrs) -> bool:
    """Whether a convolution is a plain matrix product over pixels."""
    return conv.groups == 1 and not gathers(conv) and conv.strides == (1, 1)


# ---- forward --------------------------------------------------------------------------------------------------------


@kernel("QConv")
def qconv(node: Node, features: Features) -> KernelSpec:
    """Sums of (x - zero) w, plus bias, requantised per channel; k x k gathers centred pixels as int16."""
    attrs = node.attrs
    assert isinstance(attrs, QConvAttrs)
    conv, shape = attrs.conv, node.outputs[0].shape
    parts = 1 if conv.split is None else 2
    weights = weight_parts(node.inputs[1 : 1 + parts])
    whole = whole_weight(weights, conv.split, 0, 3)
    bias, multiplier, shift = tables(node, 1 + parts, ("bias", "multiplier", "shift"))
    n, height, width, channels = node.inputs[0].shape

    def weight(*index: Any) -> Any:
        return i32(whole(*index))

    def finish(acc: Any, *index: Any) -> Any:
        o = index[-1]
        scaled = call_int("tt_requantise", call_int("tt_add", acc, bias[o]), multiplier[o], shift[o].astype("int32"))
        return saturated(scaled, attrs.y_zero, attrs.low, attrs.high)

    if is_product(conv):
        pixels = n * height * width
        x = placeholder(node.inputs[0], "x", (pixels, channels))
        data = Centred(x, attrs.x_zero)
        extents = (pixels, shape[3], channels)
        tile, peel = features.integer_tile, conv.split is not None
        out, schedule = product(extents, lambda i, a: data[i, a], lambda a, j: weight(j, 0, 0, a), finish, tile, peel)
        return KernelSpec([x, *weights, bias, multiplier, shift], [out], schedule)
    x = placeholder(node.inputs[0], "x")
    data, window = Centred(x, attrs.x_zero), Window(conv, (height, width))
    if conv.groups == 1:
        gather = gathers(conv)
        form = _form(shape, conv, channels, features, gather)
        field = window_field(data, window.forward)

        def stored(*index: Any) -> Any:
            return field(*index).astype("int16") if gather else field(*index)

        out, schedule = dense(form, stored, weight, finish, i32)
    else:
        out, schedule = grouped(shape, conv, data, weight, window.forward, finish)
    return KernelSpec([x, *weights, bias, multiplier, shift], [out], schedule)


def _form(shape: tuple[int, ...], conv: ConvAttrs, channels: int, features: Features, gather: bool) -> Dense:
    return Dense(shape, conv.kernel, channels, features.integer_tile, gather, conv.split is not None, GATHER_ROWS)


# ---- errors ---------------------------------------------------------------------------------------------------------

Keep = Callable[..., Any]
"""index expressions of an error -> whether the clamp let this element pass"""


def mask_operand(node: Node, attrs: MaskAttrs, shape: tuple[int, ...]) -> tuple[list[te.Tensor], Keep | None]:
    """The mask (the last input) as an operand and as a test; shape: how the error's elements are indexed."""
    if not attrs.kind:
        return [], None
    if attrs.kind == "value":
        value = placeholder(node.inputs[-1], "mask", shape)
        return [value], lambda *i: passes(value[i], attrs)
    bits = placeholder(node.inputs[-1], "mask")

    def bit_is_set(*index: Any) -> Any:
        flat: Any = 0
        for position, extent in zip(index, shape, strict=True):
            flat = flat * extent + position
        byte = i32(bits[tirx.indexdiv(flat, 8)])
        return tirx.NE(tirx.bitwise_and(byte >> tirx.indexmod(flat, 8), i32(1)), i32(0))

    return [bits], bit_is_set


def passes(value: Any, attrs: MaskAttrs) -> Any:
    """Whether a clamp let an int8 value pass."""
    return call_int("tt_passes", i32(value), i32(attrs.low), i32(attrs.high), dtype="bool")


def error_output(value: Any, keep: Keep | None, peak: te.Tensor, index: Sequence[Any]) -> Any:
    """An int8 error of an int32 value, 0 where masked; the helper updates the peak."""
    kept = guard(None if keep is None else keep(*index), value)
    return call_int("tt_error", kept, address(peak), dtype="int8")


@kernel("QConvGradInput")
def qconv_grad_input(node: Node, features: Features) -> KernelSpec:
    """Sums of g w, requantised per input channel to the exponent of the error that comes out."""
    attrs = node.attrs
    assert isinstance(attrs, QConvGradInputAttrs)
    conv, shape, out_c = attrs.conv, node.outputs[0].shape, node.inputs[3].shape[3]
    peak, p_out, p_in = tables(node, 0, ("peak", "p_out", "p_in"))
    multiplier, shift = tables(node, 4, ("multiplier", "shift"))
    weights = weight_parts(node.inputs[6 : 6 + (1 if conv.split is None else 2)])
    whole = whole_weight(weights, conv.split, 0, 3)
    pixels, flat = shape[0] * shape[1] * shape[2], is_product(conv)
    masks, keep = mask_operand(node, attrs.mask, (pixels, shape[3]) if flat else shape)
    g = placeholder(node.inputs[3], "g", (pixels, out_c) if flat else None)
    inputs = [peak, p_out, p_in, g, multiplier, shift, *weights, *masks]

    def weight(*index: Any) -> Any:
        return i32(whole(*index))

    def finish(acc: Any, *index: Any) -> Any:
        c = index[-1]
        value = call_int("tt_requantise", acc, multiplier[c], shift[c].astype("int32") + p_in[0] - p_out[0])
        return error_output(value, keep, peak, index)

    if flat:
        extents, tile, peel = (pixels, shape[3], out_c), features.integer_tile, conv.split is not None
        errors = Centred(g)
        out, schedule = product(extents, lambda i, a: errors[i, a], lambda a, j: weight(a, 0, 0, j), finish, tile, peel)
        return KernelSpec(inputs, [out, None], schedule)
    window = Window(conv, attrs.input_hw)
    if conv.groups == 1:
        field = window_field(g, window.backward)
        form = _form(shape, conv, out_c, features, gather=True)
        out, schedule = dense(form, field, lambda o, r, s, a: weight(a, r, s, o), finish, i32)
    else:
        out, schedule = grouped_grad_input(shape, conv, Centred(g), weight, window.backward, finish)
    return KernelSpec(inputs, [out, None], schedule)


# ---- weights --------------------------------------------------------------------------------------------------------


def step(operands: Sequence[te.Tensor], channel: Any, fraction_bits: int) -> tuple[Any, Any]:
    """(multiplier, exponent) that scale a channel's gradient; operands (multiplier, shift, rate, p)."""
    multiplier, shift, rate, p = operands
    exponent = shift[channel].astype("int32") + rate[1] + p[0] + i32(fraction_bits - 31)
    return call_int("tt_high_multiply", multiplier[channel], rate[0]), exponent


def moved_weight(
    w: Any, gradient: Any, scale: tuple[Any, Any], noise: te.Tensor, salt: te.Tensor, index: Any, limit: int
) -> Any:
    """An int8 weight after its step; index: of the weight in its tensor."""
    random = call_int("tt_noise", noise[0], salt[0], index)
    return call_int("tt_moved_weight", i32(w), gradient, *scale, random, i32(limit), dtype="int8")


@kernel("QConvUpdate")
def qconv_update(node: Node, features: Features) -> KernelSpec:
    """The weight gradient of a few weights at a time in registers, then their step: the gradient is never stored."""
    attrs = node.attrs
    assert isinstance(attrs, QConvUpdateAttrs)
    shape = node.inputs[0].shape
    w, scale = placeholder(node.inputs[0], "w"), tables(node, 3, SCALE)
    noise, salt = tables(node, 7, ("noise", "salt"))
    _, kernel_h, kernel_w, channels = shape

    def finish(acc: Any, o: Any, r: Any, s: Any, i: Any) -> Any:
        index = ((o * kernel_h + r) * kernel_w + s) * channels + i
        return moved_weight(w[o, r, s, i], acc, step(scale, o, FRACTION_BITS), noise, salt, index, attrs.limit)

    x, g, out, schedule = weight_gradient(node, attrs, shape, finish, features)
    return KernelSpec([w, x, g, *scale, noise, salt], [out], schedule)


@kernel("QConvSum")
def qconv_sum(node: Node, features: Features) -> KernelSpec:
    """The weight gradient, added to its running sum."""
    attrs = node.attrs
    assert isinstance(attrs, QConvUpdateAttrs)
    summed = placeholder(node.inputs[0], "sum")

    def finish(acc: Any, *index: Any) -> Any:
        return call_int("tt_add", summed[index], acc)

    x, g, out, schedule = weight_gradient(node, attrs, node.inputs[0].shape, finish, features)
    return KernelSpec([summed, x, g], [out], schedule)


def weight_gradient(
    node: Node, attrs: QConvUpdateAttrs, shape: tuple[int, ...], finish: Finish, features: Features
) -> tuple[te.Tensor, te.Tensor, te.Tensor, Schedule]:
    """(x, g, out, schedule) of out = finish(sum of g (x - zero), indices of the weight)."""
    conv, (x_value, g_value) = replace(attrs.conv, bias=False), node.inputs[1:3]
    x, g = placeholder(x_value, "x"), placeholder(g_value, "g")
    window = Window(conv, (x_value.shape[1], x_value.shape[2]))
    tile = (DEPTHWISE_TILE, 1) if shape[3] == 1 else features.integer_tile
    out, schedule = weight_sums(shape, conv, Centred(x, attrs.x_zero), Centred(g), window, finish, tile)
    return x, g, out, schedule
