"""Which layers become streams: a model of bytes proposes, the arena of a plan decides.

The model works on a quick plan without streams. A run of layers that have a form by rows is cut where the largest load
becomes smallest: of a stream what lives beside it, its results and its scratch, of a layer alone what the plan says.
Loads below what the input and the nodes outside of the runs need in any order are as good as none; among equals fewer
layers are streamed. Then each stream is left out whose absence makes the arena no larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tinytrain_compile.ir import Graph, Node
from tinytrain_compile.ir.buffers import load_of
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.input_lines import LINES, takes_lines
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planned import plan_graph
from tinytrain_compile.plan.planner import least_load
from tinytrain_compile.plan.stream_rewrite import stream_node, with_streams, with_sums_beside
from tinytrain_compile.plan.validate_streams import validate_streams

LONGEST = 12
"""Layers in a stream, at most."""
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


def streamed(graph: Graph, options: PlanOptions) -> Graph:
    """The graph with those layers as streams that make its arena smallest by quick plans; itself where none does.

    An image that comes row by row (`with_lines`) always begins a stream, if any can begin with it.
    """
    quick = replace(options, effort="quick", capacity_bytes=None)
    without = plan_graph(graph, quick).plan
    beside = with_sums_beside(graph)
    found = proposed(beside, without, options, list(runs_of(beside)))
    chosen, least = needed_streams(graph, found, quick) if found else ([], without.arena_bytes)
    if not any(map(takes_lines, chosen)) and (not chosen or least >= without.arena_bytes):
        return graph
    result = with_streams(graph, chosen)
    validate_streams(graph, result)
    return result


def needed_streams(graph: Graph, streams: Sequence[Node], quick: PlanOptions) -> tuple[list[Node], int]:
    """(those of the streams without which the arena would be larger, the arena with them), by quick plans."""

    def arena(streams: Sequence[Node]) -> int:
        return plan_graph(with_streams(graph, streams), quick).plan.arena_bytes

    chosen, least = list(streams), arena(streams)
    for stream in streams:
        if takes_lines(stream):
            continue
        fewer = [other for other in chosen if other != stream]
        found = arena(fewer)
        if found <= least:
            chosen, least = fewer, found
    return chosen, least


def proposed(graph: Graph, plan: MemoryPlan, options: PlanOptions, runs: Sequence[range]) -> list[Node]:
    """Streams of these runs of layers by the model of bytes."""
    steps = {node.name: step for step, node in enumerate(plan.order)}
    load = load_of(plan.buffers, len(plan.order))
    floor = least_load(graph, options, {graph.nodes[index].name for run in runs for index in run})
    model = StreamModel(graph, plan, steps, options)
    found: list[Node] = []
    for run in runs:
        best = [_Cut(floor, 0, ())]
        for end in range(1, len(run) + 1):
            alone = load[steps[graph.nodes[run[end - 1]].name]]
            if graph.nodes[run[end - 1]].op == LINES:
                alone = _NEVER  # its rows come into a stream
            ways = [replace(best[end - 1], load=max(best[end - 1].load, alone))]
            for start in range(max(0, end - LONGEST), end - 1):
                nodes = graph.nodes[run[start] : run[end - 1] + 1]
                if nodes[0].op == LINES or max(load[steps[node.name]] for node in nodes) > floor:
                    ways += model.ways(best[start], nodes)
            best.append(min(ways, key=lambda cut: cut.price))
        found += best[-1].streams
    return found


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

    def ways(self, before: _Cut, nodes: Sequence[Node]) -> Iterator[_Cut]:
        """What is before, and these nodes as a stream, if they can be one."""
        stream = stream_node(self._graph, nodes, f"stream_{nodes[0].name}_{len(nodes)}", self._options.keep)
        if stream is not None:
            load = max(before.load, self.load(stream, nodes))
            yield _Cut(load, before.layers + len(nodes), (*before.streams, stream))

    def load(self, stream: Node, nodes: Sequence[Node]) -> int:
        """Of a stream of these nodes."""
        steps = {self._steps[node.name] for node in nodes}
        own = {value.name for node in nodes for value in node.outputs} | {node.name for node in nodes}
        beside = (
            buffer.size_bytes
            for buffer in self._plan.buffers
            if any(buffer.first_step <= step <= buffer.last_step for step in steps)
            and min(buffer.values or (buffer.name,), key=lambda name: self._made.get(name, -1)) not in own
        )
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
        return sum(beside) + results + reserved(attrs.scratch_bytes) - max(saved)
