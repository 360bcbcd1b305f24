"""Orders of execution: the load of an order, greedy list schedules from both ends, and lower bounds of peaks.

Every schedule works on a TaskGraph and, since liveness is symmetric in time, on its reversal as well. Bounds come from
precedence alone, and from minimum cuts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinytrain_compile.plan.counted import add_work
from tinytrain_compile.plan.model import InPlace, TaskGraph, program_order

MOST_KNOWN = 1 << 21
"""Most words of 64 tasks in the sets whose costs are remembered."""


class Cost(NamedTuple):
    """Change of memory by a task: extra bytes while it runs, and bytes more (or less) afterwards."""

    transient: int
    delta: int


def best_overlap(pairs: Sequence[InPlace]) -> int:
    """Return the largest sum of overlaps of pairs in which no storage occurs twice."""
    if len(pairs) < 2:
        return sum(pair.overlap_bytes for pair in pairs)
    first, rest = pairs[0], pairs[1:]
    apart = [pair for pair in rest if pair.output != first.output and pair.source != first.source]
    return max(best_overlap(rest), first.overlap_bytes + best_overlap(apart))


class Costs:
    """Costs of tasks after a set of tasks has run; sets are bit masks, so that a search can keep and compare them.

    Live bytes are a cut function (a storage counts while some of its touchers have run and some have not), hence
    submodular: tasks run before can only lower the delta of a task, and its transient too. `exact` depends on that.
    """

    def __init__(self, tasks: TaskGraph) -> None:
        self._tasks, self._scratch = tasks, tasks.scratch
        self._users = [sum(1 << task for task in users) for users in tasks.touchers]
        self._touched = [
            [(self._users[storage] & ~(1 << task), tasks.size[storage]) for storage in storages]
            for task, storages in enumerate(tasks.touched)
        ]
        self._pairs = [
            [(self._users[pair.output] & ~(1 << task), self._users[pair.source] & ~(1 << task), pair) for pair in pairs]
            for task, pairs in enumerate(tasks.inplace)
        ]
        self._near = [self._others(task) for task in range(len(tasks.touched))]
        self._known: list[dict[int, Cost]] = [{} for _ in tasks.touched]
        self._room = MOST_KNOWN // (1 + len(tasks.touched) // 64)

    def _others(self, task: int) -> int:
        """Return the tasks on which the cost of this one depends."""
        found = 0
        for others, _ in self._touched[task]:
            found |= others
        for output, source, _ in self._pairs[task]:
            found |= output | source
        return found

    def of(self, task: int, done: int) -> Cost:
        """Return the cost of running a task now, cached: a search often asks for the same."""
        near = done & self._near[task]
        found = self._known[task].get(near)
        if found is None:
            found = self._of(task, done)
            if self._room > 0:
                self._room -= 1
                self._known[task][near] = found
        return found

    def _of(self, task: int, done: int) -> Cost:
        opened = closed = 0
        for others, size in self._touched[task]:
            ran = others & done
            if not ran:
                opened += size
            if ran == others:
                closed += size
        transient = opened + self._scratch[task]
        if self._pairs[task]:
            transient -= self.saved(task, done)
        return Cost(transient, opened - closed)

    def saved(self, task: int, done: int) -> int:
        """Return bytes that never exist twice, because one storage opens over another that closes (in either
        direction)."""
        possible: list[InPlace] = []
        for output, source, pair in self._pairs[task]:
            forward = not output & done and source & done == source
            if forward or (not source & done and output & done == output):
                possible.append(pair)
        return best_overlap(possible)

    def changed(self, task: int, done: int) -> Iterator[int]:
        """Yield the tasks whose cost changes after a task has run: it was the first to touch a storage, or all but one
        have."""
        for storage in self._tasks.touched[task]:
            users = self._tasks.touchers[storage]
            if (self._users[storage] & ~done).bit_count() in (1, len(users) - 1):
                yield from users


def _takes_over(pair: InPlace, ran: Sequence[int], count: Sequence[int]) -> bool:
    """Tell whether the task that ran last is the first of one storage and the last of the other, in either
    direction."""
    one, two = pair.output, pair.source
    return (ran[one] == 1 and ran[two] == count[two]) or (ran[two] == 1 and ran[one] == count[one])


def loads(tasks: TaskGraph, order: Sequence[int]) -> list[int]:
    """Return the movable bytes that are live while each task of the order runs (as `Costs`, with counts instead of
    sets)."""
    count, ran = [len(users) for users in tasks.touchers], [0] * len(tasks.touchers)
    memory, result = 0, list[int]()
    for task in order:
        opened = closed = 0
        for storage in tasks.touched[task]:
            ran[storage] += 1
            opened += tasks.size[storage] if ran[storage] == 1 else 0
            closed += tasks.size[storage] if ran[storage] == count[storage] else 0
        saved = best_overlap([p for p in tasks.inplace[task] if _takes_over(p, ran, count)])
        result.append(memory + opened + tasks.scratch[task] - saved)
        memory += opened - closed
    return result


def peak(tasks: TaskGraph, order: Sequence[int]) -> int:
    """Return the largest movable load of an order."""
    return max(loads(tasks, order))


# ---- list schedules -------------------------------------------------------------------------------------------------

Key = Callable[[Cost, int, int], tuple[int, ...]]
"""(cost, task, how many tasks had become ready before this one) -> priority, smallest first."""


def _early_release(cost: Cost, task: int, _age: int) -> tuple[int, ...]:
    """Return a key for program order, but tasks that free memory (an update right after the last reader) at once."""
    return (cost.delta > 0, task)


def _smallest_growth(cost: Cost, task: int, _age: int) -> tuple[int, ...]:
    return (cost.delta, cost.transient, task)


def _smallest_transient(cost: Cost, task: int, _age: int) -> tuple[int, ...]:
    return (max(cost.transient, 0), cost.delta, task)


def _depth_first(cost: Cost, _task: int, age: int) -> tuple[int, ...]:
    """Return a key that prefers tasks that became ready last; from the end of a training step this follows the backward
    pass."""
    return (cost.delta > 0, -age)


LIST_KEYS: tuple[Key, ...] = (_early_release, _smallest_growth, _smallest_transient, _depth_first)


def list_schedule(tasks: TaskGraph, key: Key, last_first: bool = False) -> list[int]:
    """Run the ready task of smallest key each time; keys are recomputed when their inputs change.

    last_first: among equals prefer the largest task index (program order, for a reversed task graph).
    """
    add_work("order")
    costs, done = Costs(tasks), 0
    waiting = [len(edges) for edges in tasks.before]
    ages: dict[int, int] = {}
    current: dict[int, tuple[int, ...]] = {}
    heap: list[tuple[tuple[int, ...], int]] = []

    def offer(task: int) -> None:
        rank = key(costs.of(task, done), -task if last_first else task, ages.setdefault(task, len(ages)))
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
        done |= 1 << task
        for follower in tasks.after[task]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                offer(follower)
        for user in costs.changed(task, done):
            if user in current:
                offer(user)
    return order


class RankedOrder(NamedTuple):
    """An order with its peak and its place among the ones tried (earlier ones are simpler and pack better)."""

    peak: int
    rank: int
    order: tuple[int, ...]


def list_orders(tasks: TaskGraph, bound: int, thorough: bool) -> list[RankedOrder]:
    """Return several list schedules, smallest peak first; stop early when the bound is met.

    thorough: schedules from the end as well.
    """
    mirror = tasks.reversed()
    makers: list[Callable[[], list[int]]] = [lambda: program_order(tasks)]
    for key in LIST_KEYS:
        makers.append(lambda key=key: list_schedule(tasks, key))
    for key in LIST_KEYS if thorough else ():
        makers.append(lambda key=key: list_schedule(mirror, key, last_first=True)[::-1])
    found: list[RankedOrder] = []
    for make in makers:
        order = tuple(make())
        if all(item.order != order for item in found):
            found.append(RankedOrder(peak(tasks, order), len(found), order))
        if found[-1].peak <= bound:
            break
    return sorted(found)


def ancestor_masks(tasks: TaskGraph) -> list[int]:
    """Return, per task, a bit set of itself and all tasks that must run before it."""
    masks = [0] * len(tasks.before)
    for task in program_order(tasks):
        mask = 1 << task
        for previous in tasks.before[task]:
            mask |= masks[previous]
        masks[task] = mask
    return masks


def peak_bound(tasks: TaskGraph) -> int:
    """Return a lower bound of every order's peak, in bytes.

    In every order a storage is live at task v if something that touches it precedes v (or is v) and something that
    touches it follows v (or is v). The bound is the largest sum of such storages over all v, plus v's scratch, minus
    the most that v could save in place.
    """
    ancestors, descendants = ancestor_masks(tasks), ancestor_masks(tasks.reversed())
    count = len(tasks.before)
    load = np.array(tasks.scratch, dtype=np.int64)
    for storage, users in enumerate(tasks.touchers):
        after = before = 0
        for task in users:
            after |= descendants[task]
            before |= ancestors[task]
        packed = np.frombuffer((after & before).to_bytes((count + 7) // 8, "little"), dtype=np.uint8)
        load += np.unpackbits(packed, bitorder="little")[:count].astype(np.int64) * tasks.size[storage]
    for task, pairs in enumerate(tasks.inplace):
        later = descendants[task] & ~(1 << task)
        closing = [pair for pair in pairs if not any(later >> user & 1 for user in tasks.touchers[pair.source])]
        load[task] -= best_overlap(closing)
    return int(load.max())


# ---- minimum cuts ---------------------------------------------------------------------------------------------------


def cut_bound(tasks: TaskGraph, order: Sequence[int], bound: int) -> int:
    """Return the best of `bound` and, for every task, the smallest load with which any order can run it.

    The tasks run before a task are a downset of the graph, and live bytes are a cut function of it: the smallest is a
    minimum cut. A task whose load in a known order is within the bound cannot raise it, so few cuts are computed.
    """
    cuts: LoadCuts | None = None
    for load, task in sorted(zip(loads(tasks, order), order, strict=True), reverse=True):
        if load <= bound:
            break
        cuts = LoadCuts(tasks) if cuts is None else cuts
        bound = max(bound, cuts.load_of(task))
    return bound


class LoadCuts:
    """The network: tasks, then two vertices per storage, then source and sink. A task on the source's side has run."""

    def __init__(self, tasks: TaskGraph) -> None:
        # Imported here: quick plans and --help do not need ortools.
        from ortools.graph.python import max_flow  # pyright: ignore[reportMissingTypeStubs]

        self._max_flow: Any = max_flow
        self._tasks = tasks
        self._descendants = ancestor_masks(tasks.reversed())
        count, storages = len(tasks.before), len(tasks.size)
        self._source, self._sink = count + 2 * storages, count + 2 * storages + 1
        self._whole = sum(tasks.size) + 1  # more than any cut that matters
        arcs = [(task, previous, self._whole) for task, edges in enumerate(tasks.before) for previous in edges]
        for storage, users in enumerate(tasks.touchers):
            some, all_ = count + 2 * storage, count + 2 * storage + 1
            arcs.append((some, all_, tasks.size[storage]))
            arcs += [(user, some, self._whole) for user in users]
            arcs += [(all_, user, self._whole) for user in users]
        self._arcs = np.array(arcs, dtype=np.int64)

    def load_of(self, task: int) -> int:
        """Return the smallest load with which a task can run."""
        return min(self._cut(task, forced) - saved for forced, saved in self.ways(task))

    def ways(self, task: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield ways to work in place: (tasks that must have run, bytes saved). Several outputs: all at once,
        optimistic."""
        pairs = self._tasks.inplace[task]
        if len({pair.output for pair in pairs}) > 1:
            yield (), best_overlap(pairs)
            return
        yield (), 0
        for pair in pairs:
            others = tuple(user for user in self._tasks.touchers[pair.source] if user != task)
            if not any(self._descendants[task] >> user & 1 for user in others):
                yield others, pair.overlap_bytes

    def _cut(self, task: int, forced: tuple[int, ...]) -> int:
        """Return the smallest load while a task runs, not in place, if predecessors of it and of `forced` run
        before."""
        tasks, count = self._tasks, len(self._tasks.before)
        arcs = self._arcs.copy()
        own = np.isin(arcs[:, 0], [count + 2 * storage for storage in tasks.touched[task]])
        arcs[own, 2] = 0  # these are live anyway
        flow = self._max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(arcs[:, 0], arcs[:, 1], arcs[:, 2])
        for before in (*tasks.before[task], *forced):
            flow.add_arc_with_capacity(self._source, before, self._whole)
        flow.add_arc_with_capacity(task, self._sink, self._whole)
        if flow.solve(self._source, self._sink) != flow.OPTIMAL:
            raise AssertionError("the network has finite cuts")
        return flow.optimal_flow() + sum(tasks.size[storage] for storage in tasks.touched[task]) + tasks.scratch[task]
