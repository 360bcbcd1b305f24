"""Inference-mode batch normalisation: into the weights of the layer before it, or as a scale and a shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.frontend.context import Context, Unsupported
from tinytrain_compile.frontend.model import OnnxNode
from tinytrain_compile.frontend.operands import required_input
from tinytrain_compile.ir.types import Array

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FoldedLayer:
    """Weight and bias of a layer after folding, and the tensor that the layer now computes.

    bias_name: the initializer that the bias is known by; "" without bias.
    """

    weight: Array
    bias: Array | None
    bias_name: str
    output: str


def scale_and_shift(ctx: Context, node: OnnxNode) -> tuple[Doubles, Doubles]:
    """Per-channel factor and offset, in double precision, of an inference-mode BatchNormalization."""
    if node.integer("training_mode", 0):
        raise Unsupported("training_mode", "batch statistics are not computed", "training_mode 0 (inference export)")
    if any(ctx.links.is_used(name) for name in node.outputs[1:]):
        raise Unsupported("outputs", "running statistics are not computed", "only the first output")
    names = ("scale", "B", "mean", "var")
    data = [required_input(ctx, node, i, name).astype(np.float64) for i, name in enumerate(names, start=1)]
    if len({array.shape for array in data}) != 1 or data[0].ndim != 1:
        raise ValueError(f"scale, B, mean and var have shapes {[array.shape for array in data]}")
    gamma, beta, mean, variance = data
    spread = variance + node.number("epsilon", 1e-5)
    if not bool((spread > 0).all()):
        raise ValueError("a variance is negative")
    root = np.sqrt(spread)
    scale = gamma / root
    return scale, beta - mean * scale


def fold_into_layer(ctx: Context, node: OnnxNode, weight: Array, bias: Array | None, bias_name: str) -> FoldedLayer:
    """Take a BatchNormalization that alone reads this Conv or Gemm into its weight ([out, ...]) and bias."""
    follower = ctx.links.sole_reader(node.output(0))
    if follower is None or follower.op != "BatchNormalization" or follower.input(0) != node.output(0):
        return FoldedLayer(weight, bias, bias_name, node.output(0))
    try:
        scale, shift = scale_and_shift(ctx, follower)
    except (Unsupported, ValueError):  # reported when the node's own turn comes
        return FoldedLayer(weight, bias, bias_name, node.output(0))
    stored = ctx.model.quantisation.constants  # integers would not stay integers
    if scale.shape != weight.shape[:1] or (ctx.entry(node.input(1)).source or node.input(1)) in stored:
        return FoldedLayer(weight, bias, bias_name, node.output(0))
    ctx.done.add(follower.name)
    # Rounded to float32 by Context.constant, which refuses what overflows.
    folded = weight.astype(np.float64) * scale.reshape(-1, *[1] * (weight.ndim - 1))
    offset = shift if bias is None else bias.astype(np.float64) * scale + shift
    shift_name = ctx.entry(follower.input(2)).source or follower.input(2)
    return FoldedLayer(folded, offset, bias_name or shift_name, follower.output(0))
