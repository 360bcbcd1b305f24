"""The search for a decision: a greedy start, CP-SAT's answer below a budget, then cheaper ones; and the lowest budget.

A rule (`stages_of`) turns a set of storages into a decision: a storage is given up for the longest time without a
reader. It is made again right before its next reader, or before another second run that reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tinytrain_compile.plan.halving import TOLERANCE, halve
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.remat.problem import Decision, Problem, extra_cost, profile, stages_of, with_sources

CUTS = 160
"""Most places at which the forward pass may be cut."""

LIMITS = 12
"""Number of limits tried, spread between the largest single segment and keeping everything."""


@dataclass(frozen=True)
class Priced:
    """A decision with its largest load and its cost."""

    decision: Decision
    peak: int
    cost: int


def checkpoints(problem: Problem) -> list[Priced]:
    """Return decisions that keep the storages of some cuts, cheapest first, without those worse in both peak and
    cost."""
    waits = _waits(problem)
    if not waits:
        return []
    cuts = _cuts(problem, waits)
    found: list[Priced] = []
    seen: set[frozenset[int]] = set()
    for limit in _limits(problem, waits):
        kept = _kept(problem, waits, cuts, limit)
        chosen = frozenset[int]()
        if kept is not None:
            chosen = with_sources(problem, set(waits) - kept, lambda read, kept=kept: read not in kept)
        if chosen and chosen not in seen:
            seen.add(chosen)
            decision = stages_of(problem, chosen)
            peak = max(profile(problem, decision).loads)
            found.append(Priced(decision, peak, extra_cost(problem, decision)))
    found.sort(key=lambda item: (item.cost, item.peak))
    return [item for index, item in enumerate(found) if all(item.peak < other.peak for other in found[:index])]


def _waits(problem: Problem) -> dict[int, int]:
    """Return storages that may be made again and wait across the largest load -> their last use before it."""
    found: dict[int, int] = {}
    top = _top(problem)
    for storage in problem.again:
        moments = (problem.birth[storage], *problem.uses[storage])
        for before, after in itertools.pairwise(moments):
            if before < top < after:
                found[storage] = before
    return found


def _top(problem: Problem) -> int:
    loads = profile(problem, {}).loads
    return loads.index(max(loads))


def _cuts(problem: Problem, waits: dict[int, int]) -> list[tuple[int, frozenset[int]]]:
    """Return (operation, storages made before it that it or later forward operations read) where these are fewest
    nearby.

    Storages that would be dead by then live on because of a cut there; the cut keeps them too.
    """
    top = _top(problem)
    until = {
        storage: waits.get(storage, max((use for use in problem.uses[storage] if use <= top), default=-1))
        for storage in problem.again
    }
    crossing: set[int] = set()
    found: list[tuple[int, int, frozenset[int]]] = []
    for place in range(1, top + 1):
        crossing = {storage for storage in crossing if until[storage] >= place}
        crossing |= {storage for storage in problem.operations[place - 1].writes if until.get(storage, -1) >= place}
        if crossing:
            found.append((sum(problem.size[storage] for storage in crossing), place, frozenset(crossing)))
    sizes = [found[0][0] + 1, *(size for size, *_ in found), found[-1][0] + 1] if found else []
    narrow = [cut for cut, before, after in zip(found, sizes, sizes[2:], strict=False) if cut[0] <= min(before, after)]
    return [(place, storages) for _, place, storages in narrow[:: -(-len(narrow) // CUTS) or 1]]


def _limits(problem: Problem, waits: dict[int, int]) -> list[int]:
    """Return limits for kept bytes and for those of a segment: geometric steps from the largest storage to all
    storages."""
    sizes = [problem.size[storage] for storage in waits]
    low, high = max(1, max(sizes)), max(2, sum(sizes))
    return sorted({int(low * (high / low) ** (step / LIMITS)) for step in range(1, LIMITS)})


def _kept(
    problem: Problem, waits: dict[int, int], cuts: list[tuple[int, frozenset[int]]], limit: int
) -> frozenset[int] | None:
    """Return the storages kept by the cuts that keep least, with kept bytes and every segment below a limit; None if
    there are none."""
    ordered = sorted(waits, key=lambda storage: problem.birth[storage])
    births = [problem.birth[storage] for storage in ordered]
    sums = list(itertools.accumulate((problem.size[storage] for storage in ordered), initial=0))

    def upto(place: int) -> int:
        return sums[next((index for index, birth in enumerate(births) if birth >= place), len(births))]

    places = [births[0], *(place for place, _ in cuts), births[-1] + 1]
    made = [upto(place) for place in places]
    weight = [0, *(sum(problem.size[storage] for storage in crossing) for _, crossing in cuts), 0]
    least: list[tuple[int, int] | None] = [(0, -1)]
    for end in range(1, len(places)):
        ways = [
            (kept[0] + weight[end], begin)
            for begin, kept in enumerate(least)
            if kept is not None and kept[0] + made[end] - made[begin] <= limit
        ]
        least.append(min(ways, default=None))
    last = least[-1]
    found: set[int] = set()
    while last is not None and last[1] > 0:
        found |= cuts[last[1] - 1][1]
        last = least[last[1]]
    return frozenset(found) if least[-1] is not None else None


DECIDE_TIME, MINIMISE_TIME, QUICK_TIME = 0.16, 0.1, 0.03
"""CP-SAT's deterministic time for one question below a budget, for the least cost, and for both with effort "quick"."""

