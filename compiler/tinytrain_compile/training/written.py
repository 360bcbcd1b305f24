"""A loss given by nodes of the model file: they join the forward graph, and are differentiated like it."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.ir.imported import ImportedModel, WrittenLoss
from tinytrain_compile.ir.types import Graph


def with_written_loss(model: ImportedModel, written: WrittenLoss) -> Graph:
    """Return the forward graph up to the model's output, with the nodes of the loss after it."""
    graph = model.graph
    ends = zip(written.reads, graph.outputs, strict=True)  # values that the loss reads, even if storage clamps them
    renamed = {value.name: value for value in graph.inputs} | {read.name: output for read, output in ends}
    nodes = tuple(
        replace(node, inputs=tuple(renamed.get(value.name, value) for value in node.inputs)) for node in written.nodes
    )
    constants = {**written.constants, **graph.constants}
    return replace(graph, nodes=(*graph.nodes, *nodes), outputs=graph.outputs[:1], constants=constants)
