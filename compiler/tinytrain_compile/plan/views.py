"""Parts of a buffer: values inside another one, because a Concat or Slice between them moves nothing.

Views relate values to each other: a *group* is a set of values connected by views, with a place for each of them.
Within a group only one node writes each byte, so a view shows the right bytes at any time after that. The whole lives
from the first write to the last read. Groups then share memory like in-place pairs: if the only node that reads a value
of one may write a value of the other over it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from tinytrain_compile.ir.types import Graph, Node, grouped
from tinytrain_compile.ops import OPS, op_def
from tinytrain_compile.ops.base import alias_of, inplace_of
from tinytrain_compile.ops.input_lines import arena_inputs

VIEWS = frozenset(definition.as_view for definition in OPS.values() if definition.as_view)
"""Operators that a Concat or Slice becomes."""


class Place(NamedTuple):
    """Place of a value: bytes from the origin of group, or from the start of storage, number `home`."""

    home: int
    start: int


class Span(NamedTuple):
    """Bytes [low, high)."""

    low: int
    high: int

    def shared(self, other: Span) -> Span | None:
        """Return the bytes that two spans share, or None."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Span(low, high) if low < high else None

    def moved(self, shift: int) -> Span:
        """Return the span shifted by some bytes."""
        return Span(self.low + shift, self.high + shift)


class ViewGroups:
    """Values of a graph by the views between them; persistent memory, flash and labels stay outside."""

    def __init__(self, graph: Graph) -> None:
        self.place: dict[str, Place] = {}
        self.members: list[list[str]] = []
        self.sizes: dict[str, int] = {}
        self.written: set[str] = set()
        overwritten = {node.inputs[source].name for node in graph.nodes for _, source in alias_of(node)}
        self.outside = overwritten | {value.name for value in (*graph.state, *graph.accumulators)}
        for value in arena_inputs(graph):
            self._open(value.name, value.size_bytes)
        for node in graph.nodes:
            aliased = {output for output, _ in alias_of(node)}
            for position, value in enumerate(node.outputs):
                if position not in aliased and not (op_def(node.op).view and position == 0):
                    self._open(value.name, value.size_bytes)
            if op_def(node.op).view:
                self.relate(node, 1)

    def _open(self, name: str, size_bytes: int) -> None:
        if name not in self.outside:
            self.place[name], self.sizes[name] = Place(len(self.members), 0), size_bytes
            self.members.append([name])
            self.written.add(name)

    def span(self, name: str) -> Span:
        """Return the bytes of a value, counted from its group's origin."""
        start = self.place[name].start
        return Span(start, start + self.sizes[name])

    def writes(self, home: int) -> list[Span]:
        """Return the spans that nodes write in a group, or the user before the first node."""
        return [self.span(name) for name in self.members[home] if name in self.written]

    def relate(self, node: Node, alignment: int) -> bool:
        """Put a view's output where its inputs are; return False, and change nothing, if they cannot all be there.

        That is impossible if one is in flash or persistent memory, occurs twice, is elsewhere by another view, or is
        not aligned.
        """
        starts, output = op_def(node.op).placed.starts(node), node.outputs[0]
        if starts is None or any(start % alignment for start in starts):
            return False
        if any(value.name not in self.place for value in node.inputs):
            return False
        if output.name not in self.place:
            self._open(output.name, output.size_bytes)
        self.written.discard(output.name)
        shown = list(zip((*(value.name for value in node.inputs), output.name), (*starts, 0), strict=True))
        # The origin of each group, counted from the output.
        origin = {self.place[name].home: start - self.place[name].start for name, start in shown}
        if not self._fit(shown, origin):
            self.written.add(output.name)
            return False
        first = self.place[output.name].home
        for home, shift in origin.items():
            for name in self.members[home]:
                self.place[name] = Place(first, self.place[name].start + shift - origin[first])
            if home != first:
                self.members[first] += self.members[home]
                self.members[home] = []
        return True

    def _fit(self, shown: list[tuple[str, int]], origin: dict[int, int]) -> bool:
        """Tell whether every value has one place only, and no byte two writers."""
        if any(origin[self.place[name].home] + self.place[name].start != start for name, start in shown):
            return False
        writes = [(home, span.moved(shift)) for home, shift in origin.items() for span in self.writes(home)]
        return not any(
            one.shared(other) for at, (home, one) in enumerate(writes) for place, other in writes[:at] if place != home
        )


