"""Convolution and transposed convolution, of images and of signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import Entry, channels_last
from tinytrain_compile.frontend.graph.handler import Handler
from tinytrain_compile.frontend.graph.operands import constant_input, required_input
from tinytrain_compile.frontend.operators.batch_norm import fold_into_layer
from tinytrain_compile.frontend.operators.windows import (
    Pair,
    WindowGeometry,
    auto_pad,
    image_shape,
    image_size,
    read_window,
    split_pads,
)
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.shape import EmbedAttrs


def _conv(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    size = image_size(x)
    window = read_window(node, tuple(ctx.entry(node.input(1)).shape[2:]), size, x.rank)
    if _is_computed(ctx, node):
        attrs = _attrs(window, node)
        y = ctx.emit(node, "Conv", (ctx.value(node, x, channels_last(x.rank)), _computed_weight(ctx, node, x)), attrs)
        _with_bias(ctx, node, y, x.rank)
        return
    x, weight, bias = _operands(ctx, node)
    layer = fold_into_layer(ctx, node, weight, bias, ctx.optional(node.input(2)))
    attrs = replace(_attrs(window, node), bias=layer.bias is not None)
    kernels = ctx.weight(ctx.entry(node.input(1)), node, 1, _kernels, layer.weight, layer.fold)
    operands = [ctx.value(node, x, channels_last(x.rank)), kernels, *layer.bias_operand(ctx, node, kernels)]
    y = ctx.emit(node, "Conv", operands, attrs)
    shape = image_shape(y.shape[0], y.shape[3], (y.shape[1], y.shape[2]), x.rank)
    ctx.define_value(layer.output, y, shape, channels_last(x.rank))


def _conv_transpose(ctx: ImportContext, node: OnnxNode) -> None:
    """The data gradient of the convolution with the same weight, read as [in, kernel h, kernel w, out / groups]."""
    x = ctx.entry(node.input(0))
    size, computed = image_size(x), _is_computed(ctx, node)
    if not computed:
        _operands(ctx, node)
    window = read_window(_without_auto_pad(node), tuple(ctx.entry(node.input(1)).shape[2:]), size, x.rank)
    window, output_hw = _transposed_geometry(node, window, size, x.rank - 2)
    reached = _reached(window, size, output_hw)
    attrs = ConvGradInputAttrs(_attrs(window, node), reached)
    operands = (
        ctx.value(node, x, channels_last(x.rank)),
        _computed_weight(ctx, node, x) if computed else ctx.weight(ctx.entry(node.input(1)), node, 1, _kernels),
    )
    y = ctx.emit(node, "ConvGradInput", operands, attrs)
    if reached != output_hw:  # no window reaches the rest: zeros
        y = ctx.emit(node, "Embed", (y,), EmbedAttrs((0,) * 4, (1,) * 4, (y.shape[0], *output_hw, y.shape[3])), "rest")
    _with_bias(ctx, node, y, x.rank)


def _with_bias(ctx: ImportContext, node: OnnxNode, y: Value, rank: int) -> None:
    """Define the node's output: y, a channels-last image, and the bias on it if there is one."""
    bias = ctx.optional(node.input(2))
    if bias is not None:
        constant = bias.value is None
        y = ctx.emit(node, "Add", (y, ctx.weight(bias, node, 2) if constant else ctx.value(node, bias)), suffix="bias")
    shape = image_shape(y.shape[0], y.shape[3], (y.shape[1], y.shape[2]), rank)
    ctx.define_value(node.output(0), y, shape, channels_last(rank))


def _is_computed(ctx: ImportContext, node: OnnxNode) -> bool:
    """Whether weight or bias is what the graph makes of parameters (weight normalisation)."""
    known = [ctx.optional(node.input(index)) for index in (1, 2)]
    made = any(entry is not None and entry.value is not None for entry in known)
    return made and all(ctx.links.is_constant(name) for name in node.inputs[1:] if name)


