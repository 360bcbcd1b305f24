"""Orders: topological, correctly priced, never below the bound, and near the optimum that brute force finds."""

from __future__ import annotations

import random
from functools import cache

import pytest

from tests.plan.plan_graphs import training_graph
from tests.plan.random_graphs import random_graph

from tinytrain_compile.plan.bounds import peak_bound
from tinytrain_compile.plan.model import InPlace, TaskGraph, build_model, program_order, rectangles
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.order import Simulation, list_orders, loads, peak
from tinytrain_compile.plan.placement import build_packing


def random_tasks(seed: int, count: int) -> TaskGraph:
    """A random task graph with extra edges, several outputs, scratch and in-place pairs; START and BARRIER included."""
    draw = random.Random(seed)
    start, barrier = count, count + 1
    touched: list[dict[int, None]] = [{} for _ in range(count + 2)]
    before: list[dict[int, None]] = [{start: None} for _ in range(count)] + [{}, dict.fromkeys(range(count + 1))]
    size = [8 * draw.randint(1, 12)]
    opened_by = [start]
    touched[start][0] = None
    pairs: list[list[InPlace]] = [[] for _ in range(count + 2)]
    for task in range(count):
        read = draw.sample(range(len(size)), min(len(size), draw.choice([1, 1, 2, 3])))
        for cell in read:
            touched[task][cell] = None
            before[task][opened_by[cell]] = None
        for _ in range(draw.choice([1, 1, 1, 2])):
            size.append(size[read[0]] if draw.random() < 0.5 else 8 * draw.randint(1, 12))
            opened_by.append(task)
            touched[task][len(size) - 1] = None
            pairs[task] += [InPlace(len(size) - 1, c, size[c]) for c in read if size[c] == size[-1] and draw.random() < 0.8]
        if task and draw.random() < 0.3:
            before[task][draw.randrange(task)] = None
    touched[barrier][draw.randrange(len(size))] = None
    after: list[list[int]] = [[] for _ in range(count + 2)]
    for task, edges in enumerate(before):
        for previous in edges:
            after[previous].append(task)
    return TaskGraph(
        tuple(tuple(sorted(edges)) for edges in before),
        tuple(tuple(edges) for edges in after),
        tuple(tuple(cells) for cells in touched),
        tuple(tuple(t for t in range(count + 2) if cell in touched[t]) for cell in range(len(size))),
        tuple(size),
        (*(8 * draw.choice([0, 0, 3]) for _ in range(count)), 0, 0),
        tuple(tuple(found) for found in pairs),
    )


def optimum(tasks: TaskGraph) -> int:
    """The smallest peak of any order, by dynamic programming over sets of executed tasks."""
    everything = (1 << len(tasks.before)) - 1

    @cache
    def rest(done: int) -> int:
        if done == everything:
            return 0
        simulation = Simulation(tasks)
        for task in program_order(tasks):
            if done >> task & 1:
                simulation.run(task)
        ready = [t for t, b in enumerate(tasks.before) if not done >> t & 1 and all(done >> p & 1 for p in b)]
        return min(max(simulation.memory + simulation.cost(t).transient, rest(done | 1 << t)) for t in ready)

    return rest(0)


def is_topological(tasks: TaskGraph, order: tuple[int, ...]) -> bool:
    place = {task: index for index, task in enumerate(order)}
    inside = sorted(order) == list(range(len(tasks.before)))
    return inside and all(place[p] < place[t] for t, edges in enumerate(tasks.before) for p in edges)


def test_list_schedules_are_orders_and_priced_correctly() -> None:
    for seed in range(100):
        tasks = random_tasks(seed, 3 + seed % 6)
        best, bound = optimum(tasks), peak_bound(tasks)
        assert bound <= best
        for ranked in list_orders(tasks, bound, thorough=True):
            assert is_topological(tasks, ranked.order)
            assert ranked.peak == peak(tasks, ranked.order) >= best


def test_an_order_backwards_has_the_same_peak() -> None:
    for seed in range(100):
        tasks = random_tasks(seed, 12)
        order = program_order(tasks)
        forward, backward = loads(tasks, order), loads(tasks.reversed(), order[::-1])
        assert forward == backward[::-1]


@pytest.mark.parametrize("newest", [False, True])
def test_rectangles_carry_exactly_the_simulated_load(newest: bool) -> None:
    for seed in range(60):
        graph, kept = random_graph(seed, 30)
        model = build_model(graph, PlanOptions(keep=(kept,)))
        if all(value != graph.inputs[0] for node in graph.nodes for value in node.inputs):
            continue  # an input that nobody reads lies there in the first step; the simulation drops it before
        for ranked in list_orders(model.tasks, 0, thorough=True):
            packing = build_packing(rectangles(model, ranked.order, newest))
            assert packing.bound * packing.unit_bytes == ranked.peak


def test_updates_run_right_after_the_last_reader() -> None:
    """Even where the graph lists all updates at its end."""
    graph, loss = training_graph(late=True)
    model = build_model(graph, PlanOptions(keep=(loss,)))
    early = list_orders(model.tasks, 0, thorough=False)
    late = peak(model.tasks, program_order(model.tasks))
    assert early[0].peak < 0.85 * late
