"""The planning stage: it orders, then places, keeps the lowest arena, and has the result checked.

`plan_memory` plans an unchanged graph; `plan_graph` decides which of its Concats and Slices are views. The last few
plans are remembered, since a search for a way to fit asks more than once.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tinytrain_compile.ir.buffers import Buffer, load_of, offsets_of, scratch_of
from tinytrain_compile.ir.stages import MemoryPlan, Streaming
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.ops import op_def
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.counted import add_work
from tinytrain_compile.plan.model import MemoryModel, TaskGraph, build_model
from tinytrain_compile.plan.options import Effort, PlanOptions
from tinytrain_compile.plan.order.exact import EVALUATIONS_PER_UNIT, Optimum, smallest_peak
from tinytrain_compile.plan.order.near import improve_by_windows
from tinytrain_compile.plan.order.order import RankedOrder, best_overlap, cut_bound, list_orders, peak_bound
from tinytrain_compile.plan.place.choose import PlacedOrder, choose
from tinytrain_compile.plan.views import candidates, with_views

SEARCH_SHARE, WINDOW_SHARE = 0.15, 0.15
"""Shares of the deterministic time for the order search, and for the windows after it if it proves nothing."""

QUICK_UNITS = 0.2
"""Deterministic time of the order search with effort "quick"."""

REMEMBERED = 8
"""Remembered graphs with their QuickPlans; and plans. Enough for one ladder: four graphs, quick and full."""


class QuickPlan:
    """Beginning of a plan, by list schedules and greedy placement; each part is made on first use.

    model: the graph's memory; base: its persistent buffers, which end at `below`.
    """

    def __init__(self, graph: Graph, options: PlanOptions) -> None:
        add_work("plan")
        self._graph, self._options = graph, options
        self.model = build_model(graph, options)
        self.base = persistent_buffers(self.model, options)
        self.below = _top(self.base)

    @cached_property
    def bound(self) -> int:
        """Lower bound of every order's peak, in movable bytes."""
        return peak_bound(self.model.tasks)

    @cached_property
    def needs(self) -> dict[str, int]:
        """Bytes that a node needs to run by itself, if others are streams or views; persistent bytes excluded. Copies
        that may be views are not included, since a view does not run."""
        return _needs(self.model)

    @cached_property
    def orders(self) -> tuple[list[RankedOrder], int]:
        """Orders to choose from, smallest peak first, and the best bound known: a little work, no solver."""
        orders = list_orders(self.model.tasks, self.bound, thorough=False)
        if self._options.effort == "rough":
            return orders, self.bound
        work = int(QUICK_UNITS * EVALUATIONS_PER_UNIT)
        found = smallest_peak(self.model.tasks, orders[0].order, self.bound, work)
        return _with(orders, found), found.bound

    @cached_property
    def chosen(self) -> PlacedOrder:
        """The order and its placement."""
        return choose(self.model, self.orders[0], None, self._options)

    @cached_property
    def plan(self) -> MemoryPlan:
        """The chosen order and placement as a validated plan."""
        return self.assembled(self.chosen, self.orders[1])

    def assembled(self, chosen: PlacedOrder, bound: int) -> MemoryPlan:
        """Return an order with its placement as a validated plan. bound: lower bound of every order's peak, in movable
        bytes."""
        nodes, unit = self.model.nodes, chosen.packing.unit_bytes
        placed = zip(chosen.items, chosen.placement.offsets, strict=True)
        buffers = (*self.base, *(replace(item, offset=self.below + offset * unit) for item, offset in placed))
        order = tuple(nodes[task] for task in chosen.order if task < len(nodes))
        load = load_of(buffers, len(order))
        lower = max(load)
        plan = MemoryPlan(
            order,
            buffers,
            offsets_of(buffers),
            scratch_of(buffers),
            _top(buffers),
            sum(value.size_bytes for value in self._graph.state),
            lower,
            load.index(lower),
            order_proven=lower <= self.below + bound,
            placement_proven=chosen.placement.proven,
        )
        validate_plan(self._graph, plan, self._options)
        return plan


