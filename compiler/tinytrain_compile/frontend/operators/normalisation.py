"""Normalisations and softmax; batch normalisation goes into the weights of the layer before it, if it can."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, of_one
from tinytrain_compile.frontend.graph.entries import UNIT, Entry, Fold, plain
from tinytrain_compile.frontend.graph.operands import (
    axis_index,
    broadcast,
    ir_axes,
    reduced_shape,
    required_input,
    scalar,
)
from tinytrain_compile.frontend.operators.reductions import reduce_entry
from tinytrain_compile.ir.types import Array, Value
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs

# ---- normalisations as they stand, and softmax -----------------------------------------------------------------------


def _batch_norm(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    """Import one that no layer took in: gamma (x - mean) / deviation + beta, as evaluation mode trains it."""
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
    y = _scaled_and_shifted(ctx, node, y, lambda index: scale if index == 1 else _per_channel(ctx, node, x, index))
    return Entry(x.shape, y, x.order)


def _per_channel(ctx: ImportContext, node: OnnxNode, x: Entry, index: int, data: Array | None = None) -> Value:
    """Return the node's input at an index (or `data` in its place), one number per channel, as an operand for x."""
    given = ctx.entry(node.input(index))
    given = replace(given, source=given.source or node.input(index), array=given.data if data is None else data)
    per_channel = given.laid(lambda array: array.reshape(-1, *[1] * (x.rank - 2)))
    return ctx.operand(node, per_channel, x.order, x.rank)


def _scaled_and_shifted(ctx: ImportContext, node: OnnxNode, value: Value, operand: Callable[[int], Value]) -> Value:
    """Return a value times the node's second input, plus its third; operand: makes them fit."""
    scaled = ctx.emit(node, "Mul", (value, operand(1)), suffix="scale")
    return ctx.emit(node, "Add", (scaled, operand(2)), suffix="shift")


def _check_factors(ctx: ImportContext, node: OnnxNode, x: Entry, wanted: tuple[int, ...], bias: str) -> None:
    scale, shift = (required_input(ctx, node, i, what).shape for i, what in ((1, "scale"), (2, bias)))
    if scale != wanted or shift != wanted:
        raise ValueError(f"scale {scale} and {bias} {shift} for an input of shape {x.shape}")


