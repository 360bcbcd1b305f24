"""Graphs to plan: training steps of inverted-residual nets, written out by hand with real operators."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import Graph, Value
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.loss import NllAttrs, NllGradAttrs
from tinytrain_compile.ops.normalise import AxisAttrs
from tinytrain_compile.ops.shape import ExpandAttrs, ReduceAttrs, ReshapeAttrs
from tinytrain_compile.ops.update import SgdAttrs

RELU6 = ClipAttrs(0.0, 6.0)
# (expansion, channels, repeats, stride), width 0.35 of MobileNetV2
MOBILENET = ((1, 8, 1, 1), (6, 8, 2, 2), (6, 16, 3, 2), (6, 24, 4, 2), (6, 32, 3, 1), (6, 56, 3, 2), (6, 112, 1, 1))


@dataclass
class _Net:
    """A training graph in the making; `backward` undoes the forward layers one by one."""

    trained: int
    momentum: bool
    late: bool
    builder: GraphBuilder = field(default_factory=new_builder)
    layers: list[tuple[str, tuple[Value, ...], ConvAttrs | None]] = field(default_factory=list)
    state: list[Value] = field(default_factory=list)
    updates: list[tuple[Value, Value]] = field(default_factory=list)
    pending: list[tuple[Value, Value]] = field(default_factory=list)

    def emit(self, op: str, inputs: tuple[Value, ...], *attrs) -> Value:
        return self.builder.emit(op, inputs, *attrs)

    def weight(self, shape: tuple[int, ...]) -> Value:
        return self.builder.constant("w", np.zeros(shape, np.float32))

    def conv(self, x: Value, channels: int, kernel: int, stride: int, groups: int, clip: bool) -> Value:
        pad = kernel // 2
        attrs = ConvAttrs((kernel, kernel), (stride, stride), (pad, pad, pad, pad), groups=groups)
        w = self.weight((channels, kernel, kernel, x.shape[3] // groups))
        y = self.emit("Conv", (x, w), attrs)
        self.layers.append(("conv", (x, w, y), attrs))
        if clip:
            z = self.emit("Clip", (y,), RELU6)
            self.layers.append(("clip", (y, z), None))
            y = z
        return y

    def block(self, x: Value, expansion: int, channels: int, stride: int) -> Value:
        y = self.conv(x, x.shape[3] * expansion, 1, 1, 1, clip=True) if expansion > 1 else x
        y = self.conv(y, y.shape[3], 3, stride, y.shape[3], clip=True)
        y = self.conv(y, channels, 1, 1, 1, clip=False)
        if y.shape == x.shape:
            z = self.emit("Add", (x, y))
            self.layers.append(("add", (x, y, z), None))
            y = z
        return y

    def update(self, w: Value, gradient: Value, rate: Value) -> None:
        if self.late:
            self.pending.append((w, gradient))
            return
        self.state.append(w)
        if not self.momentum:
            self.updates.append((w, self.emit("SgdUpdate", (w, gradient, rate), SgdAttrs())))
            return
        v = self.weight(w.shape)
        self.state.append(v)
        new = self.builder.emit_all("MomentumUpdate", (w, v, gradient, rate), SgdAttrs(momentum=0.9))
        self.updates += [(w, new[0]), (v, new[1])]

    def backward(self, dy: Value, rate: Value) -> None:
        """Walk back over the layers; stop below the deepest trained convolution."""
        convs = [layer for layer in self.layers if layer[0] == "conv"]
        trained = {layer[1][1].name for layer in convs[-self.trained :]}
        deepest = self.layers.index(convs[-self.trained :][0])
        grads: dict[str, Value] = {self.layers[-1][1][-1].name: dy}
        for index in range(len(self.layers) - 1, deepest - 1, -1):
            kind, values, attrs = self.layers[index]
            gradient = grads.pop(values[-1].name)
            if kind == "add":
                for value in values[:2]:
                    self.collect(grads, value, gradient)
            elif kind == "clip":
                self.collect(grads, values[0], self.emit("ClipGrad", (gradient, values[1]), RELU6))
            else:
                x, w, _ = values
                if w.name in trained:
                    self.update(w, self.emit("ConvGradWeight", (x, gradient), attrs), rate)
                if index > deepest:
                    back = ConvGradInputAttrs(attrs, (x.shape[1], x.shape[2]))
                    self.collect(grads, x, self.emit("ConvGradInput", (gradient, w), back))

    def collect(self, grads: dict[str, Value], value: Value, gradient: Value) -> None:
        known = grads.get(value.name)
        grads[value.name] = gradient if known is None else self.emit("Add", (known, gradient))


def _blocks(width: float, depth: int) -> list[tuple[int, int, int]]:
    """(expansion, channels, stride) of every block."""
    return [
        (expansion, max(8, int(channels * width)), stride if i == 0 else 1)
        for expansion, channels, repeats, stride in MOBILENET
        for i in range(repeats * depth)
    ]


def training_graph(
    blocks: int = 17,
    trained: int = 1000,
    side: int = 96,
    width: float = 1.0,
    depth: int = 1,
    momentum: bool = False,
    late: bool = False,
) -> tuple[Graph, str]:
    """An inverted-residual classifier's training step, and the loss's name. `late`: all updates after the backward."""
    net = _Net(trained, momentum, late)
    x = Value(net.builder.unique("image"), (1, side, side, 3), "float32", "NHWC")
    label = Value(net.builder.unique("label"), (1,), "int32")
    rate = net.builder.constant("rate", np.float32(0.1).reshape(()))
    y = net.conv(x, max(8, int(16 * width)), 3, 2, 1, clip=True)
    for expansion, channels, stride in _blocks(width, depth)[:blocks]:
        y = net.block(y, expansion, channels, stride)
    pixels = y.shape[1] * y.shape[2]
    pooled = net.emit("Reduce", (y,), ReduceAttrs((1, 2), 1.0 / pixels))
    flat = net.emit("Reshape", (pooled,), ReshapeAttrs((1, y.shape[3])))
    head = net.weight((10, y.shape[3]))
    logits = net.emit("Gemm", (flat, head), GemmAttrs(bias=False))
    logp = net.emit("LogSoftmax", (logits,), AxisAttrs(1))
    nll = NllAttrs(1, "mean", None)
    loss = net.emit("NegativeLogLikelihood", (logp, label), nll)
    one = net.builder.constant("one", np.ones((), np.float32))
    dlogp = net.emit("NegativeLogLikelihoodGrad", (one, label), NllGradAttrs(nll, logp.shape))
    dlogits = net.emit("LogSoftmaxGrad", (dlogp, logp), AxisAttrs(1))
    dflat = net.emit("GemmGradInput", (dlogits, head), GemmAttrs(bias=False))
    net.update(head, net.emit("GemmGradWeight", (flat, dlogits)), rate)
    dpooled = net.emit("Reshape", (dflat,), ReshapeAttrs(pooled.shape))
    net.backward(net.emit("Expand", (dpooled,), ExpandAttrs(y.shape, 1.0 / pixels)), rate)
    net.late = False
    for w, gradient in net.pending:
        net.update(w, gradient, rate)
    state = (rate, *net.state)
    graph = Graph(
        "net",
        tuple(net.builder.nodes),
        (x, label),
        (logits,),
        net.builder.constants,
        state,
        state,
        (),
        tuple(net.updates),
        label=label.name,
    )
    return graph, loss.name
