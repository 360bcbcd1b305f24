"""Orders of execution: the load of an order, a sound lower bound, and greedy list schedules from both ends.

Every schedule works on a TaskGraph and, since liveness is symmetric in time, on its reversal as well.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tinytrain_compile.plan.model import TaskGraph, program_order

BUDGET_TRIALS, QUICK_BUDGET_TRIALS = 12, 4
"""Peaks that are tried as the budget of a chain schedule (bisection between the bound and the best known peak)."""


class Cost(NamedTuple):
    """What running a task does to memory: bytes needed on top while it runs, and bytes more (or less) afterwards."""

    transient: int
    delta: int


class Simulation:
    """Memory while tasks run one after another; tasks may be taken back in reverse order."""

    def __init__(self, tasks: TaskGraph) -> None:
        self._tasks = tasks
        self._total = [len(users) for users in tasks.touchers]
        self._left = list(self._total)
        self.memory = 0

    def cost(self, task: int) -> Cost:
        """The cost of running this task now."""
        tasks, left, total, size = self._tasks, self._left, self._total, self._tasks.size
        opened = closed = 0
        for cell in tasks.touched[task]:
            if left[cell] == total[cell]:
                opened += size[cell]
            if left[cell] == 1:
                closed += size[cell]
        saved = self._in_place(task) if tasks.pairs[task] else 0
        return Cost(opened + tasks.scratch[task] - saved, opened - closed)

    def _in_place(self, task: int) -> int:
        """Bytes that never exist twice, because one cell opens over another that closes (in either direction)."""
        left, total, saved = self._left, self._total, 0
        used: list[int] = []
        for output, source in self._tasks.pairs[task]:
            forward = left[output] == total[output] and left[source] == 1
            backward = left[source] == total[source] and left[output] == 1
            if (forward or backward) and output not in used and source not in used:
                used += (output, source)
                saved += self._tasks.size[output]
        return saved

    def run(self, task: int) -> Cost:
        """Run a task; returns its cost."""
        cost = self.cost(task)
        for cell in self._tasks.touched[task]:
            self._left[cell] -= 1
        self.memory += cost.delta
        return cost

    def take_back(self, task: int, cost: Cost) -> None:
        """Undo the latest run, which returned this cost."""
        for cell in self._tasks.touched[task]:
            self._left[cell] += 1
        self.memory -= cost.delta

    def changed_cells(self, task: int) -> list[int]:
        """After running a task: cells whose other touchers have another cost now."""
        return [
            cell
            for cell in self._tasks.touched[task]
            if self._left[cell] == 1 or self._left[cell] == self._total[cell] - 1
        ]


def loads(tasks: TaskGraph, order: Sequence[int]) -> list[int]:
    """Movable bytes that are live while each task of the order runs."""
    simulation = Simulation(tasks)
    result: list[int] = []
    for task in order:
        before = simulation.memory
        result.append(before + simulation.run(task).transient)
    return result


def peak(tasks: TaskGraph, order: Sequence[int]) -> int:
    """Largest movable load of an order."""
    return max(loads(tasks, order))


# ---- lower bound ----------------------------------------------------------------------------------------------------


def ancestor_masks(tasks: TaskGraph) -> list[int]:
    """Per task, a bit set of itself and all tasks that must run before it."""
    masks = [0] * len(tasks.before)
    for task in program_order(tasks):
        mask = 1 << task
        for previous in tasks.before[task]:
            mask |= masks[previous]
        masks[task] = mask
    return masks


def peak_bound(tasks: TaskGraph) -> int:
    """No order has a smaller peak.

    In every order a cell is live at task v if something that touches it precedes v (or is v) and something that
    touches it follows v (or is v). The bound is the largest sum of such cells over all v, plus v's scratch, minus
    whatever v could at best save by working in place.
    """
    ancestors, descendants = ancestor_masks(tasks), ancestor_masks(tasks.reversed())
    count = len(tasks.before)
    load = np.array(tasks.scratch, dtype=np.int64)
    for cell, users in enumerate(tasks.touchers):
        after = before = 0
        for task in users:
            after |= descendants[task]
            before |= ancestors[task]
        packed = np.frombuffer((after & before).to_bytes((count + 7) // 8, "little"), dtype=np.uint8)
        load += np.unpackbits(packed, bitorder="little")[:count].astype(np.int64) * tasks.size[cell]
    for task, pairs in enumerate(tasks.pairs):
        later = descendants[task] & ~(1 << task)
        closing = {p.output: p.source for p in pairs if not any(later >> user & 1 for user in tasks.touchers[p.source])}
        load[task] -= sum(tasks.size[output] for output in closing)
    return int(load.max())


# ---- list schedules -------------------------------------------------------------------------------------------------

Key = Callable[[Cost, int, int], tuple[int, ...]]
"""(cost, task, how many tasks had become ready before this one) -> priority, smallest first."""


def _early_release(cost: Cost, task: int, _age: int) -> tuple[int, ...]:
    """Program order, but whatever frees memory (an update right after the last reader) at once."""
    return (cost.delta > 0, task)


def _smallest_growth(cost: Cost, task: int, _age: int) -> tuple[int, ...]:
    return (cost.delta, cost.transient, task)


def _smallest_transient(cost: Cost, task: int, _age: int) -> tuple[int, ...]:
    return (max(cost.transient, 0), cost.delta, task)


def _depth_first(cost: Cost, _task: int, age: int) -> tuple[int, ...]:
    """Follow what has just become possible; from the end of a training step this walks the backward pass."""
    return (cost.delta > 0, -age)


LIST_KEYS: tuple[Key, ...] = (_early_release, _smallest_growth, _smallest_transient, _depth_first)


def list_schedule(tasks: TaskGraph, key: Key, last_first: bool = False) -> list[int]:
    """Always run the ready task of smallest key; keys are refreshed when what they depend on changes.

    last_first: among equals prefer the largest task index (program order, for a reversed task graph).
    """
    simulation = Simulation(tasks)
    waiting = [len(edges) for edges in tasks.before]
    ages: dict[int, int] = {}
    current: dict[int, tuple[int, ...]] = {}
    heap: list[tuple[tuple[int, ...], int]] = []

    def offer(task: int) -> None:
        rank = key(simulation.cost(task), -task if last_first else task, ages.setdefault(task, len(ages)))
        if current.get(task) != rank:
            current[task] = rank
            heapq.heappush(heap, (rank, task))

    for task, count in enumerate(waiting):
        if count == 0:
            offer(task)
    order: list[int] = []
    while heap:
        rank, task = heapq.heappop(heap)
        if current.get(task) != rank:
            continue  # outdated entry
        del current[task]
        order.append(task)
        simulation.run(task)
        for follower in tasks.after[task]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                offer(follower)
        for cell in simulation.changed_cells(task):
            for user in tasks.touchers[cell]:
                if user in current:
                    offer(user)
    return order


class _Chain(NamedTuple):
    """A run of tasks that each make the next one possible: its highest point and where it ends, relative to now."""

    hill: int
    valley: int
    tasks: tuple[int, ...]

    def rank(self) -> tuple[int, ...]:
        """Liu's rule: first what ends no higher, lowest hill first; then what climbs, deepest drop first."""
        return (0, self.hill, self.valley) if self.valley <= 0 else (1, self.valley - self.hill, self.valley)


