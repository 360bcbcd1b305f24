"""Graphs inside of nodes: the body of a Loop, the branches of an If."""

from __future__ import annotations

from collections.abc import Iterable

import onnx


def bodies(node: onnx.NodeProto) -> tuple[onnx.GraphProto, ...]:
    """Return the graphs that a node holds."""
    return tuple(graph for a in node.attribute for graph in (*((a.g,) if a.HasField("g") else ()), *a.graphs))


def captured(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the tensors from outside that the graphs of a node read, beside its inputs."""
    return tuple(dict.fromkeys(name for body in bodies(node) for name in _free(body)))


def reads(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return everything that a node reads: its inputs, then what its graphs take from outside."""
    return (*node.input, *(name for name in captured(node) if name not in node.input))


def _free(graph: onnx.GraphProto) -> Iterable[str]:
    made = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        yield from (name for name in reads(node) if name and name not in made)
        made.update(node.output)
    yield from (value.name for value in graph.output if value.name not in made)
