"""Weight gradients that are never stored: one node computes each element and updates the parameter with it.

An update overwrites a weight that the data gradient of its layer still reads. A stored gradient can wait for that and
let go of what it was made of; a fused one cannot. So it is stored where it is smaller than what would have to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.graph import Dependencies
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.ops.clip import ROW_SQUARES
from tinytrain_compile.ops.fused_update import FusedUpdateAttrs, fused_pair
from tinytrain_compile.ops.names import operands, position
from tinytrain_compile.ops.shape import ExpandAttrs


@dataclass(frozen=True)
class _Fusing:
    """What becomes one node with an update: the node that makes its gradient and, where there is one, that of its
    squares."""

    gradient: Node
    squares: Node | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.gradient,) if self.squares is None else (self.gradient, self.squares)


def fuse_updates(train: TrainGraph) -> TrainGraph:
    """The same step with such nodes, by the names of the updates; itself if there are none.

    Two nodes stay where something else reads the gradient or adds to it (a parameter with several uses), where one of
    them has a kernel of the user, and where storing the gradient takes less memory.
    """
    graph = train.graph
    found = _found(graph)
    if not found:
        return train
    gone = {node.name for fusing in found.values() for node in fusing.nodes}
    zero = Value(_unused(graph, "no_squares"), (1,)) if any(fusing.squares for fusing in found.values()) else None
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in found:
            nodes += _fused(found[node.name], node, zero)
        elif node.name not in gone:
            nodes.append(node)
    constants = {**graph.constants, **({} if zero is None else {zero.name: np.zeros(zero.shape, np.float32)})}
    return replace(train, graph=replace(graph, nodes=tuple(nodes), constants=constants))


def _unused(graph: Graph, name: str) -> str:
    """The name, or one like it that no value of the graph has."""
    taken = {value.name for node in graph.nodes for value in (*node.inputs, *node.outputs)}
    while name in taken:
        name += ".2"
    return name


def _found(graph: Graph) -> Mapping[str, _Fusing]:
    """By the name of an update, what becomes one node with it."""
    makers = {value.name: node for node in graph.nodes for value in node.outputs}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value.name, []).append(node)
    wanted = {graph.guard, *(value.name for value in graph.outputs)}
    order = Dependencies(graph)
    found: dict[str, _Fusing] = {}
    for node in graph.nodes:
        g = operands(node).get("g") if alias_of(node) else None
        gradient = None if g is None else makers.get(g.name)
        if g is None or gradient is None or g.name in wanted:
            continue
        others = [reader for reader in readers[g.name] if reader is not node]
        squares = others[0] if [reader.op for reader in others] == [ROW_SQUARES.name] else None
        alone = not others or squares is not None
        if not alone or fused_pair(gradient.op, node.op, squares is not None) is None:
            continue
        plain = gradient.external is None and node.external is None and gradient.phase == node.phase
        if plain and _waiting_bytes(graph, gradient, node, readers, order) <= g.size_bytes:
            found[node.name] = _Fusing(gradient, squares)
    return found


def _waiting_bytes(
    graph: Graph, gradient: Node, update: Node, readers: Mapping[str, Sequence[Node]], order: Dependencies
) -> int:
    """Bytes of the gradient's operands that must wait for other readers of what the update overwrites.

    Those readers that come before the gradient in any order do not count, and what they read themselves is there.
    """
    overwritten = {update.inputs[source].name for _, source in alias_of(update)}
    others = [node for name in overwritten for node in readers[name] if node is not update]
    later = [node for node in others if not order.after(gradient, node)]
    if not later:
        return 0
    held = {value.name for node in later for value in node.inputs}
    waiting = (value for value in _distinct(gradient.inputs) if value.name not in graph.constants)
    return sum(value.size_bytes for value in waiting if value.name not in held)


def _distinct(values: Sequence[Value]) -> list[Value]:
    return list({value.name: value for value in values}.values())


def _fused(fusing: _Fusing, update: Node, zero: Value | None) -> list[Node]:
    """The node that does it all, behind that of the zeros to which it adds squares."""
    gradient, squares = fusing.gradient, fusing.squares
    pair, place = fused_pair(gradient.op, update.op, squares is not None), position(update, "g")
    assert pair is not None
    attrs = FusedUpdateAttrs(gradient.attrs, update.attrs)
    before, after = (*update.inputs[:place], *gradient.inputs), update.inputs[place + 1 :]
    if squares is None or zero is None:
        return [replace(update, op=pair.name, inputs=(*before, *after), attrs=attrs)]
    (rows,) = squares.outputs
    empty = replace(rows, name=f"{rows.name}.zero")
    start = replace(
        squares, name=empty.name, op="Expand", inputs=(zero,), outputs=(empty,), attrs=ExpandAttrs(rows.shape)
    )
    outputs = (*update.outputs, rows)
    return [start, replace(update, op=pair.name, inputs=(*before, empty, *after), outputs=outputs, attrs=attrs)]
