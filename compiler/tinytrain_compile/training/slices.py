"""Splitting of weights of which only some channels are updated into an arena part and a flash part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import ChannelSlice, channel_axis
from tinytrain_compile.ir.types import Array, Attrs, Graph, Node, Quant, Value
from tinytrain_compile.ops.base import Split, has_trait
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.names import operand


def split_weights(
    builder: GraphBuilder, model: ImportedModel, graph: Graph, slices: Mapping[str, ChannelSlice]
) -> tuple[list[Node], dict[str, Value]]:
    """Rewrite the nodes that read a sliced weight; return all nodes, and the arena part of every sliced weight.

    E0302 if the loss itself reads a sliced weight, as a penalty does.
    """
    _expect_unread(model, slices)
    parts: dict[str, tuple[Value, Value, Split]] = {}
    result: list[Node] = []
    for node in graph.nodes:
        weight = operand(node, "w") if has_trait(node.op, "matrix") else None
        if weight is None or weight.name not in slices:
            result.append(node)
            continue
        if weight.name not in parts:
            scaled = "in" if isinstance(node.attrs, ConvGradInputAttrs) else "out"  # a transposed convolution's outputs
            data = graph.constants[weight.name]
            parts[weight.name] = _cut(builder, weight, data, slices[weight.name], scaled)
        first, rest, split = parts[weight.name]
        x, _, *others = node.inputs
        result.append(replace(node, inputs=(x, first, rest, *others), attrs=_with_split(node.attrs, split)))
    return result, {name: first for name, (first, _, _) in parts.items()}


def _expect_unread(model: ImportedModel, slices: Mapping[str, ChannelSlice]) -> None:
    """Raise E0302 if the file's own loss reads a sliced weight."""
    written = None if model.loss is None else model.loss.written
    for node in () if written is None else written.nodes:
        for value in node.inputs:
            if value.name in slices:
                what = f"its weight is also read by the loss, {node.origin or node.name}"
                raise CompileError("E0302", value.name, what, 'use weight = "all"')


def _cut(
    builder: GraphBuilder, weight: Value, data: Array, piece: ChannelSlice, scaled: str
) -> tuple[Value, Value, Split]:
    """Return the updated part, the frozen part, and their channels. scaled: the axis that has a scale for each
    channel."""
    axis = channel_axis(piece.axis, data.ndim)
    split = Split(piece.axis, piece.channels, data.shape[axis])
    first = builder.constant(f"{weight.name}.updated", np.take(data, piece.channels, axis), weight.origin)
    rest = builder.constant(f"{weight.name}.frozen", np.take(data, split.rest, axis), weight.origin)
    if weight.quant is not None:
        divided = piece.axis == scaled and len(weight.quant.scale) > 1
        first = replace(first, quant=_cut_scale(weight.quant, piece.channels) if divided else weight.quant)
        rest = replace(rest, quant=_cut_scale(weight.quant, split.rest) if divided else weight.quant)
    return first, rest, split


def _cut_scale(quant: Quant, channels: tuple[int, ...]) -> Quant:
    return replace(quant, scale=tuple(quant.scale[c] for c in channels))


def _with_split(attrs: Attrs, split: Split) -> Attrs:
    if isinstance(attrs, ConvGradInputAttrs):
        return replace(attrs, conv=replace(attrs.conv, split=split))
    assert isinstance(attrs, ConvAttrs | GemmAttrs)
    return replace(attrs, split=split)