SMALLEST_TIME, QUESTION_TIME = 0.24, 0.08
"""CP-SAT's deterministic time for all questions of a search for the lowest peak, and for each. If it finds an answer
for a large network, it needs 0.005, so many short questions lead further than few long ones."""

TRIED_PER_ROUND = 24
"""Storages that the greedy start tries in each round."""

GREEDY_EVENTS = 2_000_000
"""Most events that the greedy start prices: on deep networks checkpoints are a better start, and much faster."""

FEWER_EVENTS = 1_000_000
"""Most events priced to drop second runs that a budget does not need, the most expensive first."""


@dataclass(frozen=True)
class RematChoice:
    """A decision that stays below a budget (movable bytes). cheapest: proven to cost least among all that do."""

    decision: dict[int, int]
    budget_bytes: int
    cheapest: bool


@dataclass
class Clock:
    """Deterministic time that is left for several questions."""

    left: float


def floor_bytes(problem: Problem) -> int:
    """Return a lower bound of the peak of every decision for this order: storages that an operation touches, or that
    cannot be made again, are live."""
    loads = [0] * len(problem.operations)
    for index, operation in enumerate(problem.operations):
        own = sum(problem.size[storage] for storage in (*operation.reads, *operation.writes)) + operation.scratch
        loads[index] = own - max((overlap for *_, overlap in operation.inplace), default=0)
    for storage, size in enumerate(problem.size):
        touched = {problem.birth[storage], *problem.uses[storage]}
        if storage not in problem.again and (problem.uses[storage] or problem.fixed_end[storage] >= 0):
            for index in range(problem.first_touch(storage) + 1, problem.last_use(storage) + 1):
                loads[index] += size if index not in touched else 0
    return max(loads, default=0)


def excess(problem: Problem, decision: Decision, budget: int) -> int:
    """Return the bytes above the budget, summed over time: 0 if the decision fits."""
    return sum(max(0, load - budget) for load in profile(problem, decision).loads)


def greedy_decision(problem: Problem, budget: int) -> dict[int, int]:
    """Return a decision that fits the budget at a low cost, or the one that exceeds it least."""
    chosen: frozenset[int] = frozenset()
    left = excess(problem, {}, budget)
    rounds = GREEDY_EVENTS // (2 * TRIED_PER_ROUND * max(1, len(problem.operations)))
    while left > 0 and rounds > 0:
        rounds -= 1
        found = _best_addition(problem, chosen, left, budget)
        if found is None:
            break
        chosen, left = found
    return stages_of(problem, _pruned(problem, chosen, left, budget))


def _best_addition(
    problem: Problem, chosen: frozenset[int], left: int, budget: int
) -> tuple[frozenset[int], int] | None:
    """Return the storage (with those that its second run lacks) that removes the most excess per cost."""
    best: tuple[float, frozenset[int], int] | None = None
    before = extra_cost(problem, stages_of(problem, chosen))
    for move in _moves(problem, chosen):
        candidate = chosen | move
        decision = stages_of(problem, candidate)
        now = excess(problem, decision, budget)
        if now >= left:
            continue
        gain = (left - now) / max(1, extra_cost(problem, decision) - before)
        if best is None or gain > best[0]:
            best = (gain, candidate, now)
    return None if best is None else best[1:]


def _moves(problem: Problem, chosen: frozenset[int]) -> Iterable[frozenset[int]]:
    """Yield the largest storages that are live at the peak, alone and with their dead ancestors."""
    loads, lives = profile(problem, stages_of(problem, chosen))
    top = loads.index(max(loads))
    waiting = {storage for (storage, _), (first, last) in lives.items() if first < top < last}
    open_ = [storage for storage in problem.again if storage in waiting and storage not in chosen]
    for storage in sorted(open_, key=lambda item: (-problem.size[item], item))[:TRIED_PER_ROUND]:
        yield frozenset((storage,))
        closed = _with_ancestors(problem, storage, chosen)
        if len(closed) > 1:
            yield closed


def _with_ancestors(problem: Problem, storage: int, chosen: frozenset[int]) -> frozenset[int]:
    """Return the storage and its dead repeatable ancestors, back to live storages."""
    stage = stages_of(problem, (storage,)).get(storage, 0)
    return with_sources(problem, (storage,), lambda read: read not in chosen and problem.last_use(read) < stage)


def _pruned(problem: Problem, chosen: frozenset[int], left: int, budget: int) -> frozenset[int]:
    """Return the chosen storages without those not needed, dropping the most expensive first."""
    for storage in _dearest(problem, chosen):
        fewer = chosen - {storage}
        decision = stages_of(problem, fewer)
        if excess(problem, decision, budget) <= left:
            chosen = fewer
    return chosen


