"""`--optimise`: the best by an objective of many plans for one training graph, below limits of arena and step time.

Plans are made with fewer and more second runs, in one memory or spread over several. The cheapest of them is not proven
to be the cheapest of all: second runs and page moves are not searched together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from tinytrain_compile.ir.cost import StepCost
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.plan.halving import halve
from tinytrain_compile.plan.memories.spread import POINTER_BYTES, spread
from tinytrain_compile.plan.options import PlanOptions, Wish
from tinytrain_compile.plan.planner import Planned, plan_graph
from tinytrain_compile.plan.price import step_cost
from tinytrain_compile.plan.remat.stage import Rematerialiser

LEVELS = (1 / 3, 2 / 3)
"""Shares of the missing bytes that are paged rather than computed twice, in plans that do both."""

FULL_PROBES = 3
"""Number of smaller arenas tried with full effort, below the smallest one that greedy methods reach."""


def optimise(graph: Graph, options: PlanOptions, wish: Wish) -> Planned:
    """Return the best plan found by wish.objective, below options.capacity_bytes and wish.limit_ps.

    If there is none: the fastest one that fits the arena; if there is none either, the one with the smallest arena.
    Without wish.limit_ps the smallest arena (objective "memory") is the same for every capacity.
    wish.remat: "off" and "min" are kept; otherwise the objective decides.
    """
    search = PlanSearch(graph, options, wish)
    found = list(search.small() if wish.objective == "memory" else search.cheap())
    room = options.capacity_bytes
    fitting = [plan for plan in found if room is None or plan.plan.arena_bytes <= room]
    in_time = [plan for plan in fitting if wish.limit_ps is None or search.cost(plan).ps <= wish.limit_ps]
    if in_time:
        return min(in_time, key=search.rank)
    if fitting:
        return min(fitting, key=lambda plan: search.cost(plan).ps)
    return min(found, key=lambda plan: (plan.plan.arena_bytes, search.rank(plan)))


class PlanSearch:
    """Maker of plans for one graph that does each part of the work once."""

    def __init__(self, graph: Graph, options: PlanOptions, wish: Wish) -> None:
        if wish.objective == "memory":
            options = replace(options, capacity_bytes=None)
        self.options = replace(options, spend="energy" if wish.objective == "energy" else "time")
        self.wish = wish
        self.graph, self.without = graph, plan_graph(graph, options)

    @cached_property
    def again(self) -> Rematerialiser:
        """Second runs for this graph."""
        return Rematerialiser(self.graph, self.without.plan, self.options)

    @cached_property
    def minimal(self) -> Planned:
        """The smallest arena in one memory."""
        return self.again.best_of(self.again.minimal(), self.without)

    def cost(self, planned: Planned) -> StepCost:
        """Return the cost of a plan."""
        return step_cost(planned.plan, self.wish.core)

    def rank(self, planned: Planned) -> tuple[int, int, int]:
        """Return a sort key: smaller is better."""
        cost, size = self.cost(planned), planned.plan.arena_bytes
        first = {"memory": size, "time": cost.ps, "energy": cost.pj}[self.wish.objective or "time"]
        return first, cost.ps, size

    def base(self) -> Planned:
        """Return the cheapest plan in one memory that --remat allows."""
        return self.minimal if self.wish.remat == "min" else self.without

    # ---- least time or energy ----

    def cheap(self) -> Iterator[Planned]:
        """Yield plans below the capacity; if the base fits, nothing is cheaper."""
        base, room = self.base(), self.options.capacity_bytes
        yield base
        if room is None or base.plan.arena_bytes <= room:
            return
        sources = [base]
        if self.wish.remat in (None, "auto"):
            inside = self.again.within(room)
            if inside is not None:
                yield inside
            sources += self._between(room, base.plan.arena_bytes, inside is not None)
        for source in sources if self.wish.memories else sources[1:]:
            yield source
            moved = self._moved(source, room, self.options.effort)
            if moved is not None:
                yield moved

    def _between(self, room: int, top: int, fits: bool) -> Iterable[Planned]:
        """Yield plans with second runs that are still too large for the capacity, to be spread over memories."""
        if not fits:
            yield self.minimal
        if self.wish.memories and self.options.effort == "full":
            for level in LEVELS:
                found = self.again.within(room + int((top - room) * level))
                if found is not None:
                    yield found

    def _moved(self, source: Planned, capacity: int, effort: str) -> Planned | None:
        limit = self.wish.limit_ps
        left = None if limit is None else limit - self.cost(source).ps
        settings = replace(self.options, capacity_bytes=capacity, effort=effort, most_ps=left)
        found = spread(source.graph, source.plan, settings, self.wish.memories)
        if found is None and left is not None:  # then as fast as possible: its time is part of the answer
            settings = replace(settings, most_ps=None, spend="time")
            found = spread(source.graph, source.plan, settings, self.wish.memories)
        return found

    # ---- smallest arena ----

    def small(self) -> Iterator[Planned]:
        """Yield plans with a small arena: second runs as far as time allows, then all that other memories can hold."""
        sources = [self.base()]
        if self.wish.remat in (None, "auto"):
            sources.append(self.minimal)
            sources += self.in_time()
        for source in sources:
            yield source
            if self.wish.memories:
                yield from self._squeezed(source)

    def in_time(self) -> list[Planned]:
        """Find, between no second runs and most of them: the smallest arena whose plan is fast enough."""
        limit, best = self.wish.limit_ps, list[Planned]()
        if limit is None or self.cost(self.minimal).ps <= limit:
            return best

        def reach(budget: int) -> int | None:
            found = self.again.within(budget)
            if found is None or self.cost(found).ps > limit:
                return None
            best[:] = [found]
            return found.plan.arena_bytes

        halve(self.minimal.plan.arena_bytes, self.without.plan.arena_bytes, reach)
        return best

    def _squeezed(self, source: Planned) -> Iterator[Planned]:
        """Yield the source with less and less in the arena."""
        handle = self.options.header_bytes + POINTER_BYTES * len(self.wish.memories)
        floor, found_so_far = self.options.reserved(handle), list[Planned]()

        def reach(budget: int) -> int | None:
            found = self._in_arena(source, budget, "quick")
            found_so_far.extend([] if found is None else [found])
            return None if found is None else found.plan.arena_bytes

        # Perhaps nothing has to stay, so the first try is the handle alone.
        low, high = halve(floor, source.plan.arena_bytes, reach, self.options.alignment_bytes, ask_low=True)
        yield from found_so_far
        if self.options.effort == "quick":
            return
        low, middle = max(low - (high - low), floor), high
        for _ in range(1 + FULL_PROBES):
            found = self._in_arena(source, middle, "full")
            if found is not None:
                yield found
            low, high = (middle, high) if found is None else (low, found.plan.arena_bytes)
            middle = (low + high) // 2

    def _in_arena(self, source: Planned, capacity: int, effort: str) -> Planned | None:
        """Spread below a capacity and, if there is one, the time limit."""
        found = self._moved(source, capacity, effort)
        limit = self.wish.limit_ps
        return found if found is None or limit is None or self.cost(found).ps <= limit else None
