"""Orders near a good one: all are valid, within the limit, distinct, and the same every time."""

from __future__ import annotations

import pytest

from testing.planning.plan_graphs import training_graph
from tests.plan.random_graphs import random_graph
from tinytrain_compile.plan.model import MemoryModel, build_model
from tinytrain_compile.plan.options import Effort, PlanOptions
from tinytrain_compile.plan.order.near import variants
from tinytrain_compile.plan.order.order import RankedOrder, list_orders, peak
from tinytrain_compile.plan.place.choose import choose


def models() -> list[MemoryModel]:
    made = [random_graph(seed, 40) for seed in range(12)]
    made.append(training_graph(blocks=4, side=32))
    return [build_model(graph, PlanOptions(keep=(kept,))) for graph, kept in made]


@pytest.mark.parametrize("slack", [1.0, 1.01, 1.5])
def test_variants_are_orders_within_the_limit(slack: float) -> None:
    made = 0
    for model in models():
        best = list_orders(model.tasks, 0, thorough=True)[0]
        limit = int(best.peak * slack)
        found = variants(model.tasks, best.order, limit, 8, seed=3)
        assert found == variants(model.tasks, best.order, limit, 8, seed=3)
        assert len({ranked.order for ranked in found} | {best.order}) == len(found) + 1
        assert [ranked.peak for ranked in found] == sorted(ranked.peak for ranked in found)
        for ranked in found:
            place = {task: index for index, task in enumerate(ranked.order)}
            assert sorted(place) == list(range(len(model.tasks.before)))
            assert all(place[one] < place[task] for task in place for one in model.tasks.before[task])
            assert ranked.peak == peak(model.tasks, ranked.order) <= limit
        made += len(found)
    assert made >= 60


def test_of_several_orders_the_lowest_arena_is_chosen() -> None:
    """Not the lowest peak: no order that was given packs lower than the one that is chosen, in any sequence given."""
    for model in models():
        best = list_orders(model.tasks, 0, thorough=True)[0]
        orders = [best, *variants(model.tasks, best.order, int(best.peak * 1.2), 6, seed=1)]
        options = PlanOptions(deterministic_time=0.5)
        chosen = choose(model, sorted(orders), None, options)
        alone = [choose(model, [RankedOrder(o.peak, 0, o.order)], None, options).top_bytes for o in orders]
        assert chosen.top_bytes <= min(alone)


@pytest.mark.parametrize("seed", [0, 15, 27, 29])
@pytest.mark.parametrize("effort", ["rough", "quick"])
def test_plans_without_a_search_take_the_lowest_of_their_orders(effort: Effort, seed: int) -> None:
    """Graphs of which the order with the lowest peak packs worse than another, or another worse than it."""
    graph, kept = random_graph(seed, 300)
    model = build_model(graph, PlanOptions(keep=(kept,)))
    best = list_orders(model.tasks, 0, thorough=True)[0]
    orders = sorted([best, *variants(model.tasks, best.order, int(best.peak * 1.2), 2, seed=1)])
    alone = [choose(model, [order], None, PlanOptions(effort="rough")).top_bytes for order in orders]
    assert len(set(alone)) > 1
    assert choose(model, orders, None, PlanOptions(effort=effort)).top_bytes <= min(alone)