def quick_plan(graph: Graph, options: PlanOptions) -> QuickPlan:
    """Return the beginning of a plan, cached: bounds, quick plans and full plans of a recent graph share one."""
    kept = PlanOptions(alignment_bytes=options.alignment_bytes, header_bytes=options.header_bytes, keep=options.keep)
    effort: Effort = "rough" if options.effort == "rough" else "quick"
    return _quick_plan(graph, replace(kept, seed=options.seed, effort=effort))


@lru_cache(maxsize=REMEMBERED)
def _quick_plan(graph: Graph, options: PlanOptions) -> QuickPlan:
    return QuickPlan(graph, options)


def plan_memory(graph: Graph, options: PlanOptions) -> MemoryPlan:
    """Return order of execution and address of every buffer, checked by `validate_plan`.

    Returns the lowest plan found, whether or not it fits `options.capacity_bytes`. Once a plan fits, there is no search
    for a lower one. With effort "full" the arena is never larger than with "quick": a candidate that was priced quickly
    and fits will fit. Raises PlanError if
    the graph cannot be run safely in any order.
    """
    quick = quick_plan(graph, options)
    if options.effort == "quick" or quick.chosen.top_bytes <= quick.orders[1]:
        return quick.plan
    room = None if options.capacity_bytes is None else options.capacity_bytes - quick.below
    orders, bound = thorough_orders(quick.model.tasks, quick.orders[1], options)
    kept = room is not None and quick.chosen.top_bytes <= room
    thorough = choose(quick.model, orders, room, options, kept)
    return quick.assembled(thorough if thorough.top_bytes <= quick.chosen.top_bytes else quick.chosen, bound)


def quick_arena(graph: Graph, options: PlanOptions, most: int | None = None) -> int:
    """Return the arena of `plan_memory` with effort "quick", not validated, to compare graphs before planning one.

    most: a result above this need not be exact, only above it; then a bound, or the orders alone, may suffice.
    """
    quick = quick_plan(graph, options)
    if most is not None and quick.below + quick.bound > most:
        return quick.below + quick.bound
    if most is not None and quick.below + quick.orders[0][0].peak > most:
        return quick.below + quick.orders[0][0].peak
    return quick.below + quick.chosen.top_bytes


def arena_bound(graph: Graph, options: PlanOptions, once: bool) -> int:
    """Return a lower bound of every plan's arena, in bytes. once: without second runs (else only bytes that a single
    node touches are certain)."""
    quick = quick_plan(graph, options)
    if once and not any(op_def(node.op).as_view for node in graph.nodes):  # a view needs less than the copy it replaces
        return quick.below + quick.bound
    return quick.below + max(quick.needs.values(), default=0)


def alone_bound(graph: Graph, options: PlanOptions, names: Container[str]) -> int:
    """Return a lower bound of every plan in which each of these nodes runs by itself, whichever others are streams or
    views."""
    quick = quick_plan(graph, options)
    return quick.below + max((need for name, need in quick.needs.items() if name in names), default=0)


def least_load(graph: Graph, options: PlanOptions, without: Container[str]) -> int:
    """Return a lower bound of the load of every order while the input is there alone, or any node not in `without`
    runs."""
    quick = quick_plan(graph, options)
    nodes, tasks = quick.model.nodes, quick.model.tasks
    sure = [task for task, node in enumerate(nodes) if not op_def(node.op).as_view and node.name not in without]
    return quick.below + max(_touched(tasks, task) for task in (*sure, tasks.start))


def sure_load(graph: Graph, options: PlanOptions, names: Container[str]) -> int:
    """Return a lower bound of every plan in which any of these nodes runs by itself, whatever others are streams or
    views.

    Values related by views may take fewer bytes than here, so nodes that touch them do not count.
    """
    quick = quick_plan(graph, options)
    views = (node for node in quick.model.nodes if op_def(node.op).as_view or op_def(node.op).view)
    related = {value.name for node in views for value in (*node.inputs, *node.outputs)}
    sure = [
        task
        for task, node in enumerate(quick.model.nodes)
        if node.name in names and related.isdisjoint(value.name for value in (*node.inputs, *node.outputs))
    ]
    return quick.below + max((_touched(quick.model.tasks, task) for task in sure), default=0)


