"""Choice of the layers that become streams: a model of bytes proposes, the arena of a plan decides.

The model works on a quick plan without streams. It cuts a run of layers that have a form by rows so that the largest
load becomes smallest. The load of a stream is what lives beside it, its results and its scratch; that of a single layer
is the plan's. Some loads count as 0: those below what the input and the nodes outside the runs need in any order, what
a run needs at best, or what --arena holds. Among equals, fewer layers are streamed. Then each stream is dropped without
which neither the arena of a quick plan nor its live bytes are larger. Both count, since places of a quick plan may have
gaps that a full one closes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.buffers import load_of
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops.base import alias_of, row_form
from tinytrain_compile.ops.input_lines import LINES, takes_lines
from tinytrain_compile.ops.rows import RowForm, row_pitch
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.check.rewrites import validate_streams
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import REMEMBERED, alone_bound, least_load, least_need, plan_graph, sure_load
from tinytrain_compile.plan.streams.rewrite import StreamMaker, inner_nodes, is_slice, with_readers_beside, with_streams


@dataclass(frozen=True)
class _Layer:
    """Facts about a node that are needed often. step: of the plan, at which it runs; begun: buffers that it begins.

    is_slice: it may run as soon as its map exists. reads, writes: values -> bytes reserved for them, without results
    that overwrite an operand. Bytes of scratch in any stream: kept, for what it prepares once; working, for computing a
    row; windows, for the rows of each map that one of its rows needs; row, for one of its rows.
    """

    step: int
    begun: list[int]
    reads: dict[str, int]
    writes: dict[str, int]
    kept: int = 0
    working: int = 0
    windows: dict[str, int] = field(default_factory=dict[str, int])
    row: int = 0
    is_slice: bool = False


class StreamModel:
    """Bytes that streams of a graph's nodes need, from a plan without streams. buffers: number of that plan's buffers.
    loads: bytes that live while each node runs, in that plan."""

    def __init__(self, graph: Graph, plan: MemoryPlan, options: PlanOptions) -> None:
        self._maker, self._reserved = StreamMaker(graph, options.keep), options.reserved
        self._ends, loads = _ends(plan), load_of(plan.buffers, len(plan.order))
        made = {value.name: step for step, node in enumerate(plan.order) for value in node.outputs}
        self._steps = _steps(plan, made, loads)
        self.loads = {name: loads[step] for name, step in self._steps.items()}
        self.buffers = len(plan.buffers)
        self._sizes = np.array([buffer.size_bytes for buffer in plan.buffers], dtype=np.int64)
        self._alive = np.zeros((len(plan.order), self.buffers), bool)
        self._begun: dict[str, list[int]] = {}
        for index, buffer in enumerate(plan.buffers):
            self._alive[buffer.first_step : buffer.last_step + 1, index] = True
            first = min(buffer.values or (buffer.name,), key=lambda name: made.get(name, -1))
            self._begun.setdefault(first, []).append(index)
        self._layers: dict[str, _Layer] = {}

    def stream(self, nodes: Sequence[Node]) -> Node | None:
        """Return the stream of these nodes, if they can be one."""
        return self._maker.stream(nodes, f"stream_{nodes[0].name}_{len(nodes)}")

    def least(self, nodes: Sequence[Node]) -> int:
        """Return a lower bound of the load of a stream of these nodes: its rings hold the rows that one row of a node
        needs, and one result covers one operand completely."""
        layers, inside = [self._layer(node) for node in nodes], {node.name for node in nodes}
        last, readers = max(layer.step for layer in layers), self._maker.readers
        dying = (size for one in layers for name, size in one.reads.items() if self._ends.get(name, last + 1) <= last)
        made = {name: size for layer in layers for name, size in layer.writes.items()}
        results = {name: size for name, size in made.items() if not readers.get(name, inside) <= inside}
        saved = min(max(results.values(), default=0), max(dying, default=0))
        inner = made.keys() - results.keys()
        return self._beside(layers) + sum(results.values()) + _least_scratch(layers, inner) - saved

    def load(self, stream: Node, nodes: Sequence[Node]) -> int:
        """Return the load of a stream of these nodes."""
        last = max(self._steps[node.name] for node in nodes)
        attrs = stream.attrs
        assert isinstance(attrs, StreamAttrs)
        overwriting = dict(attrs.overwrites)
        made = (value for index, value in enumerate(stream.outputs) if index not in overwriting)
        results = sum(self._reserved(value.size_bytes) for value in made)
        saved = [0]
        for cover in attrs.covers:
            source, result = stream.inputs[cover.source], stream.outputs[cover.output]
            if self._ends.get(source.name, last + 1) <= last:
                both = (self._reserved(result.size_bytes), self._reserved(source.size_bytes))
                saved.append(sum(both) - max(both[0], self._reserved(cover.distance) + both[1]))
        beside = self._beside([self._layer(node) for node in nodes])
        return beside + results + self._reserved(attrs.scratch_bytes) - max(saved)

    def _beside(self, layers: Sequence[_Layer]) -> int:
        """Return the bytes that live while any of these layers runs and that none of them makes."""
        made = {name for layer in layers for name in layer.writes}
        steps = [layer.step for layer in layers if not layer.is_slice or made.isdisjoint(layer.reads)]
        alive: NDArray[np.bool_] = np.logical_or.reduce(self._alive[steps])
        alive[[index for layer in layers for index in layer.begun]] = False
        return int(self._sizes[alive].sum())

    def _layer(self, node: Node) -> _Layer:
        found = self._layers.get(node.name)
        if found is None:
            found = self._layers[node.name] = self._looked_up(node)
        return found

    def _looked_up(self, node: Node) -> _Layer:
        aliased = {output for output, _ in alias_of(node)}
        written = [value for index, value in enumerate(node.outputs) if index not in aliased]
        begun = [i for name in (node.name, *(v.name for v in node.outputs)) for i in self._begun.get(name, ())]
        reads, writes = ({v.name: self._reserved(v.size_bytes) for v in values} for values in (node.inputs, written))
        layer, form = _Layer(self._steps[node.name], begun, reads, writes, is_slice=is_slice(node)), row_form(node)
        if form is None:
            return layer
        row = form.unit * row_pitch(node.outputs[0]) if form.sum is None else 0
        working = form.scratch_bytes - form.kept_bytes
        return replace(layer, kept=form.kept_bytes, working=working, windows=_windows(node, form), row=row)


def _steps(plan: MemoryPlan, made: dict[str, int], loads: Sequence[int]) -> dict[str, int]:
    """Return node -> its step; for a slice the step of least load since its map exists, since it may run at any of
    these."""
    found = {node.name: step for step, node in enumerate(plan.order)}
    for node in filter(is_slice, plan.order):
        own = found[node.name]
        found[node.name] = min(range(made.get(node.inputs[0].name, own), own + 1), key=lambda step: loads[step])
    return found


def _ends(plan: MemoryPlan) -> dict[str, int]:
    """Return value -> the last step that needs it. That is the last one of its buffer, unless another value is written
    over it in place: in a stream the two are a separate operand and result."""
    found = {name: buffer.last_step for buffer in plan.buffers for name in buffer.values}
    last, same = dict[str, int](), dict[str, str]()
    for step, node in enumerate(plan.order):
        for out, source in alias_of(node):
            same[node.outputs[out].name] = same.get(node.inputs[source].name, node.inputs[source].name)
        last.update((same.get(value.name, value.name), step) for value in (*node.inputs, *node.outputs))
    for buffer in plan.buffers:
        own = {name: last.get(same.get(name, name), buffer.last_step) for name in buffer.values}
        if not buffer.within:
            found.update((name, step) for name, step in own.items() if step < max(own.values()))
    return found


def _windows(node: Node, form: RowForm) -> dict[str, int]:
    """Map each map that a node reads by rows to the most bytes of its rows that one row of the node needs."""
    found = dict[str, int]()
    for place, position in enumerate(form.maps):
        value = node.inputs[position]
        starts = range(0, form.height(node), form.unit)
        rows = max(len(form.reads_of(place, start, form.unit, value.shape[1])) for start in starts)
        found[value.name] = max(rows * row_pitch(value), found.get(value.name, 0))
    return found


def _least_scratch(layers: Sequence[_Layer], inner: Container[str]) -> int:
    """Return the least scratch of a stream of these layers: what all keep, and the most that one works with and reads
    from rings.

    inner: values in rings.
    """

    def at_once(layer: _Layer) -> int:
        seen = sum(size for name, size in layer.windows.items() if name in inner)
        return layer.working + seen + (layer.row if any(name in inner for name in layer.writes) else 0)

    return sum(layer.kept for layer in layers) + max(map(at_once, layers))


LONGEST = 12
"""Most layers in a stream."""
MOST_BUILT = 2000
"""Most streams built for comparison."""
MOST_LOOKED = 5_000_000
"""Most buffers examined for all streams together, built or not."""
LEAST_SAVED = 0.05
"""Share of the arena that --stream auto must save if no --arena is given: rows cost a little time (docs/streams.md)."""
_NEVER = 1 << 62
"""Load, in bytes, of a choice that no plan may make."""


@dataclass(frozen=True)
class Cut:
    """A cut of a run of layers up to some place: its largest load, layers in streams, and these streams."""

    load: int
    layers: int
    streams: tuple[Node, ...]

    @property
    def price(self) -> tuple[int, int, int]:
        """Sort key of a cut: smaller is better."""
        return self.load, self.layers, len(self.streams)


def may_stream(graph: Graph) -> bool:
    """Tell whether any layers of a graph can be computed row by row."""
    return any(runs_of(with_readers_beside(graph)))


def saves_enough(arena_bytes: int, without: MemoryPlan) -> bool:
    """Tell whether an arena is so much smaller than that of a plan without streams that these are worth it."""
    return arena_bytes <= (1 - LEAST_SAVED) * without.arena_bytes


def load_outside(graph: Graph, plan: MemoryPlan) -> int:
    """Return the largest load, in a plan without streams, of the nodes that no stream can compute."""
    beside = with_readers_beside(graph)
    inside = {node.name for run in runs_of(beside) for node in beside.nodes[run.start : run.stop]}
    loads = load_of(plan.buffers, len(plan.order))
    return max((load for node, load in zip(plan.order, loads, strict=True) if node.name not in inside), default=0)


def bound_with_streams(graph: Graph, options: PlanOptions) -> int:
    """Return a lower bound of every plan, whichever layers are streams or run twice: nodes without a form by rows run
    alone."""
    alone = {node.name for node in graph.nodes if node.phase != "step" or row_form(node) is None}
    return alone_bound(graph, options, alone)


def streamed(graph: Graph, options: PlanOptions, room: int = 0, exact: bool = True) -> Graph:
    """Return the graph with those layers as streams that make its arena smallest by quick plans; itself if none does.

    room: available bytes, so needing less than these is no gain. exact: whether quick plans decide which streams are
    needed; else rough ones do, in a fifth of the time.
    An image that comes row by row (`with_lines`) always begins a stream, if any can begin with it.
    """
    return _streamed(graph, replace(options, effort="quick", capacity_bytes=None), room, exact)


@lru_cache(maxsize=REMEMBERED)
def _streamed(graph: Graph, quick: PlanOptions, room: int, exact: bool) -> Graph:
    """Return `streamed` for options of a quick plan, cached: quick and full plans of a graph have the same streams."""
    beside = with_readers_beside(graph)
    runs = list(runs_of(beside))
    if not runs:
        return graph
    without = plan_graph(graph, quick).plan
    found = proposed(beside, without, quick, runs, room)
    if not found:
        return graph
    looked = quick if exact else replace(quick, effort="rough")
    lines = any(takes_lines(stream) for stream in found)
    if not (exact or lines or room) and not saves_enough(
        least_need(with_streams(graph, found), looked).arena_bytes, without
    ):
        return graph
    result, least = needed_streams(graph, found, looked, room)
    if not lines and least >= without.arena_bytes:
        return graph
    validate_streams(graph, result)
    return result


def needed_streams(graph: Graph, streams: Sequence[Node], quick: PlanOptions, room: int = 0) -> tuple[Graph, int]:
    """Return (the graph with those streams without which the arena, or the live bytes, would be larger; its arena), by
    quick plans.

    Streams are left out one after another. Leaving out all that remain is tried first, and again after the first one
    needed, since often few (of more than two) are needed.
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
    """Return the names of a stream's inner nodes."""
    return {node.name for node in inner_nodes(stream)}


