"""Weight gradients that are never stored: one node computes each element and updates the parameter with it.

An update overwrites a weight that the data gradient of its layer still reads. A stored gradient can wait for that and
let go of what it was made of; a fused one cannot. So it is stored where it is smaller than what would have to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.ops.fused_update import FusedUpdateAttrs, fused_name
from tinytrain_compile.ops.names import operands, position


def fuse_updates(train: TrainGraph) -> TrainGraph:
    """The same step with such nodes, by the names of the updates; itself if there are none.

    Two nodes stay where something else reads the gradient or adds to it (a parameter with several uses), where one of
    them has a kernel of the user, and where storing the gradient takes less memory.
    """
    graph = train.graph
    pairs = _pairs(graph)
    if not pairs:
        return train
    made = {gradient.name for gradient in pairs.values()}
    nodes = [_fused(pairs[node.name], node) if node.name in pairs else node for node in graph.nodes]
    return replace(train, graph=replace(graph, nodes=tuple(node for node in nodes if node.name not in made)))


def _pairs(graph: Graph) -> Mapping[str, Node]:
    """Name of an update -> the node that makes its gradient, for those that become one."""
    makers = {value.name: node for node in graph.nodes for value in node.outputs}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value.name, []).append(node)
    wanted = {graph.guard, *(value.name for value in graph.outputs)}
    found: dict[str, Node] = {}
    for node in graph.nodes:
        g = operands(node).get("g") if alias_of(node) else None
        gradient = None if g is None else makers.get(g.name)
        if g is None or gradient is None or fused_name(gradient.op, node.op) is None:
            continue
        alone = len(readers[g.name]) == 1 and g.name not in wanted
        plain = gradient.external is None and node.external is None and gradient.phase == node.phase
        if alone and plain and _waiting_bytes(graph, gradient, node, readers) <= g.size_bytes:
            found[node.name] = gradient
    return found


def _waiting_bytes(graph: Graph, gradient: Node, update: Node, readers: Mapping[str, Sequence[Node]]) -> int:
    """Bytes of the gradient's operands that must wait for other readers of what the update overwrites.

    Those readers that come before the gradient in any order do not count, and what they read themselves is there.
    """
    before = graph.ancestors(gradient.inputs)
    overwritten = {update.inputs[source].name for _, source in alias_of(update)}
    later = [node for name in overwritten for node in readers[name] if node is not update and node.name not in before]
    held = {value.name for node in later for value in node.inputs} | set(graph.constants)
    return sum(value.size_bytes for value in _distinct(gradient.inputs) if value.name not in held) if later else 0


def _distinct(values: Sequence[Value]) -> list[Value]:
    return list({value.name: value for value in values}.values())


def _fused(gradient: Node, update: Node) -> Node:
    name, place = fused_name(gradient.op, update.op), position(update, "g")
    assert name is not None
    inputs = (*update.inputs[:place], *gradient.inputs, *update.inputs[place + 1 :])
    return replace(update, op=name, inputs=inputs, attrs=FusedUpdateAttrs(gradient.attrs, update.attrs))
