"""What training adds to a forward graph, as text: gradients, updates, clipping, copies, slices (`ir/text.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from testing.graph_lines import Shapes, lines, read, told, written
from testing.networks import models
from tests.e2e import chain
from tinytrain_compile.ir.activations import LowRank
from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.imported import ImportedModel, WrittenLoss
from tinytrain_compile.ir.stages import ChannelSlice
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops.base import new_builder
from tinytrain_compile.training.differentiate import differentiate
from tinytrain_compile.training.dropout import count_samples, with_dropout
from tinytrain_compile.training.low_rank import Integers, keep_subspaces, with_low_rank
from tinytrain_compile.training.optimizer import Optimizer, TrainingOptions
from tinytrain_compile.training.samples import SamplesMixError, for_samples
from tinytrain_compile.training.slices import split_weights
from tinytrain_compile.training.written import with_written_loss


def text_of(nodes: Iterable[Node]) -> list[str]:
    return told(Graph("test", tuple(nodes), (), (), {}))


def builder_beside(graph: Graph) -> GraphBuilder:
    """A builder that gives no name of this graph again."""
    return new_builder(value.name for node in graph.nodes for value in (*node.inputs, *node.outputs))


# ---- gradients ------------------------------------------------------------------------------------------------------

FORWARD = """
    y = Gemm(x; w)
    z = Clip(y) {'low': 0.0}
    u = Gemm(z; w2)
    v = Add(u; z)
    loss = MeanSquaredError(v; target)
"""
FORWARD_SHAPES: Shapes = {"x": (1, 4), "w": (3, 4), "w2": (3, 3), "target": (1, 3)}
TO_V = "loss.MeanSquaredErrorGrad = MeanSquaredErrorGrad(loss_gradient; v; target)"
TO_W2 = "u.GemmGradWeight = GemmGradWeight(z; loss.MeanSquaredErrorGrad)"
TO_W = """
    u.GemmGradInput = GemmGradInput(loss.MeanSquaredErrorGrad; w2)
    z.grad_sum = Add(loss.MeanSquaredErrorGrad; u.GemmGradInput)
    z.ClipGrad = ClipGrad(z.grad_sum; z) {low=0.0}
    y.GemmGradWeight = GemmGradWeight(x; z.ClipGrad)
