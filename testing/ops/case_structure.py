"""Random cases of pooling and of ops that move data."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, listed, make, normal, spaced
from tinytrain_compile.ir.types import NO_ATTRS, Value
from tinytrain_compile.ops.pool import PoolAttrs, PoolGradAttrs
from tinytrain_compile.ops.shape import (
    ConcatAttrs,
    EmbedAttrs,
    ExpandAttrs,
    ReduceAttrs,
    ReshapeAttrs,
    SliceAttrs,
    TransposeAttrs,
)

POOLS: tuple[tuple[tuple[int, int, int, int], PoolAttrs], ...] = (
    ((1, 6, 8, 3), PoolAttrs((2, 2), (2, 2), (0, 0, 0, 0), output_hw=(3, 4))),
    ((1, 7, 7, 2), PoolAttrs((3, 3), (2, 2), (1, 1, 1, 1), output_hw=(4, 4))),
    ((1, 5, 6, 4), PoolAttrs((3, 2), (1, 1), (1, 0, 1, 1), output_hw=(5, 6), count_include_pad=True)),
    ((1, 9, 8, 1), PoolAttrs((3, 3), (2, 1), (0, 2, 2, 2), (2, 2), (4, 8))),
    ((1, 6, 5, 3), PoolAttrs((3, 3), (2, 2), (0, 0, 0, 0), output_hw=(3, 2))),  # ceil_mode: last row hangs over
    ((1, 1, 10, 5), PoolAttrs((1, 4), (1, 3), (0, 1, 0, 1), output_hw=(1, 4), count_include_pad=True)),
    ((2, 4, 4, 3), PoolAttrs((2, 2), (1, 1), (0, 0, 0, 0), output_hw=(3, 3))),
    ((1, 17, 17, 1), PoolAttrs((17, 17), (1, 1), (0, 0, 0, 0))),  # more than 256 taps: a wide index
)


def _output_shape(shape: tuple[int, ...], attrs: PoolAttrs) -> tuple[int, ...]:
    return (shape[0], *attrs.output_hw, shape[3])


def _pool(op: str) -> None:
    @generator(op, len(POOLS))
    def _case(rng: Rng, index: int) -> Case:
        shape, attrs = POOLS[index]
        return make(op, (spaced(rng, shape),), attrs, images=(0,))


_pool("MaxPool")
_pool("MaxPoolIndex")
_pool("AveragePool")


@generator("MaxPoolGrad", len(POOLS))
def _max_pool_grad(rng: Rng, index: int) -> Case:
    shape, attrs = POOLS[index]
    out = _output_shape(shape, attrs)
    taps = attrs.kernel[0] * attrs.kernel[1]
    winners = rng.integers(0, taps, out).astype(np.uint8 if taps <= 256 else np.int32)
    kind = PoolGradAttrs(attrs, (shape[1], shape[2]))
    return make("MaxPoolGrad", (normal(rng, out), winners), kind, images=(0, 1))


@generator("AveragePoolGrad", len(POOLS))
def _average_pool_grad(rng: Rng, index: int) -> Case:
    shape, attrs = POOLS[index]
    kind = PoolGradAttrs(attrs, (shape[1], shape[2]))
    return make("AveragePoolGrad", (normal(rng, _output_shape(shape, attrs)),), kind, images=(0,))


RESHAPES = (
    ((2, 6), (3, 4)),
    ((1, 2, 3, 4), (1, 24)),
    ((5,), (1, 1, 5)),
    ((), (1, 1)),
    ((1, 1), ()),
    ((4, 3), (2, 2, 3)),
)


@generator("Reshape", len(RESHAPES))
def _reshape(rng: Rng, index: int) -> Case:
    source, target = RESHAPES[index]
    return make("Reshape", (normal(rng, source),), ReshapeAttrs(target))


TRANSPOSES = (
    ((3, 5), (1, 0)),
    ((1, 4, 5, 3), (0, 3, 1, 2)),
    ((2, 3, 4), (2, 0, 1)),
    ((1, 3, 4, 5), (0, 2, 3, 1)),
    ((6,), (0,)),
)


@generator("Transpose", len(TRANSPOSES))
def _transpose(rng: Rng, index: int) -> Case:
    shape, perm = TRANSPOSES[index]
    return make("Transpose", (normal(rng, shape),), TransposeAttrs(perm))


CONCATS = (
    (((2, 3), (2, 5)), 1),
    (((1, 3, 4, 2), (1, 3, 4, 1), (1, 3, 4, 5)), 3),
    (((4,), (1,), (2,)), 0),
    (((1, 2, 3, 3), (1, 4, 3, 3)), 1),
    (((2, 2, 2), (2, 1, 2)), 1),
    (((3, 2),), 0),
)


@generator("Concat", len(CONCATS))
def _concat(rng: Rng, index: int) -> Case:
    shapes, axis = CONCATS[index]
    return make("Concat", tuple(normal(rng, shape) for shape in shapes), ConcatAttrs(axis))


SLICES = (
    ((8,), (2,), (1,), (4,)),
    ((5, 7), (4, 0), (-1, 3), (5, 3)),
    ((1, 6, 6, 4), (0, 1, 0, 2), (1, 2, 1, 1), (1, 3, 6, 2)),
    ((1, 4, 5, 3), (0, 3, 4, 0), (1, -2, -1, 2), (1, 2, 3, 2)),
    ((3, 4, 5), (1, 1, 1), (7, 2, 3), (1, 2, 2)),
)
"""(whole shape, starts, steps, sizes)."""


@generator("Slice", len(SLICES))
def _slice(rng: Rng, index: int) -> Case:
    shape, *places = SLICES[index]
    return make("Slice", (normal(rng, shape),), SliceAttrs(*places))


@generator("Embed", len(SLICES))
def _embed(rng: Rng, index: int) -> Case:
    shape, starts, steps, count = SLICES[index]
    value = (0.0, 1.5, 0.0, -2.0, 0.25)[index]
    return make("Embed", (normal(rng, count),), EmbedAttrs(starts, steps, shape, value))


RINGS = (((1, 5, 1, 40), 3), ((1, 9, 1, 60), 1), ((1, 7, 3), 2), ((4, 5), 4))
"""(shape of a ring, new rows)"""


@generator("PushRows", len(RINGS))
def _push_rows(rng: Rng, index: int) -> Case:
    shape, new = RINGS[index]
    axis = next(axis for axis, size in enumerate(shape) if size > 1)
    rows = (*shape[:axis], new, *shape[axis + 1 :])
    return make("PushRows", (normal(rng, shape), normal(rng, rows)), NO_ATTRS)


EXPANDS = (
    ((1, 1, 1, 3), (1, 4, 5, 3), 0.05),
    ((), (2, 3), 1.0),
    ((3, 1), (2, 3, 4), 1.0),
    ((5,), (5,), -2.0),
    ((1, 4, 1), (3, 4, 2), 0.5),
    ((1, 1), (1, 1, 7), 1.0),
)


@generator("Expand", len(EXPANDS))
def _expand(rng: Rng, index: int) -> Case:
    shape, target, scale = EXPANDS[index]
    return make("Expand", (normal(rng, shape),), ExpandAttrs(target, scale))


REDUCES = (
    ((1, 4, 5, 3), (1, 2), 0.05),
    ((2, 7), (0,), 1.0),
    ((3, 4, 5), (0, 2), 1.0),
    ((6,), (0,), 1 / 6),
    ((2, 3, 4), (1,), -0.5),
    ((1, 5), (0,), 3.0),
    ((4, 3), (), 2.0),
    ((2, 3, 2, 3), (0, 1, 2, 3), 1.0),
)


@generator("Reduce", len(REDUCES))
def _reduce(rng: Rng, index: int) -> Case:
    shape, axes, scale = REDUCES[index]
    return make("Reduce", (normal(rng, shape),), ReduceAttrs(axes, scale))


def _page(op: str) -> None:
    @generator(op, 3)
    def _case(rng: Rng, index: int) -> Case:
        return make(op, (normal(rng, ((3,), (2, 4), (1, 3, 2, 5))[index]),), differentiable=())


LINES = ((1, 3, 4, 2), (1, 1, 1, 1), (1, 5, 3, 3), (1, 4, 7, 4))


@generator("InputLines", len(LINES) + 1)
def _lines(rng: Rng, index: int) -> Case:
    shape = (1, *listed(rng, LINES, index, 1)[1:])
    dtype, low = (("int8", -128), ("uint8", 0))[index % 2]
    image = Value("x", shape, dtype, "NHWC")  # type: ignore[arg-type]
    return Case("InputLines", NO_ATTRS, (image,), (rng.integers(low, low + 256, shape).astype(dtype),), ())


_page("PageOut")
_page("PageIn")


def _view(op: str) -> None:
    """Those that move nothing: Concats on the first axis of extent above 1, Slices of one run."""
    joins = (CONCATS[2], CONCATS[3], CONCATS[5])
    cuts = (((1, 2, 3, 4), (0, 1, 0, 0), (1, 1, 1, 1), (1, 1, 3, 4)), ((8,), (2,), (1,), (4,)))

    @generator(op, len(joins if op == "ConcatView" else cuts))
    def _case(rng: Rng, index: int) -> Case:
        if op == "ConcatView":
            shapes, axis = joins[index]
            operands = tuple(normal(rng, shape) for shape in shapes)
            return make(op, operands, ConcatAttrs(axis), differentiable=())
        shape, starts, steps, sizes = cuts[index]
        return make(op, (normal(rng, shape),), SliceAttrs(starts, steps, sizes), differentiable=())


_view("ConcatView")
_view("SliceView")
