"""What each way to train each layer costs in memory and time, read off training graphs that were built for it.

One graph trains every layer in its smallest way, and its quick plan says what lives when. For every other way one graph
trains all layers in that: what it has more (weights, what is saved for them, working memory) is what the way costs.
Whether a node, and with it what it reads, is there at all depends on what is trained below it: that is an event (see
`plan/selection.py`).

Two things come of it. A *guide*: live bytes at every step of that plan, near the truth, above or below it; and a
*floor*, which no plan is below, whatever its order and whatever it computes twice or row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph, UpdatePlan
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops.base import alias_of, row_form
from tinytrain_compile.ops.int8.rescale import fractions
from tinytrain_compile.ops.stream import computed
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import quick_plan
from tinytrain_compile.plan.price import node_ps
from tinytrain_compile.plan.selection import Event, Row, Selection
from tinytrain_compile.sparse import LayerWays, parameter_of, scheme_plan

NEVER: Event = frozenset()
_PERSISTENT = ("header", "state", "accumulator")


@dataclass(frozen=True)
class UpdateModel:
    """Rows without their limits: `limit` is 0.

    forward, backward: the guide's, of steps up to the loss and behind it. floor: of all that lives for ever and the
    largest node that runs whatever is trained. time: picoseconds of a step with nothing computed twice. nodes: of it.
    """

    layers: tuple[LayerWays, ...]
    forward: tuple[Row, ...]
    backward: tuple[Row, ...]
    floor: Row
    time: Row
    nodes: Row

    @property
    def gains(self) -> list[list[int]]:
        """Per layer and way."""
        return [[way.gain for way in item.ways] for item in self.layers]

    @property
    def depth(self) -> int:
        """Return how many layers it knows ways to train, from the back."""
        return len(self.layers) - next((i for i, item in enumerate(self.layers) if len(item.ways) > 1), 0)

    def has(self, selection: Selection) -> bool:
        """Tell whether it is one of this model: one of fewer layers knows no way to train the others."""
        return all(way < len(item.ways) for item, way in zip(self.layers, selection, strict=True))

    def gain(self, selection: Selection) -> int:
        """Return the gain of a selection, in 1 / UNITS."""
        return sum(item.ways[way].gain for item, way in zip(self.layers, selection, strict=True))

    def update(self, selection: Selection, label: str) -> UpdatePlan:
        """Return what a selection trains."""
        chosen = [item.ways[way] for item, way in zip(self.layers, selection, strict=True)]
        return scheme_plan(self.layers, chosen, label)


def build_update_model(planner: Planner, layers: tuple[LayerWays, ...]) -> UpdateModel:
    """Return the model of one planner's network and options: a quick plan, and as many training graphs as there are
    kinds of ways."""
    least = _probe(planner, layers, None)
    kinds = dict.fromkeys(way.kind for item in layers for way in item.ways[1:])
    probes = [_probe(planner, layers, kind) for kind in kinds]
    settings = planner.settings(least.train, True)
    plan = planner.sketch(least.spec).plan
    timeline = _Timeline(least, plan)
    for probe in probes:
        timeline.add(probe, planner.settings(probe.train, True))
    mixed = planner.options.quant == "int8" and planner.options.weight_store == "mixed"
    always, owned, beside = _lasting(least, probes, settings, mixed)
    rest = {event: amount + amount // MIXED_SHARE for event, amount in owned.items()} if mixed else owned
    rows, split = timeline.rows(), timeline.loss_step + 1
    header = settings.reserved(settings.header_bytes)
    largest = 0 if planner.may_shrink else _largest(planner, [least, *probes], settings)
    floor = Row(header + largest, tuple(owned.items()), 0)
    forward, backward = (_with(needed_rows(half), always, {**rest, **beside}) for half in (rows[:split], rows[split:]))
    core = planner.wish.core
    time = _summed(least, probes, lambda node: node_ps(node, core))
    return UpdateModel(layers, forward, backward, floor, time, _summed(least, probes, lambda _: 1))


# ---- training graphs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Probe:
    """A training graph and for each of its nodes when it is there: None for always.

    ways: per layer, the way that it is trained in; own: whether that is of the probe's kind.
    """

    spec: str
    train: TrainGraph
    layers: tuple[LayerWays, ...]
    ways: Selection
    own: tuple[bool, ...]
    events: Mapping[str, Event | None]

    @property
    def graph(self) -> Graph:
        return self.train.graph

    def owner(self, name: str) -> int | None:
        """Return the layer whose parameter a value of the state is, or belongs to."""
        return owner_of(self._owners, name)

    @cached_property
    def _owners(self) -> dict[str, int]:
        return owners_of(self.layers)


def owners_of(layers: Sequence[LayerWays]) -> dict[str, int]:
    """Return parameter -> the number of its layer."""
    return {value.name: index for index, item in enumerate(layers) for value in item.layer.parameters}


def owner_of(owners: Mapping[str, int], name: str) -> int | None:
    """Return the layer that a value of the state belongs to."""
    found = parameter_of(owners, name)
    return None if found is None else owners[found]


def _probe(planner: Planner, layers: tuple[LayerWays, ...], kind: str | None) -> _Probe:
    """Return all layers trained in this kind of way, and in the smallest one where they do not have it (None: all
    so)."""
    places = [next((i for i, way in enumerate(item.ways) if way.kind == kind), None) for item in layers]
    smallest = [min(1, len(item.ways) - 1) for item in layers]
    ways = tuple(least if place is None else place for place, least in zip(places, smallest, strict=True))
    chosen = [item.ways[way] for item, way in zip(layers, ways, strict=True)]
    spec = planner.named(scheme_plan(layers, chosen, f"all layers: {kind or 'least'}"))
    train = planner.training(spec)
    own = tuple(place is not None for place in places)
    return _Probe(spec, train, layers, ways, own, _events(train, layers, ways, kind is None))


def any_way(layers: Sequence[LayerWays], index: int) -> Event:
    """Return the event that a layer is trained."""
    return frozenset((index, way) for way in range(1, len(layers[index].ways)))


def _events(train: TrainGraph, layers: Sequence[LayerWays], ways: Selection, least: bool) -> Mapping[str, Event | None]:
    """Return when each node is there: what leads to the loss always, the others if something is trained that needs
    them."""
    graph = train.graph
    needed = graph.ancestors((train.loss,))
    parameters = owners_of(layers)
    owners = {value.name: owner_of(parameters, value.name) for value in (*graph.state, *graph.accumulators)}
    wanted: dict[str, Event] = {}
    found: dict[str, Event | None] = {}
    for node in reversed(graph.nodes):
        event = NEVER.union(*(wanted.get(value.name, NEVER) for value in node.outputs))
        for _, source in alias_of(node):
            layer = owners.get(node.inputs[source].name)
            if layer is not None:
                event |= any_way(layers, layer) if least else {(layer, ways[layer])}
        found[node.name] = None if node.name in needed else event
        for value in node.inputs:
            wanted[value.name] = wanted.get(value.name, NEVER) | event
    makers = graph.producers()
    for node in graph.nodes:  # what only keeps books is there with what it reads
        if found[node.name] == NEVER:
            read = [found[makers[value.name].name] for value in node.inputs if value.name in makers]
            some = [event for event in read if event is not None]
            found[node.name] = NEVER.union(*some) or None
    return found


# ---- what lives for ever --------------------------------------------------------------------------------------------

MIXED_SHARE = 4
"""--weight-store mixed: all trained int8 weights together have fractions of so many parts of them at most."""


def _lasting(
    least: _Probe, probes: Sequence[_Probe], settings: PlanOptions, mixed: bool
) -> tuple[int, dict[Event, int], dict[Event, int]]:
    """Return bytes that live for ever: always; of each way its own; of errors (exponents, peaks) where these are
    computed.

    mixed: which weights have fractions depends on all of them, so they are left out.
    """
    owned: dict[Event, int] = {}
    for probe in probes:
        loose = {value.name for value in fractions(probe.graph.nodes)} if mixed else set[str]()
        for value in (*probe.graph.state, *probe.graph.accumulators):
            layer = probe.owner(value.name)
            if layer is not None and probe.own[layer] and value.name not in loose:
                event: Event = frozenset({(layer, probe.ways[layer])})
                owned[event] = owned.get(event, 0) + settings.reserved(value.size_bytes)
    always, beside = settings.reserved(settings.header_bytes), dict[Event, int]()
    readers = least.graph.consumers()
    for value in (*least.graph.state, *least.graph.accumulators):
        if least.owner(value.name) is None:
            events = [least.events[node.name] for node in readers.get(value.name, [])]
            event = NEVER.union(*(one for one in events if one is not None))
            if None in events or not event:
                always += settings.reserved(value.size_bytes)
            else:
                beside[event] = beside.get(event, 0) + settings.reserved(value.size_bytes)
    return always, owned, beside


def _largest(planner: Planner, probes: Sequence[_Probe], settings: PlanOptions) -> int:
    """Return bytes of the largest node among those that run as they are whatever is trained."""
    streams = planner.wish.stream != "off" or planner.wish.lines
    found: dict[str, int] = {}
    for index, probe in enumerate(probes):
        known = quick_plan(probe.graph, settings).needs
        fixed = {node.name for node in probe.graph.nodes if not (streams and row_form(node) is not None)}
        here = {name: load for name, load in known.items() if name in fixed and probe.events[name] is None}
        found = here if index == 0 else {name: min(load, here[name]) for name, load in found.items() if name in here}
    return max(found.values(), default=0)


def _summed(least: _Probe, probes: Sequence[_Probe], cost_of: Callable[[Node], int]) -> Row:
    """Return what the nodes of a step cost together, with nothing computed twice."""
    known = {node.name for node in least.graph.nodes}
    base, found = 0, dict[Event, int]()
    for probe in (least, *probes):
        for node in probe.graph.nodes:
            if probe is least or node.name not in known:
                event, cost = probe.events[node.name], cost_of(node)
                if event is None:
                    base += cost if probe is least else 0
                else:
                    found[event] = found.get(event, 0) + cost
    return Row(base, tuple(found.items()), 0)


# ---- what lives when ------------------------------------------------------------------------------------------------


class _Timeline:
    """Live bytes at every step of the plan of the smallest ways, and what other ways add to them."""

    def __init__(self, least: _Probe, plan: MemoryPlan) -> None:
        self._steps: dict[str, int] = {}
        self.events: list[Event | None] = []
        for step, node in enumerate(plan.order):
            inner = list(computed(node))
            self._steps |= dict.fromkeys((node.name, *(one.name for one in inner)), step)
            events = [least.events.get(one.name) for one in inner]
            self.events.append(None if None in events else NEVER.union(*(event or NEVER for event in events)))
        made = (step for step, node in enumerate(plan.order) if least.train.loss in node.outputs)
        self.loss_step = next(made, len(plan.order) - 1)
        self._ends = [buffer.last_step for buffer in plan.buffers]
        self._starts = [buffer.first_step for buffer in plan.buffers]
        self._sizes = [0 if buffer.kind in _PERSISTENT else buffer.size_bytes for buffer in plan.buffers]
        self._place = {value: index for index, buffer in enumerate(plan.buffers) for value in buffer.values}
        self._saved = [buffer.over.saved_bytes if buffer.over is not None else 0 for buffer in plan.buffers]
        self._touches: list[list[tuple[int, Event | None]]] = [[] for _ in plan.buffers]
        for index, buffer in enumerate(plan.buffers):
            if buffer.kind == "scratch":
                self._touches[index].append((buffer.first_step, self.events[buffer.first_step]))
            elif buffer.kind == "input":
                self._touches[index].append((0, None))
        for step, node in enumerate(plan.order):
            for name in {value.name for value in (*node.inputs, *node.outputs)}:
                if name in self._place:
                    self._touches[self._place[name]].append((step, self.events[step]))

    def add(self, probe: _Probe, settings: PlanOptions) -> None:
        """Add what the nodes that only this training graph has keep alive, and what they make and work in.

        settings: of this graph, whose loss may be another operator.
        """
        model = quick_plan(probe.graph, settings).model
        times = self._times(probe.graph)
        new = [task for task, node in enumerate(model.nodes) if node.name not in self._steps]
        own: dict[int, int] = {}
        for task in new:
            node = model.nodes[task]
            step, event = times[node.name], probe.events[node.name]
            if model.tasks.scratch[task]:
                self._open(model.tasks.scratch[task], step, step, event)
            for storage in model.tasks.touched[task]:
                known = [self._place[name] for name in model.storages[storage].values if name in self._place]
                if known:
                    self._touches[known[0]].append((step, event))
                    continue
                if storage not in own:
                    own[storage] = self._open(model.storages[storage].size_bytes, step, step, event)
                else:
                    self._touches[own[storage]].append((step, event))
                index = own[storage]
                self._starts[index] = min(self._starts[index], step)
                self._ends[index] = max(self._ends[index], step)

    def _open(self, size: int, start: int, end: int, event: Event | None) -> int:
        self._sizes.append(size)
        self._starts.append(start)
        self._ends.append(end)
        self._saved.append(0)
        self._touches.append([(start, event)])
        return len(self._sizes) - 1

    def _times(self, graph: Graph) -> dict[str, int]:
        """Return when the nodes of another training graph run: as soon as what they read is there."""
        made: dict[str, int] = {}
        times: dict[str, int] = {}
        for node in graph.nodes:
            ready = max((made.get(value.name, 0) for value in node.inputs), default=0)
            times[node.name] = self._steps.get(node.name, ready)
            made |= {value.name: times[node.name] for value in node.outputs}
        return times

    def rows(self) -> list[Row]:
        """Return one for each step of the plan, of what does not live for ever."""
        base = [0] * len(self.events)
        terms = [dict[Event, int]() for _ in self.events]
        for index, size in enumerate(self._sizes):
            if size:
                self._spread(index, size, base, terms)
        return [
            Row(here, tuple(one.items()), 0, event) for here, one, event in zip(base, terms, self.events, strict=True)
        ]

    def _spread(self, index: int, size: int, base: list[int], terms: list[dict[Event, int]]) -> None:
        """Add a buffer to every step in which something is still to come that touches it."""
        touches = sorted(self._touches[index], key=lambda touch: -touch[0])
        last = max([self._ends[index], *(step for step, _ in touches)])
        # The planner may keep a value longer than anyone reads it (the loss): that holds always.
        event: Event | None = NEVER
        if self._ends[index] > max((step for step, _ in touches), default=-1):
            event = None
        waiting = 0
        for step in range(last, self._starts[index] - 1, -1):
            while waiting < len(touches) and touches[waiting][0] >= step:
                one = touches[waiting][1]
                event = None if one is None or event is None else event | one
                waiting += 1
            if event is None:
                base[step] += size
            elif event:
                terms[step][event] = terms[step].get(event, 0) + size
        base[self._starts[index]] -= self._saved[index]


def _with(rows: Iterable[Row], always: int, lasting: Mapping[Event, int]) -> tuple[Row, ...]:
    """Return rows with what lives for ever: always, and with an event. It is the same in all, so it is added last."""

    def terms(row: Row) -> tuple[tuple[Event, int], ...]:
        found = dict(lasting)
        for event, amount in row.terms:
            found[event] = found.get(event, 0) + amount
        return tuple(found.items())

    return tuple(replace(row, base=row.base + always, terms=terms(row)) for row in rows)


def needed_rows(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return rows without those that hold where another one does: less of everything, and there with no more."""
    columns = {event: index for index, event in enumerate(dict.fromkeys(e for row in rows for e, _ in row.terms))}
    amounts = np.zeros((len(rows), len(columns) + 1), dtype=np.int64)
    for place, row in enumerate(rows):
        amounts[place, -1] = row.base
        for event, amount in row.terms:
            amounts[place, columns[event]] = amount
    amounts = amounts[:, (amounts != amounts[:1]).any(axis=0)]  # most of a row is the state, which all have
    last = {(amounts[place].tobytes(), row.only_if): place for place, row in enumerate(rows)}
    left = np.zeros(len(rows), dtype=np.bool_)
    left[list(last.values())] = True  # steps of a deep frozen part are all alike
    sums = [sum(amount for _, amount in row.terms) + row.base for row in rows]
    for place in sorted(last.values(), key=lambda place: (sums[place], place)):
        event = rows[place].only_if
        for other in map(int, np.flatnonzero(left & (amounts >= amounts[place]).all(axis=1))):
            whenever = rows[other].only_if
            if other != place and (whenever is None or (event is not None and event <= whenever)):
                left[place] = False
                break
    return tuple(row for row, one in zip(rows, left, strict=True) if one)


def with_limit(rows: Iterable[Row], limit: int) -> list[Row]:
    """Return rows with a limit."""
    return [replace(row, limit=limit) for row in rows]


def largest_load(rows: Iterable[Row], selection: Selection) -> int:
    """Return the largest load of all steps that are there."""
    return max((row.load(selection) for row in rows if row.counts(selection)), default=0)