def _dearest(problem: Problem, storages: Iterable[int]) -> list[int]:
    """Return the most expensive second runs first, as many as the work limit permits: each costs one profile."""
    dearest = sorted(storages, key=lambda item: (-problem.again[item].cost, item))
    return dearest[: FEWER_EVENTS // max(1, len(problem.operations))]


# ---- below a budget --------------------------------------------------------------------------------------------------


def peak_of(problem: Problem, decision: Decision) -> int:
    """Return the largest load, in movable bytes."""
    return max(profile(problem, decision).loads, default=0)


def cheapest_below(problem: Problem, budget: int, options: PlanOptions) -> RematChoice | None:
    """Return a decision with a peak of at most `budget`, the cheapest found; None if none is found."""
    if peak_of(problem, {}) <= budget:
        return RematChoice({}, budget, True)
    found = any_below(problem, budget, options)
    return None if found is None else cheaper_decision(problem, found, budget, options)


def smallest(problem: Problem, options: PlanOptions, below: int = 0) -> Iterator[RematChoice]:
    """Yield decisions with the lowest peak found: the cheapest first, then the solver's first one (it may pack better).

    below: persistent bytes under the movable ones. The arena, both together, is found to one part in TOLERANCE.
    """
    floor = floor_bytes(problem)
    best, clock = first_decision(problem, floor), Clock(SMALLEST_TIME)

    def reach(budget: int) -> int | None:
        nonlocal best
        found = any_below(problem, budget, options, clock)
        best = best if found is None else found
        return None if found is None else peak_of(problem, found)

    peak = peak_of(problem, best)
    _, high = halve(floor, peak, reach, (below + floor) // TOLERANCE, ask_low=True)
    cheaper = cheaper_decision(problem, best, high, options)
    yield cheaper
    if cheaper.decision != best:
        yield RematChoice(best, high, False)


def first_decision(problem: Problem, budget: int) -> dict[int, int]:
    """Return the decision of smallest peak, of the greedy one and those that keep checkpoints."""
    segments = [dict(item.decision) for item in checkpoints(problem)]
    return min((greedy_decision(problem, budget), *segments), key=lambda decision: peak_of(problem, decision))


def any_below(problem: Problem, budget: int, options: PlanOptions, clock: Clock | None = None) -> dict[int, int] | None:
    """Return a decision whose peak is at most `budget`, cheap or not; None if none is found.

    The solver first gets a smaller problem, and the whole one only if the smaller is proven to have none. If time runs
    out for the smaller one, it nearly always does for the larger one, and such cases are most of a search's work.
    """
    # Imported here: loading ortools takes most of a second, which runs without rematerialisation avoid.
    from tinytrain_compile.plan.remat.cpsat import Limits, solve

    if budget < floor_bytes(problem):
        return None
    segments = next((item for item in checkpoints(problem) if item.peak <= budget), None)
    if segments is not None:
        return dict(segments.decision)
    units = QUICK_TIME if options.effort == "quick" else DECIDE_TIME
    units = units if clock is None else min(units, QUESTION_TIME, clock.left)
    if units < 1e-6:
        return None
    limits = Limits(units, options.seed, cheapest=False)
    coarse = whole_pairs_only(problem)
    answer = solve(coarse, problem.again, budget, None, limits)
    units = answer.units
    if answer.status == "infeasible" and coarse != problem:
        answer = solve(problem, problem.again, budget, None, limits)
        units += answer.units
    if clock is not None:
        clock.left = max(0.0, clock.left - units)
    return answer.decision


def whole_pairs_only(problem: Problem) -> Problem:
    """Return the problem without outputs that cover a part of an input: loads are never smaller, and solving is
    faster."""
    return replace(
        problem,
        operations=tuple(
            replace(item, inplace=tuple(pair for pair in item.inplace if pair[2] == problem.size[pair[0]]))
            for item in problem.operations
        ),
    )


def cheaper_decision(problem: Problem, start: dict[int, int], budget: int, options: PlanOptions) -> RematChoice:
    """Return the cheapest of the start and a greedy decision, both thinned, and of the solver's decision from there."""
    from tinytrain_compile.plan.remat.cpsat import Limits, candidates, solve

    best = _thinned(problem, start, budget)
    greedy = greedy_decision(problem, budget)
    if peak_of(problem, greedy) <= budget and extra_cost(problem, greedy) < extra_cost(problem, best):
        best = greedy
    limits = Limits(QUICK_TIME if options.effort == "quick" else MINIMISE_TIME, options.seed)
    answer = solve(problem, candidates(problem, budget), budget, best, limits)
    if answer.decision is not None and extra_cost(problem, answer.decision) < extra_cost(problem, best):
        best = answer.decision
    return RematChoice(best, budget, answer.status == "optimal")


def _thinned(problem: Problem, decision: dict[int, int], budget: int) -> dict[int, int]:
    """Return the decision without second runs that the budget does not need, dropping the most expensive first."""
    for storage in _dearest(problem, decision):
        fewer = {other: stage for other, stage in decision.items() if other != storage}
        if peak_of(problem, fewer) <= budget:
            decision = fewer
    return decision
