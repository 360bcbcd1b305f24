"""Operators with windows: convolutions, transposed ones, and pools, of images and of signals (images of height 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry, channels_last
from tinytrain_compile.frontend.graph.operands import constant_input, required_input
from tinytrain_compile.frontend.operators.moves import reduce_entry
from tinytrain_compile.frontend.operators.normalisation import fold_into_layer
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.pool import PoolAttrs
from tinytrain_compile.ops.shape import EmbedAttrs

# ---- attributes of windows -------------------------------------------------------------------------------------------

Pair = tuple[int, int]
MAX = 2**15
"""No window of a microcontroller is larger; products of two still fit the kernels' 32-bit indices."""


@dataclass(frozen=True)
class WindowGeometry:
    """kernel, strides, dilations as (height, width); pads as (top, left, bottom, right)."""

    kernel: Pair
    strides: Pair
    dilations: Pair
    pads: tuple[int, int, int, int]

    @property
    def reach(self) -> Pair:
        """Extent of the dilated window."""
        h, w = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        return h, w


def image_size(entry: Entry) -> Pair:
    """Return height and width; Unsupported for other ranks than those of signals and images."""
    if entry.rank == 4:
        return entry.shape[2], entry.shape[3]
    if entry.rank == 3:
        return 1, entry.shape[2]
    raise Unsupported("rank", f"input of rank {entry.rank}", "signals (N, C, L) or images (N, C, H, W)")


def image_shape(batch: int, channels: int, size: Pair, rank: int) -> tuple[int, ...]:
    """Return ONNX shape of an image or signal."""
    return (batch, channels, *size) if rank == 4 else (batch, channels, size[1])


def read_window(node: OnnxNode, kernel: tuple[int, ...] | None, size: Pair, rank: int) -> WindowGeometry:
    """Return the window of a Conv or pool over an input of this size, auto_pad resolved."""
    spatial = rank - 2
    kernel = node.integers("kernel_shape") or kernel
    if kernel is None or len(kernel) != spatial:
        raise ValueError(f"kernel_shape {kernel} for an input of rank {rank}")
    strides = node.integers("strides") or (1,) * spatial
    dilations = node.integers("dilations") or (1,) * spatial
    pads = node.integers("pads") or (0,) * (2 * spatial)
    if len(strides) != spatial or len(dilations) != spatial or len(pads) != 2 * spatial:
        raise ValueError(f"strides {strides}, dilations {dilations}, pads {pads} for an input of rank {rank}")
    if min((*kernel, *strides, *dilations)) < 1 or min(pads) < 0 or max(*kernel, *strides, *dilations, *pads) > MAX:
        raise ValueError(f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads}: out of range")
    if spatial == 1:
        pads = (0, pads[0], 0, pads[1])
    window = WindowGeometry(_pair(kernel), _pair(strides), _pair(dilations), (pads[0], pads[1], pads[2], pads[3]))
    return _auto_padded(node.text("auto_pad", "NOTSET"), window, size)


def auto_pad(node: OnnxNode) -> str:
    """Return the auto_pad attribute, checked."""
    mode = node.text("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {mode}")
    return mode


