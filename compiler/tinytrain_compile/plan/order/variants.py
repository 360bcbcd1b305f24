"""Other orders of nearly the same peak, for when the best order packs badly: random walks from a good one."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tinytrain_compile.plan.model import TaskGraph
from tinytrain_compile.plan.order.order import RankedOrder, peak

MOVES_PER_VARIANT = 24
"""Moves that are tried between one variant and the next."""


def variants(tasks: TaskGraph, order: Sequence[int], most: int, count: int, seed: int) -> list[RankedOrder]:
    """Up to `count` distinct orders of peak at most `most` bytes, smallest peak first; the work is fixed by `count`."""
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
    """One task put anywhere between its last predecessor and its first successor."""
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
