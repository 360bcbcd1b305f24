"""Group normalisation, in whichever axis order its input lies."""

from __future__ import annotations

import math

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import UNIT, Entry, plain
from tinytrain_compile.frontend.graph.operands import scalar
from tinytrain_compile.ops.normalise import NormalizeAttrs


def group_normalised(
    ctx: ImportContext, node: OnnxNode, x: Entry, groups: int, epsilon: float, affine: tuple[Entry, ...] = ()
) -> Entry:
    """x with mean 0 and variance 1 over each group of channels; `affine`: scale and shift per group, if any."""
    channels, rest = x.shape[1], math.prod(x.shape[2:])
    if groups < 1 or channels % groups:
        raise ValueError(f"{channels} channels in {groups} groups")
    axes = [axis for axis in x.order if axis != UNIT]
    last = axes == [0, *range(2, x.rank), 1]
    order = x.order if last else plain(x.rank)
    value = ctx.value(node, x, order)
    if last:
        grouped, reduced, factor_shape = (x.shape[0], rest, groups, channels // groups), (1, 3), (groups, 1)
    else:
        grouped, reduced, factor_shape = (x.shape[0], groups, channels // groups * rest), (2,), (groups, 1)
    y = ctx.emit(node, "Normalize", (ctx.reshape(node, value, grouped),), NormalizeAttrs(reduced, epsilon))
    for op, entry, index in zip(("Mul", "Add"), affine, (1, 2), strict=False):
        factor = ctx.weight(entry, node, index, lambda array: array.reshape(factor_shape))
        y = ctx.emit(node, op, (y, factor), suffix="scale" if op == "Mul" else "shift")
    return Entry(x.shape, ctx.reshape(node, y, value.shape), order)


def fuse_group_norm(ctx: ImportContext, node: OnnxNode) -> bool:
    """Group normalisation as exported: Reshape to (N, groups, -1), InstanceNormalization by 1 and 0, Reshape back.

    The Reshape mixes channels with pixels, so a channels-last image would have to be transposed there and back.
    """
    normal = ctx.links.sole_reader(node.output(0))
    if normal is None or normal.op != "InstanceNormalization" or normal.input(0) != node.output(0):
        return False
    x = ctx.entry(node.input(0))
    back = ctx.links.sole_reader(normal.output(0))
    if back is None or back.op != "Reshape" or x.rank < 3 or not _restores(ctx, back, node.input(0), x.shape):
        return False
    groups = _identity_channels(ctx, normal)
    wanted = [int(d) for d in ctx.entry(node.input(1)).data.reshape(-1)] if ctx.has(node.input(1)) else []
    if not groups or x.shape[1] % groups or wanted not in _groupings(x, groups):
        return False
    ctx.done.update((normal.name, back.name))
    epsilon = normal.number("epsilon", 1e-5)
    ctx.define(back.output(0), group_normalised(ctx, normal, x, groups, epsilon))
    return True


def _groupings(x: Entry, groups: int) -> list[list[int]]:
    size = x.elements // (x.shape[0] * groups)
    return [[n, groups, s] for n in (0, x.shape[0]) for s in (-1, size)]


def _restores(ctx: ImportContext, back: OnnxNode, tensor: str, shape: tuple[int, ...]) -> bool:
    """Whether a Reshape gives a tensor its old shape again: by number, or by asking the tensor for it."""
    maker = ctx.links.maker(back.input(1))
    if maker is not None and maker.op == "Shape" and maker.input(0) == tensor and not maker.attrs:
        return True
    return ctx.has(back.input(1)) and tuple(int(d) for d in ctx.entry(back.input(1)).data.reshape(-1)) == shape


def _identity_channels(ctx: ImportContext, normal: OnnxNode) -> int:
    """Channels of an InstanceNormalization with scale 1 and bias 0; 0 if it has others."""
    if not all(ctx.has(name) and ctx.entry(name).is_constant for name in normal.inputs[1:]):
        return 0
    scale, bias = (ctx.entry(name) for name in normal.inputs[1:])
    if ctx.is_trained(scale.origin, bias.origin):  # ones and zeros that a training starts from
        return 0
    return scale.elements if scalar(scale) == 1.0 and scalar(bias) == 0.0 else 0
