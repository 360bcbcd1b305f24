"""Rewrites of a training step as text: the nodes that go in, and those that come out (`ir/text.py`)."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from testing.graph_lines import Shapes, lines, read, written
from testing.networks import models
from tests.e2e import chain
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ops.base import infer, new_builder, shown_name
from tinytrain_compile.training.rewrites import fold_frozen, fuse_updates, join_pieces, keep_masks


@pytest.fixture(scope="module")
def step() -> TrainGraph:
    """Some training step, for rewrites that take one."""
    return chain.train_graph(models.mlp(), "head")


RELU: Shapes = {"x": (1, 8), "y": (1, 8), "dy": (1, 8), "dx": (1, 8), "d2": (1, 8)}


@pytest.mark.parametrize(
    ("backward", "forward_after", "backward_after"),
    [
        (
            "dx = ClipGrad(dy; y) {'low': 0.0}",
            "y = Clip(x)\ny.mask = ClipMask(y)",
            "dx = MaskedGrad(dy; y.mask)",
        ),
        (
            "dx = ClipGrad(dy; y) {'low': 0.0}\nd2 = Mul(dx; y)",
            "y = Clip(x)",
            "dx = ClipGrad(dy; y)\nd2 = Mul(dx; y)",
        ),
        (
            "dx = ClipGrad(dy; y) {'low': 0.0}\nd2 = ClipGrad(dx; y) {'low': 0.0}",
            "y = Clip(x)\ny.mask = ClipMask(y)",
            "dx = MaskedGrad(dy; y.mask)\nd2 = MaskedGrad(dx; y.mask)",
        ),
    ],
    ids=["nobody else reads y", "another backward node reads y", "one mask serves two"],
)
def test_masks_of_clips(backward: str, forward_after: str, backward_after: str) -> None:
    graph = read(RELU, f"y = Clip(x) {{'low': 0.0}}\n{backward}")
    made = {node.outputs[0].name for node in graph.nodes}
    builder = new_builder({*made, *(value.name for value in graph.inputs)})
    forward, backward_nodes = keep_masks(builder, list(graph.nodes[:1]), list(graph.nodes[1:]))
    assert written(replace(graph, nodes=tuple(forward))) == lines(forward_after)
    assert written(replace(graph, nodes=tuple(backward_nodes))) == lines(backward_after)


SPLIT: Shapes = {"a": (1, 2), "b": (1, 3), "ea": (1, 5), "eb": (1, 5), "s": (1, 5)}


@pytest.mark.parametrize(
    ("starts", "after"),
    [
        ((0, 2), "s = Concat(a; b)"),
        ((3, 0), "s = Concat(b; a)"),
        ((0, 1), "ea = Embed(a)\neb = Embed(b)\ns = Add(ea; eb)"),
    ],
    ids=["one after the other", "in another order", "they overlap"],
)
def test_gradients_of_splits(starts: tuple[int, int], after: str, step: TrainGraph) -> None:
    embed = "{{'shape': (1, 5), 'starts': (0, {}), 'steps': (1, 1)}}"
    nodes = f"ea = Embed(a) {embed.format(starts[0])}\neb = Embed(b) {embed.format(starts[1])}\ns = Add(ea; eb)"
    graph = read(SPLIT, nodes, "s")
    joined = join_pieces(replace(step, graph=graph, loss=graph.outputs[0]))
    assert written(joined.graph) == lines(after)
    check_graph(joined.graph, infer)


DENSE: Shapes = {
    "x": (1, 4),
    "dy": (1, 3),
    "w": (3, 4),
    "g": (3, 4),
    "rate": (),
    "w.new": (3, 4),
    "v": (3, 4),
    "v.new": (3, 4),
    "dx": (1, 4),
    "g2": (3, 4),
}


@pytest.mark.parametrize(
    ("nodes", "after", "shown"),
    [
        (
            "g = GemmGradWeight(x; dy)\nw.new = SgdUpdate(w; g; rate)",
            "w.new = FusedUpdate(w; x; dy; rate)",
            ["GemmGradWeightSgdUpdate"],
        ),
        (
            "g = GemmGradWeight(x; dy)\ng2 = Neg(g)\nw.new = SgdUpdate(w; g2; rate)",
            "g = GemmGradWeight(x; dy)\ng2 = Neg(g)\nw.new = SgdUpdate(w; g2; rate)",
            ["GemmGradWeight", "Neg", "SgdUpdate"],
        ),
        (
            "g = GemmGradWeight(x; dy)\nw.new = LionUpdate(w; v; g; rate)",
            "w.new; v.new = FusedUpdate(w; v; x; dy; rate)",
            ["GemmGradWeightLionUpdate"],
        ),
    ],
    ids=["alone", "something between", "with state"],
)
def test_fused_updates(nodes: str, after: str, shown: list[str], step: TrainGraph) -> None:
    known = {name: shape for name, shape in DENSE.items() if re.search(rf"\b{re.escape(name)}\b(?!\.)", nodes + after)}
    text = nodes.replace("w.new = LionUpdate", "w.new; v.new = LionUpdate")
    updates = "w<-w.new v<-v.new" if "Lion" in nodes else "w<-w.new"
    graph = read(known, text, updates=updates)
    fused = fuse_updates(replace(step, graph=graph)).graph
    assert written(fused) == lines(after)
    assert [shown_name(node) for node in fused.nodes] == shown
    check_graph(fused, infer)


def test_what_frozen_weights_imply_is_a_constant() -> None:
    shapes: Shapes = {"x": (1, 4), "w1": (4,), "w2": (4,), "half": (4,), "y": (1, 4), "z": (1, 4)}
    graph = read(shapes, "half = Mul(w1; w1)\ny = Mul(x; half)\nz = Mul(y; w2)", "z", fill=2)
    builder = new_builder({"half"})
    left = fold_frozen(builder, graph.nodes, graph.constants, {"w2", "z"})
    assert written(replace(graph, nodes=tuple(left))) == ["y = Mul(x; half.2)", "z = Mul(y; w2)"]
    np.testing.assert_array_equal(builder.constants["half.2"], np.full(4, 4, np.float32))
