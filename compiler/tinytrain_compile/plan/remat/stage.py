"""Rematerialisation: a plan that computes some tensors twice if that makes the arena smaller.

The search works on the order of the plan without it: which storages, and where in the backward pass (`problem.py`). A
decision becomes a graph (`rewrite`), which is planned like any other, so order and placement see the clones. The search
counts Concats and Slices as copies; which of them become views is decided for the graph with clones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count

from tinytrain_compile.ir.cost import Remat
from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.stages import MemoryPlan, Rematerialisation, SecondRun
from tinytrain_compile.ir.types import Graph, Node, Value, first_free, grouped
from tinytrain_compile.ops import infer, op_def
from tinytrain_compile.plan.check.rewrites import validate_remat
from tinytrain_compile.plan.model import MemoryModel
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.planner import REMEMBERED, Planned, plan_graph, quick_plan
from tinytrain_compile.plan.remat.problem import Decision, Problem, build_problem, expand
from tinytrain_compile.plan.remat.search import RematChoice, cheapest_below, smallest


def rewrite(
    graph: Graph, model: MemoryModel, problem: Problem, decision: Decision
) -> tuple[Graph, tuple[SecondRun, ...]]:
    """Return the graph with second runs, its nodes in the decision's order, and the added runs."""
    writer = _Writer(graph)
    for event in expand(problem, decision):
        node = model.nodes[problem.operations[event.operation].node]
        if event.storage < 0:
            writer.add(node)
        else:
            writer.repeat(node)
    for node in graph.nodes:
        if node.phase == "apply" and node.name not in writer.done:
            writer.add(node)
    return replace(graph, nodes=tuple(writer.nodes)), tuple(writer.runs)


def replay(graph: Graph, names: Sequence[str], again: Mapping[str, str]) -> tuple[Graph, tuple[SecondRun, ...]]:
    """Return the graph whose nodes have these names in this order; again: name of a second run -> node that it repeats.

    Raises PlanError if there is no such graph. `validate_remat` checks what it computes.
    """
    nodes = {node.name: node for node in graph.nodes}
    writer = _Writer(graph)
    for name in names:
        source = nodes.get(again.get(name, name))
        if name in again and source is not None and len(source.outputs) == 1:
            writer.repeat(source)
        elif name in nodes:
            writer.add(nodes[name])
    if [node.name for node in writer.nodes] != list(names):
        raise PlanError("second runs", "its second runs are not those of this graph")
    return replace(graph, nodes=tuple(writer.nodes)), tuple(writer.runs)


class _Writer:
    """Collector of nodes; it maps every value to the copy that later readers get."""

    def __init__(self, graph: Graph) -> None:
        producers = graph.producers()
        self.views = grouped((node.inputs[0].name, node) for node in graph.nodes if op_def(node.op).view)
        self.taken = {node.name for node in graph.nodes} | set(producers) | set(graph.constants)
        self.nodes: list[Node] = []
        self.done: set[str] = set()
        self.runs: list[SecondRun] = []
        self.current: dict[str, Value] = {}
        for value in (*graph.inputs, *graph.accumulators, *(v for node in graph.nodes for v in node.inputs)):
            if value.name not in producers:
                self.show(value)

    def add(self, node: Node) -> None:
        """Add a node in its original place, with the current copies of its operands, and the views of its results."""
        if node.name in self.done:
            return
        self.done.add(node.name)
        self.nodes.append(replace(node, inputs=tuple(map(self.reader, node.inputs))))
        for value in node.outputs:
            self.show(value)

    def show(self, value: Value) -> None:
        """Add views, which are free: each comes right after the value that it shows."""
        for view in self.views.get(value.name, ()):
            if view.phase == "step":
                self.add(view)

    def reader(self, value: Value) -> Value:
        return self.current.get(value.name, value)

    def repeat(self, node: Node) -> None:
        """Add a clone; from here on its output, and views of it, replace the first ones."""
        clone = self.clone(node)
        (value,) = node.outputs
        self.runs.append(SecondRun(clone.name, node.name, node.origin, value.size_bytes, op_def(node.op).macs(node)))

    def clone(self, node: Node) -> Node:
        clone = cloned(node, tuple(map(self.reader, node.inputs)), self.taken)
        self.nodes.append(clone)
        for value, copy in zip(node.outputs, clone.outputs, strict=True):
            self.current[value.name] = copy
            for view in self.views.get(value.name, ()):
                self.clone(view)
        return clone


def cloned(node: Node, inputs: tuple[Value, ...], taken: set[str]) -> Node:
    """Return a copy of the node on these inputs, with unused names, which are added to `taken`."""

    def again(name: str) -> str:
        return first_free((f"{name}@{number}" for number in count(2)), taken)

    outputs = tuple(replace(value, name=again(value.name)) for value in node.outputs)
    name = outputs[0].name if node.name == node.outputs[0].name else again(node.name)
    return replace(node, name=name, inputs=inputs, outputs=outputs)


AUTO_TRIES = 6
"""Budgets that "auto" tries: if packing puts a plan above the arena, the next budget is that much lower."""

