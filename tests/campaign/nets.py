"""Random networks that can be trained: layers whose shapes fit, drawn one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx

from testing.networks import models
from testing.networks.models import Network, with_loss
from tests.campaign import newer_layers as newer

Shape = tuple[int, ...]
CLASSES = (2, 3, 5)


@dataclass(frozen=True)
class Drawn:
    """A network, and the losses that its output can have ("" for one that is to end in its own loss).

    own: class weights, reduction and ignored class of that loss.
    """

    model: onnx.ModelProto
    losses: tuple[str, ...]
    own: tuple[list[float] | None, str, int | None] = (None, "", None)

    def finished(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The model (or another form of it), with its own loss if it has one."""
        return with_loss(model, *self.own) if self.own[1] else model


class Grower:
    """A network that grows from its input; `x` and `shape` are its end (ONNX order, batch 1)."""

    def __init__(self, source: Random, shape: Shape) -> None:
        self.source = source
        self.net = Network("net", f"float[{', '.join(map(str, shape))}] x", "", seed=source.randrange(1 << 30))
        self.x, self.shape = "x", shape
        self._count = 0

    def name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def done(self, kind: str, line: str, shape: Shape | None = None) -> None:
        """A node that follows the end; `line` without its output."""
        name = self.name(kind)
        self.x, self.shape = self.net.node(f"{name}/{kind}", f"{name} = {line}"), shape or self.shape

    def finish(self, output: str, shape: Shape) -> onnx.ModelProto:
        """The model, its output named y."""
        self.net.node("output", f"y = {output}")
        return self.net.model(output=f"float[{', '.join(map(str, shape))}] y")

    # ---- any shape -------------------------------------------------------------------------------------------------

    def other(self) -> None:
        """One of the layers that came later."""
        kinds = [newer.smooth, newer.smooth, newer.choice, newer.power, newer.dropout]
        kinds += [newer.unit_length] if len(self.shape) < 4 else [newer.normed_conv]
        kinds += [newer.cell] if len(self.shape) == 3 else []
        self.source.choice(kinds)(self)

    def activation(self) -> None:
        x, net, name = self.x, self.net, self.name("limit")
        kind = self.source.randrange(11)
        if kind < 5:
            return self.done("act", f"{('Relu', 'Relu', 'Tanh', 'Sigmoid', 'HardSwish')[kind]} ({x})")
        if kind == 5:
            low, high = (net.table(f"{name}_{end}", v, np.float32) for end, v in (("low", 0.0), ("high", 6.0)))
            return self.done("clip", f"Clip ({x}, {low}, {high})")
        if kind == 6:
            return self.done("leaky", f"LeakyRelu <alpha = 0.125> ({x})")
        if kind == 7:
            gate = self.net.node(f"{name}/gate", f"{name}_gate = Sigmoid ({x})")
            return self.done("silu", f"Mul ({x}, {gate})")
        if kind == 8:
            return self.done("hard", f"HardSigmoid <alpha = 0.25, beta = 0.5> ({x})")
        if kind == 9:
            slope = net.near(f"{name}_slope", 0.3, 0.05, *(self.shape[1], *[1] * (len(self.shape) - 2)))
            return self.done("prelu", f"PRelu ({x}, {slope})")
        return self.done("erf", f"Erf ({x})")

    def affine(self) -> None:
        """A parameter that is added or multiplied, of all axes or of the last."""
        shape = self.shape[1:] if self.source.randrange(2) else self.shape[-1:]
        op = self.source.choice(("Add", "Mul"))
        factor = self.net.near(self.name("factor"), float(op == "Mul"), 0.2, *shape)
        operands = [self.x, factor]
        self.source.shuffle(operands)
        self.done(op.lower(), f"{op} ({', '.join(operands)})")

    def residual(self) -> None:
        """What is here now, through one or two layers that keep its shape, and added (or multiplied) to itself."""
        before, shape = self.x, self.shape
        for _ in range(self.source.choice((1, 2))):
            self.keep()
        assert self.shape == shape
        op = self.source.choice(("Add", "Add", "Mul", "Sub"))
        self.done("join", f"{op} ({before}, {self.x})")

    def keep(self) -> None:
        """A layer that keeps the shape."""
        choices = [self.activation, self.affine]
        if len(self.shape) == 4:
            choices += [lambda: self.conv(same=True)] * 3 + [self.instance]
        else:
            choices += [lambda: self.dense(self.shape[-1])] * 3 + [self.layer_norm]
        self.source.choice(choices)()

    # ---- images ----------------------------------------------------------------------------------------------------

    def conv(self, same: bool = False) -> None:
        channels, height, width = self.shape[1:]
        out = channels if same else self.source.choice((2, 3, 4, 6))
        depthwise = self.source.randrange(4) == 0
        group = channels if depthwise else 2 if channels % 2 == out % 2 == 0 and self.source.randrange(4) == 0 else 1
        out = channels if depthwise else out
        kernel = self.source.choice((1, 3, 3)) if min(height, width) > 2 else 1
        stride = 1 if same or kernel == 1 or min(height, width) < 5 else self.source.choice((1, 2))
        wide = not same and kernel == 3 and min(height, width) > 5 and self.source.randrange(6) == 0
        pad = kernel // 2 * (1 + wide)
        name = self.name("conv")
        weight = self.net.weight(f"{name}_weight", out, channels // group, kernel, kernel)
        attributes = f"group = {group}, strides = [{stride}, {stride}], dilations = [{1 + wide}, {1 + wide}]"
        attributes += f", pads = [{pad}, {pad}, {pad}, {pad}]"
        bias = f", {self.net.near(f'{name}_bias', 0.0, 0.1, out)}" if self.source.randrange(2) else ""
        size = tuple(-(-d // stride) for d in (height, width))
        self.done("conv", f"Conv <{attributes}> ({self.x}, {weight}{bias})", (1, out, *size))
        if self.source.randrange(3) == 0:
            parts = [("gamma", 1.0, 0.1), ("beta", 0.1, 0.2), ("mean", 0.0, 0.1), ("var", 1.0, 0.02)]
            names = ", ".join(self.net.near(f"{name}_{part}", centre, spread, out) for part, centre, spread in parts)
            self.done("norm", f"BatchNormalization ({self.x}, {names})")

    def instance(self) -> None:
        name, channels = self.name("instance"), self.shape[1]
        gamma, beta = self.net.near(f"{name}_g", 1.0, 0.1, channels), self.net.near(f"{name}_b", 0.0, 0.1, channels)
        self.done("instance", f"InstanceNormalization ({self.x}, {gamma}, {beta})")

    def pool(self) -> None:
        if min(self.shape[2:]) < 4:
            return
        op = self.source.choice(("MaxPool", "AveragePool"))
        overlap = self.source.randrange(3) == 0
        attributes = "kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1"
        if overlap:
            attributes = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"
            attributes += ", count_include_pad = 1" if op == "AveragePool" and self.source.randrange(2) else ""
        size = tuple(-(-d // 2) for d in self.shape[2:])
        self.done("pool", f"{op} <{attributes}> ({self.x})", (*self.shape[:2], *size))

    def branches(self) -> None:
        """Two ways that are joined: channels of images, features of vectors."""
        before, shape = self.x, self.shape
        ends: list[tuple[str, Shape]] = []
        for _ in range(2):
            self.x, self.shape = before, shape
            self.keep()
            ends.append((self.x, self.shape))
        joined = (1, 2 * shape[1], *shape[2:])
        self.done("concat", f"Concat <axis = 1> ({ends[0][0]}, {ends[1][0]})", joined)

    def squeeze(self) -> None:
        """Squeeze and excite: every channel weighed by what a mean over its pixels says."""
        before, shape, channels, name = self.x, self.shape, self.shape[1], self.name("se")
        self.done("mean", f"GlobalAveragePool ({self.x})", (1, channels, 1, 1))
        weight = self.net.weight(f"{name}_weight", channels, channels, 1, 1)
        self.done("excite", f"Conv ({self.x}, {weight})")
        self.done("gate", f"{self.source.choice(('Sigmoid', 'HardSigmoid'))} ({self.x})")
        self.done("weigh", f"Mul ({before}, {self.x})", shape)

    def up(self) -> None:
        if max(self.shape[2:]) > 6:
            return
        name, channels, out = self.name("up"), self.shape[1], self.source.choice((2, 3))
        weight = self.net.weight(f"{name}_weight", channels, out, 2, 2, fan_in=channels)
        size = tuple(2 * d for d in self.shape[2:])
        self.done("up", f"ConvTranspose <strides = [2, 2]> ({self.x}, {weight})", (1, out, *size))

    def cut(self) -> None:
        """Half of the channels or features; the other half too, by Split, or not, by Slice."""
        size = self.shape[1]
        if size < 4:
            return
        half, name = size // 2, self.name("cut")
        shape = (1, half, *self.shape[2:])
        if self.source.randrange(2):
            begin, end, axis = (self.net.table(f"{name}_{i}", [v]) for i, v in enumerate((size - half, size, 1)))
            return self.done("slice", f"Slice ({self.x}, {begin}, {end}, {axis})", shape)
        parts = self.net.table(f"{name}_parts", [half, size - half])
        self.net.node(f"{name}/Split", f"{name}_a, {name}_b = Split <axis = 1> ({self.x}, {parts})")
        ends = f"({name}_a, {name}_b)" if size == 2 * half else f"({name}_a, {name}_a)"
        return self.done("halves", f"{self.source.choice(('Mul', 'Add'))} {ends}", shape)

    # ---- features and tokens ---------------------------------------------------------------------------------------

    def dense(self, out: int = 0) -> None:
        inputs, name = self.shape[-1], self.name("dense")
        out = out or self.source.choice((3, 4, 6, 8))
        shape = (*self.shape[:-1], out)
        if len(self.shape) == 2 and self.source.randrange(2):
            weight = self.net.weight(f"{name}_weight", out, inputs)
            bias = f", {self.net.near(f'{name}_bias', 0.0, 0.1, out)}" if self.source.randrange(4) else ""
            return self.done("gemm", f"Gemm <transB = 1> ({self.x}, {weight}{bias})", shape)
        weight = self.net.weight(f"{name}_weight", inputs, out, fan_in=inputs)
        return self.done("matmul", f"MatMul ({self.x}, {weight})", shape)

    def tied(self) -> None:
        """One square weight used twice, the second time perhaps transposed."""
        width, name = self.shape[-1], self.name("tied")
        weight = self.net.weight(name, width, width)
        self.done("first", f"MatMul ({self.x}, {weight})")
        self.activation()
        if self.source.randrange(2):
            turned = f"{name}_turned"
            weight = self.net.node(f"{name}/Transpose", f"{turned} = Transpose <perm = [1, 0]> ({weight})")
        self.done("second", f"MatMul ({self.x}, {weight})")

    def layer_norm(self) -> None:
        name, width = self.name("layer_norm"), self.shape[-1]
        gamma, beta = self.net.near(f"{name}_g", 1.0, 0.1, width), self.net.near(f"{name}_b", 0.0, 0.1, width)
        self.done("norm", f"LayerNormalization <axis = -1> ({self.x}, {gamma}, {beta})")

    def attention(self) -> None:
        """One head, over the tokens."""
        width, name, before = self.shape[-1], self.name("attention"), self.x
        ends = []
        for part in ("query", "key", "value"):
            weight = self.net.weight(f"{name}_{part}", width, width)
            ends.append(self.net.node(f"{name}/{part}", f"{name}_{part}_rows = MatMul ({before}, {weight})"))
        turned = self.net.node(f"{name}/turn", f"{name}_turn = Transpose <perm = [0, 2, 1]> ({ends[1]})")
        scores = self.net.node(f"{name}/scores", f"{name}_scores = MatMul ({ends[0]}, {turned})")
        soft = self.net.node(f"{name}/soft", f"{name}_soft = Softmax <axis = -1> ({scores})")
        self.done("mix", f"MatMul ({soft}, {ends[2]})")


ALL = ("cross-entropy", "mse", "bce")
KNOWN: tuple[tuple[Callable[[], onnx.ModelProto], tuple[str, ...]], ...] = (
    (models.mlp, ALL),
    (lambda: models.ds_cnn(channels=6, blocks=1, size=(11, 5)), ALL),
    (lambda: models.resnet8(channels=3, size=10), ALL),
    (lambda: models.transformer(tokens=3, width=6, heads=3), ALL),
    (lambda: models.segmenter(size=6), ALL),
    (lambda: models.dense_features(12, 6, 2), ALL),
    (lambda: models.tower(8, 3), ALL),
    (models.zoo, ALL),
)
"""Architectures that people use, in small."""


def random_net(source: Random) -> Drawn:
    """Images, vectors or tokens; a class, a value or an image of classes; perhaps with a loss of its own."""
    family = source.randrange(12)
    if family == 0:
        make, losses = source.choice(KNOWN)
        return Drawn(make(), losses)
    if family < 6:
        return _of_images(source)
    return _of_features(source) if family < 10 else _of_tokens(source)


def image_net(source: Random) -> Drawn:
    """Of the kind that int8 is for."""
    return _of_images(source, plain=True)


def _of_images(source: Random, plain: bool = False) -> Drawn:
    g = Grower(source, (1, source.choice((1, 2, 3)), source.choice((4, 6, 7, 9)), source.choice((4, 6, 8))))
    g.conv()
    steps = [g.conv, g.conv, g.activation, g.activation, g.pool, g.residual]
    steps += [] if plain else [g.branches, g.squeeze, g.up, g.cut, g.instance, g.affine, g.other]
    for _ in range(source.randrange(1, 6)):
        source.choice(steps)()
    if not plain and source.randrange(5) == 0:
        return _per_pixel(g)
    if source.randrange(3):
        g.done("mean", f"GlobalAveragePool ({g.x})", (*g.shape[:2], 1, 1))
    g.done("flat", f"Flatten <axis = 1> ({g.x})", (1, int(np.prod(g.shape))))
    return _head(g)


def _of_features(source: Random) -> Drawn:
    g = Grower(source, (1, source.choice((3, 5, 8, 12))))
    g.dense()
    steps = [
        g.dense,
        g.dense,
        g.activation,
        g.activation,
        g.residual,
        g.branches,
        g.layer_norm,
        g.tied,
        g.cut,
        g.affine,
        g.other,
    ]
    for _ in range(source.randrange(1, 6)):
        source.choice(steps)()
    return _head(g)


def _of_tokens(source: Random) -> Drawn:
    g = Grower(source, (1, source.choice((2, 3, 5)), source.choice((4, 6))))
    steps = [g.dense, g.activation, g.residual, g.layer_norm, g.tied, g.attention, g.affine, g.other, g.other]
    for _ in range(source.randrange(1, 5)):
        source.choice(steps)()
    if source.randrange(2):
        g.done("mean", f"ReduceMean <axes = [1], keepdims = 0> ({g.x})", (1, g.shape[-1]))
    else:
        g.done("flat", f"Flatten <axis = 1> ({g.x})", (1, g.shape[1] * g.shape[2]))
    return _head(g)


def joined_net(source: Random) -> Drawn:
    """Two to four inputs, images or features, whose ways meet before the last layers."""
    ends: list[tuple[str, Shape]] = []
    inputs = [_input_shape(source) for _ in range(source.choice((2, 2, 3, 4)))]
    g = Grower(source, inputs[0])
    said = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in zip("xabc", inputs, strict=False))
    g.net = Network("net", said, "", seed=source.randrange(1 << 30))
    for name, shape in zip("xabc", inputs, strict=False):
        g.x, g.shape = name, shape
        if len(shape) == 4:
            g.conv()
            g.activation()
            g.done("mean", f"GlobalAveragePool ({g.x})", (*g.shape[:2], 1, 1))
            g.done("flat", f"Flatten <axis = 1> ({g.x})", (1, g.shape[1]))
        else:
            g.dense()
        ends.append((g.x, g.shape))
    width = sum(shape[1] for _, shape in ends)
    g.done("concat", f"Concat <axis = 1> ({', '.join(name for name, _ in ends)})", (1, width))
    for _ in range(source.randrange(3)):
        source.choice([g.dense, g.activation, g.residual, g.layer_norm, lambda: newer.selection(g)])()
    return _head(g)


def _input_shape(source: Random) -> Shape:
    if source.randrange(3) == 0:
        return (1, source.choice((1, 2, 3)), source.choice((4, 6, 7)), source.choice((4, 6)))
    return (1, source.choice((3, 5, 8)))


def unlabelled_net(source: Random) -> onnx.ModelProto:
    """A network that ends in a loss of its own that reads no labels: what it gives against its input, or a penalty."""
    width = source.choice((3, 5, 8))
    g = Grower(source, (1, width))
    for _ in range(source.randrange(1, 4)):
        source.choice([g.dense, g.activation, g.residual, g.layer_norm])()
    g.dense(width)
    kind, net = source.choice(("square", "absolute", "entropy")), g.net
    if kind == "entropy":
        chances = net.node("logs", f"logs = LogSoftmax <axis = 1> ({g.x})")
        net.node("exp", f"chances = Exp ({chances})")
        net.node("terms", "terms = Mul (chances, logs)")
        net.node("minus", "each = Neg (terms)")
    else:
        net.node("apart", f"apart = Sub ({g.x}, x)")
        net.node("each", "each = Mul (apart, apart)" if kind == "square" else "each = Abs (apart)")
    net.node("loss", f"loss = {source.choice(('ReduceMean', 'ReduceSum'))} <keepdims = 0> (each)")
    return net.model(output="float loss")


def _per_pixel(g: Grower) -> Drawn:
    classes = g.source.choice(CLASSES)
    weight = g.net.weight("pixel_weight", classes, g.shape[1], 1, 1)
    shape = (1, classes, *g.shape[2:])
    model = g.finish(f"Conv ({g.x}, {weight})", shape)
    return _with_loss(g, model, classes, ALL)


def _head(g: Grower) -> Drawn:
    """A dense layer to classes or values, perhaps with an activation that belongs to the loss."""
    source = g.source
    outputs = source.choice((1, *CLASSES, *CLASSES))
    g.dense(outputs)
    tail = source.choice(("", "", "", "Softmax", "Sigmoid", "Tanh"))
    if outputs == 1:
        tail = "" if tail == "Softmax" else tail
        return Drawn(
            g.finish(f"{tail or 'Identity'} ({g.x})", g.shape), ("bce",) if tail == "Sigmoid" else ("mse", "bce")
        )
    losses = {"": ALL, "Softmax": ("cross-entropy",), "Sigmoid": ("bce",), "Tanh": ("mse",)}
    model = g.finish(f"{tail or 'Identity'} ({g.x})", g.shape)
    return _with_loss(g, model, outputs, losses[tail]) if not tail else Drawn(model, losses[tail])


def _with_loss(g: Grower, model: onnx.ModelProto, classes: int, losses: tuple[str, ...]) -> Drawn:
    """In a fifth of the cases the model is to end in its own loss, with weights, a reduction and a class to ignore."""
    source = g.source
    if source.randrange(5):
        return Drawn(model, losses)
    weights = [source.choice((0.25, 0.5, 1.0, 2.0)) for _ in range(classes)] if source.randrange(2) else None
    ignore = source.randrange(classes) if source.randrange(3) == 0 else None
    return Drawn(model, ("",), (weights, source.choice(("mean", "sum")), ignore))
