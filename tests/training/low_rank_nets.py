"""Training graphs in which every layer keeps a low-rank copy of its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from testing.networks.models import Network
from tests.e2e import chain
from tinytrain_compile.ir.activations import LowRank
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.names import operand
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training import TrainingOptions, build_training

RATE = 1.0


def few_patterns(path: Path) -> None:
    """24 samples for `kinds`, of three patterns with a little noise: low ranks are enough for them."""
    rng = np.random.default_rng(0)
    patterns = rng.standard_normal((3, 4, 10, 10))
    x = patterns[rng.integers(0, 3, 24)] + 0.05 * rng.standard_normal((24, 4, 10, 10))
    np.savez(path, x=x.astype(np.float32), y=rng.integers(0, 3, 24))


def kinds() -> onnx.ModelProto:
    """A 3x3 convolution with stride 2, a depthwise one, a grouped one, a 1x1 and a dense layer."""
    net = Network("kinds", "float[1, 4, 10, 10] x", "float[1, 3] y", seed=5)
    shapes = (
        ("dense3", (8, 4, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
        ("depthwise", (8, 1, 3, 3), "pads = [1, 1, 1, 1], group = 8"),
        ("grouped", (12, 4, 3, 1), "pads = [1, 0, 1, 0], group = 2"),
        ("point", (10, 12, 1, 1), ""),
    )
    x = "x"
    for name, shape, attributes in shapes:
        weight = net.weight(f"{name}_weight", *shape)
        text = f" <{attributes}>" if attributes else ""
        x = net.relu(net.node(f"{name}/Conv", f"{name} = Conv{text} ({x}, {weight})"))
    flat = net.node("flat", f"flat = Flatten ({x})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 250, 3)})")
    return net.model()


def points(shares: bool = False) -> onnx.ModelProto:
    """1x1 convolutions from few channels to many and back, and a dense layer; shares: two with one weight are between,
    of 16 channels."""
    net = Network("points", "float[1, 4, 8, 8] x", "float[1, 3] y", seed=7)
    layers = [("wide", net.weight("wide_weight", 16, 4, 1, 1)), ("narrow", net.weight("narrow_weight", 5, 16, 1, 1))]
    x = "x"
    if shares:
        weight = net.weight("both_weight", 16, 16, 1, 1)
        layers[1:1] = [("once", weight), ("again", weight)]
    for name, weight in layers:
        x = net.relu(net.node(f"{name}/Conv", f"{name} = Conv ({x}, {weight})"))
    flat = net.node("flat", f"flat = Flatten ({x})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 320, 3)})")
    return net.model()


def shared() -> onnx.ModelProto:
    """Two 3x3 convolutions with one weight, and a dense layer."""
    net = Network("shared", "float[1, 4, 10, 10] x", "float[1, 3] y", seed=6)
    weight, x = net.weight("both_weight", 4, 4, 3, 3), "x"
    for name in ("first", "second"):
        x = net.relu(net.node(f"{name}/Conv", f"{name} = Conv <pads = [1, 1, 1, 1]> ({x}, {weight})"))
    flat = net.node("flat", f"flat = Flatten ({x})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 400, 3)})")
    return net.model()


def graph(model: onnx.ModelProto, activations: Mapping[str, LowRank], rate: float = RATE, **options: Any) -> TrainGraph:
    known = chain.imported(model)
    plan = replace(resolve_update(known.graph, "all"), activations=activations)
    return build_training(known, plan, TrainingOptions(learning_rate=rate, **options))


def activations_of(train: TrainGraph) -> dict[str, tuple[int, ...]]:
    """Weight -> the shape of what its gradient reads."""
    shapes = {node.origin.partition("/")[0]: operand(node, "x").shape for node in train.graph.nodes if node.op in GRADS}
    return {name: shapes[name.removesuffix("_weight")] for name in train.trained if name.endswith("_weight")}


GRADS = ("ConvGradWeight", "GemmGradWeight")


def everywhere(train: TrainGraph, how: Callable[[tuple[int, ...]], LowRank]) -> dict[str, LowRank]:
    return {name: how(shape) for name, shape in activations_of(train).items()}
