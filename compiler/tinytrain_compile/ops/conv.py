"""Convolution on channels-last images, and its gradients. Weights are OHWI: [out, kernel h, kernel w, in / groups]."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tinytrain_compile.ir.types import Array, Node, TensorType, Value
from tinytrain_compile.ops.base import GradientContext, NonDifferentiable, Samples, operator, traits
from tinytrain_compile.ops.conv_form import (
    TILE_WIDTH,
    ConvAttrs,
    ConvGradInputAttrs,
    backward_patch,
    backward_phases,
    forward_patch,
    gathers,
    gathers_error,
    is_product,
)
from tinytrain_compile.ops.describe import padding, times, window
from tinytrain_compile.ops.linear import WEIGHT, join_split, present_parts, split_operands, whole_shape
from tinytrain_compile.ops.names import attrs_of, expect_float, named, operand, operands, result
from tinytrain_compile.ops.rows import LEAST, RowForm, few_elements, window_rows


def _check_weight(w: tuple[int, ...], attrs: ConvAttrs, channels_in: int) -> None:
    if len(w) != 4 or w[1:3] != attrs.kernel or w[3] * attrs.groups != channels_in or w[0] % attrs.groups:
        raise ValueError(
            f"weight {w} does not fit {channels_in} input channels, kernel {attrs.kernel}, {attrs.groups} groups"
        )
    if attrs.split is not None and attrs.groups > 1 and attrs.split.axis == "in":
        raise ValueError("a grouped convolution has no input-channel slice")


def _present(attrs: ConvAttrs) -> tuple[str, ...]:
    return present_parts(attrs.split) + (("bias",) if attrs.bias else ())


def _conv_infer(inputs: tuple[Value, ...], attrs: ConvAttrs) -> tuple[TensorType, ...]:
    o = named("Conv", inputs, attrs)
    x, bias = o["x"], o.get("bias")
    expect_float("Conv", *o.values())
    if len(x.shape) != 4:
        raise ValueError(f"x {x.shape} is not NHWC")
    n, h, w, c = x.shape
    weight = whole_shape(o.several(*WEIGHT), attrs.split, 0, 3)
    _check_weight(weight, attrs, c)
    if bias is not None and bias.shape != (weight[0],):
        raise ValueError(f"bias {bias.shape}, expected {(weight[0],)}")
    return (TensorType((n, *attrs.output_hw(h, w), weight[0]), "float32", "NHWC"),)


def _windows(x: Array, attrs: ConvAttrs, out_hw: tuple[int, int]) -> Array:
    """Return the receptive fields of a padded NHWC array: [n, ho, wo, kh, kw, c] (a strided view; only padding
    copies)."""
    top, left, bottom, right = attrs.pads
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    n, _, _, c = padded.shape
    sn, sh, sw, sc = padded.strides
    (stride_h, stride_w), (dil_h, dil_w) = attrs.strides, attrs.dilations
    shape = (n, *out_hw, *attrs.kernel, c)
    strides = (sn, sh * stride_h, sw * stride_w, sh * dil_h, sw * dil_w, sc)
    return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)


def _conv(arrays: tuple[Array, ...], attrs: ConvAttrs) -> tuple[Array, ...]:
    o = named("Conv", arrays, attrs)
    x, w = o["x"], join_split(o.several(*WEIGHT), attrs.split, 0, 3)
    out_hw = attrs.output_hw(x.shape[1], x.shape[2])
    win = _windows(x, attrs, out_hw)
    n, g = x.shape[0], attrs.groups
    cols = win.reshape(n, *out_hw, *attrs.kernel, g, w.shape[3])
    kernels = w.reshape(g, w.shape[0] // g, *attrs.kernel, w.shape[3])
    y = np.einsum("nyxrsgi,gorsi->nyxgo", cols, kernels, optimize=True).reshape(n, *out_hw, w.shape[0])
    y = y.astype(x.dtype, copy=False)
    return (y + o["bias"] if attrs.bias else y,)


def _added(total: Array, term: Array, inside: Array | None) -> Array:
    """Return total + term where the tap is inside the image; None: everywhere (gathered rows hold 0 for the
    padding)."""
    return total + term if inside is None else np.where(inside, total + term, total)


def _inside_taps(attrs: ConvAttrs, hw: tuple[int, ...], out_hw: tuple[int, int]) -> Array:
    """Tell whether each tap of each output pixel is inside the image: [ho, wo, kh, kw]."""
    return _windows(np.ones((1, *hw, 1), np.bool_), attrs, out_hw)[0, ..., 0]


def _conv_exact(arrays: tuple[Array, ...], attrs: ConvAttrs) -> tuple[Array, ...]:
    o = named("Conv", arrays, attrs)
    x, w = o["x"], join_split(o.several(*WEIGHT), attrs.split, 0, 3)
    out_hw = attrs.output_hw(x.shape[1], x.shape[2])
    n, g = x.shape[0], attrs.groups
    cols = _windows(x, attrs, out_hw).reshape(n, *out_hw, *attrs.kernel, g, w.shape[3])
    kernels = w.reshape(g, w.shape[0] // g, *attrs.kernel, w.shape[3])
    inside = _inside_taps(attrs, x.shape[1:3], out_hw) if g > 1 else None
    y = np.zeros((n, *out_hw, *kernels.shape[:2]), np.float32)
    for r, s, i in np.ndindex(*attrs.kernel, w.shape[3]):
        term = cols[:, :, :, r, s, :, i, None] * kernels[:, :, r, s, i]
        y = _added(y, term, None if inside is None else inside[:, :, r, s, None, None])
    y = y.reshape(n, *out_hw, w.shape[0])
    return (y + o["bias"] if attrs.bias else y,)


def _conv_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    attrs, dy, o = node.attrs, dys[0], operands(node)
    assert isinstance(attrs, ConvAttrs) and dy is not None
    plain = replace(attrs, bias=False, split=None)
    grads: dict[int, Value] = {}
    if ctx.wants(o.position("w")):
        if attrs.groups > 1 and attrs.split is not None:
            x, part_dy, plain = _grouped_slice(ctx, o["x"], dy, attrs, o["w"].shape)
        else:
            x, part_dy = split_operands(ctx, o["x"], dy, attrs.split)
        grads[o.position("w")] = ctx.emit("ConvGradWeight", (x, part_dy), plain)
    if attrs.bias and ctx.wants(o.position("bias")):
        grads[o.position("bias")] = ctx.sum_to(dy, o["bias"])
    if ctx.wants(o.position("x")):
        _, height, width, _ = o["x"].shape
        kind = ConvGradInputAttrs(replace(attrs, bias=False), (height, width))
        grads[o.position("x")] = ctx.emit("ConvGradInput", (dy, *o.several(*WEIGHT)), kind)
    return grads


def _grouped_slice(
    ctx: GradientContext, x: Value, dy: Value, attrs: ConvAttrs, part: tuple[int, ...]
) -> tuple[Value, Value, ConvAttrs]:
    """Return the operands of the weight gradient of some output channels of a grouped convolution: only their groups'
    inputs.

    Each updated output channel becomes a group of its own; inputs that several of them read are repeated.
    """
    from tinytrain_compile.ops.linear import take_channels
    from tinytrain_compile.ops.shape import ConcatAttrs

    split = attrs.split
    assert split is not None
    per_group = split.total // attrs.groups
    fields = [tuple(range(c // per_group * part[3], (c // per_group + 1) * part[3])) for c in split.channels]
    flat = tuple(channel for field in fields for channel in field)
    if len(set(flat)) == len(flat):
        data = take_channels(ctx, x, flat)
    else:
        data = ctx.emit("Concat", [take_channels(ctx, x, field) for field in fields], ConcatAttrs(3))
    return (
        data,
        take_channels(ctx, dy, split.channels),
        replace(attrs, bias=False, split=None, groups=len(split.channels)),
    )


def _conv_scratch(node: Node) -> int:
    attrs = attrs_of(node, ConvAttrs)
    return 4 * forward_patch(attrs, operand(node, "x").shape).elements(TILE_WIDTH) if gathers(attrs) else 0


def _conv_rows(node: Node) -> RowForm | None:
    attrs = attrs_of(node, ConvAttrs)
    if is_product(attrs):
        _, rows, width, channels = result(node, "y").shape
        return None if channels < LEAST and few_elements(width, rows) else RowForm((0,))
    return window_rows(attrs.kernel, attrs.strides, attrs.dilations, attrs.pads, _conv_scratch(node))


def _conv_macs(node: Node) -> int:
    attrs = attrs_of(node, ConvAttrs)
    taps = attrs.kernel[0] * attrs.kernel[1]
    return result(node, "y").elements * taps * operand(node, "x").shape[3] // attrs.groups


def conv_says(conv: ConvAttrs, image: tuple[int, ...], channels: int) -> str:
    """Describe a convolution of an image (sample, height, width, channels) by its geometry: "3x3, stride 1, ..."."""
    size = conv.output_hw(image[1], image[2])
    form = window(conv.kernel, conv.strides, conv.pads, conv.dilations)
    if conv.groups == image[3] == channels and channels > 1:
        return f"depthwise {form}, {channels} channels, {times(size)}"
    groups = f", {conv.groups} groups" if conv.groups > 1 else ""
    return f"{form}, {image[3]} -> {channels} channels{groups}, {times(size)}"


def _conv_says(node: Node) -> str:
    conv, x = attrs_of(node, ConvAttrs), operand(node, "x").shape
    geometry = conv_says(conv, x, result(node, "y").shape[3])
    return f"{geometry}.{padding(*conv.pads[:2], x, 'x')}"


def conv_grad_says(conv: ConvAttrs, image: tuple[int, ...], error: tuple[int, ...], name: str) -> str:
    """Describe the gradient of a convolution for its image; error: shape of the gradient `name` that it reads."""
    text = f"{name} with w, {conv_says(conv, image, error[3])} in the forward pass."
    if conv.strides != (1, 1):
        return text
    top, left = ((conv.kernel[i] - 1) * conv.dilations[i] - conv.pads[i] for i in (0, 1))
    return f"{text}{padding(top, left, error, name)}"


def _grad_input_says(node: Node) -> str:
    attrs, dy = attrs_of(node, ConvGradInputAttrs), operand(node, "dy").shape
    return f"dx = transposed convolution of {conv_grad_says(attrs.conv, result(node, 'dx').shape, dy, 'dy')}"


def _grad_weight_says(node: Node) -> str:
    conv, x, dy = attrs_of(node, ConvAttrs), operand(node, "x").shape, operand(node, "dy").shape
    geometry = conv_says(conv, x, dy[3])
    return f"dw = correlation of x with dy, {geometry} in the forward pass.{padding(*conv.pads[:2], x, 'x')}"


operator(
    "Conv",
    "2-D convolution (cross-correlation) with groups, strides, padding, dilation and an optional bias.",
    _conv_infer,
    _conv,
    _conv_gradient,
    ConvAttrs,
    scratch=_conv_scratch,
    macs=_conv_macs,
    exact=_conv_exact,
    rows=_conv_rows,
    inputs=("x", *WEIGHT, "bias?"),
    present=_present,
    says=_conv_says,
    traits=traits("matrix", "layer", "requantised"),
)


def _grad_input_infer(inputs: tuple[Value, ...], attrs: ConvGradInputAttrs) -> tuple[TensorType, ...]:
    conv, (dy, *weights) = attrs.conv, inputs
    expect_float("ConvGradInput", dy, weights[0])
    weight = whole_shape(tuple(weights), conv.split, 0, 3)
    _check_weight(weight, conv, weight[3] * conv.groups)
    if dy.shape[1:] != (*conv.output_hw(*attrs.input_hw), weight[0]):
        raise ValueError(f"dy {dy.shape} is not what the convolution of {attrs.input_hw} gives")
    return (TensorType((dy.shape[0], *attrs.input_hw, weight[3] * conv.groups), "float32", "NHWC"),)


def _grad_input(arrays: tuple[Array, ...], attrs: ConvGradInputAttrs) -> tuple[Array, ...]:
    conv, (dy, *weights) = attrs.conv, arrays
    w = join_split(tuple(weights), conv.split, 0, 3)
    g, (n, ho, wo, _) = conv.groups, dy.shape
    height, width = attrs.input_hw
    top, left, bottom, right = conv.pads
    padded = np.zeros((n, height + top + bottom, width + left + right, g, w.shape[3]), dy.dtype)
    groups_dy = dy.reshape(n, ho, wo, g, w.shape[0] // g)
    kernels = w.reshape(g, w.shape[0] // g, *conv.kernel, w.shape[3])
    for r in range(conv.kernel[0]):
        for s in range(conv.kernel[1]):
            y0, x0 = r * conv.dilations[0], s * conv.dilations[1]
            rows = slice(y0, y0 + (ho - 1) * conv.strides[0] + 1, conv.strides[0])
            cols = slice(x0, x0 + (wo - 1) * conv.strides[1] + 1, conv.strides[1])
            part = np.einsum("nyxgo,goi->nyxgi", groups_dy, kernels[:, :, r, s], optimize=True)
            padded[:, rows, cols] += part
    dx = padded[:, top : top + height, left : left + width]
    return (np.ascontiguousarray(dx).reshape(n, height, width, -1),)


def _grad_input_exact(arrays: tuple[Array, ...], attrs: ConvGradInputAttrs) -> tuple[Array, ...]:
    conv, (dy, *weights) = attrs.conv, arrays
    w = join_split(tuple(weights), conv.split, 0, 3)
    g, (n, ho, wo, _), (top, left, bottom, right) = conv.groups, dy.shape, conv.pads
    height, width = attrs.input_hw
    per_group = w.shape[0] // g
    hw, phases = (height + top + bottom, width + left + right), backward_phases(conv, attrs.input_hw)
    kernels = w.reshape(g, per_group, *conv.kernel, w.shape[3])
    dx = np.zeros((n, *hw, g, w.shape[3]), np.float32)
    for r, s in np.ndindex(*conv.kernel):
        y0, x0 = r * conv.dilations[0], s * conv.dilations[1]
        rows = slice(y0, y0 + (ho - 1) * conv.strides[0] + 1, conv.strides[0])
        cols = slice(x0, x0 + (wo - 1) * conv.strides[1] + 1, conv.strides[1])
        # The kernel gathers for this tap: pixels that no window reads with it get 0, or nothing if they belong to
        # another phase (or in groups).
        gathered, inside = np.zeros((n, *hw, g, per_group), np.float32), np.zeros((*hw, 1, 1), np.bool_)
        gathered[:, rows, cols] = dy.reshape(n, ho, wo, g, per_group)
        phase = slice(y0 % phases[0], None, phases[0]), slice(x0 % phases[1], None, phases[1])
        inside[(rows, cols) if g > 1 else phase] = True
        for o in range(per_group):
            dx = _added(dx, gathered[..., o, None] * kernels[:, o, r, s], inside)
    dx = dx[:, top : top + height, left : left + width]
    return (np.ascontiguousarray(dx).reshape(n, height, width, -1),)


def _grad_input_gradient(ctx: GradientContext, node: Node, dys: tuple[Value | None, ...]) -> dict[int, Value]:
    attrs, g, o = node.attrs, dys[0], operands(node)
    assert isinstance(attrs, ConvGradInputAttrs) and g is not None
    plain = replace(attrs.conv, bias=False, split=None)
    grads: dict[int, Value] = {}
    if ctx.wants(o.position("w")):
        # The transposed convolution's data plays dy, its output plays x: "out" of the weight is its input channel.
        if plain.groups > 1 and attrs.conv.split is not None:
            x, dy, plain = _grouped_slice(ctx, g, o["dy"], attrs.conv, o["w"].shape)
        else:
            x, dy = split_operands(ctx, g, o["dy"], attrs.conv.split)
        grads[o.position("w")] = ctx.emit("ConvGradWeight", (x, dy), plain)
    if ctx.wants(o.position("dy")):
        grads[o.position("dy")] = ctx.emit("Conv", (g, *o.several(*WEIGHT)), replace(attrs.conv, bias=False))
    return grads


def _grad_input_scratch(node: Node) -> int:
    attrs = attrs_of(node, ConvGradInputAttrs)
    conv = attrs.conv
    patch = backward_patch(conv, attrs.input_hw, operand(node, "dy").shape)
    return 4 * patch.elements(TILE_WIDTH) if gathers_error(conv, attrs.input_hw) else 0


def _grad_input_macs(node: Node) -> int:
    attrs = attrs_of(node, ConvGradInputAttrs)
    taps = attrs.conv.kernel[0] * attrs.conv.kernel[1]
    return operand(node, "dy").elements * taps * result(node, "dx").shape[3] // attrs.conv.groups


operator(
    "ConvGradInput",
    "Gradient of Conv for its data; as a forward op, ConvTranspose.",
    _grad_input_infer,
    _grad_input,
    _grad_input_gradient,
    ConvGradInputAttrs,
    scratch=_grad_input_scratch,
    macs=_grad_input_macs,
    exact=_grad_input_exact,
    inputs=("dy", *WEIGHT),
    outputs=("dx",),
    present=lambda attrs: present_parts(attrs.conv.split),
    says=_grad_input_says,
    traits=traits("matrix", "data_gradient", "requantised"),
)


def _grad_weight_infer(inputs: tuple[Value, ...], attrs: ConvAttrs) -> tuple[TensorType, ...]:
    x, dy = inputs
    if (
        dy.shape[1:3] != attrs.output_hw(x.shape[1], x.shape[2])
        or x.shape[3] % attrs.groups
        or dy.shape[3] % attrs.groups
    ):
        raise ValueError(f"x {x.shape} and dy {dy.shape} do not belong to one convolution")
    return (TensorType((dy.shape[3], *attrs.kernel, x.shape[3] // attrs.groups)),)


def _grad_weight(arrays: tuple[Array, ...], attrs: ConvAttrs) -> tuple[Array, ...]:
    x, dy = arrays
    n, ho, wo, o = dy.shape
    g = attrs.groups
    cols = _windows(x, attrs, (ho, wo)).reshape(n, ho, wo, *attrs.kernel, g, x.shape[3] // g)
    dw = np.einsum("nyxgo,nyxrsgi->gorsi", dy.reshape(n, ho, wo, g, o // g), cols, optimize=True)
    return (dw.reshape(o, *attrs.kernel, x.shape[3] // g).astype(x.dtype, copy=False),)


def _grad_weight_exact(arrays: tuple[Array, ...], attrs: ConvAttrs) -> tuple[Array, ...]:
    x, dy = arrays
    n, ho, wo, o = dy.shape
    g, per_group = attrs.groups, x.shape[3] // attrs.groups
    cols = _windows(x, attrs, (ho, wo)).reshape(n, ho, wo, *attrs.kernel, g, per_group)
    fields, errors = np.moveaxis(cols, 5, 3)[:, :, :, :, None], dy.reshape(n, ho, wo, g, o // g, 1, 1, 1)
    inside = _inside_taps(attrs, x.shape[1:3], (ho, wo))
    dw = np.zeros((g, o // g, *attrs.kernel, per_group), np.float32)
    for pixel in np.ndindex(n, ho, wo):
        dw = _added(dw, errors[pixel] * fields[pixel], inside[pixel[1:]][..., None])
    return (dw.reshape(o, *attrs.kernel, per_group),)


CONV_GRAD_WEIGHT = operator(
    "ConvGradWeight",
    "Gradient of Conv for its weight.",
    _grad_weight_infer,
    _grad_weight,
    NonDifferentiable("second derivatives are never needed"),
    ConvAttrs,
    macs=lambda node: result(node, "dw").elements * math.prod(operand(node, "dy").shape[:3]),
    exact=_grad_weight_exact,
    samples=Samples(sums=lambda _attrs: True),
    inputs=("x", "dy"),
    outputs=("dw",),
    says=_grad_weight_says,
    traits=traits("weight_gradient"),
)


__all__ = [
    "CONV_GRAD_WEIGHT",
    "TILE_WIDTH",
    "ConvAttrs",
    "ConvGradInputAttrs",
    "backward_patch",
    "backward_phases",
    "conv_grad_says",
    "conv_says",
    "forward_patch",
    "gathers",
    "gathers_error",
    "is_product",
]
