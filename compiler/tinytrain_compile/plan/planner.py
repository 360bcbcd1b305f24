"""The stage itself: orders, then places, keeps the lowest arena, and has the result checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.stages import Buffer, MemoryPlan
from tinytrain_compile.plan.cpsat import decide, minimise
from tinytrain_compile.plan.explain import load_of
from tinytrain_compile.plan.improve import improve_order
from tinytrain_compile.plan.model import MemoryModel, Rectangle, build_model, rectangles
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.order import RankedOrder, list_orders, peak_bound
from tinytrain_compile.plan.placement import Packing, Placement, build_packing, greedy, improve_placement
from tinytrain_compile.plan.validate import validate_plan

ORDER_SHARE, SEQUENCE_SHARE, DECIDE_SHARE, MINIMISE_SHARE = 0.3, 0.2, 0.2, 0.3
"""How the deterministic time is divided with effort "full"."""


@dataclass(frozen=True)
class _Candidate:
    """One order, placed."""

    order: tuple[int, ...]
    items: tuple[Rectangle, ...]
    packing: Packing
    placement: Placement
    sequence: list[int]

    @property
    def top_bytes(self) -> int:
        """Height above the persistent buffers."""
        return self.placement.height * self.packing.unit_bytes


def plan_memory(graph: Graph, options: PlanOptions) -> MemoryPlan:
    """Order of execution and address of every buffer, checked by `validate_plan`.

    Always returns the lowest plan found, whether or not it fits `options.capacity_bytes`. Raises PlanError if the
    graph cannot be run safely in any order.
    """
    model = build_model(graph, options)
    bound = peak_bound(model.tasks)
    orders = list_orders(model.tasks, bound, thorough=options.effort == "full")
    if options.effort == "full" and orders[0].peak > bound:
        better = improve_order(model.tasks, orders[0], bound, options.deterministic_time * ORDER_SHARE, options.seed)
        orders = sorted([better, *orders]) if better.peak < orders[0].peak else orders
    base = persistent_buffers(model, options)
    below = max((buffer.offset + buffer.size_bytes for buffer in base), default=0)
    chosen = _best_greedy(model, orders, thorough=options.effort == "full")
    if options.effort == "full" and not chosen.placement.proven:
        room = None if options.capacity_bytes is None else options.capacity_bytes - below
        chosen = _search_placement(chosen, room, options)
    plan = _assemble(graph, model, base, below, chosen, bound)
    validate_plan(graph, plan, options)
    return plan


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


def _best_greedy(model: MemoryModel, orders: Sequence[RankedOrder], thorough: bool) -> _Candidate:
    """Place the orders, smallest peak first, until no further one can win."""
    best: _Candidate | None = None
    for ranked in orders if thorough else orders[:1]:
        if best is not None and ranked.peak >= best.top_bytes:
            break
        for newest in (False, True):
            items = rectangles(model, ranked.order, newest)
            packing = build_packing(items)
            placement, sequence = greedy(packing)
            found = _Candidate(ranked.order, items, packing, placement, sequence)
            if best is None or found.top_bytes < best.top_bytes:
                best = found
            if placement.proven:
                break
    if best is None:
        raise AssertionError("there is always an order")
    return best


def _search_placement(start: _Candidate, room_bytes: int | None, options: PlanOptions) -> _Candidate:
    """Local search, then the solver: first whether it fits the room at all, then as low as possible."""
    packing, units, seed = start.packing, options.deterministic_time, options.seed
    best = improve_placement(packing, start.placement, start.sequence, units * SEQUENCE_SHARE, seed)
    limit = best.height if room_bytes is None else room_bytes // packing.unit_bytes
    if packing.bound <= limit < best.height:
        decision = decide(packing, limit, units * DECIDE_SHARE, seed)
        best = decision.placement or best
    if not best.proven:
        best = minimise(packing, best, units * MINIMISE_SHARE, seed)
    return _Candidate(start.order, start.items, packing, best, start.sequence)


def _assemble(
    graph: Graph, model: MemoryModel, base: tuple[Buffer, ...], below: int, chosen: _Candidate, bound: int
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
    arena = max((buffer.offset + buffer.size_bytes for buffer in buffers), default=0)
    return MemoryPlan(
        order,
        buffers,
        {name: buffer.offset for buffer in buffers for name in buffer.values},
        {buffer.name: buffer.offset for buffer in movable if buffer.kind == "scratch"},
        arena,
        sum(value.size_bytes for value in graph.state),
        lower,
        load.index(lower),
        order_proven=lower <= below + bound,
        placement_proven=chosen.placement.proven,
    )
