"""Loads and list schedules: topological, priced as the definitions say, the same from both ends."""

from __future__ import annotations

import pytest

from testing.planning.plan_graphs import training_graph
from tests.plan.random_graphs import random_graph
from tests.plan.random_tasks import is_topological, optimum, peak_of, random_tasks
from tinytrain_compile.plan.model import build_model, program_order
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.order.order import list_orders, loads, peak, peak_bound
from tinytrain_compile.plan.place.placement import build_packing, rectangles


def test_list_schedules_are_orders_and_priced_correctly() -> None:
    for seed in range(100):
        tasks = random_tasks(seed, 3 + seed % 6)
        best, bound = optimum(tasks), peak_bound(tasks)
        assert bound <= best
        for ranked in list_orders(tasks, bound, thorough=True):
            assert is_topological(tasks, ranked.order)
            assert ranked.peak == peak(tasks, ranked.order) == peak_of(tasks, ranked.order) >= best


def test_an_order_backwards_has_the_same_peak() -> None:
    for seed in range(100):
        tasks = random_tasks(seed, 12)
        order = program_order(tasks)
        forward, backward = loads(tasks, order), loads(tasks.reversed(), order[::-1])
        assert forward == backward[::-1]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("newest", [False, True])
def test_rectangles_carry_exactly_the_simulated_load(newest: bool, mixed: bool) -> None:
    covering = 0
    for seed in range(60):
        graph, kept = random_graph(seed, 30, mixed)
        model = build_model(graph, PlanOptions(keep=(kept,)))
        if all(value != graph.inputs[0] for node in graph.nodes for value in node.inputs):
            continue  # an input that nobody reads lies there in the first step; the simulation drops it before
        for ranked in list_orders(model.tasks, 0, thorough=True):
            packing = build_packing(rectangles(model, ranked.order, newest))
            assert packing.bound * packing.unit_bytes == ranked.peak
            covering += len(packing.ties)
    assert covering > 100


def test_updates_run_right_after_the_last_reader() -> None:
    """Even where the graph lists all updates at its end."""
    graph, loss = training_graph(late=True)
    model = build_model(graph, PlanOptions(keep=(loss,)))
    early = list_orders(model.tasks, 0, thorough=False)
    late = peak(model.tasks, program_order(model.tasks))
    assert early[0].peak < 0.85 * late
