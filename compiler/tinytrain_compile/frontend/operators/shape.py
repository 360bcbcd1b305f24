"""Operators that only rename axes or read the same elements in another shape."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, of_one
from tinytrain_compile.frontend.graph.entries import UNIT, Entry, Order, channels_last, ir_shape, plain, regrouped
from tinytrain_compile.frontend.graph.operands import (
    axis_index,
    axis_indices,
    integer_setting,
    integers,
    required_input,
    transposed,
)
from tinytrain_compile.frontend.operators.elementwise import UNARY
from tinytrain_compile.frontend.operators.normalisation import fuse_group_norm
from tinytrain_compile.frontend.operators.slicing import without
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.shape import TransposeAttrs


def reshaped(ctx: ImportContext, node: OnnxNode, x: Entry, shape: tuple[int, ...], output: str = "") -> Entry:
    """Return ONNX's Reshape. Costs nothing if the runs of axes that it splits or joins lie together in the IR value.

    `output` names the ONNX tensor that it defines, where the caller allows a flattened image in channels-last order.
    """
    if math.prod(shape) != x.elements:
        raise ValueError(f"shape {list(x.shape)} does not reshape to {list(shape)}")
    order = regrouped(x.shape, x.order, shape)
    if order is not None:
        return Entry(shape, ctx.reshape(node, x.computed, ir_shape(shape, order)), order)
    flattens = len(shape) == 2 and shape[0] == x.shape[0] and x.order[0] == 0
    if output and flattens and _feeds_weights(ctx, output):
        return Entry(shape, ctx.reshape(node, x.computed, shape), plain(2), columns=_columns(x))
    return Entry(shape, ctx.reshape(node, ctx.value(node, x), shape), plain(len(shape)))


def _columns(x: Entry) -> tuple[int, ...]:
    """Return the ONNX index (within a sample) of each element as it lies in the IR value."""
    axes = [axis - 1 for axis in x.order[1:] if axis != UNIT]
    indices = np.arange(math.prod(x.shape[1:])).reshape(x.shape[1:]).transpose(axes)
    return tuple(int(i) for i in indices.reshape(-1).tolist())


def _feeds_weights(ctx: ImportContext, tensor: str) -> bool:
    """Tell whether only dense layers read a tensor, directly or behind element-wise operators."""
    if ctx.links.is_output(tensor) or not ctx.links.readers(tensor):
        return False
    return all(_keeps_columns(ctx, reader, tensor) for reader in ctx.links.readers(tensor))


def _keeps_columns(ctx: ImportContext, reader: OnnxNode, tensor: str) -> bool:
    if reader.input(0) != tensor or tensor in reader.inputs[1:]:
        return False
    if reader.op in ("Gemm", "MatMul"):
        weight = reader.input(1)
        fits = ctx.links.is_constant(weight) and ctx.has(weight) and ctx.entry(weight).rank == 2
        return fits and not reader.integer("transA", 0)
    if any(name and not (ctx.has(name) and ctx.entry(name).elements == 1) for name in reader.inputs[1:]):
        return False  # an exponent for each column, say
    return reader.op in UNARY and _feeds_weights(ctx, reader.output(0))


def _flatten(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    axis = node.integer("axis", 1)
    axis = x.rank if axis == x.rank else axis_index(axis, x.rank)
    shape = (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    return reshaped(ctx, node, x, shape, node.output(0))


def _reshape(ctx: ImportContext, node: OnnxNode) -> None:
    if fuse_group_norm(ctx, node):
        return
    x = ctx.entry(node.input(0))
    wanted = integers(required_input(ctx, node, 1, "shape"))
    shape = resolve_reshape(x.shape, wanted, bool(node.integer("allowzero", 0)))
    ctx.define(node.output(0), reshaped(ctx, node, x, shape, node.output(0)))


def resolve_reshape(old: tuple[int, ...], wanted: tuple[int, ...], allow_zero: bool) -> tuple[int, ...]:
    """Return the shape that ONNX's Reshape means: 0 copies a dimension, one -1 is what remains."""
    if wanted.count(-1) > 1 or any(dim < -1 for dim in wanted):
        raise ValueError(f"shape {list(wanted)}")
    if not allow_zero and any(dim == 0 and i >= len(old) for i, dim in enumerate(wanted)):
        raise ValueError(f"shape {list(wanted)} copies an axis that {list(old)} does not have")
    dims = [old[i] if dim == 0 and not allow_zero else dim for i, dim in enumerate(wanted)]
    if -1 in dims:
        known = math.prod(dim for dim in dims if dim != -1)
        if known < 1 or math.prod(old) % known:
            raise ValueError(f"shape {list(old)} does not reshape to {list(wanted)}")
        dims[dims.index(-1)] = math.prod(old) // known
    return tuple(dims)


