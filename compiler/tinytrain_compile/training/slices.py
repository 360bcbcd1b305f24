"""Splits weights of which only some channels are updated into an arena part and a flash part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.ir.builder import GraphBuilder
from tinytrain_compile.ir.stages import ChannelSlice, channel_axis
from tinytrain_compile.ir.types import Array, Attrs, Node, Quant, Value
from tinytrain_compile.ops.base import Split
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.names import operand

_SLICED = ("Conv", "ConvGradInput", "Gemm")


def split_weights(
    builder: GraphBuilder, nodes: tuple[Node, ...], constants: Mapping[str, Array], slices: Mapping[str, ChannelSlice]
) -> tuple[list[Node], dict[str, Value]]:
    """Rewrite the nodes that read a sliced weight; returns them and the arena part of every sliced weight."""
    parts: dict[str, tuple[Value, Value, Split]] = {}
    result: list[Node] = []
    for node in nodes:
        weight = operand(node, "w") if node.op in _SLICED else None
        if weight is None or weight.name not in slices:
            result.append(node)
            continue
        if weight.name not in parts:
            parts[weight.name] = _cut(builder, weight, constants[weight.name], slices[weight.name])
        first, rest, split = parts[weight.name]
        data, _, *others = node.inputs
        inputs = (data, first, rest, *others)
        result.append(replace(node, inputs=inputs, attrs=_with_split(node.attrs, split)))
    return result, {name: first for name, (first, _, _) in parts.items()}


def _cut(builder: GraphBuilder, weight: Value, data: Array, piece: ChannelSlice) -> tuple[Value, Value, Split]:
    axis = channel_axis(piece.axis, data.ndim)
    split = Split(piece.axis, piece.channels, data.shape[axis])
    first = builder.constant(f"{weight.name}.updated", np.take(data, piece.channels, axis), weight.origin)
    rest = builder.constant(f"{weight.name}.frozen", np.take(data, split.rest, axis), weight.origin)
    if weight.quant is not None:
        first = replace(first, quant=_cut_scale(weight.quant, piece.axis, piece.channels))
        rest = replace(rest, quant=_cut_scale(weight.quant, piece.axis, split.rest))
    return first, rest, split


def _cut_scale(quant: Quant, axis: str, channels: tuple[int, ...]) -> Quant:
    """Scales belong to output channels: only an "out" cut divides them."""
    if axis == "in" or len(quant.scale) == 1:
        return quant
    return replace(quant, scale=tuple(quant.scale[c] for c in channels))


def _with_split(attrs: Attrs, split: Split) -> Attrs:
    if isinstance(attrs, ConvGradInputAttrs):
        return replace(attrs, conv=replace(attrs.conv, split=split))
    assert isinstance(attrs, ConvAttrs | GemmAttrs)
    return replace(attrs, split=split)
