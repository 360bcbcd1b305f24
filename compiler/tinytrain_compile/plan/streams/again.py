"""Choice of the waists of the forward pass to keep, and of the stages that run again beside their errors, row by row or
not. There are two ways, of which the smaller arena wins:

1. All stages up to the last waist run again. All narrow waists are kept at first. Then those are dropped without which
   the backward pass needs less. A stage's errors are a stream if that needs less than its nodes one by one. A quick
   plan of the graph without streams decides all this.
2. A few stages run again; of all others, the tensors that the backward pass reads are kept, which are few if it reads
   only masks. A stage is between two narrow waists that are near each other. Stages that free the most bytes are tried;
   the one with the fewest live bytes by a quick plan with streams is chosen; then one more beside it is searched.

Finally, nodes that are not in streams yet are cut into streams, like layers of a graph without second runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate

from tinytrain_compile.ir.buffers import load_of
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.stages import Rematerialisation, SecondRun
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops import infer, op_def
from tinytrain_compile.ops.base import has_trait, row_form
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.check.rewrites import validate_remat, validate_streams
from tinytrain_compile.plan.model import PERSISTENT_KINDS
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import REMEMBERED, Planned, least_need, plan_graph, streaming
from tinytrain_compile.plan.remat.problem import is_repeatable
from tinytrain_compile.plan.remat.stage import cloned
from tinytrain_compile.plan.streams.rewrite import StreamMaker, with_readers_beside, with_streams, without_streams
from tinytrain_compile.plan.streams.search import needed_streams, proposed, runs_of, streamed


@dataclass(frozen=True)
class Recomputed:
    """A graph with second runs. groups: consecutive nodes of it: every stage's second runs, errors and updates, the
    last stage first."""

    graph: Graph
    runs: tuple[SecondRun, ...]
    groups: tuple[tuple[Node, ...], ...]


class Waists:
    """Places at which the forward pass of a training graph can be kept."""

    def __init__(self, graph: Graph, loss: str) -> None:
        self.graph = with_readers_beside(graph)
        values = {value.name: value for node in graph.nodes for value in node.outputs}
        names = graph.ancestors((values[loss],))
        self.forward = [node for node in graph.nodes if node.name in names]
        made = {value.name for node in self.forward for value in node.outputs}
        beside = [node for node in graph.nodes if node.name not in names and is_repeatable(node)]
        self.beside = [n for n in beside if all(v.name in made or v.name in graph.constants for v in n.inputs)]
        self.beside = [n for n in self.beside if any(v.name in made for v in n.inputs)]
        self.found = tuple(self._waists())

    def _waists(self) -> Iterator[Value]:
        place = dict.fromkeys((value.name for value in self.graph.data), -1)
        place |= {value.name: index for index, node in enumerate(self.forward) for value in node.outputs}
        last = {v.name: index for index, node in enumerate(self.forward) for v in node.inputs if v.name in place}
        for index, node in enumerate(self.forward):
            live = [name for name, end in last.items() if end > index and place[name] <= index]
            if live == [node.outputs[0].name] and len(node.outputs[0].shape) == 4 and is_repeatable(node):
                yield node.outputs[0]

    def narrow(self) -> list[Value]:
        """Return waists that are smaller than the one before and no larger than the next one; and sums."""
        sizes = [value.size_bytes for value in self.found]
        sums = {
            node.outputs[0].name for node in self.forward if len(node.inputs) > 1 and has_trait(node.op, "elementwise")
        }
        return [
            value
            for index, value in enumerate(self.found)
            if sizes[index] <= min(sizes[index + 1 : index + 2], default=0)
            and (value.name in sums or sizes[index] < min(sizes[index - 1 : index], default=0))
        ]

    def keep(self, kept: Sequence[str], again: Collection[int] | None = None) -> Recomputed:
        """Return the graph that keeps only these waists, in their order, of the stages that run again.

        again: numbers of stages; the first stage ends with the first waist. None: all up to the last waist.
        """
        return _Writer(self, kept, range(len(kept)) if again is None else again).written()

    def saved(self, first: str | None, last: str) -> int:
        """Return the bytes that the backward pass reads of the stage between two waists (None: of the first stage)."""
        names = [value.name for value in self.found]
        start = 0 if first is None else names.index(first) + 1
        return sum(self._read[start : names.index(last) + 1])

    @cached_property
    def _read(self) -> list[int]:
        """Bytes that the backward pass reads between each waist and the one before, without both."""
        late = {node.name for node in (*self.forward, *self.beside)}
        read = {value.name for node in self.graph.nodes if node.name not in late for value in node.inputs}
        place = dict.fromkeys((value.name for value in self.graph.data), 0)
        stage, bytes_read = 0, [0] * (len(self.found) + 1)
        waists = {value.name for value in self.found}
        for node in self.forward:
            place.update((value.name, stage) for value in node.outputs)
            stage += node.outputs[0].name in waists
        for node in (*self.forward, *self.beside):
            places = [place[value.name] for value in (*node.inputs, *node.outputs) if value.name in place]
            sizes = (value.size_bytes for value in node.outputs if value.name in read - waists)
            bytes_read[max(places, default=0)] += sum(sizes)
        return bytes_read


class _Writer:
    """Collector of nodes. stage: of each value of the forward pass; a kept value ends one. twice: stages that run
    again."""

    def __init__(self, waists: Waists, kept: Sequence[str], twice: Collection[int]) -> None:
        self._graph, self._kept, self._twice = waists.graph, set(kept), twice
        self._stage: dict[str, int] = {}
        stage = 0
        for node in waists.forward:
            self._stage.update((value.name, stage) for value in node.outputs)
            stage += any(value.name in self._kept for value in node.outputs)
        for node in waists.beside:
            stages = [self._stage[v.name] + (v.name in self._kept) for v in node.inputs if v.name in self._stage]
            self._stage.update((value.name, max(stages, default=0)) for value in node.outputs)
        self._early = {node.name for node in waists.forward}
        self._late = {node.name for node in waists.beside}
        self._taken = {node.name for node in self._graph.nodes} | {v.name for n in self._graph.nodes for v in n.outputs}
        self._nodes: list[Node] = []
        self._runs: list[SecondRun] = []
        self._groups: list[list[Node]] = []
        self._open = False
        self._current: dict[str, Value] = {}

    def written(self) -> Recomputed:
        """Return the graph."""
        # In the graph's order, since a kept mask belongs beside its map.
        self._nodes += [node for node in self._graph.nodes if self._is_made(node) and self._is_there(node)]
        ready = set[int]()
        for node in self._graph.nodes:
            if self._is_made(node):
                continue
            for value in node.inputs:
                stage = None if value.name in self._kept else self._stage.get(value.name)
                self._open &= stage is None or stage in ready
                if stage is not None and stage in self._twice and stage not in ready:
                    ready.add(stage)
                    self._groups.append([])
                    self._open = True
                    self._run_again(stage)
            self._add(replace(node, inputs=tuple(self._current.get(v.name, v) for v in node.inputs)))
        graph = replace(self._graph, nodes=tuple(self._nodes))
        return Recomputed(graph, tuple(self._runs), tuple(map(tuple, self._groups)))

    def _is_there(self, node: Node) -> bool:
        return node.name in self._early or self._stage[node.outputs[0].name] not in self._twice

    def _add(self, node: Node) -> None:
        self._nodes.append(node)
        if row_form(node) is None or node.phase != "step":
            self._open = False
        elif self._open:
            self._groups[-1].append(node)

    def _run_again(self, stage: int) -> None:
        """Add the nodes of a stage that the backward pass reads, and the nodes that these need."""
        own = [n for n in self._graph.nodes if self._stage.get(n.outputs[0].name) == stage and self._is_made(n)]
        late = (node for node in self._graph.nodes if node.name not in self._early)
        needed = {value.name for node in late for value in node.inputs}
        for node in reversed(own):
            if any(value.name in needed for value in node.outputs):
                needed |= {value.name for value in node.inputs}
        for node in own:
            if node.outputs[0].name not in needed or node.outputs[0].name in self._kept:
                continue
            inputs = tuple(self._current.get(value.name, value) for value in node.inputs)
            if node.name in self._late:
                self._add(replace(node, inputs=inputs))
                continue
            clone = cloned(node, inputs, self._taken)
            self._current.update({v.name: copy for v, copy in zip(node.outputs, clone.outputs, strict=True)})
            self._add(clone)
            size, macs = node.outputs[0].size_bytes, op_def(node.op).macs(node)
            self._runs.append(SecondRun(clone.name, node.name, node.origin, size, macs))

    def _is_made(self, node: Node) -> bool:
        return node.name in self._early or node.name in self._late


TRIES = 24
"""Most sets of waists tried for the smallest load, and then for the fewest second runs."""
TRIED_NODES = 16_000
"""Most nodes in all quick plans of each of these searches, which makes two in any case. So all are made of a step of up
to 660 nodes."""
LONGEST = 4
"""Most narrow waists that a single stage spans."""
SINGLE_TRIES = (12, 8)
"""Most single stages tried: for the first one, and for one more beside it."""
FULL_PLANS = 3
"""Most choices of single stages planned with full effort for the fewest second runs."""
NEAR = 1.1
"""Largest ratio of the load of all stages to a room for which a plan is tried. The load counts a stage's nodes or one
stream of them; the plan may cut the stage into more streams, which need less."""

Interval = tuple[int, int]
"""A stage by the numbers of two narrow waists: the one before it (-1: the image) and its last value."""


@dataclass(frozen=True)
class Kept:
    """A choice of waists and stages.

    load: the largest of its backward pass, nodes in the graph's order; for single stages, of the whole step.
    """

    waists: tuple[Value, ...]
    again: Recomputed
    streams: tuple[Node, ...]
    load: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the second runs."""
        return sum(run.macs for run in self.again.runs)


