"""Interpolation along an axis: every element of the result is a weighted sum of a few neighbours.

That is a product with a matrix of narrow rows, which depends on sizes alone; the gradient is the product with its
transpose, whose rows are narrow too. So both are one operator, with tables of where a row begins and of its weights.
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
from tinytrain_compile.ops._common import expect_float, kept_layout, only
from tinytrain_compile.ops.base import GradientContext, OpDef, register
from tinytrain_compile.ops.names import operand
from tinytrain_compile.ops.repeat import along

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class ResizeAttrs(Attrs):
    """The axis, its extents, and how places are mapped: ONNX's words for Resize.

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
        """Extent of the axis that is read."""
        return self.size_out if self.transposed else self.size_in

    @property
    def target(self) -> int:
        """Extent of the axis that is written."""
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


def _taps(attrs: ResizeAttrs, places: Matrix) -> list[tuple[Matrix, Matrix]]:
    """(element, weight) per place, for each neighbour that counts."""
    if attrs.mode == "nearest":
        return [(ROUNDINGS[attrs.rounding](places), np.ones(places.shape))]
    reach, weight = _FILTERS[attrs.mode]
    stretch = min(attrs.scale, 1.0) if attrs.antialias else 1.0
    below = np.floor(places)
    start = math.floor(-reach / stretch) + 1
    taps = [(below + o, weight((o - (places - below)) * stretch, attrs.cubic)) for o in range(start, 2 - start)]
    if not attrs.antialias:
        return taps
    whole = sum(factor for _, factor in taps)
    return [(element, factor / whole) for element, factor in taps]


def matrix(attrs: ResizeAttrs) -> Matrix:
    """What the forward operator multiplies by, size_out x size_in; elements outside count as those at the edge."""
    places = COORDINATES[attrs.coordinates](attrs, np.arange(attrs.size_out, dtype=np.float64))
    rows, whole = np.arange(attrs.size_out), np.zeros((attrs.size_out, attrs.size_in))
    for element, weight in _taps(attrs, places):
        inside = (element >= 0) & (element < attrs.size_in)
        counted = np.where(inside, weight, 0.0) if attrs.exclude_outside else weight
        np.add.at(whole, (rows, np.clip(element, 0, attrs.size_in - 1).astype(np.intp)), counted)
    return whole / whole.sum(axis=1, keepdims=True) if attrs.exclude_outside else whole


@functools.lru_cache(maxsize=64)
def tables(attrs: ResizeAttrs) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Where each row of the product begins (target), and its weights (target x width)."""
    whole = matrix(attrs).T if attrs.transposed else matrix(attrs)
    used = whole != 0.0
    first = np.where(used.any(axis=1), used.argmax(axis=1), 0)
    last = np.where(used.any(axis=1), attrs.source - 1 - used[:, ::-1].argmax(axis=1), 0)
    width = int((last - first).max()) + 1
    first = np.minimum(first, attrs.source - width)
    weights = np.take_along_axis(whole, first[:, None] + np.arange(width)[None, :], axis=1)
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


register(
    OpDef(
        "Resize",
        "Interpolation along an axis: sums of weights[i, k] x[first[i] + k]; transposed, its gradient.",
        _infer,
        _reference,
        _rule,
        ResizeAttrs,
        macs=_macs,
        repeat=lambda _node, attrs, _count: along(attrs, (attrs.axis,)),
        inputs=("x", "first", "weights"),
    )
)
