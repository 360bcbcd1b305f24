"""The ladder for what does not fit, before less is updated: some recomputation, then the further memories.

Every rung is a plan of its own. A flag that was given is never changed: `--remat off` leaves that rung out, and only a
memory that `--memory` names is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.cost import Objective, Rung
from tinytrain_compile.plan import (
    CoreModel,
    Goal,
    Memory,
    Planned,
    PlanOptions,
    RematOptions,
    optimise,
    plan_with_remat,
    share_of,
    spread,
    step_cost,
)

LADDER_SHARE = 0.25
"""Without --remat: extra multiply-accumulates, as a share of a step's, that are spent before less is updated."""


@dataclass(frozen=True)
class Means:
    """What a plan may use by the user's flags, and what it should be.

    limit_ps: longest step by the model. smallest: what does not fit is made as small as it can be, for a message.
    """

    core: CoreModel
    memories: tuple[Memory, ...]
    remat: Literal["off", "auto", "min"] | None
    objective: Objective | None
    limit_ps: int | None
    smallest: bool = True

    def slow(self, planned: Planned) -> bool:
        """Whether a step of a plan takes too long."""
        return self.limit_ps is not None and step_cost(planned.plan, self.core).ps > self.limit_ps


def climb(graph: Graph, settings: PlanOptions, means: Means) -> tuple[Planned, tuple[Rung, ...]]:
    """A plan, and what was tried on the way to it; the last rung is the plan."""
    if means.objective is not None:
        return _optimised(graph, settings, means, means.objective, f"--optimise {means.objective}")
    planned, rungs = _least(graph, settings, means)
    if not means.slow(planned):
        return planned, rungs
    faster, last = _optimised(graph, settings, means, "time", "least step time")
    return faster, (*rungs, *last)


def _optimised(
    graph: Graph, settings: PlanOptions, means: Means, objective: Objective, how: str
) -> tuple[Planned, tuple[Rung, ...]]:
    goal = Goal(objective, means.core, means.memories, means.limit_ps)
    found = optimise(graph, settings, RematOptions(means.remat or "auto"), goal)
    time = f"{step_cost(found.plan, means.core).ps / 1e9:.4g} ms a step"
    return found, (Rung("optimise", how, found.plan.arena_bytes, f"{time}, too slow" if means.slow(found) else time),)


def _least(graph: Graph, settings: PlanOptions, means: Means) -> tuple[Planned, tuple[Rung, ...]]:
    """The least extra time, rung by rung."""
    asked = (
        RematOptions("auto", LADDER_SHARE) if means.remat is None else RematOptions(means.remat, None, means.smallest)
    )
    planned, room = plan_with_remat(graph, settings, asked), settings.capacity_bytes
    again = planned if planned.plan.remat is not None else planned.refused
    alone = planned.plan.remat.arena_without_bytes if planned.plan.remat is not None else planned.plan.arena_bytes
    rungs = [Rung("asked", "as asked", alone)]
    if again is not None:
        how = f"recompute, up to {LADDER_SHARE:.0%} more MACs" if means.remat is None else f"--remat {means.remat}"
        share = share_of(again.graph, again.plan)
        price = f"+{share:.1%} MACs{_over(share, means)}" if again.plan.arena_bytes < alone else "no gain"
        rungs.append(Rung("recompute", how, again.plan.arena_bytes, price))
    if room is None or planned.plan.arena_bytes <= room or not means.memories:
        return planned, tuple(rungs)
    moved = _moved(planned, settings, means)
    rungs.append(_paging(graph, moved, settings, means))
    return moved or planned, tuple(rungs)


def _over(share: float, means: Means) -> str:
    return f", more than {LADDER_SHARE:.0%}" if means.remat is None and share > LADDER_SHARE else ""


def _moved(planned: Planned, settings: PlanOptions, means: Means) -> Planned | None:
    """Spread over the memories; with second runs only where it takes both."""
    sources = [planned]
    if planned.refused is not None and not _over(share_of(planned.refused.graph, planned.refused.plan), means):
        sources.append(planned.refused)
    found = (spread(source.graph, source.plan, settings, means.memories) for source in sources)
    return next((plan for plan in found if plan is not None), None)


def _paging(graph: Graph, moved: Planned | None, settings: PlanOptions, means: Means) -> Rung:
    """The rung of the further memories: what they made of it, or the smallest arena that they could make."""
    how = "page to " + ", ".join(memory.name for memory in means.memories)
    if moved is not None:
        return Rung("page", how, moved.plan.arena_bytes, f"+{moved.plan.extra_ps / 1e9:.3g} ms a step")
    if settings.effort == "quick":
        return Rung("page", how, None, "too little")
    least = RematOptions("off" if means.remat in (None, "off") else "min")
    goal = Goal("memory", means.core, means.memories)
    found = optimise(graph, replace(settings, capacity_bytes=None, effort="quick"), least, goal)
    return Rung("page", how, found.plan.arena_bytes, "at least")
