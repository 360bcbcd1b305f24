"""Random small graphs of real operators: in-place chains, views, updates, scratch, accumulation, several outputs."""

from __future__ import annotations

import random

import numpy as np

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import Graph, Value
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.pointwise import QuantAttrs
from tinytrain_compile.ops.normalise import AxisAttrs
from tinytrain_compile.ops.shape import ConcatAttrs, ReduceAttrs, ReshapeAttrs, SliceAttrs
from tinytrain_compile.ops.update import SgdAttrs

SIZES = (3, 8, 16, 24, 40)


class _Maker:
    def __init__(self, seed: int, accumulate: bool, mixed: bool) -> None:
        self.random = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self.accumulate, self.kinds = accumulate, 8 if mixed else 7
        self.builder: GraphBuilder = new_builder()
        self.x = Value(self.builder.unique("x"), (1, 4, 4, 3), "float32", "NHWC")
        self.pool: list[Value] = [self.x]
        self.weights = [self.constant("w", (4, 12)), self.constant("w", (1, size := self.random.choice(SIZES)))]
        self.pool += self.weights
        self.table = self.constant("table", (1, size))
        self.pool.append(self.table)

    def constant(self, hint: str, shape: tuple[int, ...]) -> Value:
        return self.builder.constant(hint, self.data.standard_normal(shape).astype(np.float32))

    def pick(self) -> Value:
        """Mostly something recent, sometimes anything."""
        return self.random.choice(self.pool[-4:] if self.random.random() < 0.6 else self.pool)

    def step(self) -> None:
        kind = self.random.randrange(self.kinds)
        value = self.pick()
        emit = self.builder.emit
        if kind == 0:
            self.pool.append(emit("Clip", (value,), ClipAttrs(-1.0, 1.0)))
        elif kind == 1:
            twin = self.random.choice([other for other in self.pool if other.shape == value.shape])
            self.pool.append(emit(self.random.choice(["Add", "Mul"]), (value, twin)))
        elif kind == 2 and len(value.shape) < 4:
            self.pool.append(emit("Softmax", (value,), AxisAttrs(len(value.shape) - 1)))
        elif kind == 3:
            self.pool.append(emit("Reshape", (value,), ReshapeAttrs((1, value.elements))))
        elif kind == 4 and len(value.shape) == 2:
            self.pool.append(emit("Concat", (value, value), ConcatAttrs(1)))
        elif kind == 5 and len(value.shape) == 2:
            sizes = (value.shape[0], (value.shape[1] + 1) // 2)
            self.pool.append(emit("Slice", (value,), SliceAttrs((0, 0), (1, 1), sizes)))
        elif kind == 7:
            small = emit("Quantize", (value,), QuantAttrs(0.125, 3))
            self.pool.append(emit("Dequantize", (small,), QuantAttrs(0.125, 3)))
        else:
            self.structured(value)

    def structured(self, value: Value) -> None:
        if len(value.shape) == 4 and value.shape[3] == 3:
            w = self.constant("kernel", (3, 3, 3, 3))
            self.pool.append(self.builder.emit("Conv", (value, w), ConvAttrs((3, 3), pads=(1, 1, 1, 1))))
        else:
            self.pool.append(self.builder.emit("Reduce", (value,), ReduceAttrs((len(value.shape) - 1,))))

    def gradient(self, w: Value) -> Value:
        """Any value, made into one of the weight's shape."""
        scalar = self.pick()
        axes = tuple(range(len(scalar.shape)))
        total = self.builder.emit("Reduce", (scalar,), ReduceAttrs(axes))
        return self.builder.emit("Mul", (w, self.builder.emit("Reshape", (total,), ReshapeAttrs(()))))

    def update(self, w: Value, rate: Value) -> tuple[list[tuple[Value, Value]], list[Value]]:
        gradient = self.gradient(w)
        if not self.accumulate:
            return [(w, self.builder.emit("SgdUpdate", (w, gradient, rate), SgdAttrs()))], []
        total = Value(self.builder.unique("sum"), w.shape)
        summed = self.builder.emit("Accumulate", (total, gradient))
        new = self.builder.emit("SgdUpdate", (w, summed, rate), SgdAttrs(), phase="apply")
        cleared = self.builder.emit("Clear", (summed,), phase="apply")
        return [(w, new), (total, cleared)], [total]


def random_graph(seed: int, steps: int, mixed: bool = False) -> tuple[Graph, str]:
    """A graph of about `steps` nodes, and the name of a value to keep. Every third one accumulates.

    mixed: int8 too, so that outputs may cover inputs of other sizes.
    """
    maker = _Maker(seed, seed % 3 == 0, mixed)
    rate = maker.constant("rate", ())
    for _ in range(max(1, steps - 8)):
        maker.step()
    # A kept value must have memory of its own: not a view of a weight, which its update overwrites.
    computed = [node.outputs[0] for node in maker.builder.nodes if node.op != "Reshape"]
    computed = computed or [maker.builder.emit("Neg", (maker.x,))]
    updates: list[tuple[Value, Value]] = []
    accumulators: list[Value] = []
    for w in maker.weights:
        pairs, sums = maker.update(w, rate)
        updates += pairs
        accumulators += sums
    outputs = tuple(dict.fromkeys(maker.random.choices(computed, k=1 + seed % 2)))
    keep = maker.random.choice(computed)
    state = (rate, *maker.weights)
    used = {value.name for node in maker.builder.nodes for value in node.inputs}
    constants = {n: d for n, d in maker.builder.constants.items() if n in used or n in {v.name for v in state}}
    graph = Graph(
        "random",
        tuple(maker.builder.nodes),
        (maker.x,),
        outputs,
        constants,
        state,
        state,
        tuple(accumulators),
        tuple(updates),
    )
    return graph, keep.name
