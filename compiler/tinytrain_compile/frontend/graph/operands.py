"""Reading the constant operands and axis attributes of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.model import OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import UNIT, Entry, Order, after_transpose, lifted
from tinytrain_compile.ir.types import Array, Value


def constant_input(ctx: ImportContext, node: OnnxNode, index: int, what: str) -> Array | None:
    """Return the data of an input that must be known at compile time; None where the input is absent."""
    name = node.input(index)
    entry = ctx.entry(name) if ctx.has(name) else None
    if not name:
        return None
    if entry is None or not entry.is_constant:  # all that follows from weights alone has an entry from the start
        raise Refused(what, f"{what} is computed from the model's input", f"a constant {what}")
    return entry.data


def required_input(ctx: ImportContext, node: OnnxNode, index: int, what: str) -> Array:
    """Return the data of an input that must be present and known at compile time."""
    data = constant_input(ctx, node, index, what)
    if data is None:
        raise ValueError(f"{what} is missing")
    return data


def integers(data: Array) -> tuple[int, ...]:
    """Return the elements of an integer array."""
    if data.dtype.kind not in "iu":
        raise ValueError(f"integers expected, got {data.dtype}")
    return tuple(int(v) for v in data.reshape(-1).tolist())


def integer_setting(ctx: ImportContext, node: OnnxNode, index: int, what: str) -> tuple[int, ...] | None:
    """Return a list that is an attribute in old opsets and an input in new ones; None where neither is there."""
    data = constant_input(ctx, node, index, what)
    return integers(data) if data is not None else node.integers(what)


def reduced_axes(ctx: ImportContext, node: OnnxNode) -> tuple[int, ...]:
    """Return the axes that a reduction is over."""
    rank = ctx.entry(node.input(0)).rank
    axes = axis_indices(integer_setting(ctx, node, 1, "axes") or (), rank)
    return axes if axes or node.integer("noop_with_empty_axes", 0) else tuple(range(rank))


def scalar(entry: Entry | None) -> float | None:
    """Return the number that all elements of a constant share; None if there is no such number."""
    if entry is None or entry.array is None or entry.array.size == 0 or entry.array.dtype.kind not in "fiu":
        return None
    first = entry.array.reshape(-1)[0]
    return float(first) if bool(np.all(entry.array == first)) else None


def is_zero(entry: Entry) -> bool:
    """Tell whether a tensor is known to hold nothing but zeros."""
    return entry.array is not None and not np.any(entry.array)


def number(ctx: ImportContext, node: OnnxNode, index: int, what: str, default: float) -> float:
    """Return a constant scalar operand."""
    data = constant_input(ctx, node, index, what)
    if data is None:
        return default
    if data.size != 1:
        raise ValueError(f"{what} must be a single number, its shape is {data.shape}")
    return float(data.reshape(-1)[0])


def axis_index(axis: int, rank: int) -> int:
    """Return a possibly negative axis as an index; ValueError outside the tensor."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank


def axis_indices(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the same for several axes, which must differ."""
    result = tuple(axis_index(axis, rank) for axis in axes)
    if len(set(result)) != len(result):
        raise ValueError(f"axes {axes} name one axis twice")
    return result


def with_dim(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    """Return the shape (or another setting per axis) with this number for one axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with 1 for these axes."""
    return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))


def ir_axes(order: Order, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return where ONNX axes lie in an IR value, increasing."""
    return tuple(sorted(order.index(axis) for axis in axes))


def spread(order: Order, per_axis: tuple[int, ...], unit: int) -> tuple[int, ...]:
    """Return a setting per ONNX axis as one per IR axis."""
    return tuple(unit if axis == UNIT else per_axis[axis] for axis in order)


def transposed(entry: Entry, perm: tuple[int, ...]) -> Entry:
    """Return ONNX's Transpose: no work at all, only another order."""
    if sorted(perm) != list(range(entry.rank)):
        raise ValueError(f"perm {perm} of a tensor of rank {entry.rank}")
    shape = tuple(entry.shape[axis] for axis in perm)
    if entry.is_constant:
        return entry.laid(lambda array: np.transpose(array, perm))
    return replace(entry, shape=shape, order=after_transpose(entry.order, perm))


def common_order(entries: Sequence[Entry], rank: int) -> Order:
    """Return the order in which a broadcasting operator works: that of its largest computed operand."""
    computed = [entry for entry in entries if not entry.is_constant]
    if not computed:
        return tuple(range(rank))
    leader = max(computed, key=lambda entry: entry.elements)
    added = rank - leader.rank
    return (*range(added), *lifted(leader.order, added))


def broadcasted(
    ctx: ImportContext, node: OnnxNode, entries: Sequence[Entry]
) -> tuple[list[Value], tuple[int, ...], Order]:
    """Return the operands of a broadcasting operator in the order in which it works, the result's shape, that order."""
    shape = broadcast(*(entry.shape for entry in entries))
    order = common_order(entries, len(shape))
    return [ctx.operand(node, entry, order, len(shape)) for entry in entries], shape, order


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return numpy's broadcast shape (ValueError if there is none)."""
    return tuple(int(dim) for dim in np.broadcast_shapes(*shapes))
