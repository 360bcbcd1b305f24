"""Proven orders: the search against brute force and CP-SAT, bounds below the optimum, planted faults that must show."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from testing.planning.plan_graphs import training_graph
from tests.plan.random_tasks import is_topological, load_while, optimum, peak_of, random_tasks
from tinytrain_compile.plan import planner
from tinytrain_compile.plan.model import TaskGraph, build_model, program_order
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.order import exact, order
from tinytrain_compile.plan.order.exact import Optimum, order_within, smallest_peak
from tinytrain_compile.plan.order.near import cut_window, improve_by_windows
from tinytrain_compile.plan.order.order import cut_bound, list_orders, loads, peak, peak_bound
from tinytrain_compile.plan.order.ranks import rank_order
from tinytrain_compile.plan.planner import plan_memory

CASES = 500
ENOUGH = 1_000_000


@cache
def case(seed: int) -> tuple[TaskGraph, int]:
    """A random graph of up to 10 tasks besides START and BARRIER, and the smallest peak of its orders."""
    tasks = random_tasks(seed, 3 + seed % 8)
    return tasks, optimum(tasks)


def searched(tasks: TaskGraph) -> Optimum:
    """As the planner does it, but from the worst known order, so that the search has something to find."""
    start = max(list_orders(tasks, 0, thorough=False), key=lambda item: item.peak).order
    return smallest_peak(tasks, start, cut_bound(tasks, start, peak_bound(tasks)), ENOUGH)


def is_right(seed: int) -> bool:
    tasks, best = case(seed)
    found = searched(tasks)
    return is_topological(tasks, found.order) and peak_of(tasks, found.order) == found.peak == found.bound == best


def test_the_search_equals_brute_force() -> None:
    assert [seed for seed in range(CASES) if not is_right(seed)] == []


def test_the_cases_are_hard_enough_to_tell() -> None:
    """List schedules miss many optima, the simple bound is loose, in-place and scratch matter."""
    graphs = [case(seed) for seed in range(CASES)]
    assert sum(list_orders(tasks, 0, thorough=False)[0].peak > best for tasks, best in graphs) > 20
    assert sum(peak_bound(tasks) < best for tasks, best in graphs) > 150
    assert sum(any(tasks.inplace) and any(tasks.scratch) for tasks, _ in graphs) > 350


def _chains_are_always_safe(self: exact.PeakSearch, state: exact.OrderState, first: int) -> tuple[int, ...]:
    return (first,) if self.fits(state.memory + self.cost(first, state.done).transient) else ()


def _cost_without_scratch(self: exact.PeakSearch, task: int, done: int) -> order.Cost:
    delta = self.costs.of(task, done).delta
    return order.Cost(max(delta, 0), delta)


def _fits_and_overstates(self: exact.PeakSearch, load: int) -> bool:
    self.refused = min(self.refused, load + 8) if load > self.budget else self.refused
    return load <= self.budget


def _source_need_not_die(self: order.Costs, task: int, _done: int) -> int:
    return order.best_overlap([pair for _, _, pair in self._pairs[task]])


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "growing moves are safe": lambda patch: patch.setattr(
        exact.PeakSearch, "is_safe", lambda _self, delta: delta <= 24
    ),
    "any move is safe": lambda patch: patch.setattr(exact.PeakSearch, "safe_chain", _chains_are_always_safe),
    "refused loads are overstated": lambda patch: patch.setattr(exact.PeakSearch, "fits", _fits_and_overstates),
    "loads forget scratch": lambda patch: patch.setattr(exact.PeakSearch, "cost", _cost_without_scratch),
    "in place over what is read later": lambda patch: patch.setattr(order.Costs, "saved", _source_need_not_die),
    "cuts forget in place": lambda patch: patch.setattr(order.LoadCuts, "ways", lambda *_: [((), 0)]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)

    def fails(seed: int) -> bool:
        try:
            return not is_right(seed)
        except (AssertionError, IndexError, ValueError):
            return True

    assert any(fails(seed) for seed in range(CASES))


def test_the_solver_and_the_search_agree() -> None:
    proven = 0
    for seed in range(60):
        tasks = random_tasks(seed, 4 + seed % 9)
        start = program_order(tasks)
        ranked = rank_order(tasks, Optimum(tuple(start), peak(tasks, start), peak_bound(tasks)), 5.0, 0)
        best = searched(tasks)
        assert is_topological(tasks, ranked.order)
        assert peak_of(tasks, ranked.order) == ranked.peak
        assert ranked.bound <= best.peak <= ranked.peak
        proven += ranked.proven
    assert proven == 60


def test_the_solver_and_the_search_agree_on_training_steps() -> None:
    for trained in (1, 4):
        graph, loss = training_graph(blocks=4, side=32, trained=trained)
        tasks = build_model(graph, PlanOptions(keep=(loss,))).tasks
        start = list_orders(tasks, 0, thorough=False)[-1]
        ranked = rank_order(tasks, Optimum(start.order, start.peak, peak_bound(tasks)), 10.0, 0)
        assert ranked.proven
        assert ranked.peak == searched(tasks).peak


def test_what_ran_before_makes_a_task_no_dearer() -> None:
    """The premise of safe moves: delta and transient only fall as the set of executed tasks grows."""
    falls = 0
    for seed in range(100):
        tasks = random_tasks(seed, 12)
        costs, ancestors = order.Costs(tasks), order.ancestor_masks(tasks)
        draw = random.Random(seed)
        for _ in range(50):
            task = draw.randrange(12)
            some, more = (_downset(draw, ancestors, task) for _ in range(2))
            early, late = costs.of(task, some), costs.of(task, some | more)
            assert late.delta <= early.delta
            assert late.transient <= early.transient
            falls += late != early
    assert falls > 300


def _downset(draw: random.Random, ancestors: list[int], task: int) -> int:
    """A random set of executed tasks before which this one can run next: its ancestors, and others' that lack it."""
    done = ancestors[task]
    for other in draw.sample(range(len(ancestors)), 4):
        done |= ancestors[other] if not ancestors[other] >> task & 1 else 0
    return done & ~(1 << task)


