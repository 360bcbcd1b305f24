"""Which layers become streams: a model of bytes proposes, the arena of a plan decides.

The model works on a quick plan without streams. A run of layers that have a form by rows is cut where the largest load
becomes smallest: of a stream what lives beside it, its results and its scratch, of a layer alone what the plan says.
Loads below what the input and the nodes outside of the runs need in any order, a run at best, or --arena holds, are as
good as none; among equals fewer layers are streamed. Then each stream is left out whose absence makes neither the
arena of a quick plan larger nor what lives at once in it: places of a quick plan may have gaps that a full one closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tinytrain_compile.ir import Graph, Node
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.input_lines import LINES, takes_lines
from tinytrain_compile.plan.check.streams import validate_streams
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planned import REMEMBERED, least_need, plan_graph
from tinytrain_compile.plan.planner import alone_bound, least_load, sure_load
from tinytrain_compile.plan.streams.model import StreamModel
from tinytrain_compile.plan.streams.rewrite import inner_nodes, with_readers_beside, with_streams

LONGEST = 12
"""Layers in a stream, at most."""
MOST_BUILT = 2000
"""Streams that are built to be looked at, at most."""
MOST_LOOKED = 5_000_000
"""Buffers that are looked at for all streams together, built or not, at most."""
_NEVER = 1 << 62
"""Bytes of what no plan may do."""


@dataclass(frozen=True)
class Cut:
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
    return any(runs_of(with_readers_beside(graph)))


def bound_with_streams(graph: Graph, options: PlanOptions) -> int:
    """No plan needs less, whichever layers are streams or run twice: what has no form by rows runs alone."""
    alone = {node.name for node in graph.nodes if node.phase != "step" or row_form(node) is None}
    return alone_bound(graph, options, alone)


def streamed(graph: Graph, options: PlanOptions, room: int = 0, exact: bool = True) -> Graph:
    """The graph with those layers as streams that make its arena smallest by quick plans; itself where none does.

    room: bytes that are there, so that less than these is no gain. exact: whether quick plans say which
    streams are needed; else rough ones do, in a fifth of the time.
    An image that comes row by row (`with_lines`) always begins a stream, if any can begin with it.
    """
    return _streamed(graph, replace(options, effort="quick", capacity_bytes=None), room, exact)


@lru_cache(maxsize=REMEMBERED)
def _streamed(graph: Graph, quick: PlanOptions, room: int, exact: bool) -> Graph:
    """The same by options of a quick plan. A quick plan and a full one of the same graph have the same streams, so the
    last few are remembered."""
    beside = with_readers_beside(graph)
    runs = list(runs_of(beside))
    if not runs:
        return graph
    without = plan_graph(graph, quick).plan
    found = proposed(beside, without, quick, runs, room)
    if not found:
        return graph
    looked = quick if exact else replace(quick, effort="rough")
    result, least = needed_streams(graph, found, looked, room)
    if not any(map(takes_lines, result.nodes)) and least >= without.arena_bytes:
        return graph
    validate_streams(graph, result)
    return result


def needed_streams(graph: Graph, streams: Sequence[Node], quick: PlanOptions, room: int = 0) -> tuple[Graph, int]:
    """(the graph with those of the streams without which the arena, or what lives at once, would be larger; its arena),
    by quick plans.

    One after another is left out; all that remain at once first, and once more behind the first that is needed, since
    few of them often are (of more than two).
    """
    chosen, result = list(streams), with_streams(graph, streams)
    least = least_need(result, quick)
    most = max(least.arena_bytes, room)
    open_ = (stream for stream in streams if not takes_lines(stream))
    waiting = [stream for stream in open_ if sure_load(graph, quick, _inside(stream)) <= most]
    at_once, needed = True, 0
    while waiting:
        tried = waiting if at_once and len(waiting) > 2 else waiting[:1]
        most, fewer = max(least.arena_bytes, room), [stream for stream in chosen if stream not in tried]
        without = with_streams(graph, fewer)
        found = least_need(without, quick, most)
        if found.arena_bytes <= most and found.peak_bytes <= max(least.peak_bytes, room):
            chosen, result, least, waiting = fewer, without, found, waiting[len(tried) :]
            at_once = False
        elif len(tried) > 1:
            at_once = False
        else:
            needed, waiting = needed + 1, waiting[1:]
            at_once = needed == 1
    return result, least.arena_bytes


def _inside(stream: Node) -> set[str]:
    """Names of what a stream computes."""
    return {node.name for node in inner_nodes(stream)}


def proposed(graph: Graph, plan: MemoryPlan, options: PlanOptions, runs: Sequence[range], room: int = 0) -> list[Node]:
    """Streams of these runs of layers by the model of bytes, in the graph's order.

    The run with the largest load is cut first: what it needs at best, the others need not be below.
    """
    steps = {node.name: step for step, node in enumerate(plan.order)}
    model = StreamModel(graph, plan, options)

    def alone(node: Node) -> int:
        return _NEVER if node.op == LINES else model.loads[node.name]  # rows of the image come into a stream

    floor = max(room, least_load(graph, options, {graph.nodes[index].name for run in runs for index in run}))
    cutter = Cutter(model, alone)
    found: list[Node] = []
    layers = [graph.nodes[run.start : run.stop] for run in sorted(runs, key=lambda run: run.start)]
    for run in sorted(layers, key=lambda run: -max(map(alone, run))):
        cut = cutter.best(run, floor)
        found += cut.streams
        floor = max(floor, cut.load)
    return sorted(found, key=lambda stream: min(steps[node.name] for node in inner_nodes(stream)))


class Cutter:
    """Cuts runs of layers into streams and layers alone. alone: the load of a layer that is in no stream."""

    def __init__(self, model: StreamModel, alone: Callable[[Node], int]) -> None:
        self._model, self._alone = model, alone
        self.built = self.looked = 0

    def best(self, run: Sequence[Node], floor: int) -> Cut:
        """The cut of smallest load, of which everything up to `floor` is as good as none."""
        loads = [self._alone(node) for node in run]
        best = [Cut(floor, 0, ())]
        for end in range(1, len(run) + 1):
            alone = replace(best[end - 1], load=max(best[end - 1].load, loads[end - 1]))
            starts = [s for s in range(max(0, end - LONGEST), end - 1) if max(loads[s:end]) > floor]
            best.append(self._with_a_stream(alone, [(best[start], run[start:end]) for start in starts]))
        return best[-1]

    def _with_a_stream(self, alone: Cut, ways: Sequence[tuple[Cut, Sequence[Node]]]) -> Cut:
        """The best of a cut, and of these, each followed by a stream of these layers; the first of equals.

        What promises most is built first: most others then need not be.
        """
        found, first = alone, -1
        for least, place in sorted(self._promises(ways)):
            before, nodes = ways[place]
            if (least, place) > (found.price, first) or self.built >= MOST_BUILT:
                break
            self.built += 1
            stream = self._model.stream(nodes)
            if stream is not None:
                load = max(before.load, self._model.load(stream, nodes))
                cut = Cut(load, before.layers + len(nodes), (*before.streams, stream))
                if (cut.price, place) < (found.price, first):
                    found, first = cut, place
        return found

    def _promises(self, ways: Sequence[tuple[Cut, Sequence[Node]]]) -> Iterator[tuple[tuple[int, int, int], int]]:
        """(a price that a way is not below, its place)."""
        for place, (before, nodes) in enumerate(ways):
            if self.looked >= MOST_LOOKED:
                return
            self.looked += self._model.buffers
            load = max(before.load, self._model.least(nodes))
            yield (load, before.layers + len(nodes), len(before.streams) + 1), place


def runs_of(graph: Graph) -> Iterator[range]:
    """Positions of nodes that follow each other and can be computed by rows."""
    start = 0
    for index in range(len(graph.nodes) + 1):
        node = graph.nodes[index] if index < len(graph.nodes) else None
        if node is None or node.phase != "step" or row_form(node) is None:
            if index - start > 1:
                yield range(start, index)
            start = index + 1