class _ChainScheduler:
    """List scheduling that looks ahead along chains of dependent tasks for the point where memory is low again.

    budget: a peak that is free to reach; chains that stay below it and give their memory back are run at once.
    """

    def __init__(self, tasks: TaskGraph, depth: int, budget: int) -> None:
        self.tasks, self.depth = tasks, depth
        self.simulation = Simulation(tasks)
        self.waiting = [len(edges) for edges in tasks.before]
        self.ready = {task: None for task, count in enumerate(self.waiting) if count == 0}
        self.order: list[int] = []
        self.peak = budget

    def schedule(self) -> list[int]:
        while self.ready:
            self.run_harmless()
            chosen = self.harmless_chain() or self.least_harm()
            for task in chosen:
                self.run(task)
        return self.order

    def harmless_chain(self) -> tuple[int, ...]:
        for task in self.ready:
            chain = self.chain(task)
            if chain.valley <= 0 and self.simulation.memory + chain.hill <= self.peak:
                return chain.tasks
        return ()

    def least_harm(self) -> tuple[int, ...]:
        """The task within the budget that adds least; if none is, the chain that Liu's rule prefers."""
        costs = [(*reversed(self.simulation.cost(task)), task) for task in self.ready]
        within = [cost for cost in costs if self.simulation.memory + cost[1] <= self.peak]
        if within:
            return (min(within)[2],)
        chains = [self.chain(task) for task in self.ready]
        return min(chains, key=lambda item: (*item.rank(), item.tasks)).tasks if chains else ()

    def run(self, task: int) -> None:
        del self.ready[task]
        self.order.append(task)
        base = self.simulation.memory
        self.peak = max(self.peak, base + self.simulation.run(task).transient)
        for follower in self.tasks.after[task]:
            self.waiting[follower] -= 1
            if self.waiting[follower] == 0:
                self.ready[follower] = None

    def run_harmless(self) -> None:
        """Running what does not raise the peak and leaves no more memory in use can never be a mistake."""
        found = True
        while found:
            found = False
            for task in tuple(self.ready):
                cost = self.simulation.cost(task)
                if cost.delta <= 0 and self.simulation.memory + cost.transient <= self.peak:
                    self.run(task)
                    found = True

    def chain(self, task: int) -> _Chain:
        """Follow a task's successors (each time the one that frees most) to the lowest point within reach."""
        base, hill = self.simulation.memory, 0
        trail: list[tuple[int, Cost]] = []
        best: _Chain | None = None
        current: int | None = task
        while current is not None:
            before = self.simulation.memory - base
            cost = self.simulation.run(current)
            trail.append((current, cost))
            hill = max(hill, before + cost.transient)
            valley = before + cost.delta
            if best is None or valley < best.valley:
                best = _Chain(hill, valley, tuple(done for done, _ in trail))
            following = self.successor(current)
            current = None if valley <= 0 or len(trail) == self.depth else following
        for done, cost in reversed(trail):
            self.simulation.take_back(done, cost)
            for follower in self.tasks.after[done]:
                self.waiting[follower] += 1
        if best is None:
            raise AssertionError("a chain has at least one task")
        return best

    def successor(self, task: int) -> int | None:
        """Of the tasks that this one makes ready, the one that frees most; counts it as run."""
        options: list[int] = []
        for follower in self.tasks.after[task]:
            self.waiting[follower] -= 1
            if self.waiting[follower] == 0:
                options.append(follower)
        return min(options, key=lambda item: (*reversed(self.simulation.cost(item)), item), default=None)


