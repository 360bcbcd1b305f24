"""The gradient of a split as one Concat, instead of a sum of its pieces that are each embedded in zeros.

Reverse mode meets the pieces one by one. Where in the end they tile the whole, adding zeros only costs bytes and time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import infer
from tinytrain_compile.ops.shape import ConcatAttrs, EmbedAttrs


def join_pieces(train: TrainGraph) -> TrainGraph:
    """The same step with such sums of float32 as Concats (what was -0 + 0 keeps its sign); itself if there are none."""
    graph = train.graph
    made = {value.name: node for node in graph.nodes for value in node.outputs}
    found = {node.name: joined for node in graph.nodes if (joined := _joined(node, made)) is not None}
    if not found:
        return train
    whole = replace(graph, nodes=tuple(found.get(node.name, node) for node in graph.nodes))
    targets = (*graph.outputs, train.loss, *(new for _, new in graph.updates))
    needed = whole.ancestors(targets)
    return replace(train, graph=replace(whole, nodes=tuple(n for n in whole.nodes if n.name in needed)))


def _joined(node: Node, made: Mapping[str, Node]) -> Node | None:
    """A sum of pieces that tile it as their Concat, or None."""
    pieces = _pieces(node.outputs[0], made) if node.op == "Add" and node.outputs[0].dtype == "float32" else None
    if not pieces:
        return None
    pieces.sort(key=lambda item: item[1])
    inputs = tuple(piece for piece, _ in pieces)
    for axis in range(len(node.outputs[0].shape)):
        attrs, end = ConcatAttrs(axis), 0
        for piece, starts in pieces:
            if starts != tuple(end if i == axis else 0 for i in range(len(starts))):
                break
            end += piece.shape[axis]
        else:
            try:
                same = infer("Concat", inputs, attrs) == (node.outputs[0].type,)
            except ValueError:  # the other axes are not whole
                continue
            if same:
                return replace(node, op="Concat", inputs=inputs, attrs=attrs)
    return None


def _pieces(value: Value, made: Mapping[str, Node]) -> list[tuple[Value, tuple[int, ...]]] | None:
    """(piece, where it begins) of everything that is summed up in a value; None if something else is."""
    node = made.get(value.name)
    if node is None:
        return None
    if node.op == "Add" and all(summand.type == value.type for summand in node.inputs):
        both = [_pieces(summand, made) for summand in node.inputs]
        return None if both[0] is None or both[1] is None else [*both[0], *both[1]]
    attrs = node.attrs
    plain = isinstance(attrs, EmbedAttrs) and attrs.value == 0.0 and all(step == 1 for step in attrs.steps)
    return [(node.inputs[0], attrs.starts)] if plain and isinstance(attrs, EmbedAttrs) else None
