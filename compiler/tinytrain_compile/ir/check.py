"""The gate behind every stage that makes a graph: an invalid graph never reaches the next stage."""

from __future__ import annotations

from tinytrain_compile.ir.builder import InferFn
from tinytrain_compile.ir.types import Graph, Value


class GraphError(Exception):
    """An internal inconsistency: a bug in the compiler, never the user's fault."""


def check_graph(graph: Graph, infer: InferFn) -> None:
    """Raise GraphError unless names are unique, order is topological, every type is what its op infers."""
    known: dict[str, Value] = {}
    for value in (*graph.inputs, *graph.accumulators):
        _define(known, value)
    _define_constants(graph, known)
    node_names: set[str] = set()
    for node in graph.nodes:
        if node.name in node_names:
            raise GraphError(f"two nodes are named {node.name!r}")
        node_names.add(node.name)
        for value in node.inputs:
            if known.get(value.name) != value:
                raise GraphError(f"node {node.name!r} ({node.op}) reads {value}, which is not defined before it")
        inferred = infer(node.op, node.inputs, node.attrs)
        if tuple(out.type for out in node.outputs) != tuple(inferred):
            raise GraphError(f"node {node.name!r} ({node.op}): outputs {node.outputs}, inferred {inferred}")
        for value in node.outputs:
            _define(known, value)
    for value in (*graph.outputs, *(new for _, new in graph.updates), *(old for old, _ in graph.updates)):
        if known.get(value.name) != value:
            raise GraphError(f"graph output or update {value} is not defined")
    for value in graph.state:
        if value.name not in graph.constants:
            raise GraphError(f"state {value.name!r} has no initial data")


def _define_constants(graph: Graph, known: dict[str, Value]) -> None:
    read = [value for node in graph.nodes for value in node.inputs]
    for value in dict.fromkeys((*read, *graph.state, *graph.parameters, *graph.outputs)):
        if value.name not in graph.constants:
            continue
        if graph.constants[value.name].shape != value.shape:
            raise GraphError(f"constant {value.name!r}: data {graph.constants[value.name].shape}, value {value.shape}")
        _define(known, value)


def _define(known: dict[str, Value], value: Value) -> None:
    if value.name in known:
        raise GraphError(f"value {value.name!r} is defined twice")
    if any(dim <= 0 for dim in value.shape):
        raise GraphError(f"value {value.name!r} has shape {value.shape}")
    known[value.name] = value
