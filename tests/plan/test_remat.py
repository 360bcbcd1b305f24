"""Rematerialisation of whole graphs: the rewrite means what the search thinks it does, and its judge is not asleep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testing.planning.decisions import is_valid
from testing.planning.plan_graphs import training_graph
from tests.plan.random_graphs import random_graph
from tinytrain_compile.ir.cost import Remat
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.ops.shape import ReshapeAttrs
from tinytrain_compile.plan.check.rewrites import validate_remat
from tinytrain_compile.plan.model import MemoryModel, build_model, program_order
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.order.order import list_orders, loads, peak_bound
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.plan.remat.problem import Problem, build_problem, extra_cost, is_repeatable, profile
from tinytrain_compile.plan.remat.search import RematChoice, checkpoints, floor_bytes, greedy_decision
from tinytrain_compile.plan.remat.stage import Planned, Rematerialiser, plan_with_remat, replay, rewrite, share_of

MIN: Remat = "min"


def problem_of(graph: Graph, options: PlanOptions) -> tuple[MemoryModel, Problem, tuple[int, ...]]:
    model = build_model(graph, options)
    order = list_orders(model.tasks, peak_bound(model.tasks), thorough=False)[0].order
    return model, build_problem(graph, model, order), order


@pytest.mark.parametrize("seed", range(60))
def test_the_search_counts_bytes_as_the_planner_does(seed: int) -> None:
    """Without second runs and with them: the largest load of the rewritten graph in the order of its nodes."""
    graph, kept = (
        random_graph(seed, 24) if seed % 4 else training_graph(blocks=2 + seed % 5, side=32, momentum=seed % 8 == 0)
    )
    options = PlanOptions(keep=(kept,))
    model, problem, order = problem_of(graph, options)
    base, floor = max(profile(problem, {}).loads), floor_bytes(problem)
    assert base <= max(loads(model.tasks, order))  # less where the order keeps a tensor for a view that nobody reads
    for budget in (base, floor, (floor + base) // 2):
        decision = greedy_decision(problem, budget)
        assert bool(decision) <= (budget < base)
        rewritten, runs = rewrite(graph, model, problem, decision)
        assert len(runs) == len(decision)
        again = build_model(rewritten, options)
        listed = program_order(again.tasks)
        applied = {t for t, node in enumerate(again.nodes) if node.phase == "apply"}
        found = max(load for load, t in zip(loads(again.tasks, listed), listed, strict=True) if t not in applied)
        assert found == max(profile(problem, decision).loads)


@pytest.mark.parametrize("seed", range(12))
def test_second_runs_change_no_result(seed: int) -> None:
    graph, kept = random_graph(seed, 30)
    planned = plan_with_remat(graph, PlanOptions(effort="quick", keep=(kept,)), MIN)
    feeds = {**graph.constants, **{v.name: np.zeros(v.shape, np.float32) for v in graph.accumulators}}
    feeds[graph.inputs[0].name] = np.random.default_rng(seed).standard_normal(graph.inputs[0].shape).astype(np.float32)
    before, after = run_nodes(graph.nodes, feeds), run_nodes(planned.plan.order, feeds)
    for value in (*graph.outputs, *(new for _, new in graph.updates)):
        assert before[value.name].tobytes() == after[value.name].tobytes()


@pytest.fixture(scope="module")
def net() -> tuple[Graph, PlanOptions, Planned]:
    graph, loss = training_graph(blocks=5, side=48)
    options = PlanOptions(effort="quick", keep=(loss,))
    return graph, options, plan_with_remat(graph, options, MIN)


def test_min_is_smaller_and_says_at_which_price(net: tuple[Graph, PlanOptions, Planned]) -> None:
    graph, options, planned = net
    remat = planned.plan.remat
    assert remat is not None
    assert planned.plan.arena_bytes < remat.arena_without_bytes == plan_memory(graph, options).arena_bytes
    assert {run.of for run in remat.runs} <= {node.name for node in graph.nodes}
    assert 0 < share_of(planned.graph, planned.plan) < 1
    assert len(planned.graph.nodes) >= len(graph.nodes) + len(remat.runs)


def test_auto_needs_less_than_min_and_nothing_if_it_fits(net: tuple[Graph, PlanOptions, Planned]) -> None:
    graph, options, planned = net
    remat = planned.plan.remat
    assert remat is not None
    middle = (planned.plan.arena_bytes + 7 * remat.arena_without_bytes) // 8
    auto = plan_with_remat(graph, replace(options, capacity_bytes=middle), "auto")
    assert auto.plan.remat is not None
    assert auto.plan.arena_bytes <= middle
    assert auto.plan.remat.extra_macs < remat.extra_macs
    for capacity in (None, remat.arena_without_bytes):
        assert plan_with_remat(graph, replace(options, capacity_bytes=capacity), "auto").plan.remat is None
    dear = plan_with_remat(graph, replace(options, capacity_bytes=middle), "auto", most_share=1e-4)
    assert dear.plan.remat is None


def test_the_same_plan_twice(net: tuple[Graph, PlanOptions, Planned]) -> None:
    graph, options, planned = net
    again = plan_with_remat(graph, options, MIN)
    assert again.plan.order == planned.plan.order
    assert again.plan.buffers == planned.plan.buffers


def test_nodes_with_state_are_not_repeated(net: tuple[Graph, PlanOptions, Planned]) -> None:
    graph, _, planned = net
    assert not any(is_repeatable(node) for node in graph.nodes if node.op == "SgdUpdate")
    remat = planned.plan.remat
    assert remat is not None
    assert not {run.of for run in remat.runs} & {node.name for node in graph.nodes if node.op == "SgdUpdate"}


# ---- the judge ------------------------------------------------------------------------------------------------------


def verdict(net: tuple[Graph, PlanOptions, Planned], order: list[Node]) -> str:
    graph, _, planned = net
    nodes = tuple(order)
    with pytest.raises(PlanError) as caught:
        validate_remat(graph, replace(planned.graph, nodes=nodes), replace(planned.plan, order=nodes))
    return caught.value.verdict


def clone_of(plan: MemoryPlan, op: str) -> Node:
    """A second run of an op that reads an updated weight."""
    assert plan.remat is not None
    names = {run.name for run in plan.remat.runs}
    updated = {node.inputs[0].name for node in plan.order if node.op == "SgdUpdate"}
    return next(n for n in plan.order if n.name in names and n.op == op and n.inputs[1].name in updated)


def test_a_run_after_the_update_of_its_weight_is_rejected(net: tuple[Graph, PlanOptions, Planned]) -> None:
    order = list(net[2].plan.order)
    clone = clone_of(net[2].plan, "Conv")
    update = next(node for node in order if node.op == "SgdUpdate" and node.inputs[0] == clone.inputs[1])
    order.remove(update)
    order.insert(order.index(clone), update)
    assert verdict(net, order) == "recompute after update"


def test_a_run_with_another_weight_or_other_attributes_is_rejected(net: tuple[Graph, PlanOptions, Planned]) -> None:
    order = list(net[2].plan.order)
    clone = clone_of(net[2].plan, "Conv")
    at = order.index(clone)
    changed = next(v for v in net[0].state if v.shape == clone.inputs[1].shape and v != clone.inputs[1])
    assert verdict(net, [*order[:at], replace(clone, inputs=(clone.inputs[0], changed)), *order[at + 1 :]]) == (
        "another computation"
    )
    attrs = replace(clone.attrs, dilations=(2, 2))  # type: ignore[call-arg]
    assert verdict(net, [*order[:at], replace(clone, attrs=attrs), *order[at + 1 :]]) == "another computation"


def test_a_reader_of_the_wrong_copy_is_rejected(net: tuple[Graph, PlanOptions, Planned]) -> None:
    order = list(net[2].plan.order)
    clone = clone_of(net[2].plan, "Conv")
    at, reader = next((i, n) for i, n in enumerate(order) if clone.outputs[0] in n.inputs)
    other = next(
        value
        for node in order[:at]
        for value in node.outputs
        if value.type == clone.outputs[0].type and value.name != clone.outputs[0].name and value.name != clone.name[:-2]
    )
    wrong = replace(reader, inputs=tuple(other if v == clone.outputs[0] else v for v in reader.inputs))
    assert verdict(net, [*order[:at], wrong, *order[at + 1 :]]) == "another computation"


def test_views_of_a_second_run_show_the_second_run() -> None:
    """Otherwise the first run's bytes would stay in use until the last reader of the view."""
    x, r, v = Value("x", (1, 6)), Value("r", (1, 6)), Value("v", (2, 3))
    early, late = Value("early", (2, 3)), Value("late", (2, 3))
    nodes = (
        Node("r", "Tanh", (x,), (r,)),
        Node("v", "Reshape", (r,), (v,), ReshapeAttrs((2, 3))),
        Node("early", "Exp", (v,), (early,)),
        Node("late", "Mul", (v, early), (late,)),
    )
    graph = Graph("g", nodes, (x,), (late,), {})
    twice, runs = replay(graph, ("r", "v", "early", "r@2", "v@2", "late"), {"r@2": "r"})
    read = {node.name: [value.name for value in node.inputs] for node in twice.nodes}
    assert read == {"r": ["x"], "v": ["r"], "early": ["v"], "r@2": ["x"], "v@2": ["r@2"], "late": ["v@2", "early"]}
    assert [run.name for run in runs] == ["r@2"]