"""


@pytest.mark.parametrize(
    ("targets", "after"),
    [
        ("w2", [TO_V, TO_W2]),
        ("w", [TO_V, *lines(TO_W)]),
        ("w w2", [TO_V, TO_W2, *lines(TO_W)]),
        ("target", []),
    ],
    ids=["the last layer needs no error of its input", "a frozen weight has no gradient", "both", "nothing"],
)
def test_gradients_that_lead_to_what_is_trained(targets: str, after: list[str]) -> None:
    """z has two readers, so its gradient is a sum: of v as it is, and through u."""
    graph = read(FORWARD_SHAPES, FORWARD)
    named = {value.name: value for node in graph.nodes for value in (*node.inputs, *node.outputs)}
    builder = builder_beside(graph)
    wanted = [named[name] for name in targets.split() if name != "target"]
    found = differentiate(builder, graph.nodes, named["loss"], wanted, factor=2)
    assert text_of(builder.nodes) == after
    makers = {"w": "y.GemmGradWeight", "w2": "u.GemmGradWeight"}
    assert {name: value.name for name, value in found.items()} == {value.name: makers[value.name] for value in wanted}
    assert not after or builder.constants["loss_gradient"] == 2


# ---- updates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "after", "updates"),
    [
        ({}, "w.update = SgdUpdate(w; g; learning_rate)", "w<-w.update"),
        (
            {"batch": 4, "optimizer": "momentum", "momentum": 0.5},
            """
            w.accumulate = Accumulate(w.gradient_sum; g)
            ---
            w.update; w.update.1 = MomentumUpdate(w; w.velocity; w.accumulate; learning_rate; inverse_count)
                {momentum=0.5, scaled=True}
            w.clear = Clear(w.accumulate)
            """,
            "w<-w.update w.velocity<-w.update.1 w.gradient_sum<-w.clear",
        ),
        (
            # A step of a quarter of the rate for each of four samples.
            {"batch": 4, "accumulate": "inplace"},
            """
            rate_share = Mul(learning_rate; batch_share)
            w.update = SgdUpdate(w; g; rate_share)
            """,
            "w<-w.update",
        ),
        (
            # Nothing waits: the squares of the update before scale this one, and are replaced behind it.
            {"clip_norm": 0.5},
            """
            gradient.clip = ClipFactor(w.gradient_squares) {norm=0.5}
            w.update = SgdUpdate(w; g; learning_rate; gradient.clip) {scaled=True}
            w.rows = RowSquares(g)
            w.gradient_squares.kept = SquareTotal(w.gradient_squares; w.rows) {fresh=True}
            """,
            "w<-w.update w.gradient_squares<-w.gradient_squares.kept",
        ),
        (
            # The sums' own norm scales them, of each layer alone: a layer is the node that reads the weight.
            {"clip_norm": 0.5, "clip_per": "layer", "batch": 4},
            """
            w.accumulate = Accumulate(w.gradient_sum; g)
            ---
            w.rows = RowSquares(w.accumulate)
            w.squares = SquareTotal(y.squares; w.rows) {fresh=True}
            y.clip = ClipFactor(w.squares; inverse_count) {norm=0.5, scaled=True}
            y.clip.scale = Mul(y.clip; inverse_count)
            w.update = SgdUpdate(w; w.accumulate; learning_rate; y.clip.scale) {scaled=True}
            w.clear = Clear(w.accumulate)
            """,
            "w<-w.update w.gradient_sum<-w.clear y.squares<-w.squares",
        ),
    ],
    ids=["a step", "a batch", "a batch in place", "clipped in a step", "a clipped batch"],
)
def test_updates_of_a_parameter(options: Mapping[str, Any], after: str, updates: str) -> None:
    graph = read({"x": (1, 4), "w": (3, 4), "g": (3, 4)}, "y = Gemm(x; w)")
    w, g = graph.nodes[0].inputs[1], Value("g", (3, 4))
    optimizer = Optimizer(new_builder({"x", "w", "g", "y"}), TrainingOptions(**options))
    optimizer.update([(w, g)], graph.nodes)
    assert text_of(optimizer.builder.nodes) == lines(after)
    assert {f"{old.name}<-{new.name}" for old, new in optimizer.updates} == {*updates.split()}
    owned = {value.name for value in (*optimizer.state, *optimizer.accumulators)}
    assert owned >= {old.name for old, _ in optimizer.updates}


# ---- forward graphs -------------------------------------------------------------------------------------------------


def test_dropout_draws_by_sample_and_place() -> None:
    """A quarter is dropped, of hashes below 2**24 / 4; the rest is 4/3 as large. A mask's seed is its place times the
    golden ratio (2**32 / 1.618, as an int32)."""
    attrs = "{'ratio': 0.25, 'samples': 2}"
    graph = read({"x": (2, 4)}, f"y = Dropout(x) {attrs}\nz = Dropout(y) {attrs}")
    builder = builder_beside(graph)
    nodes, dropouts = with_dropout(builder, graph.nodes, 2, seed=0)
    assert dropouts is not None
    third = float(np.float32(4 / 3))
    assert text_of(nodes) == lines(f"""
        y = RandomDropout(x; dropout_samples; dropout_active)
            {{limit=4194304, scale={third}, seed={0x9E3779B1 - 2**32}, samples=2}}
        z = RandomDropout(y; dropout_samples; dropout_active)
            {{limit=4194304, scale={third}, seed={2 * 0x9E3779B1 % 2**32}, samples=2}}
    """)
    assert [value.name for value in count_samples(builder, dropouts, 2)] == ["dropout_samples", "count_samples"]
    assert text_of(builder.nodes) == ["count_samples = CountSamples(dropout_samples) {samples=2}"]
    assert with_dropout(builder, graph.nodes, 2, seed=None) == ([*graph.nodes], None)


@pytest.fixture(scope="module")
def imported() -> ImportedModel:
    """Some model, for a graph of text."""
    return chain.imported(models.mlp())


def test_several_samples_lie_behind_each_other(imported: ImportedModel) -> None:
    """Only what depends on the input grows: its first axis, and shapes in attributes; h is made of weights alone."""
    nodes = """
        h = Mul(w; w)
        y = Gemm(x; h)
        z = Reshape(y) {'shape': (1, 1, 1, 3)}
    """
    graph = read({"x": (1, 4), "w": (3, 4)}, nodes, "z")
    made = for_samples(replace(imported, graph=graph, loss=None), 5).graph
    assert told(made) == lines(nodes.replace("{'shape': (1, 1, 1, 3)}", "{shape=(5, 1, 1, 3)}"))
    assert [value.shape for node in made.nodes for value in node.outputs] == [(3, 4), (5, 3), (5, 1, 1, 3)]
    for mixed in ("y = Reduce(x) {'axes': (0,)}", "y = Gemm(w; x)", "y = Concat(x; w) {'axis': 0}"):
        graph = read({"x": (1, 4), "w": (3, 4)}, mixed, "y")
        with pytest.raises(SamplesMixError, match=r"y .*: it works along the axis of the samples"):
            for_samples(replace(imported, graph=graph, loss=None), 5)


def test_the_loss_of_a_file_reads_what_storage_has_made_of_outputs(imported: ImportedModel) -> None:
    """The file's loss reads y; in int8 the output is y clamped."""
    graph = read({"x": (1, 4), "w": (3, 4)}, "y = Gemm(x; w)\ny.int8 = Clip(y) {'low': 0.0}", "y.int8")
    loss = read({"y": (1, 3), "t": (1, 3)}, "d = Sub(y; t)\ns = Mul(d; d)\nl = Reduce(s) {'axes': (0, 1)}")
    y, t = loss.inputs
    own = WrittenLoss(loss.nodes, {}, (y,), t, loss.nodes[-1].outputs[0])
    assert written(with_written_loss(replace(imported, graph=graph), own)) == lines("""
        y = Gemm(x; w)
        y.int8 = Clip(y)
        d = Sub(y.int8; t)
        s = Mul(d; d)
        l = Reduce(s)
    """)


