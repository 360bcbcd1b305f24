"""The text form of real training graphs reads back; the checker finds every planted inconsistency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from testing.graph_text import parse_graph
from testing.networks import models
from tests.e2e import chain
from tests.sparse.test_select import scheme
from tinytrain_compile.ir.graph import GraphError, check_graph
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.text import print_graph
from tinytrain_compile.ir.types import NO_ATTRS, Graph, Node, Value
from tinytrain_compile.ops.base import OPS, Split, attribute_types, infer
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.loss import NllAttrs
from tinytrain_compile.ops.names import names_of
from tinytrain_compile.ops.pool import PoolAttrs

NESTED = {kind.__name__: kind for kind in (Split, ConvAttrs, GemmAttrs, NllAttrs, PoolAttrs)}
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": models.mlp,
    "ds_cnn": lambda: models.ds_cnn(8, 1, (12, 6)),
    "resnet8": lambda: models.resnet8(4, 16),
    "transformer": lambda: models.transformer(4, 8, 2),
    "own loss": lambda: models.with_loss(models.mlp(), [1.0, 2.0, 3.0, 0.5], ignore=1),
}


def same(a: Graph, b: Graph) -> None:
    """Graphs compare by identity; this compares what they are made of."""
    for field in (
        "name",
        "nodes",
        "inputs",
        "outputs",
        "parameters",
        "state",
        "accumulators",
        "updates",
        "notes",
        "guard",
        "label",
    ):
        assert getattr(a, field) == getattr(b, field), field


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_training_graphs_read_back(name: str, optimizer: str, batch: int) -> None:
    graph = chain.train_graph(MODELS[name](), optimizer=optimizer, batch=batch).graph
    text = print_graph(graph)
    again = parse_graph(text, attribute_types(), graph.constants, NESTED)
    same(again, graph)
    assert print_graph(again) == text
    check_graph(again, infer)


def test_names_of_operands_are_printed_and_read_over() -> None:
    x, w, b, y = Value("x", (2, 4)), Value("w", (3, 4)), Value("b", (3,)), Value("y", (2, 3))
    graph = Graph("g", (Node("y", "Gemm", (x, w, b), (y,), GemmAttrs(bias=True)),), (x,), (y,), {})
    text = print_graph(graph, names_of)
    assert "  y=('y', (2, 3), 'float32', '', '') = 'y' Gemm(x=('x', (2, 4)" in text
    assert "; w=('w', (3, 4), 'float32', '', ''); bias=('b', (3,), 'float32', '', ''))" in text
    same(parse_graph(text, attribute_types(), graph.constants, NESTED), graph)


def test_slices_read_back(tmp_path: Path) -> None:
    path = scheme(tmp_path, 'layer = "pw0/Conv"\nweight = [1, 4]\naxis = "in"', 'layer = "stem/Conv"\nweight = 3')
    graph = chain.train_graph(MODELS["ds_cnn"](), path).graph
    same(parse_graph(print_graph(graph), attribute_types(), graph.constants, NESTED), graph)


@pytest.mark.parametrize(
    "name",
    ["a'b", 'a"b', "a; b", "a <- b", "{} = 'x' Op() {} ('', 'step')", "new\nline", "\N{SNOWMAN}", ") (", "\\", "  "],
)
def test_hostile_names_read_back(name: str) -> None:
    """Names come from untrusted files, and the text form separates with what may be in them."""
    x = Value(name, (2, 3), origin=name)
    y = Value(f"{name}.y", (2, 3), origin=name)
    node = Node(f"{name}.node", "Neg", (x,), (y,), NO_ATTRS, name)
    graph = Graph(name, (node,), (x,), (y,), {}, notes=(name,), updates=((x, y),))
    again = parse_graph(print_graph(graph), attribute_types(), {}, NESTED)
    same(again, graph)


def test_every_operators_attributes_read_back() -> None:
    """Whatever attributes the operators' defaults hold, infinities included, survive."""
    graph = chain.train_graph(MODELS["mlp"]()).graph
    assert "'inf'" in print_graph(graph), "a ReLU is a Clip with an open end"
    assert set(attribute_types()) == set(OPS)


