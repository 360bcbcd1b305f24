"""What is tried where a plan does not fit, before less is updated: layers row by row, some recomputation, then the
further memories.

Every attempt is a plan of its own. A flag that was given is never changed: `--remat off` leaves that attempt out, and
only a memory that `--memory` names is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.cost import Attempt, Objective
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.plan import (
    CoreModel,
    Goal,
    Memory,
    Planned,
    PlanOptions,
    RematOptions,
    arena_bound,
    optimise,
    plan_graph,
    plan_with_remat,
    share_of,
    spread,
    step_cost,
    streamed,
    streamed_again,
    streaming,
    with_lines,
)

FALLBACK_SHARE = 0.25
"""Without --remat: extra multiply-accumulates, as a share of a step's, that are spent before less is updated."""

FEW_NODES = 116
"""Nodes up to which second runs row by row are always looked for, which takes as long as some 25 quick plans, and
streams always with care."""

MANY_NODES = 1500
"""Nodes above which a search over many updates does without second runs unless they are asked for: looking for them
takes many times what planning does, for each update."""

LEAST_SAVED = 0.05
"""Of the arena, that --stream auto must save where no --arena is given: rows cost a little time."""


@dataclass(frozen=True)
class Means:
    """What a plan may use by the user's flags, and what it should be.

    limit_ps: longest step by the model. smallest: where nothing else fits, the smallest arena is searched: it may fit,
    or is what a message names.
    stream: whether layers may be computed row by row: "min" for the smallest arena, "auto" likewise where --arena needs
    it, or is not given and LEAST_SAVED is saved. again: whether second runs row by row are looked for where nothing
    else fits, and exact: whether streams are chosen with care; both in graphs of more than FEW_NODES. lines: the image
    comes row by row, which a stream takes; as_bytes: as bytes of a camera.
    """

    core: CoreModel
    memories: tuple[Memory, ...]
    remat: Literal["off", "auto", "min"] | None
    objective: Objective | None
    limit_ps: int | None
    stream: Literal["off", "auto", "min"]
    smallest: bool = True
    again: bool = True
    exact: bool = True
    lines: bool = False
    as_bytes: bool = False

    def streamed(self, graph: Graph, settings: PlanOptions, room: int) -> Graph:
        """`streamed` of the planner, with the care that is asked for."""
        return streamed(graph, settings, room, self.exact or len(graph.nodes) <= FEW_NODES)

    def slow(self, planned: Planned) -> bool:
        """Whether a step of a plan takes too long."""
        return self.limit_ps is not None and step_cost(planned.plan, self.core).ps > self.limit_ps


def plan_with_fallbacks(graph: Graph, settings: PlanOptions, means: Means) -> tuple[Planned, tuple[Attempt, ...]]:
    """A plan, and what was tried on the way to it; the last attempt is the plan.

    The smallest arena is searched only where nothing else fits, so what fits in one memory is the same plan with and
    without Means.smallest: a search over many updates goes without, and what it writes down is then planned with.
    """
    graph = with_lines(graph, means.as_bytes) if means.lines else graph
    if not means.smallest or means.memories or means.objective is not None or means.remat in ("off", "min"):
        return _with_second_runs(graph, settings, means)
    planned, attempts = _with_second_runs(graph, settings, replace(means, smallest=False))
    room = settings.capacity_bytes
    if room is None or planned.plan.arena_bytes <= room:
        return planned, attempts
    return _with_second_runs(graph, settings, means)


def _with_second_runs(graph: Graph, settings: PlanOptions, means: Means) -> tuple[Planned, tuple[Attempt, ...]]:
    """The same, of a graph whose image comes as it will, with second runs row by row last."""
    planned, attempts = _streamed(graph, settings, means)
    again = _again(graph, planned, settings, means)
    if again is None or again.plan.arena_bytes >= planned.plan.arena_bytes:
        return planned, attempts
    share = share_of(again.graph, again.plan)
    how = "second runs" if again.plan.streams is None else "second runs row by row"
    return again, (*attempts, Attempt("recompute", how, again.plan.arena_bytes, f"+{share:.1%} MACs"))


