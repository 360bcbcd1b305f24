"""Peaks that no order is below: from precedence alone, and from minimum cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tinytrain_compile.plan.model import TaskGraph, program_order
from tinytrain_compile.plan.order.order import best_overlap, loads


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

    In every order a storage is live at task v if something that touches it precedes v (or is v) and something that
    touches it follows v (or is v). The bound is the largest sum of such storages over all v, plus v's scratch, minus
    whatever v could at best save by working in place.
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
    """The best of `bound` and, for every task, the smallest load with which any order can run it.

    What has run before a task is a downset of the graph, and live bytes are a cut function of it: the smallest is a
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
        # Imported here: quick plans and --help do without ortools.
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
        """Smallest load with which a task can run."""
        return min(self._cut(task, forced) - saved for forced, saved in self.ways(task))

    def ways(self, task: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """Ways to work in place: (tasks that must have run, bytes saved). Several outputs: all at once, optimistic."""
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
        """Smallest load while a task runs, in place of nothing, if it and `forced` have their predecessors before."""
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