def proposed(graph: Graph, plan: MemoryPlan, options: PlanOptions, runs: Sequence[range], room: int = 0) -> list[Node]:
    """Return streams of these runs of layers by the model of bytes, in the graph's order.

    The run with the largest load is cut first: the others need not go below its best load.
    """
    steps = {node.name: step for step, node in enumerate(plan.order)}
    model = StreamModel(graph, plan, options)

    def alone(node: Node) -> int:
        return _NEVER if node.op == LINES else model.loads[node.name]  # only a stream takes rows of the image

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
    """Cutter of runs of layers into streams and single layers. alone: the load of a layer that is not in a stream."""

    def __init__(self, model: StreamModel, alone: Callable[[Node], int]) -> None:
        self._model, self._alone = model, alone
        self.built = self.looked = 0

    def best(self, run: Sequence[Node], floor: int) -> Cut:
        """Return the cut of smallest load; all loads up to `floor` count as equal."""
        loads = [self._alone(node) for node in run]
        best = [Cut(floor, 0, ())]
        for end in range(1, len(run) + 1):
            alone = replace(best[end - 1], load=max(best[end - 1].load, loads[end - 1]))
            starts = [s for s in range(max(0, end - LONGEST), end - 1) if max(loads[s:end]) > floor]
            best.append(self._with_a_stream(alone, [(best[start], run[start:end]) for start in starts]))
        return best[-1]

    def _with_a_stream(self, alone: Cut, ways: Sequence[tuple[Cut, Sequence[Node]]]) -> Cut:
        """Return the best of a cut, and of these, each followed by a stream of these layers; the first of equals.

        The most promising is built first, so most others need not be built.
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
        """Yield (lower bound of a way's price, its index)."""
        for place, (before, nodes) in enumerate(ways):
            if self.looked >= MOST_LOOKED:
                return
            self.looked += self._model.buffers
            load = max(before.load, self._model.least(nodes))
            yield (load, before.layers + len(nodes), len(before.streams) + 1), place


def runs_of(graph: Graph) -> Iterator[range]:
    """Yield positions of nodes that follow each other and can be computed by rows."""
    start = 0
    for index in range(len(graph.nodes) + 1):
        node = graph.nodes[index] if index < len(graph.nodes) else None
        if node is None or node.phase != "step" or row_form(node) is None:
            if index - start > 1:
                yield range(start, index)
            start = index + 1