def _streamed(graph: Graph, settings: PlanOptions, means: Means) -> tuple[Planned, tuple[Attempt, ...]]:
    """The same without second runs in streams."""
    room = settings.capacity_bytes if means.stream == "auto" else None
    by_rows = graph
    if means.lines or _needs_rows(graph, settings, means):
        by_rows = means.streamed(graph, settings, room or 0)
        if by_rows is graph and room:  # no layer is too large for it, but what lives beside them is
            by_rows = means.streamed(graph, settings, 0)
    if means.lines and not any(node.op == "Stream" and takes_lines(node) for node in by_rows.nodes):
        # Which the caller refuses: no more is tried, and no rows are gone that a second run would read.
        whole = plan_graph(graph, settings)
        return whole, (Attempt("asked", "as asked", whole.plan.arena_bytes),)
    if by_rows is graph:
        return _planned(graph, settings, means)
    by_rows, (planned, attempts) = _by_rows(graph, by_rows, settings, means)
    # With a room both are figures of the report alone, where a quick plan will do.
    measure = settings if settings.capacity_bytes is None else replace(settings, effort="quick")
    whole, asked = plan_graph(graph, measure).plan, attempts[0].kind == "asked"
    without = whole.arena_bytes
    alone = attempts[0].arena_bytes if asked else None
    alone = plan_graph(by_rows, measure).plan.arena_bytes if alone is None else alone
    little = settings.capacity_bytes is None and without - alone < LEAST_SAVED * without
    if means.stream == "auto" and little and not means.lines:
        return _planned(graph, settings, means)
    how = "--input-lines" if means.lines else f"--stream {means.stream}"
    tried = Attempt("asked", "as asked", without), Attempt("stream", how, alone)
    planned = replace(planned, plan=replace(planned.plan, streams=streaming(whole, alone)))
    return planned, (*tried, *attempts[asked:])


def _by_rows(
    graph: Graph, by_rows: Graph, settings: PlanOptions, means: Means
) -> tuple[Graph, tuple[Planned, tuple[Attempt, ...]]]:
    """The graph with these streams or, where what just fits by its load does not when it is placed, with the smallest
    ones; and its plan. Where quick plans say which of both fits, only that one gets a full plan."""
    if means.stream != "auto" or settings.capacity_bytes is None or means.lines:
        return by_rows, _planned(by_rows, settings, means)
    if settings.effort == "full" and not _fits(by_rows, settings):
        smallest = means.streamed(graph, settings, 0)
        if _fits(smallest, settings):
            return smallest, _planned(smallest, settings, means)
    found = by_rows, _planned(by_rows, settings, means)
    if found[1][0].plan.arena_bytes > settings.capacity_bytes:
        smallest = means.streamed(graph, settings, 0)
        least = _planned(smallest, settings, means)
        found = (smallest, least) if least[0].plan.arena_bytes < found[1][0].plan.arena_bytes else found
    return found


def _fits(graph: Graph, settings: PlanOptions) -> bool:
    """Whether a quick plan does: then a full one does."""
    room = settings.capacity_bytes
    return room is None or plan_graph(graph, replace(settings, effort="quick")).plan.arena_bytes <= room


def _needs_rows(graph: Graph, settings: PlanOptions, means: Means) -> bool:
    """Whether layers row by row may help. auto: not where a plan without them fits, and not for the fastest step."""
    room = settings.capacity_bytes
    if means.stream != "auto" or room is None:
        return means.stream != "off" and (means.stream == "min" or means.objective in (None, "memory"))
    if _fits(graph, settings):
        return False
    possible = settings.effort == "full" and arena_bound(graph, settings, once=True) <= room
    return not possible or plan_graph(graph, settings).plan.arena_bytes > room


def _again(graph: Graph, planned: Planned, settings: PlanOptions, means: Means) -> Planned | None:
    """Second runs and errors row by row, which take a while to find: where the smallest arena is asked for, and where
    nothing else fits but this may.

    Not of rows that the caller hands over, which are gone.
    """
    if means.remat == "off" or means.stream == "off" or means.objective is not None or means.lines:
        return None
    if settings.effort != "full" or (means.remat != "min" and not _may_fit(graph, planned, settings, means)):
        return None
    found = streamed_again(graph, settings, smallest=means.remat == "min")
    if found is None or means.slow(found):
        return None
    return None if means.remat is None and share_of(found.graph, found.plan) > FALLBACK_SHARE else found


