"""Cases with random shapes and attributes for ops whose index arithmetic is easy to get wrong."""

from __future__ import annotations

import math
import zlib

import numpy as np

from testing.ops.case import Case, Generator, Rng, make, normal, positive, sizes, spaced
from testing.ops.case_quantised import RANDOM_QUANTISED
from tinytrain_compile.ir.types import NO_ATTRS
from tinytrain_compile.ops.normalise import AxisAttrs, NormalizeAttrs
from tinytrain_compile.ops.pool import PoolAttrs, PoolGradAttrs
from tinytrain_compile.ops.shape import (
    ConcatAttrs,
    EmbedAttrs,
    ExpandAttrs,
    ReduceAttrs,
    SliceAttrs,
    TransposeAttrs,
)

NARROW = 40
"""Cases of small shapes, which come first: as many as gradients are checked on. The others fill runs and vectors."""


def _shape(rng: Rng, rank: int, index: int, low: int = 1) -> tuple[int, ...]:
    return sizes(rng, rank, low, 6 if index < NARROW else (120, 40, 16, 10)[rank - 1])


def _window(rng: Rng, index: int) -> tuple[tuple[int, int, int, int], PoolAttrs]:
    """A random image and a window on it of which every position holds at least one real element."""
    while True:
        height, width, channels = (int(n) for n in rng.integers(1, (10, 10, 10 if index < NARROW else 40)))
        kernel, strides = rng.integers(1, 5, 2), rng.integers(1, 4, 2)
        dilations = rng.integers(1, 3, 2)
        pads = tuple(int(rng.integers(0, kernel[axis % 2])) for axis in range(4))
        output: list[int] = []
        for axis, size in enumerate((height, width)):
            room = size + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1
            steps = room / strides[axis]
            output.append(int(math.ceil(steps) if rng.random() < 0.5 else math.floor(steps)) + 1)
        attrs = PoolAttrs(
            (int(kernel[0]), int(kernel[1])),
            (int(strides[0]), int(strides[1])),
            (pads[0], pads[1], pads[2], pads[3]),
            (int(dilations[0]), int(dilations[1])),
            (output[0], output[1]),
            bool(rng.random() < 0.5),
        )
        image = (1, height, width, channels)
        try:
            make("MaxPool", (np.zeros(image),), attrs).node()
        except ValueError:
            continue
        return image, attrs


def _pool(op: str) -> Generator:
    def case(rng: Rng, index: int) -> Case:
        image, attrs = _window(rng, index)
        return make(op, (spaced(rng, image),), attrs, images=(0,))

    return case


def _pool_grad(op: str) -> Generator:
    def case(rng: Rng, index: int) -> Case:
        image, attrs = _window(rng, index)
        out = (1, *attrs.output_hw, image[3])
        winners = rng.integers(0, attrs.kernel[0] * attrs.kernel[1], out).astype(np.uint8)
        operands = (normal(rng, out), winners) if op == "MaxPoolGrad" else (normal(rng, out),)
        return make(op, operands, PoolGradAttrs(attrs, (image[1], image[2])), images=(0,))

    return case


def _transpose(rng: Rng, index: int) -> Case:
    shape = sizes(rng, 1 + index % 4)
    return make("Transpose", (normal(rng, shape),), TransposeAttrs(tuple(int(i) for i in rng.permutation(len(shape)))))


def _concat(rng: Rng, index: int) -> Case:
    shape = sizes(rng, 1 + index % 4)
    axis = int(rng.integers(0, len(shape)))
    parts = [(*shape[:axis], int(rng.integers(1, 5)), *shape[axis + 1 :]) for _ in range(int(rng.integers(1, 5)))]
    return make("Concat", tuple(normal(rng, part) for part in parts), ConcatAttrs(axis))


