"""Small networks for int8 tests, and the stages that turn a float model into an int8 training graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from testing.networks.models import Network, with_loss
from tests.e2e import chain
from tests.frontend.qdq import Maker
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import OPS, shown_name
from tinytrain_compile.ops.int8.loss import LOSSES
from tinytrain_compile.quantize import QuantOptions, WeightStore, calibrate, prepare, quantise
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

APART = "kernel_shape = [2, 2], strides = [2, 2]"
OVERLAPPING = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"
"""Windows of a pool."""


def cnn(
    size: int = 8, channels: int = 6, classes: int = 5, pool: str = "AveragePool", window: str = APART
) -> onnx.ModelProto:
    """Conv, depthwise conv, pointwise conv, residual Add, pool, conv with Clip 0..6, mean, head."""
    net = Network("cnn", f"float[1, 3, {size}, {size}] x", f"float[1, {classes}] y", seed=11)
    same = "pads = [1, 1, 1, 1]"
    stem = net.relu(net.conv("stem", "x", (channels, 3, 3, 3), same))
    deep = net.relu(net.conv("deep", stem, (channels, 1, 3, 3), f"group = {channels}, {same}"))
    point = net.conv("point", deep, (channels, channels, 1, 1), "pads = [0, 0, 0, 0]")
    x = net.relu(net.node("join", f"join = Add ({point}, {stem})"))
    x = net.node("pool", f"pooled = {pool} <{window}> ({x})")
    x = net.conv("last", x, (2 * channels, channels, 3, 3), f"{same}, strides = [2, 2]")
    low, high = net.table("low", 0.0, np.float32), net.table("high", 6.0, np.float32)
    x = net.node("clip", f"clipped = Clip ({x}, {low}, {high})")
    mean = net.node("mean", f"mean = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({mean})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 2 * channels, classes)})")
    return net.model()


def pixels(weights: list[float] | None = None, reduction: str = "mean", ignore: int | None = None) -> onnx.ModelProto:
    """Two convolutions that give every one of 16 pixels a class of three, and the model's own loss of these."""
    net = Network("pixels", "float[1, 2, 4, 4] x", "float[1, 3, 4, 4] y", seed=15)
    x = net.relu(net.conv("first", "x", (4, 2, 3, 3), "pads = [1, 1, 1, 1]"))
    net.node("logits", f"y = Identity ({net.conv('second', x, (3, 4, 1, 1), 'pads = [0, 0, 0, 0]')})")
    return with_loss(net.model(), weights, reduction, ignore)


def float_regions(size: int = 6, channels: int = 4, classes: int = 3) -> onnx.ModelProto:
    """Convolutions with hard swish, sigmoid, layer norm and softmax between them."""
    net = Network("regions", f"float[1, 2, {size}, {size}] x", f"float[1, {classes}] y", seed=12)
    same = "pads = [1, 1, 1, 1]"
    a = net.conv("first", "x", (channels, 2, 3, 3), same)
    a = net.node("swish", f"swished = HardSwish ({a})")
    b = net.conv("second", a, (channels, channels, 3, 3), same)
    gate = net.node("gate", f"gate = Sigmoid ({b})")
    x = net.node("mix", f"mixed = Mul ({a}, {gate})")
    x = net.relu(net.conv("third", x, (channels, channels, 1, 1), "pads = [0, 0, 0, 0]"))
    x = net.layer_norm("norm", x, size)
    x = net.conv("fourth", x, (channels, channels, 1, 1), "pads = [0, 0, 0, 0]")
    x = net.node("weigh", f"weighed = Softmax <axis = 1> ({x})")
    x = net.relu(net.conv("fifth", x, (channels, channels, 1, 1), "pads = [0, 0, 0, 0]"))
    mean = net.node("mean", f"mean = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({mean})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, channels, classes)})")
    return net.model()