def _may_fit(graph: Graph, planned: Planned, settings: PlanOptions, means: Means) -> bool:
    """Whether what has not fitted --arena may: what stays for good does. (No node is sure to need what it does now.)"""
    room, plan = settings.capacity_bytes, planned.plan
    if not means.again and len(graph.nodes) > FEW_NODES:
        return False
    return room is not None and plan.persistent_bytes < room < plan.arena_bytes


def _planned(graph: Graph, settings: PlanOptions, means: Means) -> tuple[Planned, tuple[Attempt, ...]]:
    """The same of a graph whose layers are streamed already, or shall not be."""
    if means.objective is not None:
        return _optimised(graph, settings, means, means.objective, f"--optimise {means.objective}")
    planned, attempts = _least(graph, settings, means)
    if not means.slow(planned):
        return planned, attempts
    faster, last = _optimised(graph, settings, means, "time", "least step time")
    return faster, (*attempts, *last)


def _optimised(
    graph: Graph, settings: PlanOptions, means: Means, objective: Objective, how: str
) -> tuple[Planned, tuple[Attempt, ...]]:
    goal = Goal(objective, means.core, means.memories, means.limit_ps)
    found = optimise(graph, settings, RematOptions(means.remat or "auto"), goal)
    time = f"{step_cost(found.plan, means.core).ps / 1e9:.4g} ms a step"
    return found, (
        Attempt("optimise", how, found.plan.arena_bytes, f"{time}, too slow" if means.slow(found) else time),
    )


def _least(graph: Graph, settings: PlanOptions, means: Means) -> tuple[Planned, tuple[Attempt, ...]]:
    """The least extra time, one attempt after the other."""
    share = FALLBACK_SHARE if means.remat is None else None
    search = "auto" if means.smallest or len(graph.nodes) <= MANY_NODES else "off"
    asked = RematOptions(means.remat or search, share, means.smallest)
    planned, room = plan_with_remat(graph, settings, asked), settings.capacity_bytes
    again = planned if planned.plan.remat is not None else planned.refused
    alone = planned.plan.remat.arena_without_bytes if planned.plan.remat is not None else planned.plan.arena_bytes
    attempts = [Attempt("asked", "as asked", alone)]
    if again is not None:
        how = f"recompute, up to {FALLBACK_SHARE:.0%} more MACs" if means.remat is None else f"--remat {means.remat}"
        share = share_of(again.graph, again.plan)
        price = f"+{share:.1%} MACs{_over(share, means)}" if again.plan.arena_bytes < alone else "no gain"
        attempts.append(Attempt("recompute", how, again.plan.arena_bytes, price))
    if room is None or planned.plan.arena_bytes <= room or not means.memories:
        return planned, tuple(attempts)
    moved = _moved(planned, settings, means)
    attempts.append(_paging(graph, moved, settings, means))
    return moved or planned, tuple(attempts)


def _over(share: float, means: Means) -> str:
    return f", more than {FALLBACK_SHARE:.0%}" if means.remat is None and share > FALLBACK_SHARE else ""


def _moved(planned: Planned, settings: PlanOptions, means: Means) -> Planned | None:
    """Spread over the memories; with second runs only where it takes both."""
    sources = [planned]
    if planned.refused is not None and not _over(share_of(planned.refused.graph, planned.refused.plan), means):
        sources.append(planned.refused)
    found = (spread(source.graph, source.plan, settings, means.memories) for source in sources)
    return next((plan for plan in found if plan is not None), None)


def _paging(graph: Graph, moved: Planned | None, settings: PlanOptions, means: Means) -> Attempt:
    """The attempt of the further memories: what they made of it, or the smallest arena that they could make."""
    how = "page to " + ", ".join(memory.name for memory in means.memories)
    if moved is not None:
        return Attempt("page", how, moved.plan.arena_bytes, f"+{moved.plan.extra_ps / 1e9:.3g} ms a step")
    if settings.effort == "quick" or not means.smallest:
        return Attempt("page", how, None, "too little")
    least = RematOptions("off" if means.remat in (None, "off") else "min")
    goal = Goal("memory", means.core, means.memories)
    found = optimise(graph, replace(settings, capacity_bytes=None, effort="quick"), least, goal)
    return Attempt("page", how, found.plan.arena_bytes, "at least")
