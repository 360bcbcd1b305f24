"""Normalisation and softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import Entry, Order
from tinytrain_compile.frontend.graph.handler import Handler
from tinytrain_compile.frontend.graph.operands import axis_index, broadcast, ir_axes, required_input
from tinytrain_compile.frontend.operators.batch_norm import read_statistics
from tinytrain_compile.frontend.operators.group_norm import group_normalised
from tinytrain_compile.frontend.operators.slicing import reduce_entry
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs


def _batch_norm(ctx: ImportContext, node: OnnxNode) -> None:
    """One that no layer took in: gamma (x - mean) / deviation + beta, as the framework's evaluation mode trains it."""
    x = ctx.entry(node.input(0))
    statistics = read_statistics(ctx, node)
    if x.rank < 2 or statistics.mean.shape != (x.shape[1],):
        raise ValueError(f"scale {statistics.mean.shape} for an input of shape {x.shape}")
    y = ctx.value(node, x, x.order)
    if statistics.mean.any():
        mean = _per_channel(ctx, node, x, 3, statistics.mean.astype(np.float32))
        y = ctx.emit(node, "Sub", (y, mean), suffix="mean")
    gamma = _per_channel(ctx, node, x, 1)
    inverse = ctx.constant((1.0 / statistics.deviation).reshape(gamma.shape), f"{node.name}.inverse_deviation", node)
    scale = ctx.emit(node, "Mul", (gamma, inverse), suffix="factor")
    y = ctx.emit(node, "Mul", (y, scale), suffix="scale")
    y = ctx.emit(node, "Add", (y, _per_channel(ctx, node, x, 2)), suffix="shift")
    ctx.define_value(node.output(0), y, x.shape, x.order)


def _per_channel(ctx: ImportContext, node: OnnxNode, x: Entry, index: int, data: Array | None = None) -> Value:
    """The node's input at an index (or `data` in its place), one number per channel, as an operand for x."""
    given = ctx.entry(node.input(index))
    given = replace(given, source=given.source or node.input(index), array=given.data if data is None else data)
    per_channel = given.laid(lambda array: array.reshape(-1, *[1] * (x.rank - 2)))
    return ctx.operand(node, per_channel, x.order, x.rank)


def _channel_op(ctx: ImportContext, node: OnnxNode, op: str, x: Entry, value: Value, index: int) -> Value:
    """value (lying like x) times or plus the node's input at an index, one number per channel."""
    operand = _per_channel(ctx, node, x, index)
    return ctx.emit(node, op, (value, operand), suffix="scale" if op == "Mul" else "shift")


def _instance_norm(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    factors = [required_input(ctx, node, i, what).astype(np.float32) for i, what in ((1, "scale"), (2, "B"))]
    if x.rank < 3 or any(data.shape != (x.shape[1],) for data in factors):
        raise ValueError(f"scale {factors[0].shape} and B {factors[1].shape} for an input of shape {x.shape}")
    axes = ir_axes(x.order, tuple(range(2, x.rank)))
    attrs = NormalizeAttrs(axes, node.number("epsilon", 1e-5))
    normal = ctx.emit(node, "Normalize", (ctx.value(node, x, x.order),), attrs)
    scaled = _channel_op(ctx, node, "Mul", x, normal, 1)
    y = _channel_op(ctx, node, "Add", x, scaled, 2)
    ctx.define_value(node.output(0), y, x.shape, x.order)


def _group_norm(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    groups, epsilon = node.integer("num_groups", 0), node.number("epsilon", 1e-5)
    factors = [required_input(ctx, node, i, what).astype(np.float32) for i, what in ((1, "scale"), (2, "bias"))]
    per_group = ctx.model.opset < 21  # opset 21 changed scale and bias from one per group to one per channel
    wanted = (groups,) if per_group else (x.shape[1],) if x.rank > 2 else ()
    if any(data.shape != wanted for data in factors):
        raise ValueError(f"scale {factors[0].shape} and bias {factors[1].shape} for an input of shape {x.shape}")
    if per_group:
        affine = (ctx.entry(node.input(1)), ctx.entry(node.input(2)))
        ctx.define(node.output(0), group_normalised(ctx, node, x, groups, epsilon, affine))
        return
    normal = group_normalised(ctx, node, x, groups, epsilon)
    assert normal.value is not None
    scaled = _channel_op(ctx, node, "Mul", normal, normal.value, 1)
    y = _channel_op(ctx, node, "Add", normal, scaled, 2)
    ctx.define_value(node.output(0), y, x.shape, normal.order)


def _layer_norm(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    first = axis_index(node.integer("axis", -1), x.rank)
    axes = tuple(range(first, x.rank))
    attrs = NormalizeAttrs(ir_axes(x.order, axes), node.number("epsilon", 1e-5))
    y, rstd = ctx.emit_all(node, "Normalize", (ctx.value(node, x, x.order),), attrs)
    for op, index in (("Mul", 1), ("Add", 2)):
        factor = ctx.optional(node.input(index))
        if factor is not None:
            y = _affine(ctx, node, op, y, x.order, (x.shape, factor))
    ctx.define_value(node.output(0), y, x.shape, x.order)
    if ctx.links.is_used(node.output(1)):
        ctx.define(node.output(1), reduce_entry(ctx, node, x, axes, mean=True, suffix="mean"))
    if ctx.links.is_used(node.output(2)):
        kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(x.shape))
        ctx.define_value(node.output(2), rstd, kept, x.order)


def _affine(
    ctx: ImportContext, node: OnnxNode, op: str, value: Value, order: Order, operand: tuple[tuple[int, ...], Entry]
) -> Value:
    shape, factor = operand
    if broadcast(shape, factor.shape) != shape:
        raise ValueError(f"scale or bias {factor.shape} for an input of shape {shape}")
    table = ctx.operand(node, factor, order, len(shape))
    return ctx.emit(node, op, (value, table), suffix="scale" if op == "Mul" else "shift")


def _softmax(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    axis = axis_index(node.integer("axis", -1), x.rank)
    y = ctx.emit(node, node.op, (ctx.value(node, x, x.order),), AxisAttrs(x.order.index(axis)))
    ctx.define_value(node.output(0), y, x.shape, x.order)


HANDLERS: Mapping[str, Handler] = {
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
}
