"""A loss that the model file writes out in nodes: they join the forward graph, and are differentiated like it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import ChannelSlice
from tinytrain_compile.ir.types import Graph


def with_written_loss(model: ImportedModel) -> Graph:
    """The forward graph, with the nodes of the loss behind it if the file writes these out."""
    graph = model.graph
    written = None if model.loss is None else model.loss.written
    if written is None:
        return graph
    output = graph.outputs[0]  # what the loss reads, also where its storage as integers clamps it
    renamed = {written.scores.name: output}
    nodes = tuple(
        replace(node, inputs=tuple(renamed.get(value.name, value) for value in node.inputs)) for node in written.nodes
    )
    return replace(graph, nodes=(*graph.nodes, *nodes), constants={**written.constants, **graph.constants})


def check_slices(model: ImportedModel, slices: Mapping[str, ChannelSlice]) -> None:
    """E0302 for channels of a weight that the loss itself reads, as a penalty does."""
    written = None if model.loss is None else model.loss.written
    if written is None:
        return
    for node in written.nodes:
        for value in node.inputs:
            if value.name in slices:
                what = f"its weight is also read by the loss, {node.origin or node.name}"
                raise CompileError("E0302", value.name, what, 'use weight = "all"')