def test_an_update_run_twice_or_left_out_is_rejected(net: tuple[Graph, PlanOptions, Planned]) -> None:
    order = list(net[2].plan.order)
    update = next(node for node in order if node.op == "SgdUpdate")
    twice = replace(update, name="again", outputs=tuple(replace(v, name="again") for v in update.outputs))
    assert verdict(net, [*order, twice]) in ("state twice", "write after read", "recompute after update")
    assert verdict(net, [node for node in order if node != update]) == "order incomplete"


def test_other_changes_to_the_graph_are_rejected(net: tuple[Graph, PlanOptions, Planned]) -> None:
    graph, _, planned = net
    with pytest.raises(PlanError, match="graph changed"):
        validate_remat(graph, replace(planned.graph, updates=planned.graph.updates[1:]), planned.plan)


def test_checkpoints_are_priced_as_what_they_are() -> None:
    """Valid decisions, cheapest first, each with its own largest load; the limits of a small net give some."""
    seen = 0
    for seed in range(24):
        graph, kept = training_graph(blocks=3 + seed % 7, side=32) if seed % 2 else random_graph(seed, 30)
        _, problem, _ = problem_of(graph, PlanOptions(keep=(kept,)))
        found = checkpoints(problem)
        for item in found:
            assert is_valid(problem, item.decision)
            assert item.peak == max(profile(problem, item.decision).loads)
            assert item.cost == extra_cost(problem, item.decision)
        assert [item.cost for item in found] == sorted(item.cost for item in found)
        assert [item.peak for item in found] == sorted((item.peak for item in found), reverse=True)
        seen += len(found)
    assert seen >= 12


