"""Choice of an order and its placement: the lowest arena over several orders, not just the lowest peak.

An order of smallest peak may pack badly, so orders are placed by increasing peak until no remaining one can win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.plan.model import MemoryModel
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.order.near import variants
from tinytrain_compile.plan.order.order import RankedOrder
from tinytrain_compile.plan.place.placement import (
    Decision,
    Packing,
    Placement,
    build_packing,
    greedy,
    improve_placement,
    rectangles,
)
from tinytrain_compile.plan.place.skyline import search

QUICK_ORDERS, FULL_ORDERS = 3, 16
"""Most orders placed, with effort "quick" and "full"."""

QUICK_UNITS = 0.02
"""Deterministic time of the local search with effort "quick"."""

MOST_MEETINGS = 3_000_000
"""Most neighbours of all boxes of a packing for which more than a quick plan is made: above it every try takes seconds
(a recurrent network of 255 steps has twice as many)."""

SOLVER_TRIES = 4
"""Most packings passed to the solver."""

PUSH_ROUNDS = 16
"""Most decisions below the best placement."""

SKYLINE_SHARE = 0.3
"""The skyline search's share of the deterministic time of a decision; the rest is CP-SAT's."""

VARIANTS, VARIANT_TRIES, VARIANT_SLACK = 16, 2, 0.01
"""Further orders if all of these pack badly: number, number passed to the solver, and extra peak as a share."""

SEQUENCE_SHARE, DECIDE_SHARE, MINIMISE_SHARE = 0.2, 0.3, 0.2
"""Shares of the deterministic time for placing (the rest is for the order search)."""


@dataclass(frozen=True)
class PlacedOrder:
    """One order, placed. `sequence` is the placing sequence from which the local search starts."""

    order: tuple[int, ...]
    items: tuple[Buffer, ...]
    packing: Packing
    placement: Placement
    sequence: tuple[int, ...]

    @property
    def top_bytes(self) -> int:
        """Height above the persistent buffers."""
        return self.placement.height * self.packing.unit_bytes

    @property
    def peak_bytes(self) -> int:
        """Largest load above the persistent buffers: no placement of this order is lower."""
        return self.packing.bound * self.packing.unit_bytes


def choose(
    model: MemoryModel,
    orders: Sequence[RankedOrder],
    room_bytes: int | None,
    options: PlanOptions,
    kept: bool = False,
) -> PlacedOrder:
    """Return the candidate with the lowest top; `room_bytes` is what the user's arena leaves above the persistent
    buffers.

    kept: whether a plan is known that keeps to the room; then there is little search for a lower one.
    """
    full = options.effort == "full"
    placed = _place_greedily(model, orders[: FULL_ORDERS if full else QUICK_ORDERS], both=full)
    best = min(placed, key=lambda item: item.top_bytes)
    rivals = [item for item in placed if item.peak_bytes < best.top_bytes]  # only these could still do better
    if not rivals:
        return best
    if options.effort == "rough":
        return best
    if full and rivals[0].packing.meetings <= MOST_MEETINGS:
        return _search(model, best, rivals, room_bytes, options, kept)
    return min(best, _local_search(rivals[0], QUICK_UNITS, options.seed), key=lambda item: item.top_bytes)


def _place_greedily(model: MemoryModel, orders: Sequence[RankedOrder], both: bool) -> list[PlacedOrder]:
    """Return candidates by increasing peak, until no further order can be lower than the best of them.

    both: try both ways of joining in-place chains (see `rectangles`). A large graph gets one order placed.
    """
    placed: list[PlacedOrder] = []
    for ranked in orders:
        if placed and ranked.peak >= min(item.top_bytes for item in placed):
            break
        for newest in (False, True) if both else (False,):
            items = rectangles(model, ranked.order, newest)
            packing = build_packing(items)
            if placed and placed[-1].packing == packing:
                continue
            placement, sequence = greedy(packing)
            placed.append(PlacedOrder(ranked.order, items, packing, placement, tuple(sequence)))
            if placement.proven:
                break
            if packing.meetings > MOST_MEETINGS:
                return placed
    return placed


def _local_search(start: PlacedOrder, units: float, seed: int) -> PlacedOrder:
    return replace(start, placement=improve_placement(start.packing, start.placement, start.sequence, units, seed))


def _search(
    model: MemoryModel,
    best: PlacedOrder,
    rivals: list[PlacedOrder],
    room_bytes: int | None,
    options: PlanOptions,
    kept: bool,
) -> PlacedOrder:
    """Return the best placement that the solver finds, on rivals by increasing peak.

    First comes the decision at the bound itself: on training graphs it almost always takes a fraction of a second. A
    minimisation from a greedy start takes many times longer and often ends above. If the user's room is not kept to
    yet, the decision at that room comes even before it: what is not found for the room is not found for less. Open
    cases are then minimised. With a room, that is enough. Without one, the best is pushed down until the decision
    fails: an arena one byte smaller than a plan's should not suddenly have a better plan. kept: the room is kept to
    without this.
    """
    # Imported here: loading ortools takes most of a second, which quick plans and --help avoid.
    from tinytrain_compile.plan.place.cpsat import minimise

    units, seed = options.deterministic_time, options.seed
    best = min(best, _local_search(rivals[0], units * SEQUENCE_SHARE, seed), key=lambda item: item.top_bytes)
    for rival in rivals[:SOLVER_TRIES]:
        if rival.peak_bytes >= best.top_bytes:
            break
        if room_bytes is not None and rival.peak_bytes < room_bytes < best.top_bytes:
            within = _below(rival, room_bytes, options)
            if within is None:
                continue
            best = within
        best = min(best, _below(rival, rival.peak_bytes, options) or best, key=lambda item: item.top_bytes)
    if kept or (room_bytes is not None and best.top_bytes <= room_bytes):
        return best
    rival = rivals[0] if best.placement.proven else best
    if rival.peak_bytes < best.top_bytes:
        lower = minimise(rival.packing, rival.placement, units * MINIMISE_SHARE, seed)
        best = min(best, replace(rival, placement=lower), key=lambda item: item.top_bytes)
    if room_bytes is not None:
        return best
    best = _push_down(best, rivals[:SOLVER_TRIES], options)
    if best.top_bytes > rivals[0].peak_bytes:
        best = _push_down(best, _variants(model, rivals[0], best.top_bytes, options), options)
    return best if best.placement.proven else _place_lower(best, options)


def _variants(model: MemoryModel, start: PlacedOrder, below_bytes: int, options: PlanOptions) -> list[PlacedOrder]:
    """Return orders near the best one that greedy placement places best, by increasing peak."""
    most = min(int(start.peak_bytes * (1 + VARIANT_SLACK)), below_bytes - 1)
    orders = variants(model.tasks, start.order, most, VARIANTS, options.seed)
    placed = [item for ranked in orders for item in _place_greedily(model, [ranked], both=True)]
    promising = sorted(placed, key=lambda item: item.top_bytes)[:VARIANT_TRIES]
    return sorted(promising, key=lambda item: item.peak_bytes)


def _place_lower(best: PlacedOrder, options: PlanOptions) -> PlacedOrder:
    """Return the placement, marked as proven if one unit less is proven impossible for its order."""
    units = options.deterministic_time * DECIDE_SHARE / SOLVER_TRIES
    answer = decide(best.packing, best.placement.height - 1, units, options.seed).answer
    return replace(best, placement=replace(best.placement, proven=answer == "no"))


def _below(rival: PlacedOrder, limit_bytes: int, options: PlanOptions) -> PlacedOrder | None:
    """Return the rival placed no higher than a limit, if such a placement is found."""
    units = options.deterministic_time * DECIDE_SHARE / SOLVER_TRIES
    found = decide(rival.packing, limit_bytes // rival.packing.unit_bytes, units, options.seed)
    return replace(rival, placement=found.placement) if found.placement is not None else None


def decide(packing: Packing, limit: int, units: float, seed: int) -> Decision:
    """Decide whether there is a placement of height at most `limit`. First the skyline search, then CP-SAT: each solves
    cases that the other does not (on the MiniMalloc instances; `make bench NAME=placement`)."""
    found = search(packing, limit, units * SKYLINE_SHARE)
    if found.answer != "unknown":
        return found
    # Imported here: loading ortools takes most of a second, which quick plans and --help avoid.
    from tinytrain_compile.plan.place import cpsat

    return cpsat.decide(packing, limit, units * (1 - SKYLINE_SHARE), seed)


def _push_down(best: PlacedOrder, rivals: Sequence[PlacedOrder], options: PlanOptions) -> PlacedOrder:
    """Try lower limits, in shrinking steps, until no rival can be placed one unit below the best."""
    share = 4
    for _ in range(PUSH_ROUNDS):
        open_ = [rival for rival in rivals if rival.peak_bytes < best.top_bytes]
        if not open_:
            break
        step = max(1, (best.top_bytes - open_[0].peak_bytes) // share)
        tries = (_below(rival, best.top_bytes - step, options) for rival in open_)
        found = next((candidate for candidate in tries if candidate is not None), None)
        if found is None and step <= best.packing.unit_bytes:
            break
        best, share = (found, share) if found is not None else (best, best.top_bytes)
    return best