def split_pads(total: Pair, upper: bool) -> tuple[int, int, int, int]:
    """Return pads of both sides; the odd one goes to the end if `upper`, else to the beginning."""
    begin = [t // 2 if upper else t - t // 2 for t in total]
    return begin[0], begin[1], total[0] - begin[0], total[1] - begin[1]


def _auto_padded(mode: str, window: WindowGeometry, size: Pair) -> WindowGeometry:
    if mode == "NOTSET":
        return window
    if mode == "VALID":
        return WindowGeometry(window.kernel, window.strides, window.dilations, (0, 0, 0, 0))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {mode}")
    steps = [-(-s // stride) for s, stride in zip(size, window.strides, strict=True)]
    missing = [max((steps[i] - 1) * window.strides[i] + window.reach[i] - size[i], 0) for i in (0, 1)]
    pads = split_pads((missing[0], missing[1]), mode == "SAME_UPPER")
    return WindowGeometry(window.kernel, window.strides, window.dilations, pads)


def _pair(values: tuple[int, ...]) -> Pair:
    return (values[0], values[1]) if len(values) == 2 else (1, values[0])


# ---- convolutions ----------------------------------------------------------------------------------------------------


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
    """Import as the data gradient of the convolution with this weight, read as [in, h, w, out / groups]."""
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
    """Tell whether weight or bias is what the graph makes of parameters (weight normalisation)."""
    known = [ctx.optional(node.input(index)) for index in (1, 2)]
    made = any(entry is not None and entry.value is not None for entry in known)
    return made and all(ctx.links.is_constant(name) for name in node.inputs[1:] if name)


def _computed_weight(ctx: ImportContext, node: OnnxNode, x: Entry) -> Value:
    """Return the weight as the kernels have it; a layer whose weight is no table computes in float32."""
    entry = ctx.entry(node.input(1))
    if entry.rank != x.rank:
        raise ValueError(f"weight {entry.shape} for an input of shape {x.shape}")
    ctx.floats.add(node.name)
    return ctx.value(node, entry, channels_last(x.rank))


def _operands(ctx: ImportContext, node: OnnxNode) -> tuple[Entry, Array, Array | None]:
    """Return input, weight as [0, kernel h, kernel w, 1] of the ONNX axes, and bias."""
    x = ctx.entry(node.input(0))
    image_size(x)
    weight = required_input(ctx, node, 1, "weight")
    if weight.ndim != x.rank:
        raise ValueError(f"weight {weight.shape} for an input of shape {x.shape}")
    bias = constant_input(ctx, node, 2, "bias")
    return x, _kernels(weight).astype(np.float32), None if bias is None else bias.astype(np.float32)


def _kernels(weight: Array) -> Array:
    """Return a weight of ONNX as [0, kernel h, kernel w, 1] of its axes; kernels of signals have height 1."""
    images = weight.reshape(*weight.shape[:2], 1, weight.shape[2]) if weight.ndim == 3 else weight
    return images.transpose(0, 2, 3, 1)


def _attrs(window: WindowGeometry, node: OnnxNode) -> ConvAttrs:
    groups = node.integer("group", 1)
    if groups < 1:
        raise ValueError(f"group {groups}")
    return ConvAttrs(window.kernel, window.strides, window.pads, window.dilations, groups)


def _without_auto_pad(node: OnnxNode) -> OnnxNode:
    """Return auto_pad of a transposed convolution depends on the output size: not read_window's rule."""
    auto_pad(node)
    return replace(node, attrs={key: value for key, value in node.attrs.items() if key != "auto_pad"})


def _transposed_geometry(
    node: OnnxNode, window: WindowGeometry, size: Pair, spatial: int
) -> tuple[WindowGeometry, Pair]:
    """Return pads and output size after output_padding, output_shape and auto_pad, as the standard defines them."""
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
    """Return the part of the output that the gradient operator computes: less than a stride over the windows."""
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


# ---- pools -----------------------------------------------------------------------------------------------------------


def _max_pool(ctx: ImportContext, node: OnnxNode) -> None:
    if ctx.links.is_used(node.output(1)):
        raise Unsupported("Indices", "the index output is not float", "only the first output")
    _pool(ctx, node, "MaxPool", False)


def _average_pool(ctx: ImportContext, node: OnnxNode) -> None:
    _pool(ctx, node, "AveragePool", bool(node.integer("count_include_pad", 0)))


def _pool(ctx: ImportContext, node: OnnxNode, op: str, count_include_pad: bool) -> None:
    x = ctx.entry(node.input(0))
    size = image_size(x)
    window = read_window(node, None, size, x.rank)
    rounds_up = bool(node.integer("ceil_mode", 0)) and auto_pad(node) == "NOTSET"
    output_hw = (_steps(window, size, 0, rounds_up), _steps(window, size, 1, rounds_up))
    if min(output_hw) < 1:
        raise ValueError(f"a window of {window.reach} does not fit an input of {size}")
    attrs = PoolAttrs(window.kernel, window.strides, window.pads, window.dilations, output_hw, count_include_pad)
    _emit_pool(ctx, node, op, x, attrs)


def _emit_pool(ctx: ImportContext, node: OnnxNode, op: str, x: Entry, attrs: PoolAttrs) -> None:
    order = channels_last(x.rank)
    y = ctx.emit(node, op, (ctx.value(node, x, order),), attrs)
    ctx.define_value(node.output(0), y, image_shape(y.shape[0], y.shape[3], attrs.output_hw, x.rank), order)


def _steps(window: WindowGeometry, size: Pair, axis: int, rounds_up: bool) -> int:
    """Return number of windows along an axis.

    With ceil_mode a last one may hang over, but not begin in the end padding.
    """
    stride, begin = window.strides[axis], window.pads[axis]
    room = size[axis] + begin + window.pads[axis + 2] - window.reach[axis]
    if not rounds_up:
        return room // stride + 1
    steps = -(-room // stride) + 1
    return steps - 1 if (steps - 1) * stride >= size[axis] + begin else steps


def _global_average_pool(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    if x.rank < 3:
        raise ValueError(f"input of rank {x.rank}")
    spatial = tuple(range(2, x.rank))
    ctx.define(node.output(0), reduce_entry(ctx, node, x, spatial, mean=True))


def _global_max_pool(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    attrs = PoolAttrs(image_size(x), (1, 1), (0, 0, 0, 0))
    _emit_pool(ctx, node, "MaxPool", x, attrs)


HANDLERS: Mapping[str, Handler] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
}
