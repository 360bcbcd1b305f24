"""A plan with the graph that it is of; `plan_graph` decides which Concats and Slices are views in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.buffers import load_of
from tinytrain_compile.ir.stages import MemoryPlan, Streaming
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory, quick_arena, quick_peak
from tinytrain_compile.plan.views import candidates, with_views

TURNS = 8
"""With effort "full": how many are then tried the other way, one by one."""
TRIED_NODES = 16_000
"""Nodes in all plans that are tried, at most (two plans always are): what a large graph wins is not worth minutes."""

REMEMBERED = 8
"""Plans."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A graph and its plan; the graph has second runs where plan.remat is not None, and views where nothing need move.

    refused: with second runs, what was found and not taken: it costs too much, or does not fit either.
    """

    graph: Graph
    plan: MemoryPlan
    refused: Planned | None = None


@lru_cache(maxsize=REMEMBERED)
def plan_graph(graph: Graph, options: PlanOptions) -> Planned:
    """`plan_memory` of the graph with those Concats and Slices as views whose bytes need not move.

    A whole is live from its first part to the last reader of any, which may cost more than copying. So quick plans try
    all of them, the Concats, the Slices and none, with effort "full" also the best of these with one turned. The
    smallest arena counts, and among equals the fewest copies. Of the same graph it is the same plan: the last few are
    remembered, since who looks for a way to fit asks more than once.
    """
    views = candidates(graph, options.alignment_bytes)
    if not views:
        return Planned(graph, plan_memory(graph, options))
    viewed = with_views(graph, _cheapest_views(graph, views, options)[1])
    return Planned(viewed, plan_memory(viewed, options))


@dataclass(frozen=True, order=True)
class Need:
    """What a graph needs by a quick plan, to compare graphs; copies: Concats and Slices that are no views, less all.

    peak_bytes: what lives at once in the best order, which is what a full plan may come down to.
    """

    arena_bytes: int
    copies: int
    peak_bytes: int


def least_need(graph: Graph, options: PlanOptions, most: int | None = None) -> Need:
    """Of `plan_graph` with effort "quick", which nobody judges: whichever graph is taken is then planned.

    most: what is larger than this need not be exact, but larger.
    """
    views, quick = candidates(graph, options.alignment_bytes), replace(options, effort="quick")
    if options.effort == "rough":
        return _need(with_views(graph, views), options, 0, most)
    return _cheapest_views(graph, views, quick, most)[0] if views else _need(graph, quick, 0, most)


def _need(graph: Graph, quick: PlanOptions, copies: int, most: int | None) -> Need:
    arena = quick_arena(graph, quick, most)
    return Need(arena, copies, arena if most is not None and arena > most else quick_peak(graph, quick))


def _cheapest_views(
    graph: Graph, views: tuple[str, ...], options: PlanOptions, most: int | None = None
) -> tuple[Need, tuple[str, ...]]:
    """(what a graph with some views needs at best, these views); views: all that are possible together."""
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
    """What streams save, by the plan of the same graph without them."""
    loads = load_of(without.buffers, len(without.order))
    names = (node.name for node in without.order)
    return Streaming(without.arena_bytes, arena_with_bytes, tuple(zip(names, loads, strict=False)))