# ---- the checker ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound() -> TrainGraph:
    return chain.train_graph(models.mlp(), optimizer="momentum", batch=2)


def place_of(graph: Graph, op: str) -> int:
    return next(i for i, node in enumerate(graph.nodes) if node.op == op)


def with_node(graph: Graph, index: int, **changes: object) -> Graph:
    nodes = list(graph.nodes)
    nodes[index] = replace(nodes[index], **changes)  # type: ignore[arg-type]
    return replace(graph, nodes=tuple(nodes))


def _order(graph: Graph) -> Graph:
    return replace(graph, nodes=(graph.nodes[1], graph.nodes[0], *graph.nodes[2:]))


def _same_node_name(graph: Graph) -> Graph:
    return with_node(graph, 1, name=graph.nodes[0].name)


def _defined_twice(graph: Graph) -> Graph:
    return replace(graph, nodes=(*graph.nodes, replace(graph.nodes[0], name="again")))


def _wrong_shape(graph: Graph) -> Graph:
    out = replace(graph.nodes[-1].outputs[0], shape=(7,))
    return with_node(graph, len(graph.nodes) - 1, outputs=(out, *graph.nodes[-1].outputs[1:]))


def _wrong_type(graph: Graph) -> Graph:
    index = place_of(graph, "Clip")
    return with_node(graph, index, outputs=(replace(graph.nodes[index].outputs[0], dtype="int32"),))


def _other_version(graph: Graph) -> Graph:
    """A reader that believes in another shape than the producer made."""
    index = place_of(graph, "Clip")
    return with_node(graph, index, inputs=(replace(graph.nodes[index].inputs[0], shape=(10, 1)),))


def _missing_input(graph: Graph) -> Graph:
    return replace(graph, inputs=graph.inputs[1:])


def _missing_constant(graph: Graph) -> Graph:
    return replace(graph, constants={n: a for n, a in graph.constants.items() if n != "fc1_weight"})


def _misshapen_constant(graph: Graph) -> Graph:
    return replace(graph, constants={**graph.constants, "fc1_weight": np.zeros((3, 3), np.float32)})


def _undefined_output(graph: Graph) -> Graph:
    return replace(graph, outputs=(Value("nowhere", (1, 4)),))


def _undefined_update(graph: Graph) -> Graph:
    return replace(graph, updates=(*graph.updates, (graph.updates[0][0], Value("nowhere", (1,)))))


def _state_without_data(graph: Graph) -> Graph:
    return replace(graph, state=(*graph.state, Value("extra", (1,))))


def _input_named_like_a_result(graph: Graph) -> Graph:
    return replace(graph, inputs=(*graph.inputs, graph.nodes[0].outputs[0]))


def _zero_dimension(graph: Graph) -> Graph:
    return replace(graph, inputs=(*graph.inputs, Value("empty", (1, 0))))


def _wrong_attributes(graph: Graph) -> Graph:
    return with_node(graph, place_of(graph, "Gemm"), attrs=NO_ATTRS)


PLANTS = [
    *(_order, _same_node_name, _defined_twice, _wrong_shape, _wrong_type, _other_version, _missing_input),
    *(_missing_constant, _misshapen_constant, _undefined_output, _undefined_update, _state_without_data),
    *(_input_named_like_a_result, _zero_dimension, _wrong_attributes),
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_planted_inconsistency_is_found(plant: Callable[[Graph], Graph], sound: TrainGraph) -> None:
    check_graph(sound.graph, infer)
    with pytest.raises((GraphError, ValueError)):
        check_graph(plant(sound.graph), infer)


def test_errors_name_the_place(sound: TrainGraph) -> None:
    with pytest.raises(GraphError, match="fc1/Gemm"):
        check_graph(_defined_twice(sound.graph), infer)
    with pytest.raises(GraphError, match="fc1_weight"):
        check_graph(_misshapen_constant(sound.graph), infer)
