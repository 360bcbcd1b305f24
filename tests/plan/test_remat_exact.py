"""Retention intervals in CP-SAT against brute force over all decisions, on small random orders."""

from __future__ import annotations

import itertools
import random

import pytest

from testing.planning.decisions import is_valid
from tinytrain_compile.plan.remat.cpsat import Limits, candidates, solve
from tinytrain_compile.plan.remat.problem import Again, Operation, Problem, extra_cost, profile
from tinytrain_compile.plan.remat.search import floor_bytes, greedy_decision


def random_problem(seed: int, forward: int) -> Problem:
    """A chain with skips and its backward pass: some operations in place, with scratch, or that cannot be repeated."""
    dice = random.Random(seed)
    count = 2 * forward
    reads: list[tuple[int, ...]] = []
    for index in range(count):
        if index < forward:
            found = {index} | ({dice.randrange(index + 1)} if dice.random() < 0.3 else set())
        else:
            mirror = count - 1 - index  # reads what the forward operation read, and the gradient before it
            found = {mirror, index} | ({mirror + 1} if dice.random() < 0.3 else set())
        reads.append(tuple(sorted(found)))
    # storage 0 is the input, storage i + 1 what operation i makes
    size = (dice.choice((1, 2, 4)), *(dice.choice((1, 2, 3, 5, 8)) for _ in range(count)))
    operations: list[Operation] = []
    for index in range(count):
        storage, draw = reads[index][-1], dice.random()
        partly = ((index + 1, storage, dice.randint(1, min(size[storage], size[index + 1]))),)
        pairs = tuple(
            (index + 1, storage, size[storage]) for storage in reads[index] if size[storage] == size[index + 1]
        )
        kept = pairs if draw < 0.5 else partly if draw < 0.7 else ()
        operations.append(Operation(index, reads[index], (index + 1,), dice.choice((0, 0, 0, 2)), kept))
    uses = tuple(tuple(i for i in range(count) if storage in reads[i]) for storage in range(count + 1))
    again = {
        index + 1: Again(index, dice.randrange(1, 9), dice.choice((count, count, forward + 1)))
        for index in range(count - 2)
        if dice.random() < 0.8 and uses[index + 1]
    }
    birth = tuple(range(-1, count))
    fixed = tuple(count - 1 if dice.random() < 0.1 and storage not in again else -1 for storage in range(count + 1))
    if dice.random() < 0.3:  # an output that nothing here makes or reads: its place is taken all the same
        size, uses, birth, fixed = (*size, dice.choice((1, 2, 4))), (*uses, ()), (*birth, -1), (*fixed, count - 1)
    return Problem(tuple(operations), size, uses, birth, fixed, again)


def all_decisions(problem: Problem) -> list[tuple[int, int, dict[int, int]]]:
    """(peak, cost, decision) of every decision there is."""
    storages = sorted(problem.again)
    ranges = [
        (None, *range(problem.birth[c] + 2, min(problem.again[c].latest, len(problem.operations) - 1) + 1))
        for c in storages
    ]
    found: list[tuple[int, int, dict[int, int]]] = []
    for stages in itertools.product(*ranges):
        decision = {storage: stage for storage, stage in zip(storages, stages, strict=True) if stage is not None}
        assert is_valid(problem, decision)
        found.append((max(profile(problem, decision).loads), extra_cost(problem, decision), decision))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_solver_equals_brute_force_at_every_budget(seed: int) -> None:
    problem = random_problem(seed, 3)
    known = all_decisions(problem)
    budgets = {peak for peak, _, _ in known}
    for budget in sorted({*budgets, min(budgets) - 1}):
        best = min((cost for peak, cost, _ in known if peak <= budget), default=None)
        answer = solve(problem, problem.again, budget, None, Limits(10.0))
        if best is None:
            assert answer.status == "infeasible"
            continue
        assert answer.status == "optimal"
        assert answer.decision is not None
        assert is_valid(problem, answer.decision)
        assert extra_cost(problem, answer.decision) == best == answer.bound
        assert max(profile(problem, answer.decision).loads) <= budget


@pytest.mark.parametrize("seed", range(60))
def test_the_greedy_start_is_valid_and_the_floor_is_one(seed: int) -> None:
    problem = random_problem(seed, 4)
    floor, base = floor_bytes(problem), max(profile(problem, {}).loads)
    for budget in {floor, (floor + base) // 2, base}:
        decision = greedy_decision(problem, budget)
        assert is_valid(problem, decision)
        assert floor <= max(profile(problem, decision).loads) <= base


@pytest.mark.parametrize("seed", range(30))
def test_storages_at_the_bottleneck_are_enough_for_most_budgets_and_never_wrong(seed: int) -> None:
    problem = random_problem(seed, 3)
    known = all_decisions(problem)
    for budget in sorted({peak for peak, _, _ in known}):
        answer = solve(problem, candidates(problem, budget), budget, None, Limits(10.0))
        if answer.decision is not None:
            assert max(profile(problem, answer.decision).loads) <= budget
            assert extra_cost(problem, answer.decision) >= min(cost for peak, cost, _ in known if peak <= budget)


def test_two_outputs_do_not_both_lie_over_one_input() -> None:
    """A stream with two results may write one of them over its input. Two questions below a budget got an answer that
    was above it, and a search of the smallest arena ended with an AssertionError."""
    operations = (
        Operation(0, (0,), (1,), 0, ()),
        Operation(1, (0,), (2, 3), 0, ((2, 0, 6), (3, 0, 4))),
        Operation(2, (1, 2, 3), (), 0, ()),
    )
    again = {1: Again(0, 1, 3)}
    problem = Problem(operations, (8, 1, 8, 4), ((0, 1), (2,), (2,), (2,)), (-1, 0, 1, 1), (-1,) * 4, again)
    least = max(profile(problem, {}).loads)
    for budget in range(8, least + 1):
        decision = solve(problem, problem.again, budget, None, Limits(1.0)).decision
        assert decision is None or max(profile(problem, decision).loads) <= budget
    assert decision == {} and least == 15
