"""Operators with windows: convolutions, transposed ones, and pools, of images and of signals (images of height 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, of_one
from tinytrain_compile.frontend.graph.entries import Entry, channels_last
from tinytrain_compile.frontend.graph.operands import constant_input, required_input
from tinytrain_compile.frontend.operators.normalisation import fold_into_layer
from tinytrain_compile.frontend.operators.reductions import reduce_entry
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.pool import PoolAttrs
from tinytrain_compile.ops.shape import EmbedAttrs

# ---- attributes of windows -------------------------------------------------------------------------------------------

Pair = tuple[int, int]
MAX = 2**15
"""No window of a microcontroller is larger; products of two still fit the kernels' 32-bit indices."""


def _reach(window: ConvAttrs) -> Pair:
    """Return height and width of the dilated window."""
    height, width = ((k - 1) * d + 1 for k, d in zip(window.kernel, window.dilations, strict=True))
    return height, width


def image_size(entry: Entry) -> Pair:
    """Return height and width; Refused for other ranks than those of signals and images."""
    if entry.rank == 4:
        return entry.shape[2], entry.shape[3]
    if entry.rank == 3:
        return 1, entry.shape[2]
    raise Refused("rank", f"input of rank {entry.rank}", "signals (N, C, L) or images (N, C, H, W)")


def _image(value: Value, rank: int) -> Entry:
    """Return the entry of an image, or of a signal (rank 3), that lies channels last."""
    batch, height, width, channels = value.shape
    size = (height, width) if rank == 4 else (width,)
    return Entry((batch, channels, *size), value, channels_last(rank))


