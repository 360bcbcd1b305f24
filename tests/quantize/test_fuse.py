"""Biases that are added behind the products of an encoder become part of their layers (others: test_text.py)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx

from testing.networks import models
from tests.e2e import chain
from tests.quantize import nets
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.ops import infer
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.quantize.prepare import fuse_biases
from tinytrain_compile.sparse.select import layers_of

LINEAR = ("query", "key", "value", "project", "up", "down")


def encoder() -> onnx.ModelProto:
    return models.transformer(tokens=4, width=8, heads=2)


def output(graph: Graph, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(graph.inputs[0].shape)
    constants = {name: data.astype(np.float64) for name, data in graph.constants.items()}
    return run_nodes(graph.nodes, {**constants, graph.inputs[0].name: x})[graph.outputs[0].name]


def biased(graph: Graph) -> int:
    return sum(node.attrs == GemmAttrs(bias=True) for node in graph.nodes)


def test_all_linear_layers_of_an_encoder() -> None:
    before = chain.imported(encoder()).graph
    after = fuse_biases(before)
    check_graph(after, infer)
    assert (biased(before), biased(after)) == (1, 1 + len(LINEAR))
    assert len(before.nodes) - len(after.nodes) == len(LINEAR)
    np.testing.assert_allclose(output(after), output(before), rtol=1e-12)
    names = [{layer.name for layer in layers_of(graph)} for graph in (before, after)]
    assert names[0] == names[1], "schemes speak of the same layers"


def test_linear_layers_are_integers() -> None:
    train = nets.int8_train(encoder(), head="int8")
    found = Counter(shown_name(node) for node in train.graph.nodes)
    assert (found["QConv"], found["QConvUpdate"], found["QBiasUpdate"]) == (7, 7, 7)
    assert not found["Gemm"]
    stored = {v.name: v.dtype for v in train.graph.state}
    assert {stored[f"{name}_bias"] for name in LINEAR} == {"int32"}
    assert {stored[f"{name}_weight"] for name in LINEAR} == {"int8"}
