"""Conversion of a graph to one with streams, and back: runs of its nodes become one node each (`ops/stream.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from tinytrain_compile.ir.graph import Dependencies
from tinytrain_compile.ir.types import Graph, Node, grouped
from tinytrain_compile.ops.base import alias_of, row_form
from tinytrain_compile.ops.input_lines import LINES
from tinytrain_compile.ops.stream import StreamAttrs, computed
from tinytrain_compile.plan.streams.build import build_stream


def stream_node(graph: Graph, nodes: Sequence[Node], name: str, keep: Iterable[str] = ()) -> Node | None:
    """Return `StreamMaker.stream` for a single stream."""
    return StreamMaker(graph, keep).stream(nodes, name)


class StreamMaker:
    """Maker of streams of a graph's nodes; it knows the readers of every value.

    keep: names of values that must be results, besides those that other nodes read. readers: value -> names of the
    nodes that read it.
    """

    def __init__(self, graph: Graph, keep: Iterable[str] = ()) -> None:
        self._graph = graph
        self._wanted = {*keep, *(value.name for value in graph.outputs), *(new.name for _, new in graph.updates)}
        read = grouped((value.name, node.name) for node in graph.nodes for value in node.inputs)
        self.readers = {name: set(names) for name, names in read.items()}

    def stream(self, nodes: Sequence[Node], name: str) -> Node | None:
        """Return the stream of these nodes, which follow each other in the graph (except sums over rows, which may come
        later); None if there is no such stream."""
        inside, made = {node.name for node in nodes}, {value.name for node in nodes for value in node.outputs}
        overwriting = {node.outputs[out].name for node in nodes for out, _ in alias_of(node)}

        def is_result(name: str) -> bool:
            return name in overwriting or name in self._wanted or not self.readers.get(name, inside) <= inside

        outputs = tuple(value for node in nodes for value in node.outputs if is_result(value.name))
        inputs = tuple(dict.fromkeys(v for node in nodes for v in node.inputs if v.name not in made))
        if any(node.phase != "step" for node in nodes) or all(map(is_sum, nodes)):
            return None
        attrs = build_stream(nodes, inputs, outputs) if self._in_time(nodes, inside) else None
        if attrs is None:
            return None
        ends = [node.origin or node.name for node in (nodes[0], nodes[-1])]
        return Node(name, "Stream", inputs, outputs, attrs, " .. ".join(dict.fromkeys(ends)))

    def _in_time(self, nodes: Sequence[Node], inside: set[str]) -> bool:
        """Tell whether no node that needs the nodes' results reads values that they overwrite."""
        victims = (node.inputs[source].name for node in nodes for _, source in alias_of(node))
        late = {reader for name in victims for reader in self.readers.get(name, ())} - inside
        if not late:
            return True
        return not self._dependencies.any_after(late, inside)

    @cached_property
    def _dependencies(self) -> Dependencies:
        return Dependencies(self._graph)


def with_readers_beside(graph: Graph) -> Graph:
    """Return the graph with each update that sums over rows right after its operands and after the readers of what it
    overwrites; and with slices right after their maps."""
    graph = with_early_slices(graph)
    place = {value.name: index for index, node in enumerate(graph.nodes) for value in node.outputs}
    behind: dict[int, list[Node]] = {}
    sums = {node.name for node in graph.nodes if is_sum(node)}
    others = ((index, node) for index, node in enumerate(graph.nodes) if node.name not in sums)
    read = grouped((value.name, index) for index, node in others for value in node.inputs)
    for node in graph.nodes:
        if node.name in sums:
            readers = [index for _, source in alias_of(node) for index in read.get(node.inputs[source].name, ())]
            last = max([*readers, *(place.get(value.name, 0) for value in node.inputs)])
            behind.setdefault(last, []).append(node)
    if not sums:
        return graph
    nodes = (
        one
        for index, node in enumerate(graph.nodes)
        for one in ([] if node.name in sums else [node]) + behind.get(index, [])
    )
    return replace(graph, nodes=tuple(nodes))


def with_early_slices(graph: Graph) -> Graph:
    """Return the graph with each slice of a map right after the map's producer: the backward pass keeps slices, and
    lists them where it reads them."""
    made = {value.name for node in graph.nodes for value in node.outputs}
    known = (node for node in graph.nodes if is_slice(node) and node.inputs[0].name in made)
    slices = grouped((node.inputs[0].name, node) for node in known)
    moved = {node.name for several in slices.values() for node in several}

    def with_slices(node: Node) -> Iterator[Node]:
        yield node
        for value in node.outputs:
            for piece in slices.get(value.name, ()):
                yield from with_slices(piece)

    nodes = (one for node in graph.nodes if node.name not in moved for one in with_slices(node))
    return replace(graph, nodes=tuple(nodes)) if moved else graph


def with_streams(graph: Graph, streams: Iterable[Node]) -> Graph:
    """Return the graph with these streams, each in the place of its last inner node that is not a sum over rows."""
    whole = {inner.name: node for node in streams for inner in inner_nodes(node)}
    if not whole:
        return graph
    last = {[inner for inner in inner_nodes(node) if not is_sum(inner)][-1].name: node for node in whole.values()}
    early = with_early_slices(graph).nodes
    nodes = (last.get(node.name, node) for node in early if node.name not in whole or node.name in last)
    return with_early_slices(replace(graph, nodes=tuple(nodes)))


def with_lines(graph: Graph, as_bytes: bool = False) -> Graph:
    """Return the graph with its image taken row by row: one more node, whose result all others read instead of the
    image.

    as_bytes: an int8 image comes as bytes of a camera.
    """
    image = graph.inputs[0]
    given = replace(image, dtype="uint8") if as_bytes else image
    taken = {value.name for node in graph.nodes for value in node.outputs} | {value.name for value in graph.inputs}
    name = next(name for k in range(len(taken) + 1) if (name := f"{image.name}.lines{k or ''}") not in taken)
    rows = replace(image, name=name)

    def instead(node: Node) -> Node:
        return replace(node, inputs=tuple(rows if value == image else value for value in node.inputs))

    nodes = (Node(name, LINES, (given,), (rows,)), *map(instead, graph.nodes))
    return replace(graph, nodes=nodes, inputs=(given, *graph.inputs[1:]))


def without_lines(graph: Graph) -> Graph:
    """Return the graph with its whole image again."""
    rows = [node.outputs[0] for node in graph.nodes if node.op == LINES]
    if not rows:
        return graph
    image = replace(rows[0], name=graph.inputs[0].name)
    nodes = (replace(n, inputs=tuple(image if v == rows[0] else v for v in n.inputs)) for n in graph.nodes)
    whole = tuple(node for node in nodes if node.op != LINES)
    return replace(graph, nodes=whole, inputs=(image, *graph.inputs[1:]))


def without_streams(graph: Graph) -> Graph:
    """Return the graph with streams replaced by their inner nodes."""
    if not any(node.op == "Stream" for node in graph.nodes):
        return graph
    return replace(graph, nodes=tuple(inner for node in graph.nodes for inner in computed(node)))


def inner_nodes(node: Node) -> tuple[Node, ...]:
    """Return the inner nodes of a stream; none for any other node."""
    return node.attrs.nodes if isinstance(node.attrs, StreamAttrs) else ()


def is_sum(node: Node) -> bool:
    """Tell whether a node sums over the rows of a map, in a stream."""
    form = row_form(node)
    return form is not None and form.sum is not None


def is_slice(node: Node) -> bool:
    """Tell whether a node copies a part of every row of a map."""
    return node.op == "Slice" and row_form(node) is not None