def _touched(tasks: TaskGraph, task: int) -> int:
    """Return the bytes that a task reads, writes and works in, minus the most that it may save in place."""
    return (
        sum(tasks.size[storage] for storage in tasks.touched[task])
        + tasks.scratch[task]
        - best_overlap(tasks.inplace[task])
    )


def _needs(model: MemoryModel) -> dict[str, int]:
    """Return bytes by node; of storages that views may relate, only the largest counts, as the others may be inside
    it."""
    tasks, group = model.tasks, list(range(len(model.storages)))
    copies = [task for task, node in enumerate(model.nodes) if op_def(node.op).as_view or op_def(node.op).view]
    for task in copies:
        joined = {group[storage] for storage in tasks.touched[task]}
        if len(joined) > 1:
            group = [min(joined) if one in joined else one for one in group]
    found: dict[str, int] = {}
    for task, node in enumerate(model.nodes):
        if not op_def(node.op).as_view:
            largest: dict[int, int] = {}
            for storage in tasks.touched[task]:
                largest[group[storage]] = max(largest.get(group[storage], 0), tasks.size[storage])
            found[node.name] = sum(largest.values()) + tasks.scratch[task] - best_overlap(tasks.inplace[task])
    return found


def thorough_orders(tasks: TaskGraph, bound: int, options: PlanOptions) -> tuple[list[RankedOrder], int]:
    """Return orders and their bound with effort "full": list schedules, cuts, the search, windows if it proves nothing.

    bound: a known lower bound of the peak.
    """
    orders = list_orders(tasks, bound, thorough=True)
    bound = cut_bound(tasks, orders[0].order, bound)
    units = options.deterministic_time * SEARCH_SHARE
    found = smallest_peak(tasks, orders[0].order, bound, int(units * EVALUATIONS_PER_UNIT))
    if not found.proven:
        found = improve_by_windows(tasks, found, options.deterministic_time * WINDOW_SHARE, options.seed)
    return _with(orders, found), found.bound


def _with(orders: list[RankedOrder], found: Optimum) -> list[RankedOrder]:
    if found.peak >= orders[0].peak:
        return orders
    return [RankedOrder(found.peak, len(orders), found.order), *orders]


def _top(buffers: Iterable[Buffer]) -> int:
    """Return the end of the highest buffer."""
    return max((buffer.offset + buffer.size_bytes for buffer in buffers), default=0)


def persistent_buffers(model: MemoryModel, options: PlanOptions) -> tuple[Buffer, ...]:
    """Return header, state, accumulators: fixed places at the bottom, in this order, live in every step."""
    last = max(len(model.nodes) - 1, 0)
    buffers: list[Buffer] = []
    offset = 0
    if options.header_bytes > 0:
        buffers.append(Buffer("header", "header", options.reserved(options.header_bytes), 0, 0, last, ()))
        offset = buffers[0].size_bytes
    for kind in ("state", "accumulator"):
        for storage in model.storages:
            if storage.kind == kind:
                buffers.append(
                    Buffer(storage.values[0], storage.kind, storage.size_bytes, offset, 0, last, storage.values)
                )
                offset += storage.size_bytes
    return tuple(buffers)


TURNS = 8
"""Concats and Slices that effort "full" then tries the other way, one by one."""
TRIED_NODES = 16_000
"""Most nodes in all plans tried (two plans always are): the gain in a large graph is not worth minutes."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A graph and its plan; the graph has second runs if plan.remat is not None, and views where no byte has to move.

    refused: a plan with second runs that was found but not taken: it costs too much, or does not fit either.
    """

    graph: Graph
    plan: MemoryPlan
    refused: Planned | None = None