# ---- slices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("piece", "after", "parts"),
    [
        (
            ChannelSlice("out", (0, 2)),
            "y = Gemm(x; w.updated; w.frozen; w.b) {bias=True, split=(axis=out, channels=(0, 2), total=3)}",
            {"w.updated": [[1, 2], [5, 6]], "w.frozen": [[3, 4]]},
        ),
        (
            ChannelSlice("in", (1,)),
            "y = Gemm(x; w.updated; w.frozen; w.b) {bias=True, split=(axis=in, channels=(1,), total=2)}",
            {"w.updated": [[2], [4], [6]], "w.frozen": [[1], [3], [5]]},
        ),
    ],
    ids=["outputs", "inputs"],
)
def test_weights_in_parts(
    imported: ImportedModel, piece: ChannelSlice, after: str, parts: dict[str, list[Any]]
) -> None:
    weight = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    shapes: Shapes = {"x": (1, 2), "w": (3, 2), "w.b": (3,)}
    graph = read(shapes, "y = Gemm(x; w; w.b) {'bias': True}", "y", constants={"w": weight})
    builder = builder_beside(graph)
    nodes, first = split_weights(builder, replace(imported, graph=graph), graph, {"w": piece})
    assert text_of(nodes) == [after]
    assert first["w"].name == "w.updated"
    for name, data in parts.items():
        np.testing.assert_array_equal(builder.constants[name], data)


