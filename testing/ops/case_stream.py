"""Streams of random layers, in integers or floats: convolutions of every form that has rows, residual adds, clips,
masks, slices of channels, results beside the last."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import numpy as np

from testing.ops.case import DTYPES, Case, Rng, generator, make, normal
from testing.ops.case_qpointwise import clip_mask, qadd
from testing.ops.case_quantised import Geometry, qconv
from testing.ops.case_stream_errors import error_stream
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.pool import PoolAttrs
from tinytrain_compile.ops.shape import SliceAttrs
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.streams.build import build_stream


@generator("Stream", 26)
def _stream(rng: Rng, index: int) -> Case:
    return stream(rng, integer=index % 2 == 1) if index < 18 else error_stream(rng)


def stream(rng: Rng, integer: bool = True) -> Case:
    """A chain of two to six layers on a random image."""
    chain = _Chain(rng, _Integers(rng) if integer else _Floats(rng))
    for _ in range(int(rng.integers(2, 7))):
        chain.grow()
    return chain.case()


class _Layers(Protocol):
    """Layers of a number format, each as a case whose first operands are maps."""

    def image(self, shape: tuple[int, ...]) -> np.ndarray: ...
    def add(self, shape: tuple[int, ...]) -> Case: ...
    def conv(self, shape: tuple[int, ...]) -> Case: ...
    def clip(self, shape: tuple[int, ...]) -> Case | None: ...
    def mask(self, shape: tuple[int, ...]) -> Case: ...
    def pool(self, shape: tuple[int, ...]) -> Case: ...
    def channels(self, shape: tuple[int, ...]) -> Case: ...


class _Integers:
    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def image(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._rng.integers(-128, 128, shape).astype(np.int8)

    def add(self, shape: tuple[int, ...]) -> Case:
        return qadd(self._rng, shape, 0)

    def conv(self, shape: tuple[int, ...]) -> Case:
        return qconv(self._rng, geometry(self._rng, shape), 0)

    def clip(self, shape: tuple[int, ...]) -> Case | None:
        return None  # a part of the layer before it

    def mask(self, shape: tuple[int, ...]) -> Case:
        return clip_mask(self._rng, shape)

    def channels(self, shape: tuple[int, ...]) -> Case:
        return make("Slice", (self.image(shape),), some_channels(self._rng, shape), images=(0,))

    def pool(self, shape: tuple[int, ...]) -> Case:
        return make("MaxPool", (self.image(shape),), pool_window(self._rng, shape), images=(0,))


class _Floats:
    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def image(self, shape: tuple[int, ...]) -> np.ndarray:
        return normal(self._rng, shape)

    def add(self, shape: tuple[int, ...]) -> Case:
        return make("Add", (self.image(shape), self.image(shape)), images=(0, 1))

    def conv(self, shape: tuple[int, ...]) -> Case:
        return float_conv(self._rng, shape)

    def clip(self, shape: tuple[int, ...]) -> Case | None:
        return make("Clip", (self.image(shape),), self._bounds(), images=(0,))

    def mask(self, shape: tuple[int, ...]) -> Case:
        return make("ClipMask", (self.image(shape),), self._bounds(), images=(0,))

    def channels(self, shape: tuple[int, ...]) -> Case:
        return make("Slice", (self.image(shape),), some_channels(self._rng, shape), images=(0,))

    def pool(self, shape: tuple[int, ...]) -> Case:
        op = str(self._rng.choice(["MaxPool", "AveragePool"]))
        return make(op, (self.image(shape),), pool_window(self._rng, shape), images=(0,))

    def _bounds(self) -> ClipAttrs:
        return ClipAttrs(0.0, math.inf if self._rng.random() < 0.5 else 1.0)


def float_conv(rng: Rng, shape: tuple[int, ...]) -> Case:
    """A convolution of an image of this shape, of every form, in float32."""
    image, out, conv = geometry(rng, shape)
    conv = replace(conv, bias=bool(rng.random() < 0.5))
    weight = normal(rng, (out, *conv.kernel, image[3] // conv.groups))
    bias = (normal(rng, (out,)),) if conv.bias else ()
    return make("Conv", (normal(rng, shape), weight, *bias), conv, images=(0,))


def geometry(rng: Rng, shape: tuple[int, ...]) -> Geometry:
    """A 1x1, depthwise, dense or grouped convolution whose windows fit an image of this shape."""
    _, height, width, channels = shape
    while True:
        form = str(rng.choice(["product", "depthwise", "dense"]))
        kernel = (1, 1) if form == "product" else tuple(int(k) for k in rng.integers(1, 8, 2))
        strides = (1, 1) if form == "product" or rng.random() < 0.5 else tuple(int(s) for s in rng.integers(1, 4, 2))
        pads = tuple(int(rng.integers(0, kernel[axis % 2])) for axis in range(4))
        deep, dilations, groups = form == "depthwise" and channels > 1, (1, 1), 1
        if form != "product" and rng.random() < 0.2:
            dilations = (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
            groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
        conv = ConvAttrs(kernel, strides, pads, dilations, channels if deep else groups)  # type: ignore[arg-type]
        try:
            conv.output_hw(height, width)
        except ValueError:
            continue
        return (1, height, width, channels), channels if deep else groups * int(rng.integers(1, 12)), conv


def pool_window(rng: Rng, shape: tuple[int, ...]) -> PoolAttrs:
    """A window of at most 3x3 that fits an image of this shape."""
    image = shape[1:3]
    kernel = tuple(min(int(rng.integers(1, 4)), size) for size in image)
    pads = tuple(int(rng.integers(0, (kernel[axis % 2] + 1) // 2)) for axis in range(4))
    strides = tuple(int(n) for n in rng.integers(1, 3, 2))
    sizes = zip(image, kernel, pads[:2], pads[2:], strides, strict=True)
    out = tuple((size + begin + end - window) // step + 1 for size, window, begin, end, step in sizes)
    return PoolAttrs(kernel, strides, pads, output_hw=out)  # type: ignore[arg-type]


def some_channels(rng: Rng, shape: tuple[int, ...]) -> SliceAttrs:
    """Some neighbouring channels of a map."""
    first = int(rng.integers(0, shape[3]))
    return SliceAttrs((0, 0, 0, first), (1, 1, 1, 1), (*shape[:3], int(rng.integers(1, shape[3] - first + 1))))


class _Chain:
    """Grows layer by layer; maps: those that a later layer may read again."""

    def __init__(self, rng: Rng, layers: _Layers) -> None:
        self._rng, self._layers = rng, layers
        shape = (1, *(int(n) for n in rng.integers(3, 15, 2)), int(rng.integers(1, 9)))
        self._arrays: dict[Value, np.ndarray] = {}
        self._nodes: list[Node] = []
        self._maps = [self._operand(layers.image(shape))]
        self._marked: list[Value] = []

    def _operand(self, data: np.ndarray) -> Value:
        dtype = DTYPES[str(data.dtype)]
        value = Value(f"in{len(self._arrays)}", data.shape, dtype, "NHWC" if data.ndim == 4 else "")  # type: ignore[arg-type]
        self._arrays[value] = data
        return value

    def grow(self) -> None:
        """One layer more, sometimes with a mask of its result, or a slice."""
        rng, x = self._rng, self._maps[-1]
        again = [value for value in self._maps[:-1] if value.shape == x.shape]
        if again and rng.random() < 0.5:
            self._add(self._layers.add(x.shape), (x, again[int(rng.integers(len(again)))]))
        elif rng.random() < 0.15:
            self._add(self._layers.pool(x.shape), (x,))
        else:
            self._add(self._layers.conv(x.shape), (x,))
        clip = self._layers.clip(self._maps[-1].shape)
        if clip is not None and rng.random() < 0.5:
            self._add(clip, (self._maps[-1],))
        y = self._maps[-1]
        if rng.random() < 0.2 and y.shape[2] * y.shape[3] % 8 == 0:
            self._add(self._layers.mask(y.shape), (y,), kept=True)
        if rng.random() < 0.2:
            self._add(self._layers.channels(y.shape), (y,), kept=True)

    def _add(self, case: Case, maps: tuple[Value, ...], kept: bool = False) -> None:
        """The node of a case on other maps, in place of its first operands."""
        given = (*maps, *(self._operand(array) for array in case.arrays[len(maps) :]))
        made = replace(case, inputs=given).node()
        name = f"made{len(self._nodes)}"
        node = replace(made, name=name, outputs=(replace(made.outputs[0], name=name),))
        if row_form(node) is None:
            return
        self._nodes.append(node)
        (self._marked if kept else self._maps).append(node.outputs[0])

    def case(self) -> Case:
        """All of it as a stream; some inner maps are results too, and masks and slices are always."""
        while not self._nodes:
            self.grow()
        inner = [value for value in self._maps[1:-1] if self._rng.random() < 0.15]
        kept = {value.name for value in (*inner, self._maps[-1], *self._marked)}
        outputs = [node.outputs[0] for node in self._nodes if node.outputs[0].name in kept]
        read = tuple(dict.fromkeys(v for node in self._nodes for v in node.inputs if v in self._arrays))
        attrs = build_stream(self._nodes, read, outputs)
        assert isinstance(attrs, StreamAttrs) and math.prod(outputs[-1].shape)
        return Case("Stream", attrs, read, tuple(self._arrays[value] for value in read), ())
