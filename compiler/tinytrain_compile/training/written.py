"""A loss that the model file writes out in nodes: they join the forward graph, and are differentiated like it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import ChannelSlice, UpdatePlan
from tinytrain_compile.ir.types import Graph


def with_written_loss(model: ImportedModel) -> Graph:
    """The forward graph up to the model's output, with the nodes of the loss behind it if the file writes these out."""
    graph = model.graph
    written = None if model.loss is None else model.loss.written
    if written is None:
        return graph
    ends = zip(written.reads, graph.outputs, strict=True)  # what the loss reads, also where storage clamps it
    renamed = {value.name: value for value in graph.inputs} | {read.name: output for read, output in ends}
    nodes = tuple(
        replace(node, inputs=tuple(renamed.get(value.name, value) for value in node.inputs)) for node in written.nodes
    )
    constants = {**written.constants, **graph.constants}
    return replace(graph, nodes=(*graph.nodes, *nodes), outputs=graph.outputs[:1], constants=constants)


def whole_where_read(model: ImportedModel, plan: UpdatePlan) -> Mapping[str, ChannelSlice]:
    """The weights of which only channels are updated; E0302 if the loss itself reads one, as a penalty does."""
    slices = {name: piece for name, piece in plan.updates.items() if piece is not None}
    written = None if model.loss is None else model.loss.written
    for node in () if written is None else written.nodes:
        for value in node.inputs:
            if value.name in slices:
                what = f"its weight is also read by the loss, {node.origin or node.name}"
                raise CompileError("E0302", value.name, what, 'use weight = "all"')
    return slices