def _computed_weight(ctx: ImportContext, node: OnnxNode, x: Entry) -> Value:
    """The weight as the kernels have it; a layer whose weight is no table computes in float32."""
    entry = ctx.entry(node.input(1))
    if entry.rank != x.rank:
        raise ValueError(f"weight {entry.shape} for an input of shape {x.shape}")
    ctx.floats.add(node.name)
    return ctx.value(node, entry, channels_last(x.rank))


def _operands(ctx: ImportContext, node: OnnxNode) -> tuple[Entry, Array, Array | None]:
    """Input, weight as [0, kernel h, kernel w, 1] of the ONNX axes, and bias."""
    x = ctx.entry(node.input(0))
    image_size(x)
    weight = required_input(ctx, node, 1, "weight")
    if weight.ndim != x.rank:
        raise ValueError(f"weight {weight.shape} for an input of shape {x.shape}")
    bias = constant_input(ctx, node, 2, "bias")
    return x, _kernels(weight).astype(np.float32), None if bias is None else bias.astype(np.float32)


def _kernels(weight: Array) -> Array:
    """A weight of ONNX as [0, kernel h, kernel w, 1] of its axes; kernels of signals have height 1."""
    images = weight.reshape(*weight.shape[:2], 1, weight.shape[2]) if weight.ndim == 3 else weight
    return images.transpose(0, 2, 3, 1)


def _attrs(window: WindowGeometry, node: OnnxNode) -> ConvAttrs:
    groups = node.integer("group", 1)
    if groups < 1:
        raise ValueError(f"group {groups}")
    return ConvAttrs(window.kernel, window.strides, window.pads, window.dilations, groups)


def _without_auto_pad(node: OnnxNode) -> OnnxNode:
    """auto_pad of a transposed convolution depends on the output size: not read_window's rule."""
    auto_pad(node)
    return replace(node, attrs={key: value for key, value in node.attrs.items() if key != "auto_pad"})


def _transposed_geometry(
    node: OnnxNode, window: WindowGeometry, size: Pair, spatial: int
) -> tuple[WindowGeometry, Pair]:
    """Pads and output size after output_padding, output_shape and auto_pad, as the ONNX standard defines them."""
    extra = _spatial_pair(node, "output_padding", spatial, 0) or (0, 0)
    output = _spatial_pair(node, "output_shape", spatial, 1)
    mode = auto_pad(node)
    if output is None and mode.startswith("SAME"):
        output = (size[0] * window.strides[0], size[1] * window.strides[1])
    full = [window.strides[i] * (size[i] - 1) + window.reach[i] for i in (0, 1)]
    if output is None:
        top, left, bottom, right = (0, 0, 0, 0) if mode == "VALID" else window.pads
        output = (full[0] + extra[0] - top - bottom, full[1] + extra[1] - left - right)
    else:
        missing = (max(full[0] + extra[0] - output[0], 0), max(full[1] + extra[1] - output[1], 0))
        top, left, _, _ = split_pads(missing, mode == "SAME_UPPER")
    if min(output) < 1:
        raise ValueError(f"the output size is {output}")
    bottom, right = max(full[0] - top - output[0], 0), max(full[1] - left - output[1], 0)
    return replace(window, pads=(top, left, bottom, right)), output


def _reached(window: WindowGeometry, size: Pair, output: Pair) -> Pair:
    """The part of the output that the gradient operator may compute: it reaches less than a stride over the windows."""
    full = [window.strides[i] * (size[i] - 1) + window.reach[i] for i in (0, 1)]
    height, width = (min(output[i], full[i] - window.pads[i] + window.strides[i] - 1) for i in (0, 1))
    return height, width


def _spatial_pair(node: OnnxNode, name: str, spatial: int, unit: int) -> Pair | None:
    values = node.integers(name)
    if values is None:
        return None
    if len(values) != spatial or min(values) < 0:
        raise ValueError(f"{name} {values}")
    return (values[0], values[1]) if spatial == 2 else (unit, values[0])


HANDLERS: Mapping[str, Handler] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
