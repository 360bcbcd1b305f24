"""Streams of random layers: convolutions of every form that has rows, residual adds, masks, results beside the last."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from testing.ops.case import Case, Rng, generator
from testing.ops.case_qpointwise import clip_mask, qadd
from testing.ops.case_quantised import Geometry, qconv
from tinytrain_compile.ir import Node, Value
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.stream_build import build_stream


@generator("Stream", 8)
def _stream(rng: Rng, _index: int) -> Case:
    return stream(rng)


def stream(rng: Rng) -> Case:
    """A chain of two to six layers on a random image."""
    chain = _Chain(rng)
    for _ in range(int(rng.integers(2, 7))):
        chain.grow()
    return chain.case()


class _Chain:
    """Grows layer by layer; maps: those that a later layer may read again."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        shape = (1, *(int(n) for n in rng.integers(3, 15, 2)), int(rng.integers(1, 9)))
        self._arrays: dict[Value, np.ndarray] = {}
        self._nodes: list[Node] = []
        self._maps = [self._operand(rng.integers(-128, 128, shape).astype(np.int8))]
        self._marked: list[Value] = []

    def _operand(self, data: np.ndarray) -> Value:
        value = Value(f"in{len(self._arrays)}", data.shape, str(data.dtype), "NHWC" if data.ndim == 4 else "")  # type: ignore[arg-type]
        self._arrays[value] = data
        return value

    def grow(self) -> None:
        """One layer more, sometimes with a mask of its result."""
        rng, x = self._rng, self._maps[-1]
        again = [value for value in self._maps[:-1] if value.shape == x.shape]
        if again and rng.random() < 0.5:
            self._add(qadd(rng, x.shape, 0), (x, again[int(rng.integers(len(again)))]))
        else:
            self._add(qconv(rng, self._geometry(x.shape), 0), (x,))
        y = self._maps[-1]
        if rng.random() < 0.2 and y.shape[2] * y.shape[3] % 8 == 0:
            self._add(clip_mask(rng, y.shape), (y,), "bits")

    def _geometry(self, shape: tuple[int, ...]) -> Geometry:
        rng, (_, height, width, channels) = self._rng, shape
        while True:
            form = str(rng.choice(["product", "depthwise", "dense"]))
            kernel = (1, 1) if form == "product" else tuple(int(k) for k in rng.integers(1, 8, 2))
            strides = (
                (1, 1) if form == "product" or rng.random() < 0.5 else tuple(int(s) for s in rng.integers(1, 4, 2))
            )
            pads = tuple(int(rng.integers(0, kernel[axis % 2])) for axis in range(4))
            deep = form == "depthwise" and channels > 1
            conv = ConvAttrs(kernel, strides, pads, groups=channels if deep else 1)  # type: ignore[arg-type]
            try:
                conv.output_hw(height, width)
            except ValueError:
                continue
            return (1, height, width, channels), channels if deep else int(rng.integers(1, 12)), conv

    def _add(self, case: Case, maps: tuple[Value, ...], kind: str = "") -> None:
        """The node of a case on other maps, in place of its first operands."""
        given = (*maps, *(self._operand(array) for array in case.arrays[len(maps) :]))
        made = replace(case, inputs=given).node()
        name = f"made{len(self._nodes)}"
        node = replace(made, name=name, outputs=(replace(made.outputs[0], name=name),))
        if row_form(node) is None:
            return
        self._nodes.append(node)
        (self._marked if kind else self._maps).append(node.outputs[0])

    def case(self) -> Case:
        """All of it as a stream; some inner maps are results too, and masks are always."""
        while not self._nodes:
            self.grow()
        inner = [value for value in self._maps[1:-1] if self._rng.random() < 0.15]
        kept = {value.name for value in (*inner, self._maps[-1], *self._marked)}
        outputs = [node.outputs[0] for node in self._nodes if node.outputs[0].name in kept]
        read = tuple(dict.fromkeys(v for node in self._nodes for v in node.inputs if v in self._arrays))
        attrs = build_stream(self._nodes, read, outputs)
        assert isinstance(attrs, StreamAttrs) and math.prod(outputs[-1].shape)
        return Case("Stream", attrs, read, tuple(self._arrays[value] for value in read), ())