@lru_cache(maxsize=REMEMBERED)
def plan_graph(graph: Graph, options: PlanOptions) -> Planned:
    """Return `plan_memory` of the graph with those Concats and Slices as views whose bytes need not move.

    A whole is live from its first part to the last reader of any part, which may cost more than copying. So quick plans
    try all of them, only the Concats, only the Slices, and none; effort "full" also tries the best of these with one
    changed. The smallest arena wins, and among equals the fewest copies. The last few plans are remembered, since a
    search for a way to fit asks more than once.
    """
    views = _possible_views(graph, options)
    if not views:
        return Planned(graph, plan_memory(graph, options))
    viewed = with_views(graph, _cheapest_views(graph, views, options)[1])
    return Planned(viewed, plan_memory(viewed, options))


@dataclass(frozen=True, order=True)
class Need:
    """Bytes that a graph needs by a quick plan, to compare graphs.

    copies: Concats and Slices that are not views, minus all of them, so at most 0. peak_bytes: most live bytes in the
    best order, to which a full plan may come down.
    """

    arena_bytes: int
    copies: int
    peak_bytes: int


def least_need(graph: Graph, options: PlanOptions, most: int | None = None) -> Need:
    """Return the need of `plan_graph` with effort "quick", not validated: the chosen graph is planned afterwards.

    most: a result above this need not be exact, only above it.
    """
    views, quick = _possible_views(graph, options), replace(options, effort="quick")
    if options.effort == "rough":
        return _need(with_views(graph, views), options, 0, most)
    return _cheapest_views(graph, views, quick, most)[0] if views else _need(graph, quick, 0, most)


def _possible_views(graph: Graph, options: PlanOptions) -> tuple[str, ...]:
    """Return the Concats and Slices that may be views together."""
    able = any(op_def(node.op).as_view for node in graph.nodes)
    return candidates(graph, options.alignment_bytes) if able else ()


def _need(graph: Graph, quick: PlanOptions, copies: int, most: int | None) -> Need:
    arena, known = quick_arena(graph, quick, most), quick_plan(graph, quick)
    return Need(arena, copies, arena if most is not None and arena > most else known.below + known.orders[0][0].peak)


def _cheapest_views(
    graph: Graph, views: tuple[str, ...], options: PlanOptions, most: int | None = None
) -> tuple[Need, tuple[str, ...]]:
    """Return (the least need of a graph with some views, these views); views: all that are possible together."""
    quick = replace(options, effort="quick")

    def price(names: tuple[str, ...], most: int | None) -> Need:
        return _need(with_views(graph, names), quick, -len(names), most)

    concats = [node.name for node in graph.nodes if node.op == "Concat"]
    joined = candidates(graph, options.alignment_bytes, [name for name in views if name not in concats])
    cut = candidates(graph, options.alignment_bytes, concats)
    ways = list(dict.fromkeys((views, (), joined, cut)))
    tries = max(2, min(len(ways) + TURNS, TRIED_NODES // len(graph.nodes)))
    best, least = price(ways[0], most), ways[0]
    for names in ways[1:tries]:
        best, least = min((best, least), (price(names, best.arena_bytes), names))
    copied = [name for name in views if name not in least]
    turns = max(0, tries - len(ways)) if options.effort == "full" else 0
    for name in views[:turns]:
        turned = [*copied, name] if name not in copied else [other for other in copied if other != name]
        names = candidates(graph, options.alignment_bytes, turned)
        found = price(names, best.arena_bytes)
        if found < best:
            best, least, copied = found, names, turned
    return best, least


def streaming(without: MemoryPlan, arena_with_bytes: int) -> Streaming:
    """Return the saving by streams, compared with the plan of the same graph without them."""
    loads = load_of(without.buffers, len(without.order))
    names = (node.name for node in without.order)
    return Streaming(without.arena_bytes, arena_with_bytes, tuple(zip(names, loads, strict=False)))


def load_per_step(plan: MemoryPlan) -> list[int]:
    """Return live bytes at every step, at least one entry; header, persistent buffers, scratch and alignment are
    included."""
    return load_of(plan.buffers, len(plan.order))