@lru_cache(maxsize=REMEMBERED)
def streamed_again(graph: Graph, options: PlanOptions, smallest: bool = True) -> Planned | None:
    """Return the smallest arena found with streams and second runs together, with the fewest second runs found for it.

    smallest: else the fewest that fit options.capacity_bytes. None if nothing fits, or there are no waists to keep. The
    loss is the first of options.keep. The last few results are remembered.
    """
    waists = Waists(graph, options.keep[0])
    quick = replace(options, effort="quick", capacity_bytes=None)
    best, singles = least_plan(waists, quick), single_stages(waists, quick)
    if best is None:
        return None
    least = _smallest(graph, [best, *singles], options, quick) if smallest else None
    room = (options.capacity_bytes or 0) if least is None else least.plan.arena_bytes
    single = first_within(graph, singles, room, options, quick)
    counts = range(1, len(best.waists) + (least is None))  # all up to the last waist runs again
    for count in counts[:: -(-len(counts) // tries(TRIES, graph)) or 1]:
        kept = _kept(waists, best.waists[:count], quick)
        if single is not None and kept.macs >= _macs(single):
            break
        found = fully_planned(graph, kept, options, quick) if kept.load <= room else None
        if found is not None and found.plan.arena_bytes <= room:
            return found
    if single is None and least is None and min(kept.load for kept in (best, *singles)) <= NEAR * room:
        least = _smallest(graph, [best, *singles], options, quick)
        return least if least.plan.arena_bytes <= room else None
    return single or least


def tries(most: int, graph: Graph) -> int:
    """Return how many quick plans of such a graph a search makes, which would make `most` of a small one."""
    return max(2, min(most, TRIED_NODES // len(graph.nodes)))


def _macs(planned: Planned) -> int:
    remat = planned.plan.remat
    assert remat is not None
    return sum(run.macs for run in remat.runs)


def _smallest(graph: Graph, choices: Sequence[Kept], options: PlanOptions, quick: PlanOptions) -> Planned:
    """Return the smaller arena of two choices: all stages, which come first, and the single ones with the least
    load."""
    first, *singles = choices
    tried = [first, *sorted(singles, key=lambda kept: (kept.load, kept.macs))[:1]]
    best: Planned | None = None
    for kept in sorted(tried, key=lambda kept: kept.load):
        if best is None or kept.load < best.plan.arena_bytes:
            found = fully_planned(graph, kept, options, quick)
            best = found if best is None or found.plan.arena_bytes < best.plan.arena_bytes else best
    assert best is not None
    return best


def first_within(
    graph: Graph, choices: Iterable[Kept], room: int, options: PlanOptions, quick: PlanOptions
) -> Planned | None:
    """Return the choice that fits with the fewest repeated multiply-accumulates; the one of least load is tried
    last."""
    possible = sorted((kept for kept in choices if kept.load <= room), key=lambda kept: (kept.macs, kept.load))
    last = sorted(possible[FULL_PLANS - 1 :], key=lambda kept: (kept.load, kept.macs))[:1]
    for kept in (*possible[: FULL_PLANS - 1], *last):
        found = fully_planned(graph, kept, options, quick)
        if found.plan.arena_bytes <= room:
            return found
    return None


def single_stages(waists: Waists, quick: PlanOptions) -> list[Kept]:
    """Return choices of one stage, and of one more beside the best of these, with fewer live bytes than without second
    runs."""
    narrow = waists.narrow()
    intervals = [(first, last) for last in range(len(narrow)) for first in range(max(-1, last - LONGEST), last)]

    def freed(interval: Interval) -> int:
        first, last = interval
        ends = [narrow[index] for index in interval if index >= 0]
        between = waists.saved(None if first < 0 else narrow[first].name, narrow[last].name)
        return between - sum(value.size_bytes for value in ends)

    ordered = sorted(intervals, key=lambda interval: (-freed(interval), interval))
    found, chosen = list[Kept](), tuple[Interval, ...]()
    least = least_need(streamed(waists.graph, quick), quick).peak_bytes
    for most in SINGLE_TRIES:
        apart = [(a, b) for a, b in ordered if all(b <= first or a >= last for first, last in chosen)]
        looked = {
            (*chosen, one): again_alone(waists, narrow, (*chosen, one), quick)
            for one in apart[: tries(most, waists.graph)]
        }
        less = {intervals: kept for intervals, kept in looked.items() if kept.load < least}
        if not less:
            break
        chosen = min(less, key=lambda intervals: (less[intervals].load, less[intervals].macs))
        least = less[chosen].load
        found += less.values()
    return found


def again_alone(waists: Waists, narrow: Sequence[Value], chosen: Sequence[Interval], quick: PlanOptions) -> Kept:
    """Return the choice in which only these stages run again."""
    ends = sorted({index for interval in chosen for index in interval if index >= 0})
    kept = [narrow[index] for index in ends]
    again = waists.keep([value.name for value in kept], {ends.index(last) for _, last in chosen})
    load = least_need(streamed(again.graph, quick), quick).peak_bytes
    return Kept(tuple(kept), again, (), load)


def least_plan(waists: Waists, quick: PlanOptions) -> Kept | None:
    """Return the waists with the smallest load found; None if there are none."""
    narrow = waists.narrow()
    if not narrow:
        return None
    best, tried = _kept(waists, narrow, quick), 1
    for value in sorted(narrow, key=lambda value: -value.size_bytes):
        fewer = [other for other in best.waists if other != value]
        if not fewer or tried == tries(TRIES, waists.graph):
            break
        found, tried = _kept(waists, fewer, quick), tried + 1
        best = found if found.load < best.load else best
    return best


def _kept(waists: Waists, kept: Sequence[Value], quick: PlanOptions) -> Kept:
    again = waists.keep([value.name for value in kept])
    plan = plan_graph(again.graph, quick).plan
    steps = {node.name: step for step, node in enumerate(plan.order)}
    load, beside = load_of(plan.buffers, len(plan.order)), with_readers_beside(again.graph)
    maker, waiting = StreamMaker(beside, quick.keep), _waiting(beside, quick)
    places = {node.name: place for place, node in enumerate(beside.nodes)}
    below = sum(buffer.size_bytes for buffer in plan.buffers if buffer.kind in PERSISTENT_KINDS)
    most = 0
    streams: list[Node] = []
    for group in (group for group in again.groups if group):
        alone = max(load[steps[node.name]] for node in group)
        stream = maker.stream(group, f"stream_{group[0].name}_{len(group)}")
        by_rows = alone if stream is None else below + waiting[places[group[0].name]] + _own_load(stream, quick)
        if stream is not None and by_rows < alone:
            streams.append(stream)
        most = max(most, min(alone, by_rows))
    return Kept(tuple(kept), again, tuple(streams), most)


def _waiting(graph: Graph, options: PlanOptions) -> list[int]:
    """Return, for every node of a graph, the bytes of values made before it that it or a later one reads; persistent
    ones excluded."""
    fixed = {*graph.constants, *(value.name for value in graph.state)}
    made = dict.fromkeys((value.name for value in graph.inputs), 0)
    last = {value: place for place, node in enumerate(graph.nodes) for value in node.inputs}
    made |= {value.name: place + 1 for place, node in enumerate(graph.nodes) for value in node.outputs}
    change = [0] * (len(graph.nodes) + 1)
    for value, place in last.items():
        if value.name in made and value.name not in fixed:
            change[min(made[value.name], place + 1)] += options.reserved(value.size_bytes)
            change[place + 1] -= options.reserved(value.size_bytes)
    return list(accumulate(change))


def _own_load(stream: Node, options: PlanOptions) -> int:
    """Return the bytes of a stream's results and of its scratch."""
    attrs = stream.attrs
    assert isinstance(attrs, StreamAttrs)
    overwriting = dict(attrs.overwrites)
    made = (value for index, value in enumerate(stream.outputs) if index not in overwriting)
    return sum(options.reserved(value.size_bytes) for value in made) + attrs.scratch_bytes


def fully_planned(graph: Graph, kept: Kept, options: PlanOptions, quick: PlanOptions) -> Planned:
    """Return the validated plan of a choice, with its remaining nodes cut into streams too."""
    again = kept.again
    check_graph(again.graph, infer)
    some = with_streams(again.graph, kept.streams)
    beside = with_readers_beside(some)
    more = proposed(beside, plan_graph(some, quick).plan, options, list(runs_of(beside)))
    streamed, _ = needed_streams(again.graph, [*kept.streams, *more], quick)
    validate_streams(again.graph, streamed)
    without = plan_graph(graph, quick).plan
    planned = plan_graph(streamed, replace(options, capacity_bytes=None))
    whole = {node.name: node for node in again.graph.nodes}  # without views
    order = tuple(whole[node.name] for node in without_streams(replace(streamed, nodes=planned.plan.order)).nodes)
    validate_remat(graph, again.graph, replace(planned.plan, order=order))
    names = tuple(node.name for node in again.graph.nodes)
    remat = Rematerialisation(again.runs, without.arena_bytes, planned.plan.arena_bytes, cheapest=False, nodes=names)
    rows = any(node.op == "Stream" for node in streamed.nodes)
    streams = streaming(without, planned.plan.arena_bytes) if rows else None
    return replace(planned, plan=replace(planned.plan, remat=remat, streams=streams))
