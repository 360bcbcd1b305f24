"""Every search ends: its questions are counted, whatever the answers to them are."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testing.networks import models
from testing.networks.chains import random_chain
from testing.planning.plan_graphs import training_graph
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.plan.random_graphs import random_graph
from tests.plan.test_views import random_pieces
from tests.quantize.nets import int8_train
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.plan import optimise as optimise_module
from tinytrain_compile.plan import planner as planner_module
from tinytrain_compile.plan.halving import halve
from tinytrain_compile.plan.memories import assign as assign_module
from tinytrain_compile.plan.memories.assign import Item, Use, UseOption
from tinytrain_compile.plan.model import build_model, program_order
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.order.exact import smallest_peak
from tinytrain_compile.plan.order.order import list_orders
from tinytrain_compile.plan.place import choose as choose_module
from tinytrain_compile.plan.place import placement
from tinytrain_compile.plan.place.placement import build_packing
from tinytrain_compile.plan.remat import cpsat as remat_cpsat
from tinytrain_compile.plan.remat import search as remat_search
from tinytrain_compile.plan.streams import again as stream_again
from tinytrain_compile.plan.streams import search as stream_search
from tinytrain_compile.plan.streams.search import StreamModel
from tinytrain_compile.plan.views import candidates

MOST = 40
"""Questions that any search for a budget below 2^32 bytes may ask, with room."""


class Asked:
    """Counts questions; more than MOST of them are taken for a search without an end."""

    def __init__(self, answer: Callable[[int], int | None]) -> None:
        self.count, self.answer = 0, answer

    def __call__(self, budget: int) -> int | None:
        self.count += 1
        assert self.count <= MOST, "this search has no end"
        return self.answer(budget)


def adversary(seed: int) -> Callable[[int], int | None]:
    """Never, always at the budget, or at random."""
    source = random.Random(seed)
    return [lambda _: None, lambda budget: budget, lambda b: b if source.random() < 0.5 else None][seed % 3]


def test_single_stages_that_are_looked_at_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if each needs less than all before it: 20 here. Of many that fit few, 3, are planned with full effort."""
    train = int8_train(models.inverted(size=8, channels=2, blocks=8), "bias")
    options = PlanOptions(effort="quick", keep=(train.loss.name,))
    looked, loads = list[int](), iter(range(1 << 20, 0, -1))

    def single(waists: stream_again.Waists, *_: Any) -> stream_again.Kept:
        looked.append(1)
        return stream_again.Kept((), waists.keep([]), (), next(loads))

    monkeypatch.setattr(stream_again, "again_alone", single)
    monkeypatch.setattr(stream_again, "least_need", lambda *_: SimpleNamespace(peak_bytes=1 << 21))
    found = stream_again.single_stages(stream_again.Waists(train.graph, train.loss.name), options)
    assert 2 < len(found) == len(looked) <= 32
    planned = list[int]()

    def planned_fully(_graph: Graph, kept: stream_again.Kept, *_: Any) -> Any:
        planned.append(kept.load)
        return SimpleNamespace(plan=SimpleNamespace(arena_bytes=1 << 30))

    monkeypatch.setattr(stream_again, "fully_planned", planned_fully)
    assert stream_again.first_within(train.graph, found, 1 << 21, options, options) is None
    assert 1 < len(planned) <= 6


