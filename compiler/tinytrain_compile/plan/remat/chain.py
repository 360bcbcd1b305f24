"""Checkpoints on deep networks: which storages to keep if all others are computed again, segment by segment.

Where the forward pass is cut, what crosses is kept; what lies between two cuts is made again right before the backward
pass needs it. For a limit on kept bytes plus those of the largest segment, dynamic programming over the cuts finds the
segments that keep least. The limit leaves out what is live anyway, so several are tried and every decision is priced.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tinytrain_compile.plan.remat.problem import Decision, Problem, extra_cost, profile, stages_of

CUTS = 160
"""Places at which the forward pass may be cut, at most."""

LIMITS = 12
"""Limits that are tried, evenly spread between the largest single segment and everything kept."""


@dataclass(frozen=True)
class Priced:
    """A decision with its largest load and its cost."""

    decision: Decision
    peak: int
    cost: int


def checkpoints(problem: Problem) -> list[Priced]:
    """Decisions that keep the storages of some cuts, cheapest first, without those that are worse in both."""
    waits = _waits(problem)
    if not waits:
        return []
    cuts = _cuts(problem, waits)
    found: list[Priced] = []
    seen: set[frozenset[int]] = set()
    for limit in _limits(problem, waits):
        kept = _kept(problem, waits, cuts, limit)
        chosen = _with_sources(problem, frozenset(waits) - kept, kept) if kept is not None else frozenset[int]()
        if chosen and chosen not in seen:
            seen.add(chosen)
            decision = stages_of(problem, chosen)
            peak = max(profile(problem, decision).loads)
            found.append(Priced(decision, peak, extra_cost(problem, decision)))
    found.sort(key=lambda item: (item.cost, item.peak))
    return [item for index, item in enumerate(found) if all(item.peak < other.peak for other in found[:index])]


def _waits(problem: Problem) -> dict[int, int]:
    """Storages that may be made again and wait across the largest load, and their last use before that."""
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


def _with_sources(problem: Problem, chosen: frozenset[int], kept: frozenset[int]) -> frozenset[int]:
    """The storages and what their producers read that can be made again, back to what is kept."""
    found, open_ = set(chosen), list(chosen)
    while open_:
        for read in problem.operations[problem.again[open_.pop()].operation].reads:
            if read in problem.again and read not in found | kept:
                found.add(read)
                open_.append(read)
    return frozenset(found)


def _cuts(problem: Problem, waits: dict[int, int]) -> list[tuple[int, frozenset[int]]]:
    """(operation, storages made before it and read by it or later on the way forward) where these are fewest nearby.

    What is dead by then otherwise lives on for the sake of a cut there; that is part of what the cut keeps.
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
    """Kept bytes plus those of a segment: geometric steps from the largest storage to all storages."""
    sizes = [problem.size[storage] for storage in waits]
    low, high = max(1, max(sizes)), max(2, sum(sizes))
    return sorted({int(low * (high / low) ** (step / LIMITS)) for step in range(1, LIMITS)})


def _kept(
    problem: Problem, waits: dict[int, int], cuts: list[tuple[int, frozenset[int]]], limit: int
) -> frozenset[int] | None:
    """What the cuts keep that keep least while kept bytes and every segment stay below a limit; None if none do."""
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
