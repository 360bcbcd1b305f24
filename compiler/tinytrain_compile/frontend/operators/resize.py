"""Resize: repeated elements, every so manieth element, or interpolation along one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import Handler, ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import Entry
from tinytrain_compile.frontend.graph.operands import axis_indices, constant_input, integers, with_dim
from tinytrain_compile.frontend.operators.moves import repeated, slice_axis
from tinytrain_compile.ops.resize import COORDINATES, MODES, ROUNDINGS, ResizeAttrs, tables, taps, weights_at_most

MAX_WEIGHTS = 1 << 24
"""Of one axis: 64 MB of a table in flash, and what numpy takes to make it."""


def _resize(ctx: ImportContext, node: OnnxNode) -> None:
    x = ctx.entry(node.input(0))
    given = node.integers("axes")
    axes = tuple(range(x.rank)) if given is None else axis_indices(given, x.rank)
    y = x
    for axis, size, scale in zip(axes, *_extents(ctx, node, x, axes), strict=True):
        if size != x.shape[axis] or scale != 1.0:
            y = _along(ctx, node, y, axis, _attrs(node, x.shape[axis], size, scale))
    ctx.define(node.output(0), y)


def _extents(
    ctx: ImportContext, node: OnnxNode, x: Entry, axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return new extents and the scales that places are mapped by, per axis."""
    scales, sizes = constant_input(ctx, node, 2, "scales"), constant_input(ctx, node, 3, "sizes")
    old = tuple(x.shape[axis] for axis in axes)
    if sizes is not None and sizes.size:
        new = integers(sizes)
        factors = tuple(size / dim for size, dim in zip(new, old, strict=True))
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy in ("not_larger", "not_smaller"):
            one = (min if policy == "not_larger" else max)(factors)
            new, factors = tuple(math.floor(dim * one + 0.5) for dim in old), (one,) * len(old)
    elif scales is not None and scales.size:
        factors = tuple(float(scale) for scale in scales.reshape(-1).tolist())
        new = tuple(math.floor(dim * scale) for dim, scale in zip(old, factors, strict=True))
    else:
        raise ValueError("neither scales nor sizes are given")
    if min(new) < 1 or not all(0 < factor < math.inf for factor in factors):
        raise ValueError(f"{list(old)} to {list(new)}")
    return new, factors


def _attrs(node: OnnxNode, size_in: int, size_out: int, scale: float) -> ResizeAttrs:
    words = {
        "mode": (node.text("mode", "nearest"), MODES),
        "coordinate_transformation_mode": (node.text("coordinate_transformation_mode", "half_pixel"), COORDINATES),
        "nearest_mode": (node.text("nearest_mode", "round_prefer_floor"), ROUNDINGS),
    }
    for name, (word, known) in words.items():
        if word not in known:
            raise Unsupported(name, f"{word} has no operator", ", ".join(known))
    mode, coordinates, rounding = (word for word, _ in words.values())
    cubic, outside = node.number("cubic_coeff_a", -0.75), bool(node.integer("exclude_outside", 0))
    if outside and mode == "nearest":  # a place past the end has no other neighbour: weights would be 0 / 0
        raise Unsupported("exclude_outside", "a nearest element is the only one of its sum", "exclude_outside = 0")
    filtered = bool(node.integer("antialias", 0)) and mode != "nearest"
    return ResizeAttrs(0, size_in, size_out, scale, mode, coordinates, rounding, cubic, outside, filtered)


def _along(ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, attrs: ResizeAttrs) -> Entry:
    """Return the entry with an ONNX axis resized: by moving elements where every new one is an old one."""
    shape = with_dim(x.shape, axis, attrs.size_out)
    ctx.check_size(node, shape)
    if weights_at_most(attrs) > MAX_WEIGHTS:
        what = f"its table of {weights_at_most(attrs):,} weights is too large"
        raise CompileError("E0217", f"node {node.name} ({node.op})", what, "use smaller shapes")
    begins, factors = taps(attrs)
    if (factors.max(axis=1) == 1.0).all() and (np.count_nonzero(factors, axis=1) == 1).all():
        moved = _moved(ctx, node, x, axis, begins + factors.argmax(axis=1))
        if moved is not None:
            return moved
    first, weights = (ctx.constant(table, f"{node.name}.axis{axis}", node) for table in tables(attrs))
    here = replace(attrs, axis=x.order.index(axis))
    y = ctx.emit(node, "Resize", (x.computed, first, weights), here)
    return Entry(shape, y, x.order)


def _moved(ctx: ImportContext, node: OnnxNode, x: Entry, axis: int, chosen: np.ndarray) -> Entry | None:
    """Return the chosen elements of an axis: each equally often, or at equal distances; None for another choice."""
    size = x.shape[axis]
    times = len(chosen) // size
    if times and np.array_equal(chosen, np.repeat(np.arange(size), times)):
        return repeated(ctx, node, x, with_dim((1,) * x.rank, axis, times), True)
    steps = np.unique(np.diff(chosen)) if len(chosen) > 1 else np.ones(1, np.int64)
    if len(steps) != 1 or steps[0] < 1:
        return None
    return slice_axis(ctx, node, x, axis, int(chosen[0]), len(chosen), int(steps[0]))


HANDLERS: Mapping[str, Handler] = {"Resize": _resize}