def _squeeze(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    given = integer_setting(ctx, node, 1, "axes")
    axes = tuple(i for i, dim in enumerate(x.shape) if dim == 1) if given is None else axis_indices(given, x.rank)
    if any(x.shape[axis] != 1 for axis in axes):
        raise ValueError(f"axes {axes} of shape {x.shape} are not 1")
    return without(ctx, node, x, frozenset(axes))


def _unsqueeze(ctx: ImportContext, node: OnnxNode, x: Entry) -> Entry:
    given = integer_setting(ctx, node, 1, "axes") or ()
    rank = x.rank + len(given)
    axes = axis_indices(given, rank)
    kept = [axis for axis in range(rank) if axis not in axes]
    dims = dict(zip(kept, x.shape, strict=True))
    shape = tuple(dims.get(axis, 1) for axis in range(rank))
    order = _with_axes(tuple(UNIT if axis == UNIT else kept[axis] for axis in x.order), axes)
    value = ctx.reshape(node, x.computed, ir_shape(shape, order))
    return Entry(shape, value, order)


def _with_axes(order: Order, axes: tuple[int, ...]) -> Order:
    """Give new ONNX axes a place: one of size 1 that the IR value has anyway, else in front of the next ONNX axis."""
    result = list(order)
    for axis in sorted(axes):
        if UNIT in result:
            result[result.index(UNIT)] = axis
        else:
            behind = next((i for i, other in enumerate(result) if other > axis), len(result))
            result.insert(behind, axis)
    return tuple(result)


# ---- blocks of pixels ------------------------------------------------------------------------------------------------


def _block(ctx: ImportContext, node: OnnxNode) -> tuple[Value, int]:
    """Return the image, channels last, and the side of a block."""
    x = ctx.entry(node.input(0))
    side = node.integer("blocksize", 0)
    if x.rank != 4 or side < 1:
        raise ValueError(f"blocks of {side} in a tensor of rank {x.rank}")
    return ctx.value(node, x, channels_last(4)), side


def _moved(
    ctx: ImportContext, node: OnnxNode, x: Value, split: tuple[int, ...], perm: tuple[int, ...], to: tuple[int, ...]
) -> None:
    """Reshape, Transpose, Reshape; `to` is the shape with channels last."""
    moved = ctx.emit(node, "Transpose", (ctx.reshape(node, x, split),), TransposeAttrs(perm), "blocks")
    n, h, w, c = to
    ctx.define_value(node.output(0), ctx.reshape(node, moved, to), (n, c, h, w), channels_last(4))


def _channels_first(node: OnnxNode) -> bool:
    """Tell whether the places in a block count faster than the channels (CRD, as PyTorch has it)."""
    mode = node.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise Refused("mode", f"{mode} is no known mode", "DCR or CRD")
    return mode == "CRD"


def _depth_to_space(ctx: ImportContext, node: OnnxNode) -> None:
    x, b = _block(ctx, node)
    n, h, w, c = x.shape
    rest = c // (b * b)
    split, perm = ((n, h, w, b, b, rest), (0, 1, 3, 2, 4, 5))
    if _channels_first(node):
        split, perm = ((n, h, w, rest, b, b), (0, 1, 4, 2, 5, 3))
    _moved(ctx, node, x, split, perm, (n, h * b, w * b, rest))


def _space_to_depth(ctx: ImportContext, node: OnnxNode) -> None:
    x, b = _block(ctx, node)
    n, h, w, c = x.shape
    if h % b or w % b:
        raise ValueError(f"blocks of {b} in an image of {h}x{w}")
    perm = (0, 1, 3, 5, 2, 4) if _channels_first(node) else (0, 1, 3, 2, 4, 5)
    _moved(ctx, node, x, (n, h // b, b, w // b, b, c), perm, (n, h // b, w // b, b * b * c))


HANDLERS: Mapping[str, Handler] = {
    "Flatten": of_one(_flatten),
    "Reshape": _reshape,
    "Squeeze": of_one(_squeeze),
    "Unsqueeze": of_one(_unsqueeze),
    "Transpose": of_one(lambda _, node, x: transposed(x, node.integers("perm") or plain(x.rank)[::-1])),
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
