"""Random task graphs, and what is true of them by definition: slow, obvious, shared with no code under test."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import cache

from tinytrain_compile.plan.model import InPlace, TaskGraph


def _overlap(draw: random.Random, output: int, source: int, size: list[int]) -> InPlace:
    """All of the smaller one mostly (an in-place op), else some of it (a kernel that follows its input)."""
    most = min(size[output], size[source])
    return InPlace(output, source, most if draw.random() < 0.7 else 8 * draw.randint(1, most // 8))


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
        for storage in read:
            touched[task][storage] = None
            before[task][opened_by[storage]] = None
        for _ in range(draw.choice([1, 1, 1, 2])):
            size.append(size[read[0]] if draw.random() < 0.5 else 8 * draw.randint(1, 12))
            opened_by.append(task)
            touched[task][len(size) - 1] = None
            pairs[task] += [_overlap(draw, len(size) - 1, storage, size) for storage in read if draw.random() < 0.5]
        if task and draw.random() < 0.3:
            before[task][draw.randrange(task)] = None
    touched[barrier][draw.randrange(len(size))] = None
    return TaskGraph(
        tuple(tuple(sorted(edges)) for edges in before),
        tuple(tuple(storages) for storages in touched),
        tuple(size),
        (*(8 * draw.choice([0, 0, 3]) for _ in range(count)), 0, 0),
        tuple(tuple(found) for found in pairs),
    )


def load_while(tasks: TaskGraph, done: frozenset[int], task: int) -> int:
    """Live bytes while a task runs after a set of others, by the definitions of liveness and of working in place."""
    born = [any(user == task or user in done for user in users) for users in tasks.touchers]
    dying = [all(user == task or user in done for user in users) for users in tasks.touchers]
    live = [
        storage
        for storage in range(len(tasks.size))
        if born[storage] and any(u not in done for u in tasks.touchers[storage])
    ]
    opening = [storage for storage in tasks.touched[task] if not any(user in done for user in tasks.touchers[storage])]
    usable = [p for p in tasks.inplace[task] if p.output in opening and dying[p.source] and p.source not in opening]
    saved = 0
    for count in range(len(usable) + 1):
        for chosen in itertools.combinations(usable, count):
            storages = [storage for pair in chosen for storage in (pair.output, pair.source)]
            if len(set(storages)) == len(storages):
                saved = max(saved, sum(pair.overlap_bytes for pair in chosen))
    return sum(tasks.size[storage] for storage in live) + tasks.scratch[task] - saved


def peak_of(tasks: TaskGraph, order: Sequence[int]) -> int:
    """Largest load of an order."""
    return max(load_while(tasks, frozenset(order[:index]), task) for index, task in enumerate(order))


def optimum(tasks: TaskGraph) -> int:
    """The smallest peak of any order, by trying all of them (orders that have run the same tasks count as one)."""
    count = len(tasks.before)

    @cache
    def rest(done: frozenset[int]) -> int:
        ready = [t for t in range(count) if t not in done and done.issuperset(tasks.before[t])]
        return min((max(load_while(tasks, done, t), rest(done | {t})) for t in ready), default=0)

    return rest(frozenset())


def is_topological(tasks: TaskGraph, order: Sequence[int]) -> bool:
    place = {task: index for index, task in enumerate(order)}
    inside = sorted(order) == list(range(len(tasks.before)))
    return inside and all(place[p] < place[t] for t, edges in enumerate(tasks.before) for p in edges)