# ---- low-rank copies ------------------------------------------------------------------------------------------------

FOLLOWED = """
    dw.power_channels = SubspacePower(x; dw.channels) {axis=3}
    dw.subspace_channels = Orthonormalize(dw.power_channels)
    dw.core_channels = ModeProduct(x; dw.subspace_channels) {axis=3}
"""
"""A step of the subspace iteration, and the core in the new subspace."""
BASIS = np.eye(2, 6, dtype=np.float32)


@pytest.mark.parametrize(
    ("how", "integer", "copies", "gradient"),
    [
        (
            # The gradient of the core has 2 channels; its own subspace brings it back to 6.
            LowRank((2, 4, 4, 1)),
            None,
            FOLLOWED,
            """
            dw.of_core = ConvGradWeight(dw.core_channels; dy) {kernel=(1, 1)}
            dw = SubspaceGradWeight(dw.of_core; dw.subspace_channels)
            """,
        ),
        (
            LowRank((2, 4, 4, 1)),
            "expanded",
            FOLLOWED,
            """
            dw.wide_channels = ModeProduct(dw.core_channels; dw.subspace_channels) {axis=3, expand=True}
            dw = ConvGradWeight(dw.wide_channels; dy) {kernel=(1, 1)}
            """,
        ),
        (
            # A fixed subspace is a constant, and nothing follows.
            LowRank((2, 4, 4, 1), "subspace", {3: BASIS}),
            None,
            "dw.core_channels = ModeProduct(x; dw.channels) {axis=3}",
            """
            dw.of_core = ConvGradWeight(dw.core_channels; dy) {kernel=(1, 1)}
            dw = SubspaceGradWeight(dw.of_core; dw.channels)
            """,
        ),
        (
            # Rows: of a 1x1 convolution the error goes into their subspace too, which is less work than to expand x.
            LowRank((6, 1, 4, 1), "subspace", {1: BASIS[:1, :4]}),
            None,
            "dw.core_height = ModeProduct(x; dw.height) {axis=1}",
            """
            dw.dy_height = ModeProduct(dy; dw.height) {axis=1}
            dw = ConvGradWeight(dw.core_height; dw.dy_height) {kernel=(1, 1)}
            """,
        ),
        (LowRank((6, 4, 4, 1)), None, "", "dw = ConvGradWeight(x; dy) {kernel=(1, 1)}"),
    ],
    ids=["channels", "channels, expanded", "fixed channels", "fixed rows", "full ranks"],
)
def test_low_rank_copies(how: LowRank, integer: Integers, copies: str, gradient: str) -> None:
    forward = "x = Clip(i) {'low': 0.0}\ny = Conv(x; w) {'kernel': (1, 1)}"
    graph = read(
        {"i": (1, 4, 4, 6), "w": (3, 1, 1, 6), "dy": (1, 4, 4, 3)},
        f"{forward}\ndw = ConvGradWeight(x; dy) {{'kernel': (1, 1)}}",
    )
    builder = builder_beside(graph)
    builder.nodes = [graph.nodes[2]]
    found = with_low_rank(builder, graph.nodes[:2], {"dw": how}, seed=0, integer=integer)
    assert text_of(found.forward) == [
        "x = Clip(i) {low=0.0}",
        *(lines(copies) if copies else []),
        "y = Conv(x; w) {kernel=(1, 1)}",
    ]
    assert text_of(found.backward) == lines(gradient)
    assert len(found.kept) == bool(copies)
    follows = copies == FOLLOWED
    changes = [("dw.channels", "dw.channels.kept")] if follows else []
    assert [(old.name, new.name) for old, new in keep_subspaces(builder, found.updates)] == changes
    keeps = ["dw.channels.kept = KeepSubspace(dw.channels; dw.subspace_channels)"] if follows else []
    assert text_of(builder.nodes) == keeps
