"""Which layers become streams: a model of bytes proposes, the arena of a plan decides.

The model works on a quick plan without streams. A run of layers that have a form by rows is cut where the largest load
becomes smallest: of a stream what lives beside it, its results and its scratch, of a layer alone what the plan says.
Loads below what the input and the nodes outside of the runs need in any order, a run at best, or --arena holds, are as
good as none; among equals fewer layers are streamed. Then each stream is left out whose absence makes the arena no
larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tinytrain_compile.ir import Graph, Node
from tinytrain_compile.ir.buffers import load_of
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops.base import alias_of, row_form
from tinytrain_compile.ops.input_lines import LINES, takes_lines
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planned import REMEMBERED, plan_graph
from tinytrain_compile.plan.planner import least_load
from tinytrain_compile.plan.stream_rewrite import inner_nodes, stream_node, with_streams, with_sums_beside
from tinytrain_compile.plan.validate_streams import validate_streams

LONGEST = 12
"""Layers in a stream, at most."""
MOST_BUILT = 2000
"""Streams that are built to be looked at, at most."""
MOST_LOOKED = 5_000_000
"""Buffers that are looked at for all streams together, built or not, at most."""
_NEVER = 1 << 62
"""Bytes of what no plan may do."""


@dataclass(frozen=True)
class _Cut:
    """A run of layers up to some place: its largest load, layers in streams, and these streams."""

    load: int
    layers: int
    streams: tuple[Node, ...]

    @property
    def price(self) -> tuple[int, int, int]:
        """What is compared."""
        return self.load, self.layers, len(self.streams)


def may_stream(graph: Graph) -> bool:
    """Whether any layers of a graph can be computed row by row."""
    return any(runs_of(with_sums_beside(graph)))


def streamed(graph: Graph, options: PlanOptions, room: int = 0) -> Graph:
    """The graph with those layers as streams that make its arena smallest by quick plans; itself where none does.

    room: bytes that are there, so that less than these is no gain.
    An image that comes row by row (`with_lines`) always begins a stream, if any can begin with it.
    """
    return _streamed(graph, replace(options, effort="quick", capacity_bytes=None), room)


@lru_cache(maxsize=REMEMBERED)
def _streamed(graph: Graph, quick: PlanOptions, room: int) -> Graph:
    """The same by options of a quick plan. A quick plan and a full one of the same graph have the same streams, so the
    last few are remembered."""
    beside = with_sums_beside(graph)
    runs = list(runs_of(beside))
    if not runs:
        return graph
    without = plan_graph(graph, quick).plan
    found = proposed(beside, without, quick, runs, room)
    chosen, least = needed_streams(graph, found, quick, room) if found else ([], without.arena_bytes)
    if not any(map(takes_lines, chosen)) and (not chosen or least >= without.arena_bytes):
        return graph
    result = with_streams(graph, chosen)
    validate_streams(graph, result)
    return result


def needed_streams(graph: Graph, streams: Sequence[Node], quick: PlanOptions, room: int = 0) -> tuple[list[Node], int]:
    """(those of the streams without which the arena would be larger, the arena with them), by quick plans."""

    def arena(streams: Sequence[Node]) -> int:
        return plan_graph(with_streams(graph, streams), quick).plan.arena_bytes

    chosen, least = list(streams), arena(streams)
    for stream in streams:
        if takes_lines(stream):
            continue
        fewer = [other for other in chosen if other != stream]
        found = arena(fewer)
        if found <= max(least, room):
            chosen, least = fewer, found
    return chosen, least


def proposed(graph: Graph, plan: MemoryPlan, options: PlanOptions, runs: Sequence[range], room: int = 0) -> list[Node]:
    """Streams of these runs of layers by the model of bytes, in the graph's order.

    The run with the largest load is cut first: what it needs at best, the others need not be below.
    """
    steps = {node.name: step for step, node in enumerate(plan.order)}
    load = load_of(plan.buffers, len(plan.order))
    floor = max(room, least_load(graph, options, {graph.nodes[index].name for run in runs for index in run}))
    model = StreamModel(graph, plan, steps, options)

    def alone(index: int) -> int:
        node = graph.nodes[index]
        return _NEVER if node.op == LINES else load[steps[node.name]]  # rows of the image come into a stream

    found: list[Node] = []
    for run in sorted(runs, key=lambda run: (-max(map(alone, run)), run.start)):
        best = [_Cut(floor, 0, ())]
        for end in range(1, len(run) + 1):
            cut = replace(best[end - 1], load=max(best[end - 1].load, alone(run[end - 1])))
            for start in range(max(0, end - LONGEST), end - 1):
                if max(map(alone, run[start:end])) > floor:
                    cut = model.better(cut, best[start], graph.nodes[run[start] : run[end - 1] + 1])
            best.append(cut)
        found += best[-1].streams
        floor = max(floor, best[-1].load)
    return sorted(found, key=lambda stream: min(steps[node.name] for node in inner_nodes(stream)))


def runs_of(graph: Graph) -> Iterator[range]:
    """Positions of nodes that follow each other and can be computed by rows."""
    start = 0
    for index in range(len(graph.nodes) + 1):
        node = graph.nodes[index] if index < len(graph.nodes) else None
        if node is None or node.phase != "step" or row_form(node) is None:
            if index - start > 1:
                yield range(start, index)
            start = index + 1


class StreamModel:
    """Bytes that are live while a stream runs, by a plan without streams."""

    def __init__(self, graph: Graph, plan: MemoryPlan, steps: dict[str, int], options: PlanOptions) -> None:
        self._graph, self._plan, self._steps, self._options = graph, plan, steps, options
        self._ends = {name: buffer.last_step for buffer in plan.buffers for name in buffer.values}
        self._made = {value.name: step for step, node in enumerate(plan.order) for value in node.outputs}
        self._first = [
            min(buffer.values or (buffer.name,), key=lambda name: self._made.get(name, -1)) for buffer in plan.buffers
        ]
        self._readers: dict[str, set[str]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self._readers.setdefault(value.name, set()).add(node.name)
        self.built = self.looked = 0

    def better(self, known: _Cut, before: _Cut, nodes: Sequence[Node]) -> _Cut:
        """The better of a cut, and what is before with these nodes as a stream, if they can be one."""
        if self.looked >= MOST_LOOKED or self.built >= MOST_BUILT:
            return known
        self.looked += len(self._plan.buffers)
        if max(before.load, self.least(nodes)) > known.load:
            return known
        self.built += 1
        stream = stream_node(self._graph, nodes, f"stream_{nodes[0].name}_{len(nodes)}", self._options.keep)
        if stream is None:
            return known
        load = max(before.load, self.load(stream, nodes))
        found = _Cut(load, before.layers + len(nodes), (*before.streams, stream))
        return min(known, found, key=lambda cut: cut.price)

    def _beside(self, nodes: Sequence[Node]) -> int:
        """Bytes that live while any of these nodes runs, and that none of them makes."""
        steps = {self._steps[node.name] for node in nodes}
        own = {value.name for node in nodes for value in node.outputs} | {node.name for node in nodes}
        return sum(
            buffer.size_bytes
            for buffer, first in zip(self._plan.buffers, self._first, strict=True)
            if first not in own and any(buffer.first_step <= step <= buffer.last_step for step in steps)
        )

    def least(self, nodes: Sequence[Node]) -> int:
        """No stream of these nodes has a smaller load: it has no scratch, and one result covers one operand wholly."""
        reserved, inside = self._options.reserved, {node.name for node in nodes}
        last = max(self._steps[node.name] for node in nodes)
        read = {value.name: reserved(value.size_bytes) for node in nodes for value in node.inputs}
        dying = [size for name, size in read.items() if self._ends.get(name, last + 1) <= last]
        results = [
            reserved(value.size_bytes)
            for node in nodes
            for index, value in enumerate(node.outputs)
            if index not in dict(alias_of(node)) and not self._readers.get(value.name, set()) <= inside
        ]
        return self._beside(nodes) + sum(results) - min(max(results, default=0), max(dying, default=0))

    def load(self, stream: Node, nodes: Sequence[Node]) -> int:
        """Of a stream of these nodes."""
        steps = {self._steps[node.name] for node in nodes}
        reserved = self._options.reserved
        attrs = stream.attrs
        assert isinstance(attrs, StreamAttrs)
        overwriting = dict(attrs.overwrites)
        made = (value for index, value in enumerate(stream.outputs) if index not in overwriting)
        results = sum(reserved(value.size_bytes) for value in made)
        saved = [0]
        for cover in attrs.covers:
            source, result = stream.inputs[cover.source], stream.outputs[cover.output]
            if self._ends.get(source.name, max(steps) + 1) <= max(steps):
                both = (reserved(result.size_bytes), reserved(source.size_bytes))
                saved.append(sum(both) - max(both[0], reserved(cover.distance) + both[1]))
        return self._beside(nodes) + results + reserved(attrs.scratch_bytes) - max(saved)