def test_a_network_of_a_thousand_operators_keeps_checkpoints() -> None:
    """Without any solver: below a third of what all activations take, where the greedy start alone stays above."""
    graph, loss = training_graph(depth=4, blocks=85)
    assert len(graph.nodes) >= 1000
    _, problem, _ = problem_of(graph, PlanOptions(keep=(loss,)))
    whole = max(profile(problem, {}).loads)
    found = checkpoints(problem)
    assert min(item.peak for item in found) < whole / 3
    assert min(item.peak for item in found) < 2 * floor_bytes(problem)
    greedy = greedy_decision(problem, floor_bytes(problem))
    assert max(profile(problem, greedy).loads) > min(item.peak for item in found)


@pytest.mark.parametrize(("share", "near"), [(0.2, False), (0.97, True), (2.0, False)])
def test_what_surely_does_not_fit_gets_one_full_plan(share: float, near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All choices are planned quickly; again only the smallest, or all where that one is a little too large."""
    graph, kept = training_graph(blocks=4, side=32)
    options = PlanOptions(keep=(kept,))
    task = Rematerialiser(graph, plan_memory(graph, options), options)
    choices, efforts = tuple(task.minimal()), list[str]()
    assert len(choices) > 1
    least = min(task.planned(choice).plan.arena_bytes for choice in choices)
    planned = Rematerialiser.planned

    def counted(self: Rematerialiser, choice: RematChoice) -> Planned:
        efforts.append(self.options.effort)
        return planned(self, choice)

    monkeypatch.setattr(Rematerialiser, "planned", counted)
    found = task.least_of(choices, Planned(graph, task.without), round(least * share))
    assert found.plan.arena_bytes >= least and efforts.count("quick") == len(choices)
    assert len(efforts) - len(choices) == (1 + len(choices) if near else 1)
