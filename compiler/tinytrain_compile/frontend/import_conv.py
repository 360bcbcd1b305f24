"""Convolution and transposed convolution, of images and of signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.batch_norm import fold_into_layer
from tinytrain_compile.frontend.context import Context, Unsupported
from tinytrain_compile.frontend.entries import Entry, channels_last
from tinytrain_compile.frontend.handler import Handler
from tinytrain_compile.frontend.model import OnnxNode
from tinytrain_compile.frontend.operands import constant_input, required_input
from tinytrain_compile.frontend.windows import Pair, Window, auto_pad, image_shape, image_size, read_window, split_pads
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs


def _conv(ctx: Context, node: OnnxNode) -> None:
    x, weight, bias = _operands(ctx, node)
    size = image_size(x)
    window = read_window(node, tuple(ctx.entry(node.input(1)).shape[2:]), size, x.rank)
    layer = fold_into_layer(ctx, node, weight, bias, _name(ctx, node, 2) if bias is not None else "")
    attrs = replace(_attrs(window, node), bias=layer.bias is not None)
    operands = [
        ctx.value(node, x, channels_last(x.rank)),
        ctx.weight(ctx.entry(node.input(1)), layer.weight, node, 1),
    ]
    if layer.bias is not None:
        operands.append(ctx.constant(layer.bias, layer.bias_name, node.name, parameter=True))
    y = ctx.emit(node, "Conv", operands, attrs)
    shape = image_shape(y.shape[0], y.shape[3], (y.shape[1], y.shape[2]), x.rank)
    ctx.define_value(layer.output, y, shape, channels_last(x.rank))


def _conv_transpose(ctx: Context, node: OnnxNode) -> None:
    """The data gradient of the convolution with the same weight, read as [in, kernel h, kernel w, out / groups]."""
    x, weight, bias = _operands(ctx, node)
    size = image_size(x)
    window = read_window(_without_auto_pad(node), tuple(ctx.entry(node.input(1)).shape[2:]), size, x.rank)
    window, output_hw = _transposed_geometry(node, window, size, x.rank - 2)
    attrs = ConvGradInputAttrs(_attrs(window, node), output_hw)
    operands = (
        ctx.value(node, x, channels_last(x.rank)),
        ctx.weight(ctx.entry(node.input(1)), weight, node, 1),
    )
    y = ctx.emit(node, "ConvGradInput", operands, attrs)
    if bias is not None:
        y = ctx.emit(
            node, "Add", (y, ctx.constant(bias, _name(ctx, node, 2), node.name, parameter=True)), suffix="bias"
        )
    shape = image_shape(y.shape[0], y.shape[3], output_hw, x.rank)
    ctx.define_value(node.output(0), y, shape, channels_last(x.rank))


def _operands(ctx: Context, node: OnnxNode) -> tuple[Entry, Array, Array | None]:
    """Input, weight as [0, kernel h, kernel w, 1] of the ONNX axes, and bias."""
    x = ctx.entry(node.input(0))
    image_size(x)
    weight = required_input(ctx, node, 1, "weight")
    if weight.ndim != x.rank:
        raise ValueError(f"weight {weight.shape} for an input of shape {x.shape}")
    kernels = weight.reshape(*weight.shape[:2], 1, weight.shape[2]) if weight.ndim == 3 else weight
    bias = constant_input(ctx, node, 2, "bias")
    return x, kernels.transpose(0, 2, 3, 1).astype(np.float32), None if bias is None else bias.astype(np.float32)


def _name(ctx: Context, node: OnnxNode, index: int) -> str:
    return ctx.entry(node.input(index)).source or node.input(index)


def _attrs(window: Window, node: OnnxNode) -> ConvAttrs:
    groups = node.integer("group", 1)
    if groups < 1:
        raise ValueError(f"group {groups}")
    return ConvAttrs(window.kernel, window.strides, window.pads, window.dilations, groups)


def _without_auto_pad(node: OnnxNode) -> OnnxNode:
    """auto_pad of a transposed convolution depends on the output size: not read_window's rule."""
    auto_pad(node)
    return replace(node, attrs={key: value for key, value in node.attrs.items() if key != "auto_pad"})


def _transposed_geometry(node: OnnxNode, window: Window, size: Pair, spatial: int) -> tuple[Window, Pair]:
    """Pads and output size after output_padding, output_shape and auto_pad, as the ONNX standard defines them."""
    extra = _spatial_pair(node, "output_padding", spatial, 0) or (0, 0)
    wanted = _spatial_pair(node, "output_shape", spatial, 1)
    mode = auto_pad(node)
    if wanted is None and mode.startswith("SAME"):
        wanted = (size[0] * window.strides[0], size[1] * window.strides[1])
    if mode == "VALID":
        window = replace(window, pads=(0, 0, 0, 0))
    whole = [window.strides[i] * (size[i] - 1) + extra[i] + window.reach[i] for i in (0, 1)]
    if wanted is not None:
        total = (whole[0] - wanted[0], whole[1] - wanted[1])
        window = replace(window, pads=split_pads(total, mode != "SAME_LOWER" if mode != "NOTSET" else False))
        output = wanted
    else:
        pads = window.pads
        output = (whole[0] - pads[0] - pads[2], whole[1] - pads[1] - pads[3])
    if min(window.pads) < 0:
        raise Unsupported("output_shape", "the output is larger than the window reaches", "a smaller output_shape")
    if any(extra[i] >= window.strides[i] for i in (0, 1) if extra[i]):
        raise Unsupported("output_padding", "it is not smaller than the stride", "output_padding below the stride")
    if min(output) < 1:
        raise ValueError(f"the output size is {output}")
    return window, output


def _spatial_pair(node: OnnxNode, name: str, spatial: int, unit: int) -> Pair | None:
    values = node.integers(name)
    if values is None:
        return None
    if len(values) != spatial or min(values) < 0:
        raise ValueError(f"{name} {values}")
    return (values[0], values[1]) if spatial == 2 else (unit, values[0])


HANDLERS: Mapping[str, Handler] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