def _instance_norm(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    _check_factors(ctx, node, x, (x.shape[1],) if x.rank > 2 else (-1,), "B")
    attrs = NormalizeAttrs(ir_axes(x.order, tuple(range(2, x.rank))), node.number("epsilon", 1e-5))
    normal = ctx.emit(node, "Normalize", (ctx.value(node, x, x.order),), attrs)
    y = _scaled_and_shifted(ctx, node, normal, lambda index: _per_channel(ctx, node, x, index))
    return Entry(x.shape, y, x.order)


def _group_norm(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    groups, epsilon = node.integer("num_groups", 0), node.number("epsilon", 1e-5)
    per_group = ctx.model.opset < 21  # opset 21 changed scale and bias from one per group to one per channel
    _check_factors(ctx, node, x, (groups,) if per_group else (x.shape[1],) if x.rank > 2 else (), "bias")
    normal = group_normalised(ctx, node, x, groups, epsilon, per_group)
    if not per_group:
        y = _scaled_and_shifted(ctx, node, normal.computed, lambda index: _per_channel(ctx, node, normal, index))
        normal = replace(normal, value=y)
    return normal


def _layer_norm(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    first = axis_index(node.integer("axis", -1), x.rank)
    axes = tuple(range(first, x.rank))
    attrs = NormalizeAttrs(ir_axes(x.order, axes), node.number("epsilon", 1e-5))
    y, rstd = ctx.emit_all(node, "Normalize", (ctx.value(node, x, x.order),), attrs)
    for op, index, suffix in (("Mul", 1, "scale"), ("Add", 2, "shift")):
        factor = ctx.optional(node.input(index))
        if factor is not None:
            if broadcast(x.shape, factor.shape) != x.shape:
                raise ValueError(f"scale or bias {factor.shape} for an input of shape {x.shape}")
            y = ctx.emit(node, op, (y, ctx.operand(node, factor, x.order, x.rank)), suffix=suffix)
    if ctx.links.is_used(node.output(1)):
        ctx.define(node.output(1), reduce_entry(ctx, node, x, axes, mean=True, suffix="mean"))
    if ctx.links.is_used(node.output(2)):
        ctx.define_value(node.output(2), rstd, reduced_shape(x.shape, axes), x.order)
    return Entry(x.shape, y, x.order)


def _softmax(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    axis = axis_index(node.integer("axis", -1), x.rank)
    y = ctx.emit(node, node.op, (ctx.value(node, x, x.order),), AxisAttrs(x.order.index(axis)))
    return Entry(x.shape, y, x.order)


HANDLERS: Mapping[str, Handler] = {
    "BatchNormalization": of_one(_batch_norm),
    "InstanceNormalization": of_one(_instance_norm),
    "GroupNormalization": of_one(_group_norm),
    "LayerNormalization": of_one(_layer_norm),
    **dict.fromkeys(("Softmax", "LogSoftmax"), of_one(_softmax)),
}


# ---- batch normalisation ---------------------------------------------------------------------------------------------
# Inference-mode batch normalisation: into the weights of the layer before it, or as a scale and a shift.

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
        """Return the bias as a trainable constant; nothing without one. weight: of the same layer."""
        if self.bias is None or self.bias_entry is None:
            return ()
        shape = self.bias.shape
        origin = self.bias_entry.laid(lambda array: array.reshape(shape)).origin
        name = self.bias_entry.source or self.bias_tensor
        group = "" if self.fold is None else weight.name
        return (ctx.constant(self.bias, name, node, (origin,), group, self.bias_fold),)


@dataclass(frozen=True, eq=False)
class Statistics:
    """Effect of an inference-mode BatchNormalization on each channel, in double precision."""

    gamma: Doubles
    beta: Doubles
    mean: Doubles
    deviation: Doubles


def read_statistics(ctx: ImportContext, node: OnnxNode) -> Statistics:
    """Return the constants of an inference-mode BatchNormalization; its epsilon is in the deviation."""
    if node.integer("training_mode", 0):
        raise Refused("training_mode", "batch statistics are not computed", "training_mode 0 (inference export)")
    if any(ctx.links.is_used(name) for name in node.outputs[1:]):
        raise Refused("outputs", "running statistics are not computed", "only the first output")
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
    chain, names, norm = found
    stored = ctx.model.quantisation.constants  # integers would not stay integers
    scale = norm.gamma / norm.deviation
    shift = norm.beta - norm.mean * scale
    if scale.shape != weight.shape[:1] or (ctx.entry(node.input(1)).source or node.input(1)) in stored:
        return alone
    gamma, beta = (ctx.entry(name) for name in names)
    if ctx.is_tied(ctx.entry(node.input(1)), bias_entry, gamma, beta):
        return alone
    if ctx.is_trained(gamma.origin) and not ctx.is_trained(ctx.entry(node.input(1)).origin):
        return alone
    ctx.done.update(part.name for part in chain)
    ctx.folded_norms += 1
    # Rounded to float32 by ImportContext.constant, which refuses what overflows.
    folded = weight.astype(np.float64) * scale.reshape(-1, *[1] * (weight.ndim - 1))
    offset = shift if bias is None else bias.astype(np.float64) * scale + shift
    own = bias_entry is not None and (ctx.is_trained(bias_entry.origin) or not ctx.is_trained(beta.origin))
    named, tensor = (bias_entry, node.input(2)) if own else (beta, names[1])
    nothing, origins = np.zeros_like(scale), (gamma.origin, beta.origin)
    moved = -norm.mean * scale if bias is None else (bias.astype(np.float64) - norm.mean) * scale
    in_bias = (scale, shift) if own else (np.ones_like(scale), moved)
    folds = Fold(origins, scale, nothing), Fold(origins, *in_bias)
    return FoldedLayer(folded, offset, named, chain[-1].output(0), tensor, *folds)


def _follower(
    ctx: ImportContext, node: OnnxNode, channels: int
) -> tuple[tuple[OnnxNode, ...], tuple[str, ...], Statistics] | None:
    """Return the nodes of a normalisation that alone reads a layer, the tensors of scale and shift, and its effect."""
    chain = ctx.links.chain(node, "BatchNormalization")
    if chain and chain[0].input(0) == node.output(0):
        try:
            return chain, chain[0].inputs[1:3], read_statistics(ctx, chain[0])
        except (Refused, ValueError):  # reported when the node's own turn comes
            return None
    # tf2onnx writes one behind a Conv as a Mul and an Add by a number for each channel
    chain = ctx.links.chain(node, "Mul", "Add") if node.op == "Conv" else ()
    names = tuple(_per_channel_operand(ctx, one, channels, ctx.entry(node.input(0)).rank) for one in chain)
    if not chain or "" in names:
        return None
    gamma, beta = (ctx.entry(name).data.astype(np.float64).reshape(-1) for name in names)
    return chain, names, Statistics(gamma, beta, np.zeros_like(gamma), np.ones_like(gamma))


def _per_channel_operand(ctx: ImportContext, node: OnnxNode, channels: int, rank: int) -> str:
    """Return the constant operand of a node, if that is one number per channel of a tensor of this rank; else ""."""
    for name in node.inputs:
        entry = ctx.entry(name) if ctx.has(name) and ctx.entry(name).is_constant else None
        axis = -1 if entry is None else entry.rank - rank + 1
        if entry is not None and entry.source and axis >= 0 and entry.shape[axis] == entry.elements == channels:
            return name
    return ""


def folding_note(count: int) -> str:
    """Return what the report says of folded normalisations."""
    norms = "BatchNormalization is" if count == 1 else "BatchNormalizations are"
    return f"{count} {norms} folded: gamma and weight train as one (apart with --batch-norm keep, in float32)"


# ---- group normalisation ---------------------------------------------------------------------------------------------


def group_normalised(
    ctx: ImportContext, node: OnnxNode, x: Entry, groups: int, epsilon: float, affine: bool = False
) -> Entry:
    """Return x with mean 0 and variance 1 in each group of channels; affine: and scaled and shifted per group."""
    channels, rest = x.shape[1], math.prod(x.shape[2:])
    if groups < 1 or channels % groups:
        raise ValueError(f"{channels} channels in {groups} groups")
    axes = [axis for axis in x.order if axis != UNIT]
    last = axes == [0, *range(2, x.rank), 1]
    order = x.order if last else plain(x.rank)
    value = ctx.value(node, x, order)
    if last:
        grouped, reduced = (x.shape[0], rest, groups, channels // groups), (1, 3)
    else:
        grouped, reduced = (x.shape[0], groups, channels // groups * rest), (2,)
    y = ctx.emit(node, "Normalize", (ctx.reshape(node, value, grouped),), NormalizeAttrs(reduced, epsilon))
    if affine:

        def factor(index: int) -> Value:
            return ctx.weight(ctx.entry(node.input(index)), node, index, lambda array: array.reshape((groups, 1)))

        y = _scaled_and_shifted(ctx, node, y, factor)
    return Entry(x.shape, ctx.reshape(node, y, value.shape), order)


def fuse_group_norm(ctx: ImportContext, node: OnnxNode) -> bool:
    """Group normalisation as exported: Reshape to (N, groups, -1), InstanceNormalization by 1 and 0, Reshape back.

    The Reshape mixes channels with pixels, so a channels-last image would have to be transposed there and back.
    """
    chain, x = ctx.links.chain(node, "InstanceNormalization", "Reshape"), ctx.entry(node.input(0))
    if not chain or chain[0].input(0) != node.output(0) or x.rank < 3:
        return False
    normal, back = chain
    groups = _identity_channels(ctx, normal) if _restores(ctx, back, node.input(0), x.shape) else 0
    wanted = [int(d) for d in ctx.entry(node.input(1)).data.reshape(-1)] if ctx.has(node.input(1)) else []
    sizes = (-1, x.elements // (x.shape[0] * groups)) if groups else ()
    if not groups or x.shape[1] % groups or wanted not in [[n, groups, s] for n in (0, x.shape[0]) for s in sizes]:
        return False
    ctx.done.update((normal.name, back.name))
    epsilon = normal.number("epsilon", 1e-5)
    ctx.define(back.output(0), group_normalised(ctx, normal, x, groups, epsilon))
    return True


def _restores(ctx: ImportContext, back: OnnxNode, tensor: str, shape: tuple[int, ...]) -> bool:
    """Tell whether a Reshape gives a tensor its old shape again: by number, or by asking the tensor for it."""
    maker = ctx.links.maker(back.input(1))
    if maker is not None and maker.op == "Shape" and maker.input(0) == tensor and not maker.attrs:
        return True
    return ctx.has(back.input(1)) and tuple(int(d) for d in ctx.entry(back.input(1)).data.reshape(-1)) == shape


def _identity_channels(ctx: ImportContext, normal: OnnxNode) -> int:
    """Return channels of an InstanceNormalization with scale 1 and bias 0; 0 if it has others."""
    if not all(ctx.has(name) and ctx.entry(name).is_constant for name in normal.inputs[1:]):
        return 0
    scale, bias = (ctx.entry(name) for name in normal.inputs[1:])
    if ctx.is_trained(scale.origin, bias.origin):  # ones and zeros that a training starts from
        return 0
    return scale.elements if scalar(scale) == 1.0 and scalar(bias) == 0.0 else 0
