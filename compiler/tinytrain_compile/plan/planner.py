"""The stage itself: orders, then places, keeps the lowest arena, and has the result checked."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.stages import Buffer, MemoryPlan
from tinytrain_compile.plan.choose import Candidate, choose
from tinytrain_compile.plan.explain import load_of
from tinytrain_compile.plan.improve import improve_order
from tinytrain_compile.plan.model import MemoryModel, build_model
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.order import RankedOrder, list_orders, peak_bound
from tinytrain_compile.plan.validate import validate_plan

ORDER_SHARE = 0.3
"""Part of the deterministic time that the order search may use."""


def plan_memory(graph: Graph, options: PlanOptions) -> MemoryPlan:
    """Order of execution and address of every buffer, checked by `validate_plan`.

    Always returns the lowest plan found, whether or not it fits `options.capacity_bytes`. With effort "full" the arena
    is never larger than with "quick" (a candidate that was priced quickly and fits will fit). Raises PlanError if
    the graph cannot be run safely in any order.
    """
    model = build_model(graph, options)
    bound = peak_bound(model.tasks)
    base = persistent_buffers(model, options)
    below = max((buffer.offset + buffer.size_bytes for buffer in base), default=0)
    room = None if options.capacity_bytes is None else options.capacity_bytes - below
    chosen = choose(model, list_orders(model.tasks, bound, thorough=False), room, replace(options, effort="quick"))
    if options.effort == "full" and chosen.top_bytes > bound:
        thorough = choose(model, _thorough_orders(model, bound, options), room, options)
        chosen = thorough if thorough.top_bytes <= chosen.top_bytes else chosen
    plan = _assemble(graph, model, base, below, chosen, bound)
    validate_plan(graph, plan, options)
    return plan


def _thorough_orders(model: MemoryModel, bound: int, options: PlanOptions) -> list[RankedOrder]:
    """Orders to choose from with effort "full", smallest peak first."""
    orders = list_orders(model.tasks, bound, thorough=True)
    if orders[0].peak <= bound:
        return orders
    better = improve_order(model.tasks, orders[0], bound, options.deterministic_time * ORDER_SHARE, options.seed)
    return sorted([better, *orders]) if better.peak < orders[0].peak else orders


def persistent_buffers(model: MemoryModel, options: PlanOptions) -> tuple[Buffer, ...]:
    """Header, state, accumulators: fixed places at the bottom, in this order, live in every step."""
    last = max(len(model.nodes) - 1, 0)
    buffers: list[Buffer] = []
    offset = 0
    if options.header_bytes > 0:
        buffers.append(Buffer("header", "header", options.reserved(options.header_bytes), 0, 0, last, ()))
        offset = buffers[0].size_bytes
    for kind in ("state", "accumulator"):
        for cell in model.cells:
            if cell.kind == kind:
                buffers.append(Buffer(cell.values[0], cell.kind, cell.size_bytes, offset, 0, last, cell.values))
                offset += cell.size_bytes
    return tuple(buffers)


def _assemble(
    graph: Graph, model: MemoryModel, base: tuple[Buffer, ...], below: int, chosen: Candidate, bound: int
) -> MemoryPlan:
    unit = chosen.packing.unit_bytes
    movable = tuple(
        Buffer(
            item.name, item.kind, item.size_bytes, below + offset * unit, item.first_step, item.last_step, item.values
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
        {name: buffer.offset for buffer in buffers for name in buffer.values},
        {buffer.name: buffer.offset for buffer in movable if buffer.kind == "scratch"},
        max((buffer.offset + buffer.size_bytes for buffer in buffers), default=0),
        sum(value.size_bytes for value in graph.state),
        lower,
        load.index(lower),
        order_proven=lower <= below + bound,
        placement_proven=chosen.placement.proven,
    )
