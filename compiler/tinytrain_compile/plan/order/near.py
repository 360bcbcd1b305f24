"""Orders near a known one: windows that are solved again, and random walks.

Windows are used if the search for the whole graph ran out of work: a part of an order around its peak is freed, solved
and put back. A window is a task graph of its own, so the same search solves it, and CP-SAT if that fails. On random
graphs of 60 to 400 tasks CP-SAT rarely improved anything. Walks find other orders of nearly the same peak, in case the
best one packs badly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tinytrain_compile.plan.model import TaskGraph
from tinytrain_compile.plan.order.exact import EVALUATIONS_PER_UNIT, Optimum, smallest_peak
from tinytrain_compile.plan.order.order import RankedOrder, loads, peak

WINDOW_TASKS = (40, 60, 80)
"""Sizes of windows, tried in this order."""

SEARCH_UNITS, SOLVER_UNITS = 0.1, 0.4
"""Deterministic time that the search, and CP-SAT, may spend on one window."""


class OrderWindow(NamedTuple):
    """Tasks of an order from one position to another as a separate graph.

    tasks: local task graph; its START touches storages live before, its BARRIER those live after. members: global index
    per local task. passing: bytes that are live throughout and touched by no member.
    """

    tasks: TaskGraph
    members: tuple[int, ...]
    passing: int


def cut_window(tasks: TaskGraph, order: Sequence[int], first: int, last: int) -> OrderWindow:
    """Return the window of positions [first, last)."""
    members = tuple(sorted(order[first:last]))
    local = {task: index for index, task in enumerate(members)}
    start, barrier = len(members), len(members) + 1
    earlier, later = set(order[:first]), set(order[last:])
    storages: dict[int, int] = {}
    passing = 0
    touched: list[list[int]] = [[] for _ in range(barrier + 1)]
    for storage, users in enumerate(tasks.touchers):
        inside = [local[user] for user in users if user in local]
        born, wanted = any(user in earlier for user in users), any(user in later for user in users)
        if inside:
            storages[storage] = len(storages)
            for user in (*inside, *([start] if born else []), *([barrier] if wanted else [])):
                touched[user].append(storages[storage])
        elif born and wanted:
            passing += tasks.size[storage]
    inner = [[local[task] for task in tasks.before[member] if task in local] for member in members]
    pairs = [
        tuple(p._replace(output=storages[p.output], source=storages[p.source]) for p in tasks.inplace[member])
        for member in members
    ]
    graph = TaskGraph(
        (*((*edges, start) for edges in inner), (), tuple(range(barrier))),
        tuple(map(tuple, touched)),
        tuple(tasks.size[storage] for storage in storages),
        (*(tasks.scratch[member] for member in members), 0, 0),
        (*pairs, (), ()),
    )
    return OrderWindow(graph, members, passing)


def improve_by_windows(tasks: TaskGraph, start: Optimum, units: float, seed: int) -> Optimum:
    """Return the best order found by freeing windows of `start`, with at most about `units` of work.

    The search tries the windows around the peak; if none gives a lower peak, CP-SAT tries those left undecided. This
    repeats until nothing gives a lower peak.
    """
    climb = _Climb(tasks, start, units, seed)
    while climb.lower_peak():
        pass
    return Optimum(tuple(climb.order), max(climb.loads), start.bound)


class _Climb:
    """The improving order, and the work that is left."""

    def __init__(self, tasks: TaskGraph, start: Optimum, units: float, seed: int) -> None:
        self.tasks, self.bound, self.units, self.seed = tasks, start.bound, units, seed
        self.order = list(start.order)
        self.loads = loads(tasks, self.order)

    def lower_peak(self) -> bool:
        """Solve the first window that lowers the first peak (there may be equal ones elsewhere); return False if none
        does."""
        undecided: list[tuple[int, int]] = []
        for first, last in self.windows():
            found = self.solve(first, last, self.search)
            if found is None:
                return True
            if not found.proven:
                undecided.append((first, last))
        return any(self.solve(first, last, self.ask_solver) is None for first, last in undecided)

    def solve(self, first: int, last: int, engine: Callable[[OrderWindow, Optimum], Optimum]) -> Optimum | None:
        """Put a better order into a window and return None, or return the result for the window."""
        window = cut_window(self.tasks, self.order, first, last)
        inner = (window.members.index(task) for task in self.order[first:last])
        order = (window.tasks.start, *inner, window.tasks.barrier)
        start = Optimum(order, peak(window.tasks, order), max(0, self.bound - window.passing))
        if self.units <= 0 or max(self.loads) <= self.bound:
            return start
        found = engine(window, start)
        if found.peak >= start.peak:
            return found
        self.order[first:last] = [window.members[task] for task in found.order if task < len(window.members)]
        self.loads = loads(self.tasks, self.order)
        return None

    def windows(self) -> Iterator[tuple[int, int]]:
        """Yield windows of every size with the first peak in their middle, near their end, and near their beginning."""
        at, count = self.loads.index(max(self.loads)), len(self.order)
        for size in WINDOW_TASKS:
            for before in (size // 2, 4 * size // 5, size // 5):
                first = max(0, min(at - before, count - size))
                yield first, min(first + size, count)

    def search(self, window: OrderWindow, start: Optimum) -> Optimum:
        found = smallest_peak(window.tasks, start.order, start.bound, int(SEARCH_UNITS * EVALUATIONS_PER_UNIT))
        self.units -= found.work / EVALUATIONS_PER_UNIT
        return found

    def ask_solver(self, window: OrderWindow, start: Optimum) -> Optimum:
        from tinytrain_compile.plan.order.ranks import rank_order  # loads ortools

        self.units -= SOLVER_UNITS
        return rank_order(window.tasks, start, SOLVER_UNITS, self.seed)


MOVES_PER_VARIANT = 24
"""Moves tried from one variant to the next."""


def variants(tasks: TaskGraph, order: Sequence[int], most: int, count: int, seed: int) -> list[RankedOrder]:
    """Return up to `count` distinct orders of peak at most `most` bytes, smallest peak first; the work is fixed by
    `count`."""
    draw = random.Random(seed)
    current, load = list(order), peak(tasks, order)
    found: dict[tuple[int, ...], int] = {}
    for _ in range(count):
        for _ in range(MOVES_PER_VARIANT):
            moved = _moved(tasks, current, draw)
            height = peak(tasks, moved)
            if height <= most:
                current, load = moved, height
        found[tuple(current)] = load
    found.pop(tuple(order), None)
    return sorted(RankedOrder(height, rank, other) for rank, (other, height) in enumerate(found.items()))


def _moved(tasks: TaskGraph, order: list[int], draw: random.Random) -> list[int]:
    """Return the order with one task moved anywhere between its last predecessor and its first successor."""
    at = draw.randrange(len(order))
    task = order[at]
    before, after = set(tasks.before[task]), set(tasks.after[task])
    low, high = at, at
    while low > 0 and order[low - 1] not in before:
        low -= 1
    while high + 1 < len(order) and order[high + 1] not in after:
        high += 1
    rest = [*order[:at], *order[at + 1 :]]
    to = draw.randint(low, high)
    return [*rest[:to], task, *rest[to:]]
