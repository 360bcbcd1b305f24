"""Interpolation along an axis: every element of the result is a weighted sum of a few neighbours.

That is a product with a matrix of narrow rows, which depends on sizes alone; the gradient is the product with its
transpose, whose rows are narrow too. So one operator does both, with tables of the beginnings of rows and of weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops.base import GradientContext, Samples, operator
from tinytrain_compile.ops.names import expect_float, kept_layout, only, operand
from tinytrain_compile.ops.repeat import along

Matrix = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class ResizeAttrs(Attrs):
    """The axis, its extents, and the mapping of places, with ONNX's names for Resize.

    antialias: a smaller image is filtered by a wider window.
    transposed: the gradient; it leads from size_out elements to size_in.
    """

    axis: int
    size_in: int
    size_out: int
    scale: float
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    transposed: bool = False

    @property
    def source(self) -> int:
        """Extent of the axis in the operand."""
        return self.size_out if self.transposed else self.size_in

    @property
    def target(self) -> int:
        """Extent of the axis in the result."""
        return self.size_in if self.transposed else self.size_out


def _symmetric(a: ResizeAttrs, i: Matrix) -> Matrix:
    return a.size_in / 2 * (1 - a.size_out / (a.size_in * a.scale)) + (i + 0.5) / a.scale - 0.5


COORDINATES: dict[str, Callable[[ResizeAttrs, Matrix], Matrix]] = {
    "asymmetric": lambda a, i: i / a.scale,
    "half_pixel": lambda a, i: (i + 0.5) / a.scale - 0.5,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda a, i: (i + 0.5) / a.scale - 0.5 if a.size_out > 1 else 0 * i,
    "align_corners": lambda a, i: i * (a.size_in - 1) / (a.size_in * a.scale - 1) if a.size_out > 1 else 0 * i,
    "tf_half_pixel_for_nn": lambda a, i: (i + 0.5) / a.scale,
}
"""Place in the result -> place in the operand."""

ROUNDINGS: dict[str, Callable[[Matrix], Matrix]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}

MODES = ("nearest", "linear", "cubic")


def _triangle(d: Matrix, _a: float) -> Matrix:
    return np.maximum(1 - np.abs(d), 0.0)


def _cubic(d: Matrix, a: float) -> Matrix:
    x = np.abs(d)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


_FILTERS: dict[str, tuple[int, Callable[[Matrix, float], Matrix]]] = {"linear": (1, _triangle), "cubic": (2, _cubic)}
"""Mode -> reach on either side, and weight by distance."""


def _offsets(attrs: ResizeAttrs) -> range:
    """Return the neighbours of a place that may have weights, relative to the element below it."""
    if attrs.mode == "nearest":
        return range(1)
    stretch = min(attrs.scale, 1.0) if attrs.antialias else 1.0
    start = math.floor(-_FILTERS[attrs.mode][0] / stretch) + 1
    return range(start, 2 - start)


def weights_at_most(attrs: ResizeAttrs) -> int:
    """Return the most weights that `taps` computes, without computing them."""
    return attrs.size_out * len(_offsets(attrs))


def _neighbours(attrs: ResizeAttrs, places: Matrix) -> tuple[Matrix, Matrix]:
    """Return the elements around each place and their weights (neighbour x place)."""
    if attrs.mode == "nearest":
        return ROUNDINGS[attrs.rounding](places)[None, :], np.ones((1, len(places)))
    stretch = min(attrs.scale, 1.0) if attrs.antialias else 1.0
    below, offsets = np.floor(places), np.asarray(_offsets(attrs), np.float64)[:, None]
    weights = _FILTERS[attrs.mode][1]((offsets - (places - below)) * stretch, attrs.cubic)
    if attrs.antialias:
        weights = weights / np.cumsum(weights, axis=0)[-1]  # not sum, whose order depends on the shape
    return below + offsets, weights


_AT_A_TIME = 1 << 18
"""Weights computed at a time, which limits numpy's temporary memory."""


