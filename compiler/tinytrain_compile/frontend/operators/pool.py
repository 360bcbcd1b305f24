"""Pooling of images and signals."""

from __future__ import annotations

from collections.abc import Mapping

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry, channels_last
from tinytrain_compile.frontend.graph.handler import Handler
from tinytrain_compile.frontend.operators.slicing import reduce_entry
from tinytrain_compile.frontend.operators.windows import (
    Pair,
    WindowGeometry,
    auto_pad,
    image_shape,
    image_size,
    read_window,
)
from tinytrain_compile.ops.pool import PoolAttrs


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
    """Number of windows along an axis; with ceil_mode a last one may hang over, but not begin in the end padding."""
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
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
}
