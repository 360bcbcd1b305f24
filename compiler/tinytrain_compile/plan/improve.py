"""Local search on an order: move one task (and what must move with it) across the peak.

The work is counted in simulated tasks, so the result depends on the input and the seed only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tinytrain_compile.plan.model import TaskGraph
from tinytrain_compile.plan.order import RankedOrder, ancestor_masks, loads

TASKS_PER_UNIT = 500_000
"""Simulated tasks per unit of deterministic time (measured: 0.5 to 1 s in CPython)."""

PATIENCE = 40
"""Rounds without a better order after which the search gives up, whatever work is left."""


class _Search:
    """State of one hill climb; `budget` is what remains of the counted work."""

    def __init__(self, tasks: TaskGraph, order: Sequence[int], units: float, seed: int) -> None:
        self.tasks = tasks
        self.ancestors = ancestor_masks(tasks)
        self.budget = int(units * TASKS_PER_UNIT)
        self.random = random.Random(seed)
        self.order = list(order)
        self.loads = loads(tasks, order)
        self.best = (self.score(self.loads), tuple(order))

    @staticmethod
    def score(load: Sequence[int]) -> tuple[int, int]:
        """Peak, then how many tasks run at the peak."""
        top = max(load)
        return (top, load.count(top))

    def later(self, at: int, pivot: int) -> list[int] | None:
        """The order with the task at `at`, and its descendants up to `pivot`, moved to right after `pivot`."""
        mask, stay, move = 1 << self.order[at], list[int](), [self.order[at]]
        for task in self.order[at + 1 : pivot + 1]:
            if self.ancestors[task] & mask:
                mask |= 1 << task
                move.append(task)
            else:
                stay.append(task)
        if move[-1] == self.order[pivot]:
            return None
        return [*self.order[:at], *stay, *move, *self.order[pivot + 1 :]]

    def earlier(self, at: int, pivot: int) -> list[int] | None:
        """The order with the task at `at`, and its ancestors down to `pivot`, moved to right before `pivot`."""
        needed, stay, move = self.ancestors[self.order[at]], list[int](), [self.order[at]]
        for task in reversed(self.order[pivot:at]):
            (move if needed >> task & 1 else stay).append(task)
        if move[-1] == self.order[pivot]:
            return None
        return [*self.order[:pivot], *reversed(move), *reversed(stay), *self.order[at + 1 :]]

    def moves(self, pivot: int) -> Iterator[list[int]]:
        """All orders one move away, nearest tasks first."""
        for distance in range(1, len(self.order)):
            for at in (pivot - distance, pivot + distance):
                if 0 <= at < len(self.order):
                    moved = self.later(at, pivot) if at < pivot else self.earlier(at, pivot)
                    if moved is not None:
                        yield moved

    def descend(self) -> None:
        """Take improving moves until none is left or the budget is spent."""
        improved = True
        while improved and self.budget > 0:
            improved = False
            current = self.score(self.loads)
            for moved in self.moves(self.loads.index(current[0])):
                if self.budget <= 0:
                    break
                if self.accept(moved, current, sideways=False):
                    improved = True
                    break

    def accept(self, moved: list[int], current: tuple[int, int], sideways: bool) -> bool:
        self.budget -= len(moved)
        load = loads(self.tasks, moved)
        score = self.score(load)
        if score < current or (sideways and score <= current):
            self.order, self.loads = moved, load
            self.best = min(self.best, (score, tuple(moved)), key=lambda item: item[0])
            return True
        return False

    def shake(self) -> None:
        """A few random moves that do not make things worse, to leave a plateau."""
        for _ in range(8):
            at, pivot = self.random.randrange(len(self.order)), self.random.randrange(len(self.order))
            if at != pivot and self.budget > 0:
                moved = self.later(at, pivot) if at < pivot else self.earlier(at, pivot)
                if moved is not None:
                    self.accept(moved, self.score(self.loads), sideways=True)


def improve_order(tasks: TaskGraph, start: RankedOrder, bound: int, units: float, seed: int) -> RankedOrder:
    """The best order found from `start` within `units` of work; `start` itself if none is better."""
    search = _Search(tasks, start.order, units, seed)
    search.descend()
    idle = 0
    while search.budget > 0 and search.best[0][0] > bound and idle < PATIENCE:
        before = search.best[0]
        search.shake()
        search.descend()
        idle = 0 if search.best[0] < before else idle + 1
    (peak, _), order = search.best
    return RankedOrder(peak, start.rank, order) if peak < start.peak else start