def read_window(node: OnnxNode, kernel: tuple[int, ...] | None, size: Pair, rank: int, mode: str) -> ConvAttrs:
    """Return the window of a Conv or pool over an input of this size. mode: the auto_pad that pads are resolved by."""
    spatial = rank - 2
    kernel = node.integers("kernel_shape") or kernel
    if kernel is None or len(kernel) != spatial:
        raise ValueError(f"kernel_shape {kernel} for an input of rank {rank}")
    strides = node.integers("strides") or (1,) * spatial
    dilations = node.integers("dilations") or (1,) * spatial
    pads = node.integers("pads") or (0,) * (2 * spatial)
    groups = node.integer("group", 1)
    if len(strides) != spatial or len(dilations) != spatial or len(pads) != 2 * spatial:
        raise ValueError(f"strides {strides}, dilations {dilations}, pads {pads} for an input of rank {rank}")
    if min((*kernel, *strides, *dilations)) < 1 or min(pads) < 0 or max(*kernel, *strides, *dilations, *pads) > MAX:
        raise ValueError(f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads}: out of range")
    if groups < 1:
        raise ValueError(f"group {groups}")
    if spatial == 1:
        pads = (0, pads[0], 0, pads[1])
    along = (pads[0], pads[1], pads[2], pads[3]) if mode == "NOTSET" else (0, 0, 0, 0)
    window = ConvAttrs(_pair(kernel), _pair(strides), along, _pair(dilations), groups)
    if not mode.startswith("SAME"):
        return window
    steps = [-(-s // stride) for s, stride in zip(size, window.strides, strict=True)]
    missing = [max((steps[i] - 1) * window.strides[i] + _reach(window)[i] - size[i], 0) for i in (0, 1)]
    return replace(window, pads=split_pads((missing[0], missing[1]), mode == "SAME_UPPER"))


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


def _pair(values: tuple[int, ...]) -> Pair:
    return (values[0], values[1]) if len(values) == 2 else (1, values[0])


# ---- convolutions ----------------------------------------------------------------------------------------------------


def _conv(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    window = read_window(node, tuple(ctx.entry(node.input(1)).shape[2:]), image_size(x), x.rank, auto_pad(node))
    if _is_computed(ctx, node):
        operands = [ctx.value(node, x, channels_last(x.rank)), _computed_weight(ctx, node, x)]
        ctx.define(node.output(0), _with_bias(ctx, node, ctx.emit(node, "Conv", operands, window), x.rank))
        return
    weight, bias = _parameters(ctx, node, x)
    layer = fold_into_layer(ctx, node, weight, bias, ctx.optional(node.input(2)))
    kernels = ctx.weight(ctx.entry(node.input(1)), node, 1, _kernels, layer.weight, layer.fold)
    operands = [ctx.value(node, x, channels_last(x.rank)), kernels, *layer.bias_operand(ctx, node, kernels)]
    y = ctx.emit(node, "Conv", operands, replace(window, bias=layer.bias is not None))
    ctx.define(layer.output, _image(y, x.rank))


def _conv_transpose(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Import as the data gradient of the convolution with this weight, read as [in, h, w, out / groups]."""
    size, computed = image_size(x), _is_computed(ctx, node)
    if not computed:
        _parameters(ctx, node, x)
    # Its auto_pad depends on the output's size: not read_window's rule.
    window = read_window(node, tuple(ctx.entry(node.input(1)).shape[2:]), size, x.rank, "NOTSET")
    window, output_hw = _transposed_geometry(node, window, size, x.rank - 2)
    reached = _reached(window, size, output_hw)
    operands = (
        ctx.value(node, x, channels_last(x.rank)),
        _computed_weight(ctx, node, x) if computed else ctx.weight(ctx.entry(node.input(1)), node, 1, _kernels),
    )
    y = ctx.emit(node, "ConvGradInput", operands, ConvGradInputAttrs(window, reached))
    if reached != output_hw:  # no window reaches the rest: zeros
        y = ctx.emit(node, "Embed", (y,), EmbedAttrs((0,) * 4, (1,) * 4, (y.shape[0], *output_hw, y.shape[3])), "rest")
    return _with_bias(ctx, node, y, x.rank)


def _with_bias(ctx: ImportContext, node: OnnxNode, y: Value, rank: int) -> Entry:
    """Return the node's output: y, a channels-last image, and the bias on it if there is one."""
    bias = ctx.optional(node.input(2))
    if bias is not None:
        constant = bias.value is None
        y = ctx.emit(node, "Add", (y, ctx.weight(bias, node, 2) if constant else ctx.value(node, bias)), suffix="bias")
    return _image(y, rank)


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


def _parameters(ctx: ImportContext, node: OnnxNode, x: Entry) -> tuple[Array, Array | None]:
    """Return weight, as [0, kernel h, kernel w, 1] of the ONNX axes, and bias."""
    weight = required_input(ctx, node, 1, "weight")
    if weight.ndim != x.rank:
        raise ValueError(f"weight {weight.shape} for an input of shape {x.shape}")
    bias = constant_input(ctx, node, 2, "bias")
    return _kernels(weight).astype(np.float32), None if bias is None else bias.astype(np.float32)


def _kernels(weight: Array) -> Array:
    """Return a weight of ONNX as [0, kernel h, kernel w, 1] of its axes; kernels of signals have height 1."""
    images = weight.reshape(*weight.shape[:2], 1, weight.shape[2]) if weight.ndim == 3 else weight
    return images.transpose(0, 2, 3, 1)


def _transposed_geometry(node: OnnxNode, window: ConvAttrs, size: Pair, spatial: int) -> tuple[ConvAttrs, Pair]:
    """Return pads and output size after output_padding, output_shape and auto_pad, as the standard defines them."""
    extra = _spatial_pair(node, "output_padding", spatial, 0) or (0, 0)
    output = _spatial_pair(node, "output_shape", spatial, 1)
    mode = auto_pad(node)
    if output is None and mode.startswith("SAME"):
        output = (size[0] * window.strides[0], size[1] * window.strides[1])
    full = [window.strides[i] * (size[i] - 1) + _reach(window)[i] for i in (0, 1)]
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


def _reached(window: ConvAttrs, size: Pair, output: Pair) -> Pair:
    """Return the part of the output that the gradient operator computes: less than a stride over the windows."""
    full = [window.strides[i] * (size[i] - 1) + _reach(window)[i] for i in (0, 1)]
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


def _pool(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    if node.op == "MaxPool" and ctx.links.is_used(node.output(1)):
        raise Refused("Indices", "the index output is not float", "only the first output")
    size, mode = image_size(x), auto_pad(node)
    window = read_window(node, None, size, x.rank, mode)
    rounds_up = bool(node.integer("ceil_mode", 0)) and mode == "NOTSET"
    output_hw = (_steps(window, size, 0, rounds_up), _steps(window, size, 1, rounds_up))
    if min(output_hw) < 1:
        raise ValueError(f"a window of {_reach(window)} does not fit an input of {size}")
    padded = bool(node.integer("count_include_pad", 0))
    return _pooled(
        ctx, node, x, PoolAttrs(window.kernel, window.strides, window.pads, window.dilations, output_hw, padded)
    )


def _pooled(ctx: ImportContext, node: OnnxNode, x: Entry, attrs: PoolAttrs) -> Entry:
    op = node.op.removeprefix("Global")
    return _image(ctx.emit(node, op, (ctx.value(node, x, channels_last(x.rank)),), attrs), x.rank)


def _steps(window: ConvAttrs, size: Pair, axis: int, rounds_up: bool) -> int:
    """Return number of windows along an axis.

    With ceil_mode a last one may hang over, but not begin in the end padding.
    """
    stride, begin = window.strides[axis], window.pads[axis]
    room = size[axis] + begin + window.pads[axis + 2] - _reach(window)[axis]
    if not rounds_up:
        return room // stride + 1
    steps = -(-room // stride) + 1
    return steps - 1 if (steps - 1) * stride >= size[axis] + begin else steps


def _global_average_pool(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    if x.rank < 3:
        raise ValueError(f"input of rank {x.rank}")
    spatial = tuple(range(2, x.rank))
    return reduce_entry(ctx, node, x, spatial, mean=True)


HANDLERS: Mapping[str, Handler] = {
    "Conv": _conv,
    "ConvTranspose": of_one(_conv_transpose),
    **dict.fromkeys(("MaxPool", "AveragePool"), of_one(_pool)),
    "GlobalAveragePool": of_one(_global_average_pool),
    "GlobalMaxPool": of_one(lambda ctx, node, x: _pooled(ctx, node, x, PoolAttrs(image_size(x), (1, 1), (0, 0, 0, 0)))),
}
