"""Rematerialisation: a plan that computes some tensors twice where that makes the arena smaller.

The search works on the order of the plan without it: which storages, and where in the backward pass (`remat_problem`).
A decision becomes a graph (`remat_rewrite`), which is planned like any other, so order and placement see the clones.
The search counts Concats and Slices as copies; which of them are views is decided for the graph with clones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.stages import MemoryPlan, Rematerialisation
from tinytrain_compile.ops import infer, op_def
from tinytrain_compile.plan.check.remat import validate_remat
from tinytrain_compile.plan.model import MemoryModel, build_model
from tinytrain_compile.plan.options import PlanOptions, RematOptions
from tinytrain_compile.plan.planned import REMEMBERED, Planned, plan_graph
from tinytrain_compile.plan.planner import persistent_buffers
from tinytrain_compile.plan.remat.problem import Problem, build_problem
from tinytrain_compile.plan.remat.rewrite import rewrite
from tinytrain_compile.plan.remat.search import RematChoice, cheapest_below, smallest

AUTO_TRIES = 6
"""Budgets that "auto" tries: where a plan lies above the arena by its packing, the next one is that much lower."""

NEAR, FIRST_SHARE = 1.1, 0.25
"""Of quick plans where none is sure to fit, the smallest is planned again with FIRST_SHARE of the deterministic time;
all are, with all of it, where that one comes within NEAR times the arena."""


def plan_with_remat(graph: Graph, options: PlanOptions, remat: RematOptions) -> Planned:
    """Plan a graph, with second runs where `remat` asks for them; never larger than without.

    Without a capacity "auto" has nothing to do. Where "auto" cannot fit, the smallest arena found is returned (but see
    RematOptions.most_share). The smallest arena, "min", is the same for every capacity.
    """
    options = replace(options, capacity_bytes=None) if remat.mode == "min" else options
    without = plan_graph(graph, options)
    capacity = options.capacity_bytes
    if remat.mode == "off" or (remat.mode == "auto" and (capacity is None or without.plan.arena_bytes <= capacity)):
        return without
    if remat.mode == "min" or capacity is None:
        task = Rematerialiser(graph, without.plan, options)
        return task.best_of(task.minimal(), without)
    most = float("inf") if remat.most_share is None else remat.most_share
    # The order found for the rewritten graph may be lower than what any decision reaches in the order it was made for.
    task, found = _within(graph, options, capacity)
    if found is None:
        if not remat.smallest:
            return without
        found = task.least_of(tuple(task.minimal()), without, capacity)
    fits = found.plan.arena_bytes <= capacity and share_of(found.graph, found.plan) <= most
    return found if fits or remat.most_share is None else replace(without, refused=found)


@lru_cache(maxsize=REMEMBERED)
def _within(graph: Graph, options: PlanOptions, capacity: int) -> tuple[Rematerialiser, Planned | None]:
    """The cheapest plan found that fits, and who looked. Remembered: if None, the smallest may be asked for."""
    task = Rematerialiser(graph, plan_graph(graph, options).plan, options)
    return task, task.within(capacity)


def share_of(graph: Graph, plan: MemoryPlan) -> float:
    """Extra multiply-accumulates of a plan over those of the step without them."""
    extra = plan.remat.extra_macs if plan.remat is not None else 0
    total = sum(op_def(node.op).macs(node) for node in graph.nodes)
    return extra / max(1, total - extra)


class Rematerialiser:
    """One graph with its order and problem; yields choices and plans them."""

    def __init__(self, graph: Graph, plan: MemoryPlan, options: PlanOptions) -> None:
        self.graph, self.options, self.without = graph, options, plan
        self.model: MemoryModel = build_model(graph, options)
        index = {node.name: task for task, node in enumerate(self.model.nodes)}
        tasks = self.model.tasks
        order = [tasks.start, *(index[node.name] for node in plan.order), tasks.barrier]
        self.problem: Problem = build_problem(graph, self.model, order)
        base = persistent_buffers(self.model, options)
        self.below = max((buffer.offset + buffer.size_bytes for buffer in base), default=0)

    def minimal(self) -> Iterator[RematChoice]:
        """Decisions with the lowest peak found."""
        return smallest(self.problem, self.options, self.below)

    def best_of(self, choices: Iterator[RematChoice], without: Planned) -> Planned:
        """The smallest arena of some choices, or the plan without second runs; a gain without a gap ends the search."""
        best = without
        for choice in choices:
            found = self.planned(choice)
            if found.plan.arena_bytes < best.plan.arena_bytes:
                best = found
                if found.plan.gap_bytes == 0:
                    break
        return best

    def least_of(self, choices: Sequence[RematChoice], without: Planned, capacity: int) -> Planned:
        """The smallest arena of some choices where none is sure to fit a capacity; the first that does is taken.

        Only the one with the smallest quick plan is planned again, with a part of the effort, if it fits then or no
        plan is near: there it is a figure of a message, and a full plan of each may take as long as all the rest.
        """
        if self.options.effort == "quick":
            return self.best_of(iter(choices), without)
        quick = Rematerialiser(self.graph, self.without, replace(self.options, effort="quick"))
        sizes = [quick.planned(choice).plan.arena_bytes for choice in choices]
        least = min(sizes)
        less = replace(self.options, deterministic_time=self.options.deterministic_time * FIRST_SHARE)
        first = Rematerialiser(self.graph, self.without, less)
        found = first.best_of(iter((choices[sizes.index(least)],)), without)
        near = capacity < found.plan.arena_bytes and least <= NEAR * capacity
        return self.best_of(iter(choices), found) if near else found

    def within(self, capacity: int) -> Planned | None:
        """The cheapest plan found that fits: decisions below the capacity, then below what packing lost so far."""
        short = 0
        for _ in range(AUTO_TRIES):
            choice = cheapest_below(self.problem, capacity - self.below - short, self.options)
            if choice is None:
                return None
            plan = self.without  # which does not fit, where only its packing loses too much
            if choice.decision:
                found = self.planned(choice)
                if found.plan.arena_bytes <= capacity:
                    return found
                plan = found.plan
            short += max(plan.arena_bytes - capacity, self.options.alignment_bytes)
        return None

    def planned(self, choice: RematChoice) -> Planned:
        """The graph of a choice, planned and judged."""
        rewritten, runs = rewrite(self.graph, self.model, self.problem, choice.decision)
        check_graph(rewritten, infer)
        planned = plan_graph(rewritten, self.options)
        copies = {node.name: node for node in rewritten.nodes}  # views mean what copies mean
        order = tuple(copies[node.name] for node in planned.plan.order)
        validate_remat(self.graph, rewritten, replace(planned.plan, order=order))
        names = tuple(node.name for node in rewritten.nodes)
        budget = choice.budget_bytes + self.below
        remat = Rematerialisation(runs, self.without.arena_bytes, budget, choice.cheapest, names)
        return replace(planned, plan=replace(planned.plan, remat=remat if runs else None))