def taps(attrs: ResizeAttrs) -> tuple[Whole, Matrix]:
    """Return the beginnings of the forward operator's rows (size_out), and their weights (size_out x width).

    Elements outside count as those at the edge. Memory grows with the weights, never with the product of the extents.
    """
    step = max(1, _AT_A_TIME // len(_offsets(attrs)))
    pieces = [_rows(attrs, at, min(at + step, attrs.size_out)) for at in range(0, attrs.size_out, step)]
    rows = np.zeros((attrs.size_out, max(piece.shape[1] for _, piece in pieces)))
    for at, (_, piece) in zip(range(0, attrs.size_out, step), pieces, strict=True):
        rows[at : at + len(piece), : piece.shape[1]] = piece
    return _within(np.concatenate([first for first, _ in pieces]), rows, attrs.size_in)


def _rows(attrs: ResizeAttrs, begin: int, end: int) -> tuple[Whole, Matrix]:
    """Return some rows of `taps`, each beginning with its first weight that is not 0."""
    elements, weights = _neighbours(attrs, COORDINATES[attrs.coordinates](attrs, np.arange(begin, end, dtype=float)))
    if attrs.exclude_outside:
        weights = np.where((elements >= 0) & (elements < attrs.size_in), weights, 0.0)
    inside = np.clip(elements, 0, attrs.size_in - 1).astype(np.int64)
    low = inside.min(axis=0)
    rows = np.zeros((end - begin, int((inside.max(axis=0) - low).max()) + 1))
    np.add.at(rows, (np.arange(end - begin), inside - low), weights)
    return _trimmed(low, rows / rows.sum(axis=1, keepdims=True) if attrs.exclude_outside else rows)


def _trimmed(first: Whole, rows: Matrix) -> tuple[Whole, Matrix]:
    """Return the rows without leading zeros, and no wider than the longest; empty rows begin at 0."""
    used = rows != 0.0
    some, width = used.any(axis=1), rows.shape[1]
    begin, end = used.argmax(axis=1), width - used[:, ::-1].argmax(axis=1)
    columns = begin[:, None] + np.arange(int(np.where(some, end - begin, 1).max()))
    kept = np.take_along_axis(rows, np.minimum(columns, width - 1), axis=1)
    return np.where(some, first + begin, 0), np.where(columns < width, kept, 0.0)


def _within(first: Whole, rows: Matrix, extent: int) -> tuple[Whole, Matrix]:
    """Return the rows so that none reads past the end: one that would begins earlier, with leading zeros."""
    late = np.flatnonzero(first + rows.shape[1] > extent)
    by = first[late] + rows.shape[1] - extent
    columns: Whole = np.arange(rows.shape[1], dtype=np.int64)[None, :] - by[:, None]
    rows[late] = np.where(columns >= 0, np.take_along_axis(rows[late], np.maximum(columns, 0), axis=1), 0.0)
    first[late] -= by
    return first, rows


def _transposed(attrs: ResizeAttrs) -> tuple[Whole, Matrix]:
    """Return the rows of the transpose: for each element of the operand, the results that read it."""
    first, weights = taps(attrs)
    results, columns = np.nonzero(weights)
    elements = first[results] + columns
    low, high = np.full(attrs.size_in, attrs.size_out, np.int64), np.full(attrs.size_in, -1, np.int64)
    np.minimum.at(low, elements, results)
    np.maximum.at(high, elements, results)
    low, high = np.where(high < 0, 0, low), np.maximum(high, 0)
    rows = np.zeros((attrs.size_in, int((high - low).max()) + 1))
    rows[elements, results - low[elements]] = weights[results, columns]
    return _within(low, rows, attrs.size_out)


@functools.lru_cache(maxsize=64)
def tables(attrs: ResizeAttrs) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the beginning of each row of the product (target), and its weights (target x width)."""
    first, weights = _transposed(attrs) if attrs.transposed else taps(attrs)
    return first.astype(np.int32), weights.astype(np.float32)


def _infer(inputs: tuple[Value, ...], attrs: ResizeAttrs) -> tuple[TensorType, ...]:
    x, first, weights = inputs
    expect_float("Resize", x, weights)
    known = attrs.mode in MODES and attrs.coordinates in COORDINATES and attrs.rounding in ROUNDINGS
    if not known or min(attrs.size_in, attrs.size_out) < 1 or not 0 < attrs.scale < math.inf:
        raise ValueError(f"Resize: {attrs}")
    if not 0 <= attrs.axis < len(x.shape) or x.shape[attrs.axis] != attrs.source:
        raise ValueError(f"Resize: axis {attrs.axis} of shape {x.shape} has not {attrs.source} elements")
    if first.shape != (attrs.target,) or weights.shape[:1] != (attrs.target,) or weights.shape[1] > attrs.source:
        raise ValueError(f"Resize: tables {first.shape} and {weights.shape} for {attrs.target} elements")
    shape = (*x.shape[: attrs.axis], attrs.target, *x.shape[attrs.axis + 1 :])
    return (TensorType(shape, "float32", kept_layout(x, len(shape))),)


def _reference(arrays: tuple[Any, ...], attrs: ResizeAttrs) -> tuple[Array, ...]:
    x, first, weights = arrays
    lines = np.moveaxis(x, attrs.axis, -1)
    total = np.zeros((*lines.shape[:-1], attrs.target), x.dtype)
    for k in range(weights.shape[1]):
        total = total + lines[..., first + k] * weights[:, k]
    return (np.ascontiguousarray(np.moveaxis(total, -1, attrs.axis)),)


def _rule(ctx: GradientContext, node: Node, gradients: tuple[Value | None, ...]) -> dict[int, Value]:
    assert isinstance(node.attrs, ResizeAttrs)
    attrs = replace(node.attrs, transposed=not node.attrs.transposed)
    first, weights = tables(attrs)
    rows = ctx.constant(f"{operand(node, 'first').name}.back", first)
    factors = ctx.constant(f"{operand(node, 'weights').name}.back", weights)
    return {0: ctx.emit("Resize", (only(gradients), rows, factors), attrs)}


def _macs(node: Node) -> int:
    return node.outputs[0].elements * operand(node, "weights").shape[1]


operator(
    "Resize",
    "Interpolation along an axis: sums of weights[i, k] x[first[i] + k]; transposed, its gradient.",
    _infer,
    _reference,
    _rule,
    ResizeAttrs,
    macs=_macs,
    samples=Samples(lambda _node, attrs, _count: along(attrs, (attrs.axis,))),
    inputs=("x", "first", "weights"),
)
