"""--optimise: each objective is best at what it promises, limits hold, and prices are what the figures say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from testing.ops.cases import cases_of
from testing.planning.plan_graphs import training_graph
from tinytrain_compile.ir.cost import Objective, Remat, StepCost
from tinytrain_compile.ops import op_def
from tinytrain_compile.plan.memories.assign import Item, Use, UseOption, assign, cost_of, time_of
from tinytrain_compile.plan.optimise import optimise
from tinytrain_compile.plan.options import CoreModel, Memory, PlanOptions, Wish
from tinytrain_compile.plan.planner import Planned, plan_memory
from tinytrain_compile.plan.price import node_ps, step_cost
from tinytrain_compile.plan.remat.stage import share_of

CORE = CoreModel(clock_mhz=100, int8_mac=2000, float_mac=3000, element=5000, pj_per_cycle=300)
HUNGRY = Memory("hungry", 1 << 20, extra_ps=2_000, extra_pj=900, copy_ps=3_000, copy_pj=1_000, setup_ps=10**6)
SLOW = Memory("slow", 1 << 20, extra_ps=20_000, extra_pj=30, copy_ps=21_000, copy_pj=40, setup_ps=10**6)
GRAPH, KEPT = training_graph(blocks=4, side=32)


def options(capacity: int | None) -> PlanOptions:
    return PlanOptions(capacity, effort="quick", keep=(KEPT,))


ALONE = plan_memory(GRAPH, options(None))
COMPUTE = step_cost(ALONE, CORE)


@cache
def found(
    objective: Objective,
    share: float | None = 0.5,
    memories: tuple[Memory, ...] = (HUNGRY, SLOW),
    mode: Remat = "auto",
    limit_ps: int | None = None,
) -> tuple[Planned, StepCost]:
    room = None if share is None else int(ALONE.arena_bytes * share)
    planned = optimise(GRAPH, options(room), Wish(CORE, memories, mode, objective=objective, limit_ps=limit_ps))
    return planned, step_cost(planned.plan, CORE)


def test_each_objective_wins_its_own_discipline() -> None:
    """A fast memory that takes much energy beside a slow one that takes little: three different plans, all paging."""
    plans = {goal: found(goal) for goal in ("memory", "time", "energy")}
    arena = {goal: planned.plan.arena_bytes for goal, (planned, _) in plans.items()}
    time = {goal: cost.ps for goal, (_, cost) in plans.items()}
    energy = {goal: cost.pj for goal, (_, cost) in plans.items()}
    assert arena["memory"] < min(arena["time"], arena["energy"])
    assert time["time"] < min(time["memory"], time["energy"])
    assert energy["energy"] < min(energy["memory"], energy["time"])
    assert max(arena.values()) <= ALONE.arena_bytes // 2
    assert any(planned.plan.paging for planned, _ in plans.values())


@pytest.mark.parametrize("goal", ["time", "energy"])
def test_what_fits_without_help_gets_none(goal: Objective) -> None:
    planned, cost = found(goal, 1.0)
    assert planned.plan.remat is None
    assert planned.plan.further == ()
    assert cost == COMPUTE
    assert found(goal, None)[1] == COMPUTE


def test_cost_is_computing_and_what_memories_add() -> None:
    planned, cost = found("time")
    plan = planned.plan
    assert cost.ps == cost.compute_ps + plan.extra_ps
    assert cost.pj == cost.compute_pj + plan.extra_pj
    assert cost.paging_ps == sum(move.ps for move in plan.paging)
    extra = 0 if plan.remat is None else plan.remat.extra_macs
    assert cost.compute_ps >= COMPUTE.compute_ps + extra * CORE.float_mac * 1000 // CORE.clock_mhz - 1


@pytest.mark.parametrize(("op", "is_float"), [("QModeProduct", True), ("QSubspacePower", True), ("QConvSum", False)])
def test_a_product_with_a_float_is_one_of_floats(op: str, is_float: bool) -> None:
    """Also where the larger operand is int8."""
    node = cases_of(op)[0].node()
    each = CORE.float_mac if is_float else CORE.int8_mac
    assert node_ps(node, CORE) == op_def(node.op).macs(node) * each * 1000 // CORE.clock_mhz


def test_a_multiply_accumulate_and_an_element_have_their_price() -> None:
    """Three cycles a MAC at 100 MHz are 30 ns; elements are of operators without MACs."""
    dearer = replace(CORE, float_mac=CORE.float_mac + 1000)
    macs = (step_cost(ALONE, dearer).compute_ps - COMPUTE.compute_ps) / 10_000
    assert macs == sum(op_def(node.op).macs(node) for node in GRAPH.nodes) > 0
    assert step_cost(ALONE, replace(CORE, clock_mhz=50)).compute_ps == pytest.approx(2 * COMPUTE.compute_ps, abs=20)


def test_memory_without_other_memories_is_remat_min() -> None:
    small, _ = found("memory", None, ())
    assert small.plan.further == ()
    assert small.plan.remat is not None
    assert small.plan.arena_bytes < 0.9 * ALONE.arena_bytes
    kept, _ = found("memory", None, (), "off")
    assert kept.plan.arena_bytes == ALONE.arena_bytes, "--remat off is not overridden"


def test_memory_uses_other_memories_to_the_utmost() -> None:
    """All of them hold everything; one of limited size leaves the rest in the arena."""
    assert found("memory", None, (SLOW,), "off")[0].plan.arena_bytes == 24
    little = replace(SLOW, capacity_bytes=ALONE.arena_bytes // 3)
    plan = found("memory", None, (little,), "off")[0].plan
    assert plan.further[0].used_bytes <= little.capacity_bytes
    least = ALONE.lower_bound_bytes - little.capacity_bytes
    assert least <= plan.arena_bytes <= 1.05 * least


def test_a_longest_step_is_kept_and_paid_in_bytes() -> None:
    """Between the smallest arena and the fastest step: half of the extra time gives an arena in between."""
    small, slow = found("memory")
    fast, quick = found("time")
    limit = (slow.ps + quick.ps) // 2
    middle, cost = found("memory", limit_ps=limit)
    assert cost.ps <= limit
    assert small.plan.arena_bytes < middle.plan.arena_bytes <= fast.plan.arena_bytes


def test_second_runs_go_as_far_as_time_allows() -> None:
    smallest, slow = found("memory", None, ())
    limit = (slow.ps + COMPUTE.ps) // 2
    middle, cost = found("memory", None, (), limit_ps=limit)
    assert cost.ps <= limit
    assert smallest.plan.arena_bytes < middle.plan.arena_bytes < ALONE.arena_bytes
    assert 0 < share_of(middle.graph, middle.plan) < share_of(smallest.graph, smallest.plan)


def test_energy_keeps_to_the_longest_step() -> None:
    """The cheapest plan in energy takes too long: a dearer one is found, and nothing in time still costs less."""
    free, slow = found("energy", mode="off")
    _, quick = found("time", mode="off")
    limit = (slow.ps + quick.ps) // 2
    kept, cost = found("energy", mode="off", limit_ps=limit)
    assert slow.ps > limit >= cost.ps
    assert slow.pj <= cost.pj <= quick.pj
    assert kept.plan.arena_bytes <= free.plan.arena_bytes + ALONE.arena_bytes // 2


def test_what_is_not_in_time_is_the_fastest() -> None:
    _, cost = found("energy", limit_ps=1)
    assert cost.ps == pytest.approx(found("time")[1].ps, rel=0.02)


def test_what_does_not_fit_is_the_smallest() -> None:
    planned, _ = found("time", 0.01, ())
    assert planned.plan.arena_bytes == found("memory", None, ())[0].plan.arena_bytes


def test_assignment_keeps_to_a_time() -> None:
    """Two buffers that must leave: the cheap way takes 9 each; with at most 12, one of them pays."""
    stay, away = UseOption(0, (Use(0, 0, 0),)), (Use(1, 0, 0),)
    item = Item(8, (stay, UseOption(1, away, 9), UseOption(5, away, 3)))
    best = assign([item, item], [0, 16], 1.0, 0)
    assert best is not None and cost_of([item, item], best.chosen) == 2
    timed = assign([item, item], [0, 16], 1.0, 0, most_ps=12)
    assert timed is not None and (cost_of([item, item], timed.chosen), time_of([item, item], timed.chosen)) == (6, 12)
    assert assign([item, item], [0, 16], 1.0, 0, most_ps=5) is None
