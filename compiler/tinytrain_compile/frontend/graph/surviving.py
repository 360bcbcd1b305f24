"""Which tensors of the file are values of the finished graph, so that both can be compared."""

from __future__ import annotations

from collections.abc import Mapping

from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import Order
from tinytrain_compile.ir.imported import FileTensor
from tinytrain_compile.ir.types import Graph, Value


def surviving(ctx: ImportContext, graph: Graph, outputs: Mapping[str, tuple[Value, Order]]) -> dict[str, FileTensor]:
    """By ONNX name. What was folded or fused away is missing; `outputs` are taken as the graph hands them out."""
    alive = {value.name for value in graph.inputs} | {v.name for node in graph.nodes for v in node.outputs}
    aliases = ctx.model.quantisation.aliases
    found: dict[str, FileTensor] = {}
    for name in (*ctx.known(), *aliases):
        real = aliases.get(name, name)
        if not ctx.has(real):
            continue
        entry = ctx.entry(real)
        value, order = outputs.get(name, (entry.value, entry.order))
        if value is not None and value.name in alive:
            found[name] = FileTensor(value.name, entry.shape, order, entry.columns or ())
    return found
