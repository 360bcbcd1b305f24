"""Small networks for the tests of training, and questions about their training graphs."""

from __future__ import annotations

import onnx

from testing.networks.models import Network
from tinytrain_compile.ir.stages import TrainGraph


def ops(train: TrainGraph) -> list[str]:
    return [node.op for node in train.graph.nodes]


def count(train: TrainGraph, op: str) -> int:
    return ops(train).count(op)


def updated(train: TrainGraph) -> set[str]:
    """Names of the updated parameters (without learning rate and moments)."""
    return {old.name for old, _ in train.graph.updates if old in train.graph.parameters or ".updated" in old.name}


def convs(relu: bool = True) -> onnx.ModelProto:
    """Three convolutions, a pool and a dense layer: c0, c1, c2, fc."""
    net = Network("convs", "float[1, 2, 8, 8] x", "float[1, 3] y", seed=7)
    x = "x"
    for i in range(3):
        channels = 2 if i == 0 else 4
        weight, bias = net.weight(f"c{i}_weight", 4, channels, 3, 3), net.near(f"c{i}_bias", 0.0, 0.1, 4)
        x = net.node(f"c{i}/Conv", f"c{i} = Conv <pads = [1, 1, 1, 1]> ({x}, {weight}, {bias})")
        x = net.relu(x) if relu else x
    pooled = net.node("pool", f"pooled = GlobalAveragePool ({x})")
    flat = net.node("flat", f"flat = Flatten ({pooled})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 4, 3)})")
    return net.model()


def shared_weight() -> onnx.ModelProto:
    """One weight that two dense layers read."""
    net = Network("shared", "float[1, 5] x", "float[1, 3] y", seed=8)
    weight, bias = net.weight("tied", 5, 5), net.near("tied_bias", 0.0, 0.1, 5)
    first = net.node("first/Gemm", f"a = Gemm <transB = 1> (x, {weight}, {bias})")
    activated = net.node("first/Tanh", f"t = Tanh ({first})")
    second = net.node("second/Gemm", f"b = Gemm <transB = 1> ({activated}, {weight}, {bias})")
    net.node("logits", f"y = Identity ({net.dense('head', second, 5, 3)})")
    return net.model()


def branches() -> onnx.ModelProto:
    """A residual branch: relu(dense(h) + h), where h is read twice."""
    net = Network("branches", "float[1, 6] x", "float[1, 3] y", seed=9)
    h = net.relu(net.dense("stem", "x", 6, 6))
    total = net.node("add", f"total = Add ({net.dense('side', h, 6, 6)}, {h})")
    net.node("logits", f"y = Identity ({net.dense('head', net.relu(total), 6, 3)})")
    return net.model()
