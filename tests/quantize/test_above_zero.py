"""What a trained ReLU let pass is stored above zero, so that its mask passes the gradient (docs/adr/0036)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import onnx
import pytest

from testing.networks.models import Network
from tests.e2e.exact import check_exact, check_on
from tests.quantize import nets
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.int8.pointwise import plainly_rounded
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.ops.names import operands, result

ERRORS = ("QConvGradInput", "ErrorScale", "QuantizeError")
KINDS = tuple(op for op in OPS if any(field.name == "above" for field in fields(OPS[op].attrs)))
"""Operators whose sums may be rounded up to 1 if they are positive."""


def two_layers(clip: bool = False, mean: bool = False) -> onnx.ModelProto:
    """A 3x3 convolution with a ReLU (or a Clip), and a head that reads all of it (or its mean)."""
    net = Network("two", "float[1, 2, 6, 6] x", "float[1, 3] y", seed=4)
    x = net.conv("first", "x", (4, 2, 3, 3), "pads = [1, 1, 1, 1]")
    low, high = net.table("low", -0.5, np.float32), net.table("high", 6.0, np.float32)
    x = net.node("clip", f"clipped = Clip ({x}, {low}, {high})") if clip else net.relu(x)
    x = net.node("mean", f"mean = GlobalAveragePool ({x})") if mean else x
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({x})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 4 if mean else 144, 3)})")
    return net.model()


def above(train: TrainGraph) -> list[Node]:
    return [node for node in nets.nodes_of(train, *KINDS) if node.attrs.above]  # type: ignore[attr-defined]


def computed(train: TrainGraph, change: Callable[[Node], Node] = lambda node: node) -> dict[str, np.ndarray]:
    """Every value of a step on a faint image, without biases: most sums are within a step of zero, on either side.

    Errors are as fine as saturation allows, so that none rounds to 0.
    """
    graph = train.graph
    source, label = graph.inputs
    assert source.quant is not None
    faint = np.random.default_rng(8).integers(-2, 3, source.shape) + source.quant.zero
    feeds = {source.name: np.clip(faint, -128, 127).astype(np.int8), label.name: np.ones(label.shape, np.int32)}
    sums = {v.name: np.zeros(v.shape, np.int32 if v.dtype == "int32" else np.float32) for v in graph.accumulators}
    own = {operands(node)["bias"].name: 0 for node in nets.nodes_of(train, "QConv")}
    own |= {operands(node)["p_out"].name: -30 * k for k, node in enumerate(nets.nodes_of(train, *ERRORS), 1)}
    changed = {name: np.full_like(graph.constants[name], number) for name, number in own.items()}
    nodes = [change(node) for node in graph.nodes]
    return dict(run_nodes(nodes, {**graph.constants, **changed, **sums, **feeds}, True))


def sums_of(node: Node, values: dict[str, np.ndarray]) -> np.ndarray:
    """The integer sums (without bias) of a 3x3 convolution with a border, pixel by pixel and tap by tap."""
    attrs: Any = node.attrs
    x, w = (values[operands(node)[name].name].astype(int) for name in ("x", "w"))
    wide = np.pad(x - attrs.x_zero, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    rows = [[(wide[0, r : r + 3, c : c + 3] * w).sum(axis=(1, 2, 3)) for c in range(width)] for r in range(height)]
    return np.asarray(rows)[None]


def test_what_is_stored_tells_whether_the_sum_is_positive() -> None:
    train = nets.int8_train(two_layers())
    (node,) = above(train)
    values, plain = computed(train), computed(train, plainly_rounded)
    zero, name = node.attrs.y_zero, result(node, "y").name  # type: ignore[attr-defined]
    positive = sums_of(node, values) > 0
    lost = positive & (plain[name] == zero)
    assert lost.sum() > 10, "the case has sums that round to zero"
    assert ((values[name] > zero) == positive).all()
    assert (values[name][lost] == zero + 1).all()
    assert (values[name][~lost] == plain[name][~lost]).all(), "nothing else changes"


@pytest.mark.parametrize("mean", [False, True], ids=["map", "bits"])
def test_the_gradient_of_a_positive_sum_is_passed(mean: bool) -> None:
    """By the stored map, and by a mask of bits where nobody else keeps the map."""
    train = nets.int8_train(two_layers(mean=mean))
    (node,) = [node for node in above(train) if node.op == "QConv"]
    assert len(nets.nodes_of(train, "QClipMask")) == mean
    values, plain = computed(train), computed(train, plainly_rounded)
    gradient = nets.nodes_of(train, "ErrorScale")[-1]
    error = result(gradient, "error").name
    positive = sums_of(node, values) > 0
    lost = positive & (plain[result(node, "y").name] == node.attrs.y_zero)  # type: ignore[attr-defined]
    assert (values[error][~positive] == 0).all()
    assert (values[error][lost] != 0).mean() > 0.8
    assert (plain[error][lost] == 0).all(), "which is what it mends"


def test_only_where_a_gradient_passes_a_clamp_that_begins_at_zero() -> None:
    every = ["stem/Conv", "deep/Conv", "join", "pool", "last/Conv", "mean"]
    assert [node.origin for node in above(nets.int8_train(nets.cnn()))] == every
    assert [node.origin for node in above(nets.int8_train(nets.cnn(), "last:2"))] == ["last/Conv", "mean"]
    assert above(nets.int8_train(nets.cnn(), "head")) == []
    assert above(nets.int8_train(two_layers(clip=True))) == [], "-0.5 is no zero"
    assert len(above(nets.int8_train(nets.quantised()))) > 0, "the ReLU of a quantised model"


def test_host_and_reference_agree() -> None:
    train = nets.int8_train(nets.cnn())
    assert {node.op for node in above(train)} == set(KINDS)
    check_exact(check_on(train, "host", steps=3), 3)


def test_a_kernel_that_rounds_to_the_nearest_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C of the plain graph against the reference of this one."""
    train = nets.int8_train(two_layers())
    plain = replace(train, graph=replace(train.graph, nodes=tuple(map(plainly_rounded, train.graph.nodes))))
    name = result(above(train)[0], "y").name
    assert not np.array_equal(computed(train)[name], computed(plain)[name])