def test_bounds_are_below_the_optimum_and_cuts_are_tighter() -> None:
    tighter = 0
    for seed in range(CASES):
        tasks, best = case(seed)
        start = program_order(tasks)
        simple = peak_bound(tasks)
        cut = cut_bound(tasks, start, simple)
        assert simple <= cut <= best
        tighter += cut > simple
    assert tighter > 80


def test_a_budget_is_answered_with_a_bound() -> None:
    """No order within: then the smallest refused load is a bound, above the budget and not above the optimum."""
    for seed in range(60):
        tasks, best = case(seed)
        within = order_within(tasks, best, ENOUGH)
        assert within.order is not None
        assert peak_of(tasks, within.order) == best
        below = order_within(tasks, best - 8, ENOUGH)
        assert below.order is None
        assert below.proven
        assert best - 8 < below.refused <= best


def test_without_work_nothing_is_claimed() -> None:
    unproven = 0
    for seed in range(20):
        tasks = random_tasks(seed, 30)
        start = program_order(tasks)
        assert not order_within(tasks, 0, 5).order
        some, all_ = smallest_peak(tasks, start, 0, 200), smallest_peak(tasks, start, 0, ENOUGH)
        assert all_.proven
        assert some.bound <= all_.peak <= some.peak
        assert peak(tasks, some.order) == some.peak
        unproven += not some.proven
    assert unproven > 10


@pytest.mark.parametrize(
    ("shape", "proven"),
    [({"width": 2.85, "side": 128}, 10617632), ({}, 2215304), ({"depth": 2, "blocks": 99}, 3716936)],
)
def test_training_steps_are_proven_at_once(shape: dict, proven: int) -> None:
    """The same optima as an earlier, independent prototype found."""
    graph, loss = training_graph(**shape)
    tasks = build_model(graph, PlanOptions(keep=(loss,))).tasks
    found = smallest_peak(tasks, program_order(tasks), peak_bound(tasks), ENOUGH)
    assert found.proven
    assert found.peak == proven
    assert found.work < 300_000


def test_windows_are_the_whole_seen_from_inside() -> None:
    for seed in range(20):
        tasks = random_tasks(seed, 20)
        start = program_order(tasks)
        for first, last in ((0, 7), (5, 15), (12, len(start))):
            window = cut_window(tasks, start, first, last)
            place = {task: index for index, task in enumerate(window.members)}
            inner = [window.tasks.start, *(place[task] for task in start[first:last]), window.tasks.barrier]
            assert is_topological(window.tasks, inner)
            outside = [load + window.passing for load in loads(window.tasks, inner)[1:-1]]
            assert outside == [load_while(tasks, frozenset(start[:at]), start[at]) for at in range(first, last)]


def test_windows_improve_what_the_search_cannot_decide() -> None:
    better = 0
    for seed in range(3):
        tasks = random_tasks(seed, 150)
        listed = list_orders(tasks, 0, thorough=False)[0]
        start = Optimum(listed.order, listed.peak, peak_bound(tasks))
        found = improve_by_windows(tasks, start, 0.5, seed)
        assert found == improve_by_windows(tasks, start, 0.5, seed)
        assert is_topological(tasks, found.order)
        assert peak_of(tasks, found.order) == found.peak <= start.peak
        better += found.peak < start.peak
    assert better == 3


def test_windows_fall_back_on_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a search that never finds anything, CP-SAT still lowers the peak."""
    monkeypatch.setattr("tinytrain_compile.plan.order.near.SEARCH_UNITS", 0.0)
    graph, loss = training_graph(blocks=4, side=32)
    tasks = build_model(graph, PlanOptions(keep=(loss,))).tasks
    start = program_order(tasks)
    found = improve_by_windows(tasks, Optimum(tuple(start), peak(tasks, start), 0), 4.0, 0)
    assert is_topological(tasks, found.order)
    assert found.peak < peak(tasks, start)


def test_a_plan_claims_a_proof_only_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, loss = training_graph(blocks=6, side=64)
    options = PlanOptions(keep=(loss,))
    assert plan_memory(graph, options).order_proven
    monkeypatch.setattr(planner, "QUICK_UNITS", 0.0)
    monkeypatch.setattr(planner, "SEARCH_SHARE", 0.0)
    monkeypatch.setattr(planner, "WINDOW_SHARE", 0.0)
    again = replace(graph, name="again")  # what is known of a graph is remembered
    assert not plan_memory(again, options).order_proven
