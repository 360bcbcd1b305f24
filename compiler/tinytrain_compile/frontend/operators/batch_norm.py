"""Inference-mode batch normalisation: into the weights of the layer before it, or as a scale and a shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry
from tinytrain_compile.frontend.graph.operands import required_input
from tinytrain_compile.frontend.graph.origins import Fold
from tinytrain_compile.ir.types import Array, Value

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FoldedLayer:
    """Weight and bias of a layer after folding, and the tensor that the layer now computes.

    bias_entry: the constant that the bias is known by; None without bias.
    fold, bias_fold: what was multiplied into the weight, and into the bias, or added to it; None: nothing.
    """

    weight: Array
    bias: Array | None
    bias_entry: Entry | None
    output: str
    bias_tensor: str = ""
    fold: Fold | None = None
    bias_fold: Fold | None = None

    def bias_operand(self, ctx: ImportContext, node: OnnxNode, weight: Value) -> tuple[Value, ...]:
        """The bias as a trainable constant; nothing without one. weight: of the same layer."""
        if self.bias is None or self.bias_entry is None:
            return ()
        shape = self.bias.shape
        origin = self.bias_entry.laid(lambda array: array.reshape(shape)).origin
        name = self.bias_entry.source or self.bias_tensor
        group = "" if self.fold is None else weight.name
        return (ctx.constant(self.bias, name, node, (origin,), group, self.bias_fold),)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What an inference-mode BatchNormalization does to each channel, in double precision."""

    gamma: Doubles
    beta: Doubles
    mean: Doubles
    deviation: Doubles


def read_statistics(ctx: ImportContext, node: OnnxNode) -> Statistics:
    """The constants of an inference-mode BatchNormalization; its epsilon is in the deviation."""
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
    return Statistics(gamma, beta, mean, np.sqrt(spread))


def fold_into_layer(
    ctx: ImportContext, node: OnnxNode, weight: Array, bias: Array | None, bias_entry: Entry | None
) -> FoldedLayer:
    """Take a BatchNormalization that alone reads this Conv or Gemm into its weight ([out, ...]) and bias.

    Not into a weight that others read too, nor one that others have a part in, nor a trained gamma into a weight that
    is not trained. The new bias is trained as the layer's own was, or else as beta.
    """
    alone = FoldedLayer(weight, bias, bias_entry, node.output(0), node.input(2))
    found = None if ctx.options.batch_norm == "keep" else _follower(ctx, node, weight.shape[0])
    if found is None:
        return alone
    norm = found.statistics
    stored = ctx.model.quantisation.constants  # integers would not stay integers
    scale = norm.gamma / norm.deviation
    shift = norm.beta - norm.mean * scale
    if scale.shape != weight.shape[:1] or (ctx.entry(node.input(1)).source or node.input(1)) in stored:
        return alone
    gamma, beta = (ctx.entry(name) for name in (found.gamma, found.beta))
    if ctx.is_tied(ctx.entry(node.input(1)), bias_entry, gamma, beta):
        return alone
    if ctx.is_trained(gamma.origin) and not ctx.is_trained(ctx.entry(node.input(1)).origin):
        return alone
    ctx.done.update(found.nodes)
    ctx.folded_norms += 1
    # Rounded to float32 by ImportContext.constant, which refuses what overflows.
    folded = weight.astype(np.float64) * scale.reshape(-1, *[1] * (weight.ndim - 1))
    offset = shift if bias is None else bias.astype(np.float64) * scale + shift
    own = bias_entry is not None and (ctx.is_trained(bias_entry.origin) or not ctx.is_trained(beta.origin))
    named, tensor = (bias_entry, node.input(2)) if own else (beta, found.beta)
    nothing, origins = np.zeros_like(scale), (gamma.origin, beta.origin)
    moved = -norm.mean * scale if bias is None else (bias.astype(np.float64) - norm.mean) * scale
    in_bias = (scale, shift) if own else (np.ones_like(scale), moved)
    folds = Fold(origins, scale, nothing), Fold(origins, *in_bias)
    return FoldedLayer(folded, offset, named, found.output, tensor, *folds)


@dataclass(frozen=True, eq=False)
class _Follower:
    """A normalisation that alone reads a layer: its nodes, the tensors of scale and shift, its result."""

    nodes: tuple[str, ...]
    gamma: str
    beta: str
    output: str
    statistics: Statistics


def _follower(ctx: ImportContext, node: OnnxNode, channels: int) -> _Follower | None:
    norm = ctx.links.sole_reader(node.output(0))
    if norm is None:
        return None
    if norm.op != "BatchNormalization" or norm.input(0) != node.output(0):
        return _scale_and_shift(ctx, node, norm, channels)
    try:
        statistics = read_statistics(ctx, norm)
    except (Unsupported, ValueError):  # reported when the node's own turn comes
        return None
    return _Follower((norm.name,), norm.input(1), norm.input(2), norm.output(0), statistics)


def _scale_and_shift(ctx: ImportContext, node: OnnxNode, scale: OnnxNode, channels: int) -> _Follower | None:
    """A Mul, then an Add, by a number for each channel behind a Conv: how tf2onnx writes a BatchNormalization."""
    shift = ctx.links.sole_reader(scale.output(0))
    if node.op != "Conv" or scale.op != "Mul" or shift is None or shift.op != "Add":
        return None
    rank = ctx.entry(node.input(0)).rank
    names = [_per_channel_operand(ctx, reader, channels, rank) for reader in (scale, shift)]
    if "" in names:
        return None
    gamma, beta = (ctx.entry(name).data.astype(np.float64).reshape(-1) for name in names)
    statistics = Statistics(gamma, beta, np.zeros_like(gamma), np.ones_like(gamma))
    return _Follower((scale.name, shift.name), names[0], names[1], shift.output(0), statistics)


def _per_channel_operand(ctx: ImportContext, node: OnnxNode, channels: int, rank: int) -> str:
    """The constant operand of a node, if that is one number per channel of a tensor of this rank; else ""."""
    for name in node.inputs:
        entry = ctx.entry(name) if ctx.has(name) and ctx.entry(name).is_constant else None
        axis = -1 if entry is None else entry.rank - rank + 1
        if entry is not None and entry.source and axis >= 0 and entry.shape[axis] == entry.elements == channels:
            return name
    return ""


def folding_note(count: int) -> str:
    """What the report says of folded normalisations."""
    norms = "BatchNormalization is" if count == 1 else "BatchNormalizations are"
    return f"{count} {norms} folded: gamma and weight train as one (apart with --batch-norm keep, in float32)"
