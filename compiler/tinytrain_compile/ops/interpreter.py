"""Interpreter of a graph with the numpy references, the truth with which generated code is compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tinytrain_compile.ir.types import Array, Graph, Node
from tinytrain_compile.ops.base import run_node


def run_nodes(nodes: Iterable[Node], known: Mapping[str, Array], exact: bool = False) -> dict[str, Array]:
    """Evaluate nodes in order; returns every value, the known ones included. `exact`: see ops.base.run_node."""
    values = dict(known)
    for node in nodes:
        results = run_node(node, tuple(values[value.name] for value in node.inputs), exact)
        values.update({out.name: array for out, array in zip(node.outputs, results, strict=True)})
    return values


def run_graph(graph: Graph, feeds: Mapping[str, Array], exact: bool = False) -> dict[str, Array]:
    """Evaluate a whole graph on `feeds` (inputs, and accumulators if any); returns every value by name."""
    return run_nodes(graph.nodes, {**graph.constants, **feeds}, exact)
