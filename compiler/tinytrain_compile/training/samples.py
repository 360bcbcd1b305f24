"""The forward graph for several samples at once: axis 0 of all values that depend on the input grows by their number.

Samples follow one another in every tensor, and no operator may mix them: it must treat several like each alone.
`OpDef.samples` declares that, and shapes are inferred again, so invalid cases are rejected.
"""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import has_trait, infer, op_def
from tinytrain_compile.ops.shape import ExpandAttrs


class SamplesMixError(ValueError):
    """Raised for a model that several samples at once would make invalid, or change."""


def for_samples(model: ImportedModel, count: int) -> ImportedModel:
    """Return the model for `count` samples at once; names, weights and formats stay. Errors: SamplesMixError."""
    if count == 1:
        return model
    if model.loss is not None and model.loss.written is not None:
        raise SamplesMixError(f"the loss {model.loss.origin!r} is nodes of the model, for one sample")
    graph = model.graph
    if model.more:
        raise SamplesMixError(f"the model has {len(model.data)} data inputs")
    source = _longer(graph.inputs[0], count)
    known = {source.name: source}
    nodes: list[Node] = []
    for node in graph.nodes:
        if any(value.name in known for value in node.inputs):
            node = repeated(node, known, count)
            known.update({out.name: out for out in node.outputs})
        nodes.append(node)
    outputs = tuple(known.get(value.name, value) for value in graph.outputs)
    longer = replace(graph, nodes=tuple(nodes), inputs=(source, *graph.inputs[1:]), outputs=outputs)
    check_graph(longer, infer)
    loss = model.loss
    if loss is not None:
        loss = replace(loss, label_shape=(count * loss.label_shape[0], *loss.label_shape[1:]))
    return replace(model, graph=longer, loss=loss)


def _longer(value: Value, count: int) -> Value:
    return replace(value, shape=(count * value.shape[0], *value.shape[1:]))


def repeated(node: Node, known: dict[str, Value], count: int) -> Node:
    """Return a node for `count` samples, with results `count` times as long. SamplesMixError if that is impossible."""
    where = f"{node.origin or node.name} ({node.op})"
    definition = op_def(node.op)
    computed = [value for value in node.inputs if value.name in known]
    if any(not value.shape for value in (*computed, *node.outputs)) or _lifts(node, computed):
        raise SamplesMixError(f"{where}: a tensor has no axis of the samples")
    inputs = tuple(known.get(value.name, value) for value in node.inputs)
    try:
        attrs = definition.samples.repeat(node, node.attrs, count)
        kinds = infer(node.op, inputs, attrs)
    except ValueError as problem:
        raise SamplesMixError(f"{where}: {problem}") from problem
    outputs = tuple(_longer(value, count) for value in node.outputs)
    if any(value.type != kind for value, kind in zip(outputs, kinds, strict=True)):
        raise SamplesMixError(f"{where}: it works along the axis of the samples")
    return replace(node, inputs=inputs, outputs=outputs, attrs=attrs)


def _lifts(node: Node, computed: list[Value]) -> bool:
    """Tell whether broadcasting gives a computed operand a new first axis, which would no longer be its samples'."""
    rank = len(node.outputs[0].shape)
    broadcasts = has_trait(node.op, "elementwise") or isinstance(node.attrs, ExpandAttrs)
    return broadcasts and any(len(value.shape) < rank for value in computed)