def named(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, its nameless nodes named after operator and position."""
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    return model


def quantised() -> onnx.ModelProto:
    """A QDQ model: conv with a fused ReLU, depthwise conv, residual add of different scales, mean, dense layer."""
    m = Maker(7)
    x, a, b, s = m.scale("x", 2 / 255), m.scale("a", 0.03, -128), m.scale("b", 0.04, 3), m.scale("s", 0.05, -11)
    p, y = m.scale("p", 0.02, -20), m.scale("y", 0.05, 5)
    w, d, f = m.weight("w", (4, 3, 3, 3), 4), m.weight("d", (4, 1, 3, 3), 4), m.weight("f", (5, 4), 5)
    bias = m.bias("bias", 4, 2 / 255, "w")
    text = f"""net (float[1, 3, 8, 8] input) => (float[1, 5] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear<axis = 0>(w, {w})
        bd = DequantizeLinear<axis = 0>(bias, {bias})
        c = Conv<pads = [1, 1, 1, 1]>(xd, wd, bd)
        aq = QuantizeLinear(c, {a})
        ad = DequantizeLinear(aq, {a})
        dd = DequantizeLinear<axis = 0>(d, {d})
        e = Conv<group = 4, pads = [1, 1, 1, 1]>(ad, dd)
        bq = QuantizeLinear(e, {b})
        bd2 = DequantizeLinear(bq, {b})
        sum = Add(ad, bd2)
        sq = QuantizeLinear(sum, {s})
        sd = DequantizeLinear(sq, {s})
        mean = GlobalAveragePool(sd)
        pq = QuantizeLinear(mean, {p})
        pd = DequantizeLinear(pq, {p})
        flat = Flatten(pd)
        fd = DequantizeLinear<axis = 0>(f, {f})
        g = Gemm<transB = 1>(flat, fd)
        yq = QuantizeLinear(g, {y})
        output = DequantizeLinear(yq, {y})
        }}"""
    model = m.model(text)
    return named(model)


def symmetric_relu() -> onnx.ModelProto:
    """A QDQ model with symmetric activations (zero point 0 everywhere) and ReLUs of its own: these end at 0."""
    m = Maker(8)
    x, a, b = m.scale("x", 2 / 255), m.scale("a", 0.03), m.scale("b", 0.04)
    w, p, f = m.weight("w", (4, 3, 3, 3), 4), m.weight("p", (6, 4, 1, 1), 6), m.weight("f", (5, 6), 5)
    model = m.model(f"""net (float[1, 3, 8, 8] input) => (float[1, 5] output) {{
        xq = QuantizeLinear(input, {x})
        xd = DequantizeLinear(xq, {x})
        wd = DequantizeLinear<axis = 0>(w, {w})
        c = Conv<pads = [1, 1, 1, 1]>(xd, wd)
        r = Relu(c)
        aq = QuantizeLinear(r, {a})
        ad = DequantizeLinear(aq, {a})
        pd = DequantizeLinear<axis = 0>(p, {p})
        e = Conv(ad, pd)
        s = Relu(e)
        bq = QuantizeLinear(s, {b})
        bd = DequantizeLinear(bq, {b})
        mean = GlobalAveragePool(bd)
        flat = Flatten(mean)
        fd = DequantizeLinear<axis = 0>(f, {f})
        output = Gemm<transB = 1>(flat, fd)
        }}""")
    return named(model)


def calibration(model: onnx.ModelProto, count: int = 16, seed: int = 3) -> np.ndarray:
    """Standard normal samples in ONNX layout."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(seed).standard_normal((count, *shape[1:])).astype(np.float32)


def prepared(model: onnx.ModelProto, head: str = "fp32") -> ImportedModel:
    """The float graph with formats, and with the saturation that a file says."""
    known = chain.imported(model)
    graph = known.graph
    if not known.quantised:
        count = 16 if known.graph.inputs[0].elements < 10_000 else 1
        samples = calibration(model, count).transpose(known.input_perm)
        graph = calibrate(graph, samples, floats=known.floats)
    return replace(known, graph=prepare(graph, head == "fp32", known.quantised))


def float_train(model: onnx.ModelProto, update: str = "all", head: str = "fp32", **options: object) -> TrainGraph:
    """The float32 training graph of what int8 will run: not rounded, and saturated only where a file says so."""
    known = prepared(model, head)
    return build_training(known, resolve_update(known.graph, update), TrainingOptions(**options))  # type: ignore[arg-type]


def int8_train(
    model: onnx.ModelProto,
    update: str = "all",
    head: str = "fp32",
    seed: int = 0,
    store: WeightStore = "sr8",
    rescale: bool = False,
    **options: object,
) -> TrainGraph:
    """The int8 training graph."""
    return quantise(float_train(model, update, head, **options), QuantOptions(seed, store, rescale))


ERROR_OPS = tuple(name for name, definition in OPS.items() if definition.error is not None)
"""Ops that make an error."""


def nodes_of(train: TrainGraph, *ops: str) -> list[Node]:
    """Nodes of these ops, or forms of ops, in order."""
    return [node for node in train.graph.nodes if shown_name(node) in ops]


def float_nodes(train: TrainGraph) -> list[Node]:
    """List nodes that compute in float32: the head, the loss, and what has no integer form."""
    if not train.integer:
        return []
    floats = (n for n in train.graph.nodes if any(v.dtype == "float32" for v in n.outputs))
    return [n for n in floats if not OPS[n.op].view and n.op not in LOSSES]
