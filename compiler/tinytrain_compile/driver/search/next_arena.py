"""Find the next arena above the one given that holds a simple update, the last N layers, with a larger gain."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.ir.cost import NextArena
from tinytrain_compile.sparse import PRIOR, UNITS, gain_of_plan, read_gains, resolve_update

TRIES = 2
"""Simple updates that are planned: the shallowest ones that gain more than what was chosen, and need more room."""


def with_next_arena(planner: Planner, candidate: Candidate) -> Candidate:
    """Return a choice of --update auto that knows the next larger arena worth having, if --arena was its limit."""
    choice = candidate.choice.update
    if choice is None or planner.options.arena_bytes is None or planner.target.board is not None:
        return candidate
    found = next_arena(planner, candidate)
    return replace(candidate, choice=replace(candidate.choice, update=replace(choice, next_arena=found)))


def next_arena(planner: Planner, candidate: Candidate) -> NextArena | None:
    """Return the smallest arena above --arena that holds a plan of last:N that gains more than a candidate.

    Gains are those of --gains, or of the prior. None if no such plan was found.
    """
    graph, limit = planner.model.graph, planner.options.arena_bytes or 0
    gains = PRIOR if planner.options.gains is None else read_gains(planner.options.gains, graph)
    least, found = gain_of_plan(graph, candidate.update, gains), list[NextArena]()
    for depth in range(1, planner.layer_count + 1):
        update = f"last:{depth}"
        gain = gain_of_plan(graph, resolve_update(graph, update), gains)
        needed = planner.price(update).arena_bytes if gain > least else 0
        if needed > limit and planner.with_options(arena_bytes=needed).fitting(update) is not None:
            found.append(NextArena(needed, needed - limit, update, gain / UNITS, least / UNITS))
        if len(found) == TRIES:
            break
    return min(found, key=lambda one: one.arena_bytes, default=None)