@pytest.mark.parametrize(("nodes", "plans"), [(0, 2), (5, 5), (1000, None)])
def test_second_runs_row_by_row_of_a_large_graph_are_few(
    nodes: int, plans: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nodes: TRIED_NODES, in graphs: of the waists, of all of them again, and of the single stages in two turns."""
    train = int8_train(models.inverted(size=8, channels=2, blocks=8), "bias")
    quick = PlanOptions(effort="quick", keep=(train.loss.name,))
    waists = stream_again.Waists(train.graph, train.loss.name)
    tried = {"_kept": 0, "again_alone": 0}

    def counted(name: str) -> Any:
        real = getattr(stream_again, name)

        def called(*given: Any) -> Any:
            tried[name] += 1
            return real(*given)

        return called

    for name in tried:
        monkeypatch.setattr(stream_again, name, counted(name))
    monkeypatch.setattr(stream_again, "fully_planned", lambda *_: SimpleNamespace(plan=SimpleNamespace(arena_bytes=1)))
    monkeypatch.setattr(stream_again, "TRIED_NODES", nodes * len(waists.graph.nodes))
    stream_again.least_plan(waists, quick)
    stream_again.single_stages(waists, quick)
    assert tried["_kept"] == plans if plans is not None else tried["_kept"] > 5
    assert tried["again_alone"] <= 2 * plans if plans is not None else tried["again_alone"] > 10


@pytest.mark.parametrize(("name", "most"), [("MOST_BUILT", 3), ("MOST_LOOKED", 1), ("MOST_BUILT", 0)])
def test_the_search_of_streams_does_no_more_work_than_it_is_given(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams that it builds, and buffers that it looks at; what it found until then is a plan."""
    made, looked = list[int](), list[int]()
    build, least = StreamModel.stream, StreamModel.least

    def counted(model: StreamModel, nodes: Sequence[Node]) -> Node | None:
        made.append(len(nodes))
        return build(model, nodes)

    def looked_at(model: StreamModel, nodes: Sequence[Node]) -> int:
        looked.append(len(nodes))
        return least(model, nodes)

    graph = int8_train(random_chain(5), "last:3").graph
    options = PlanOptions(effort="quick")
    monkeypatch.setattr(StreamModel, "stream", counted)
    monkeypatch.setattr(StreamModel, "least", looked_at)
    found = stream_search.streamed(graph, options)
    assert found is not graph and min(len(made), len(looked)) > 5
    monkeypatch.setattr(stream_search, name, most)
    made.clear()
    looked.clear()
    graph = replace(graph, name="again")  # what was found for a graph is remembered
    found = stream_search.streamed(graph, options)
    assert len(made if name == "MOST_BUILT" else looked) == most
    assert found is graph or most > 0


@pytest.mark.parametrize("seed", range(6))
def test_halving_ends_and_keeps_its_bound(seed: int) -> None:
    """All small distances, where one part in 200 is less than a byte, and large ones."""
    cases = [(low, low + distance) for low in range(0, 200, 7) for distance in range(40)]
    for low, high in [*cases, (0, 1 << 30), (1 << 20, (1 << 20) + 1)]:
        for ask_low in (False, True):
            ask = Asked(adversary(seed))
            below, reached = halve(low, high, ask, ask_low=ask_low)
            assert ask.count <= 2 + (high - low).bit_length()
            assert reached - below <= max(1, reached // 200) or ask.count == 0
            assert reached <= high


@pytest.mark.parametrize("size", [2, 90, 199, 100_000])
@pytest.mark.parametrize("seed", range(3))
def test_the_least_budget_of_second_runs(size: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--remat min`, also where a peak has less than 200 bytes and the floor is never reached."""
    ask = Asked(adversary(seed))

    def any_below(_problem: object, budget: int, _options: object, _clock: object) -> dict[int, int] | None:
        height = ask(budget)
        return None if height is None else {0: height}

    monkeypatch.setattr(remat_search, "floor_bytes", lambda _problem: size // 2)
    monkeypatch.setattr(remat_search, "first_decision", lambda _problem, _budget: {0: size})
    monkeypatch.setattr(remat_search, "peak_of", lambda _problem, decision: decision[0])
    monkeypatch.setattr(remat_search, "any_below", any_below)
    monkeypatch.setattr(
        remat_search,
        "cheaper_decision",
        lambda _problem, start, budget, _options: remat_search.RematChoice(start, budget, False),
    )
    list(remat_search.smallest(None, PlanOptions()))  # type: ignore[arg-type]
    assert ask.count > 0 or size == 2


def test_the_solver_has_one_time_for_all_questions_about_the_least_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that never answers is asked until that time, 0.24 of CP-SAT's deterministic seconds, is up."""
    spent: list[float] = []

    def solve(_problem: Any, _within: Any, _budget: int, _start: None, limits: remat_cpsat.Limits) -> Any:
        spent.append(limits.deterministic_time)
        return remat_cpsat.Answer("unknown", None, 0, limits.deterministic_time)

    monkeypatch.setattr(remat_search, "floor_bytes", lambda _problem: 0)
    monkeypatch.setattr(remat_search, "first_decision", lambda _problem, _budget: {0: 1 << 40})
    monkeypatch.setattr(remat_search, "peak_of", lambda _problem, decision: decision[0])
    monkeypatch.setattr(remat_search, "checkpoints", lambda _problem: ())
    monkeypatch.setattr(remat_search, "whole_pairs_only", lambda problem: problem)
    monkeypatch.setattr(remat_cpsat, "solve", solve)
    monkeypatch.setattr(remat_search, "cheaper_decision", lambda *_: remat_search.RematChoice({}, 0, False))
    list(remat_search.smallest(SimpleNamespace(again={}), PlanOptions()))  # type: ignore[arg-type]
    assert 1 < len(spent) <= 12
    assert 0.05 < sum(spent) <= 0.5


@pytest.mark.parametrize("size", [2, 90, 199, 100_000])
@pytest.mark.parametrize("seed", range(3))
def test_the_smallest_arena_in_time(size: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--optimise memory --max-step-time`: between no second runs and most of them."""
    search = object.__new__(optimise_module.PlanSearch)
    ask = Asked(adversary(seed))

    def planned(height: int | None) -> object:
        return None if height is None else SimpleNamespace(plan=SimpleNamespace(arena_bytes=height), ps=1)

    search.wish = SimpleNamespace(limit_ps=1)
    search.without = planned(size)
    search.__dict__["minimal"] = SimpleNamespace(plan=SimpleNamespace(arena_bytes=size // 2), ps=2)  # too slow
    search.__dict__["again"] = SimpleNamespace(within=lambda budget: planned(ask(budget)))
    monkeypatch.setattr(type(search), "cost", lambda _self, plan: plan)
    search.in_time()


@pytest.mark.parametrize("seed", range(8))
def test_the_order_search_does_no_more_work_than_it_is_given(seed: int) -> None:
    graph, kept = random_graph(seed, 40) if seed else training_graph(blocks=6, side=48)
    tasks = build_model(graph, PlanOptions(keep=(kept,))).tasks
    start = program_order(tasks)
    for work in (1, 100, 5_000):
        found = smallest_peak(tasks, start, 0, work)  # a bound of nothing: it is never reached
        assert found.work <= work + 200 * len(tasks.before), "a probe ends at the next state after its share"


@pytest.mark.parametrize("seed", range(10))
def test_greedy_assignment_moves_a_buffer_at_most_once_per_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every move takes a buffer out of the arena for some steps, so there are at most buffers x steps of them."""
    source, steps, taken = random.Random(seed), 12, list[int]()

    def item() -> Item:
        first, last = sorted(source.sample(range(steps), 2))
        paged = (Use(0, first, first), Use(0, last, last), Use(1, first, last))
        choices = (UseOption(0, (Use(0, first, last),)), UseOption(5, paged), UseOption(9, (Use(1, first, last),)))
        return Item(source.randrange(8, 65, 8), choices)

    items = [item() for _ in range(15)]
    real = assign_module.GreedyAssignment.take
    monkeypatch.setattr(
        assign_module.GreedyAssignment, "take", lambda self, i, k: (taken.append(i), real(self, i, k))[1]
    )
    for room in (0, 40, 100, 200):
        taken.clear()
        assign_module.assign(items, [room, 400], 0.0, 0, None)
        assert len(taken) <= len(items) * (steps + 1)


def test_greedy_places_a_large_packing_twice_at_least_and_then_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are counted by the neighbours that they look at."""
    packing = next(p for p in map(build_packing, map(overlapping, range(50))) if not placement.greedy(p)[0].proven)
    passes, fit = list[int](), placement.fit_below
    monkeypatch.setattr(placement, "fit_below", lambda *given, **more: (passes.append(1), fit(*given, **more))[1])
    for most, expected in ((0, 2), (packing.meetings * 5, 6), (packing.meetings * 1000, 16)):
        monkeypatch.setattr(placement, "GREEDY_MEETINGS", most)
        passes.clear()
        placement.greedy(packing)
        assert len(passes) == expected


def overlapping(seed: int) -> list[Buffer]:
    draw = random.Random(seed)
    starts = [draw.randrange(30) for _ in range(40)]
    return [Buffer(f"b{i}", "tensor", draw.randrange(1, 90), 0, s, s + 1 + i % 7, ()) for i, s in enumerate(starts)]


def test_a_plan_of_a_large_packing_is_a_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above MOST_MEETINGS one order is placed, and nothing is searched."""
    graph, _ = random_graph(3, 40)
    monkeypatch.setattr(choose_module, "MOST_MEETINGS", 0)
    monkeypatch.setattr(choose_module, "decide", None)
    rectangles, placed = choose_module.rectangles, list[int]()
    monkeypatch.setattr(choose_module, "rectangles", lambda *given: (placed.append(1), rectangles(*given))[1])
    model = build_model(graph, PlanOptions())
    orders = list_orders(model.tasks, 0, thorough=True)
    assert len(orders) > 1
    choose_module.choose(model, orders, None, PlanOptions(effort="full"))
    assert len(placed) == 1


@pytest.mark.parametrize(("nodes", "plans"), [(0, 2), (3, 3), (1000, None)])
def test_few_plans_are_tried_of_a_large_graph(nodes: int, plans: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """nodes: TRIED_NODES, in graphs. Without that limit the four ways, and each way once the other way: 8 here."""
    graph = next(graph for graph in map(random_pieces, range(50)) if len(candidates(graph, 8)) > 3)
    made, arena = list[int](), planner_module.quick_arena
    monkeypatch.setattr(planner_module, "quick_arena", lambda *given: (made.append(1), arena(*given))[1])
    monkeypatch.setattr(planner_module, "TRIED_NODES", nodes * len(graph.nodes))
    planner_module.plan_graph(graph, PlanOptions(deterministic_time=0.1))
    assert len(made) == plans if plans is not None else 4 < len(made) <= 16


@pytest.mark.parametrize("how", [("--remat", "min"), ("--optimise", "memory")])
@pytest.mark.parametrize("hidden", [2, 3, 4])
def test_small_networks_end(how: tuple[str, str], hidden: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole arenas of less than 200 bytes of what moves: questions to the solver are counted."""
    asked = Asked(lambda _: None)
    real = remat_search.any_below

    def counted(problem: remat_search.Problem, budget: int, *more: Any) -> dict[int, int] | None:
        asked(budget)
        return real(problem, budget, *more)

    monkeypatch.setattr(remat_search, "any_below", counted)
    path = write(models.mlp(inputs=3, hidden=hidden, classes=2), tmp_path)
    run(path, "--dry-run", "--update", "all", *how).check_success()