def _places(rng: Rng, index: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(whole shape, starts, steps, sizes)"""
    shape = sizes(rng, 1 + index % 4, 1, 8)
    places: list[tuple[int, int, int]] = []
    for dim in shape:
        if rng.random() < 0.4:
            places.append((0, 1, dim))
            continue
        step = int(rng.integers(1, 4)) * (1 if rng.random() < 0.6 else -1)
        start = int(rng.integers(0, dim))
        room = dim - 1 - start if step > 0 else start
        places.append((start, step, int(rng.integers(1, room // abs(step) + 2))))
    starts, steps, count = zip(*places, strict=True)
    return shape, starts, steps, count


def _slice(rng: Rng, index: int) -> Case:
    shape, starts, steps, count = _places(rng, index)
    return make("Slice", (normal(rng, shape),), SliceAttrs(starts, steps, count))


def _push_rows(rng: Rng, _index: int) -> Case:
    rows, rest = int(rng.integers(2, 12)), sizes(rng, 2)
    new = int(rng.integers(1, rows))
    return make("PushRows", (normal(rng, (1, rows, *rest)), normal(rng, (1, new, *rest))), NO_ATTRS)


def _embed(rng: Rng, index: int) -> Case:
    shape, starts, steps, count = _places(rng, index)
    return make("Embed", (normal(rng, count),), EmbedAttrs(starts, steps, shape, float(rng.integers(-2, 3))))


def _expand(rng: Rng, index: int) -> Case:
    target = sizes(rng, 1 + index % 4)
    source = tuple(1 if rng.random() < 0.4 else dim for dim in target)[int(rng.integers(0, len(target))) :]
    return make("Expand", (normal(rng, source),), ExpandAttrs(target, (1.0, 0.3)[index % 2]))


def _axes(rng: Rng, rank: int) -> tuple[int, ...]:
    chosen = [axis for axis in range(rank) if rng.random() < 0.5]
    return tuple(chosen or [int(rng.integers(0, rank))])


def _reduce(rng: Rng, index: int) -> Case:
    shape = _shape(rng, 1 + index % 4, index)
    return make("Reduce", (normal(rng, shape),), ReduceAttrs(_axes(rng, len(shape)), (1.0, 0.3)[index % 2]))


def _axis(op: str, count: int) -> Generator:
    def case(rng: Rng, index: int) -> Case:
        shape = _shape(rng, 1 + index % 4, index)
        attrs = AxisAttrs(int(rng.integers(0, len(shape))))
        return make(op, tuple(normal(rng, shape) for _ in range(count)), attrs)

    return case


def _group(rng: Rng, index: int) -> tuple[tuple[int, ...], NormalizeAttrs]:
    shape = _shape(rng, 1 + index % 4, index, 2)
    return shape, NormalizeAttrs(_axes(rng, len(shape)), 1e-3)


def _normalize(rng: Rng, index: int) -> Case:
    shape, attrs = _group(rng, index)
    return make("Normalize", (normal(rng, shape),), attrs)


def _normalize_grad(rng: Rng, index: int) -> Case:
    shape, attrs = _group(rng, index)
    kept = tuple(1 if axis in attrs.axes else dim for axis, dim in enumerate(shape))
    return make("NormalizeGrad", (normal(rng, shape), normal(rng, shape), positive(rng, kept)), attrs)


RANDOM: dict[str, Generator] = {
    "MaxPool": _pool("MaxPool"),
    "MaxPoolIndex": _pool("MaxPoolIndex"),
    "AveragePool": _pool("AveragePool"),
    "MaxPoolGrad": _pool_grad("MaxPoolGrad"),
    "AveragePoolGrad": _pool_grad("AveragePoolGrad"),
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Embed": _embed,
    "PushRows": _push_rows,
    "Expand": _expand,
    "Reduce": _reduce,
    "Softmax": _axis("Softmax", 1),
    "LogSoftmax": _axis("LogSoftmax", 1),
    "SoftmaxGrad": _axis("SoftmaxGrad", 2),
    "LogSoftmaxGrad": _axis("LogSoftmaxGrad", 2),
    "Normalize": _normalize,
    "NormalizeGrad": _normalize_grad,
    **RANDOM_QUANTISED,
}


def random_cases(op: str, count: int) -> list[Case]:
    """`count` cases with random shapes; the same ones in every run."""
    seed = zlib.crc32(op.encode())
    return [RANDOM[op](np.random.default_rng([seed, 1, index]), index) for index in range(count)]
