"""The stage itself: orders, then places, keeps the lowest arena, and has the result checked."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.buffers import Buffer, load_of, offsets_of
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops import op_def
from tinytrain_compile.plan.bounds import cut_bound, peak_bound
from tinytrain_compile.plan.choose import PlacedOrder, choose
from tinytrain_compile.plan.exact import EVALUATIONS_PER_UNIT, Optimum, smallest_peak
from tinytrain_compile.plan.model import MemoryModel, TaskGraph, build_model
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.order import RankedOrder, best_overlap, list_orders
from tinytrain_compile.plan.validate import validate_plan
from tinytrain_compile.plan.windows import improve_by_windows

SEARCH_SHARE, WINDOW_SHARE = 0.15, 0.15
"""Parts of the deterministic time that the order search, and what follows if it proves nothing, may use."""

QUICK_UNITS = 0.2
"""Deterministic time of the order search with effort "quick"."""


def plan_memory(graph: Graph, options: PlanOptions) -> MemoryPlan:
    """Order of execution and address of every buffer, checked by `validate_plan`.

    Always returns the lowest plan found, whether or not it fits `options.capacity_bytes`. With effort "full" the arena
    is never larger than with "quick" (a candidate that was priced quickly and fits will fit). Raises PlanError if
    the graph cannot be run safely in any order.
    """
    model = build_model(graph, options)
    base = persistent_buffers(model, options)
    below = max((buffer.offset + buffer.size_bytes for buffer in base), default=0)
    room = None if options.capacity_bytes is None else options.capacity_bytes - below
    orders, bound = _quick_orders(model.tasks)
    chosen = choose(model, orders, room, replace(options, effort="quick"))
    if options.effort == "full" and chosen.top_bytes > bound:
        orders, bound = thorough_orders(model.tasks, bound, options)
        thorough = choose(model, orders, room, options)
        chosen = thorough if thorough.top_bytes <= chosen.top_bytes else chosen
    plan = _assemble(graph, model, base, below, chosen, bound)
    validate_plan(graph, plan, options)
    return plan


def arena_bound(graph: Graph, options: PlanOptions, once: bool) -> int:
    """No plan needs less. once: nothing is computed twice (else only what a single node touches is certain)."""
    model = build_model(graph, options)
    below = max((buffer.offset + buffer.size_bytes for buffer in persistent_buffers(model, options)), default=0)
    if once and not any(op_def(node.op).as_view for node in graph.nodes):  # a view needs less than the copy it replaces
        return below + peak_bound(model.tasks)
    sure = [task for task, node in enumerate(model.nodes) if not op_def(node.op).as_view]
    return below + max((_touched(model.tasks, task) for task in sure), default=0)


def least_load(graph: Graph, options: PlanOptions, without: Container[str]) -> int:
    """What no order is below while the input lies there alone, or some node runs but those `without`."""
    model = build_model(graph, options)
    below = max((buffer.offset + buffer.size_bytes for buffer in persistent_buffers(model, options)), default=0)
    sure = [task for task, node in enumerate(model.nodes) if not op_def(node.op).as_view and node.name not in without]
    return below + max(_touched(model.tasks, task) for task in (*sure, model.tasks.start))


def node_loads(graph: Graph, options: PlanOptions) -> dict[str, int]:
    """Node -> bytes that it reads, writes and works in, at best; nothing runs with less. Without views, which do not
    run, and without what lives for ever."""
    model = build_model(graph, options)
    tasks = enumerate(model.nodes)
    return {node.name: _touched(model.tasks, task) for task, node in tasks if not op_def(node.op).as_view}


def _touched(tasks: TaskGraph, task: int) -> int:
    """Bytes that a task reads, writes and works in, less what it may at best do in place."""
    return (
        sum(tasks.size[storage] for storage in tasks.touched[task])
        + tasks.scratch[task]
        - best_overlap(tasks.inplace[task])
    )


def _quick_orders(tasks: TaskGraph) -> tuple[list[RankedOrder], int]:
    """Orders to choose from, smallest peak first, and a peak that no order is below: a little work, no solver."""
    bound = peak_bound(tasks)
    orders = list_orders(tasks, bound, thorough=False)
    found = smallest_peak(tasks, orders[0].order, bound, int(QUICK_UNITS * EVALUATIONS_PER_UNIT))
    return _with(orders, found), found.bound


def thorough_orders(tasks: TaskGraph, bound: int, options: PlanOptions) -> tuple[list[RankedOrder], int]:
    """Orders and their bound with effort "full": list schedules, cuts, the search, windows if it proves nothing.

    bound: a peak that is known to be a lower bound.
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


def persistent_buffers(model: MemoryModel, options: PlanOptions) -> tuple[Buffer, ...]:
    """Header, state, accumulators: fixed places at the bottom, in this order, live in every step."""
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


def _assemble(
    graph: Graph, model: MemoryModel, base: tuple[Buffer, ...], below: int, chosen: PlacedOrder, bound: int
) -> MemoryPlan:
    unit = chosen.packing.unit_bytes
    movable = tuple(
        Buffer(
            item.name,
            item.kind,
            item.size_bytes,
            below + offset * unit,
            item.first_step,
            item.last_step,
            item.values,
            item.over,
            item.within,
        )
        for item, offset in zip(chosen.items, chosen.placement.offsets, strict=True)
    )
    buffers = (*base, *movable)
    order = tuple(model.nodes[task] for task in chosen.order if task < len(model.nodes))
    load = load_of(buffers, len(order))
    lower = max(load)
    return MemoryPlan(
        order,
        buffers,
        offsets_of(buffers),
        {buffer.name: buffer.offset for buffer in movable if buffer.kind == "scratch"},
        max((buffer.offset + buffer.size_bytes for buffer in buffers), default=0),
        sum(value.size_bytes for value in graph.state),
        lower,
        load.index(lower),
        order_proven=lower <= below + bound,
        placement_proven=chosen.placement.proven,
    )