def chain_schedule(tasks: TaskGraph, budget: int, depth: int = 8) -> list[int]:
    """A list schedule that takes whole chains (weight gradient, update; error, clip, error) as one move."""
    return _ChainScheduler(tasks, depth, budget).schedule()


class RankedOrder(NamedTuple):
    """An order with its peak and its place among the ones tried (earlier ones are simpler and pack better)."""

    peak: int
    rank: int
    order: tuple[int, ...]


def list_orders(tasks: TaskGraph, bound: int, thorough: bool) -> list[RankedOrder]:
    """Several list schedules, smallest peak first; stops early when the bound is met.

    thorough: schedules from the end as well, and a finer search for the budget of the chain schedule.
    """
    mirror = tasks.reversed()
    makers: list[Callable[[], list[int]]] = [lambda: program_order(tasks)]
    for key in LIST_KEYS:
        makers.append(lambda key=key: list_schedule(tasks, key))
    for key in LIST_KEYS if thorough else ():
        makers.append(lambda key=key: list_schedule(mirror, key, last_first=True)[::-1])
    found: list[RankedOrder] = []
    for make in makers:
        _append(found, tasks, make())
        if found[-1].peak <= bound:
            return sorted(found)
    low, high = bound, min(item.peak for item in found)
    for _ in range(BUDGET_TRIALS if thorough else QUICK_BUDGET_TRIALS):
        if low >= high:
            break
        budget = (low + high) // 2
        reached = _append(found, tasks, chain_schedule(tasks, budget))
        low, high = (low, reached) if reached <= budget else (budget + 1, high)
    return sorted(found)


def _append(found: list[RankedOrder], tasks: TaskGraph, order: list[int]) -> int:
    """Add an order unless it is there already; returns its peak."""
    known = [item.peak for item in found if item.order == tuple(order)]
    if known:
        return known[0]
    found.append(RankedOrder(peak(tasks, order), len(found), tuple(order)))
    return found[-1].peak