NEAR, FIRST_SHARE = 1.1, 0.25
"""If no quick plan is sure to fit, the smallest is planned again with FIRST_SHARE of the deterministic time; if that
comes within NEAR times the arena, all are, with all of it."""


def plan_with_remat(
    graph: Graph, options: PlanOptions, remat: Remat, most_share: float | None = None, smallest: bool = True
) -> Planned:
    """Plan a graph, with second runs if `remat` requests them; never larger than without.

    Without a capacity "auto" has nothing to do. "min", the smallest arena, is the same for every capacity. most_share:
    for "auto": limit of extra multiply-accumulates, as a share of the step's; beyond it the plan has no second runs and
    Planned.refused is the one found. smallest: for "auto": if nothing fits, look for the smallest arena, which is most
    of the work.
    """
    options = replace(options, capacity_bytes=None) if remat == "min" else options
    without = plan_graph(graph, options)
    capacity = options.capacity_bytes
    if remat == "off" or (remat == "auto" and (capacity is None or without.plan.arena_bytes <= capacity)):
        return without
    if remat == "min" or capacity is None:
        task = Rematerialiser(graph, without.plan, options)
        return task.best_of(task.minimal(), without)
    # The order found for the rewritten graph may be lower than any decision reaches in its original order.
    task, found = _within(graph, options, capacity)
    if found is None:
        if not smallest:
            return without
        found = task.least_of(tuple(task.minimal()), without, capacity)
    if most_share is None:
        return found
    fits = found.plan.arena_bytes <= capacity and share_of(found.graph, found.plan) <= most_share
    return found if fits else replace(without, refused=found)


@lru_cache(maxsize=REMEMBERED)
def _within(graph: Graph, options: PlanOptions, capacity: int) -> tuple[Rematerialiser, Planned | None]:
    """Return a Rematerialiser and the cheapest plan found that fits. Cached: without a plan, the caller continues with
    it."""
    task = Rematerialiser(graph, plan_graph(graph, options).plan, options)
    return task, task.within(capacity)


def share_of(graph: Graph, plan: MemoryPlan) -> float:
    """Return the extra multiply-accumulates of a plan as a share of those of the step without them."""
    extra = plan.remat.extra_macs if plan.remat is not None else 0
    total = sum(op_def(node.op).macs(node) for node in graph.nodes)
    return extra / max(1, total - extra)


class Rematerialiser:
    """One graph with its order and problem; it makes choices and plans them."""

    def __init__(self, graph: Graph, plan: MemoryPlan, options: PlanOptions) -> None:
        self.graph, self.options, self.without = graph, options, plan
        quick = quick_plan(graph, options)
        self.model, self.below = quick.model, quick.below
        index = {node.name: task for task, node in enumerate(self.model.nodes)}
        tasks = self.model.tasks
        order = [tasks.start, *(index[node.name] for node in plan.order), tasks.barrier]
        self.problem: Problem = build_problem(graph, self.model, order)

    def minimal(self) -> Iterator[RematChoice]:
        """Return decisions with the lowest peak found."""
        return smallest(self.problem, self.options, self.below)

    def best_of(self, choices: Iterator[RematChoice], without: Planned) -> Planned:
        """Return the smallest arena of some choices, or the plan without second runs; a gain that packs without gaps
        ends the search."""
        best = without
        for choice in choices:
            found = self.planned(choice)
            if found.plan.arena_bytes < best.plan.arena_bytes:
                best = found
                if found.plan.gap_bytes == 0:
                    break
        return best

    def least_of(self, choices: Sequence[RematChoice], without: Planned, capacity: int) -> Planned:
        """Return the smallest arena of some choices, none of which is sure to fit a capacity, or the first that does.

        The one with the smallest quick plan is planned again, with a part of the effort. If it does not fit but is
        near, all are planned in full. If none is near, its size is only a figure of a message, and full plans may take
        as long as all the rest.
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
        """Return the cheapest plan found that fits: decisions below the capacity, then lower by the bytes that packing
        lost so far."""
        short = 0
        for _ in range(AUTO_TRIES):
            choice = cheapest_below(self.problem, capacity - self.below - short, self.options)
            if choice is None:
                return None
            plan = self.without  # it does not fit if only its packing loses too much
            if choice.decision:
                found = self.planned(choice)
                if found.plan.arena_bytes <= capacity:
                    return found
                plan = found.plan
            short += max(plan.arena_bytes - capacity, self.options.alignment_bytes)
        return None

    def planned(self, choice: RematChoice) -> Planned:
        """Return the graph of a choice, planned and validated."""
        rewritten, runs = rewrite(self.graph, self.model, self.problem, choice.decision)
        check_graph(rewritten, infer)
        planned = plan_graph(rewritten, self.options)
        copies = {node.name: node for node in rewritten.nodes}  # views have the meaning of copies
        order = tuple(copies[node.name] for node in planned.plan.order)
        validate_remat(self.graph, rewritten, replace(planned.plan, order=order))
        names = tuple(node.name for node in rewritten.nodes)
        budget = choice.budget_bytes + self.below
        remat = Rematerialisation(runs, self.without.arena_bytes, budget, choice.cheapest, names)
        return replace(planned, plan=replace(planned.plan, remat=remat if runs else None))