def candidates(graph: Graph, alignment: int, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return names of nodes that may become views together: in the graph's order, each if it is possible with those
    before."""
    wanted = [node for node in graph.nodes if op_def(node.op).as_view and node.name not in without]
    if not wanted:
        return ()
    groups = ViewGroups(graph)
    return tuple(node.name for node in wanted if groups.relate(node, alignment))


def with_views(graph: Graph, names: Collection[str]) -> Graph:
    """Return the graph with these nodes as views; the same graph if there are none."""
    if not names:
        return graph
    nodes = (replace(node, op=op_def(node.op).as_view) if node.name in names else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


# ---- storages -------------------------------------------------------------------------------------------------------


class ViewStorages:
    """Groups with parts, and values that share their memory: a place in a storage per value, and every storage's
    size."""

    def __init__(self, graph: Graph, held: Collection[str]) -> None:
        self._groups = groups = ViewGroups(graph)
        self._held = held
        homes = range(len(groups.members))
        self._storage = [Place(home, 0) for home in homes]
        self._homes = [[home] for home in homes]
        self._hulls = [_hull([groups.span(name) for name in groups.members[home]]) for home in homes]
        self._writes = [groups.writes(home) for home in homes]
        self._parted = [len({groups.span(name) for name in names}) > 1 for names in groups.members]
        self.place: dict[str, Place] = {}
        self.sizes: dict[int, int] = {}
        if any(self._parted):
            self._share(graph)
        for storage, homes in enumerate(self._homes):
            if homes and self._parted[storage]:
                low, high = self._hulls[storage]
                self.sizes[storage] = high - low
                names = (name for home in homes for name in groups.members[home])
                self.place |= {name: Place(storage, self._span(name).low - low) for name in names}

    def _span(self, name: str) -> Span:
        return self._groups.span(name).moved(self._storage[self._groups.place[name].home].start)

    def _share(self, graph: Graph) -> None:
        """Join storages by in-place pairs; at most one per node."""
        known = (node for node in graph.nodes if not op_def(node.op).view)
        readers = grouped((value.name, node.name) for node in known for value in node.inputs)
        for node in graph.nodes:
            known = ((output, source) for output, source in inplace_of(node) if output < len(node.outputs))
            for output, source in known:
                if source < len(node.inputs):
                    names = node.inputs[source].name, node.outputs[output].name
                    if all(name in self._groups.place for name in names) and self._join(node, *names, readers):
                        break

    def _join(self, node: Node, source: str, output: str, readers: dict[str, list[str]]) -> bool:
        """Put `output` over `source`, which only this node reads."""
        groups, home = self._groups, self._groups.place[source].home
        old, new = self._storage[home].home, self._storage[groups.place[output].home].home
        span = groups.span(source)
        if old == new or groups.sizes[source] != groups.sizes[output] or not (self._parted[old] or self._parted[new]):
            return False
        beside = [name for name in groups.members[home] if groups.span(name).shared(span)]
        reads = [reader for name in beside for reader in readers.get(name, ())]
        if reads != [node.name] or any(name in self._held for name in beside):
            return False
        span = self._span(source)
        shift = span.low - self._span(output).low
        hull, added = self._hulls[old], self._hulls[new].moved(shift)
        joined = _hull((hull, added))
        if joined not in (hull, added):
            return False  # neither is inside the other: together they would be larger than the larger one
        written = [other.moved(shift) for other in self._writes[new]]
        for other in written:
            for one in self._writes[old]:
                both = one.shared(other)
                if both is not None and both.shared(span) != both:
                    return False
        for moved in self._homes[new]:
            self._storage[moved] = Place(old, self._storage[moved].start + shift)
        self._homes[old] += self._homes[new]
        self._writes[old] += written
        self._hulls[old] = joined
        self._homes[new] = []
        self._parted[old] = True
        return True


def _hull(spans: Sequence[Span]) -> Span:
    """Return the smallest span that contains all spans; an empty one for none."""
    return Span(min((span.low for span in spans), default=0), max((span.high for span in spans), default=0))
