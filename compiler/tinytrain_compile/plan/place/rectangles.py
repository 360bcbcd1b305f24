"""From an order to rectangles: what has to be placed, and for how long.

In-place pairs of equal size are one rectangle where the input's storage dies at the node that opens the output's. Other
pairs that may overlap stay two, and the output's says so (`Over`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinytrain_compile.ir.buffers import BufferKind, Over
from tinytrain_compile.plan.model import InPlace, MemoryModel, TaskGraph


@dataclass(frozen=True)
class Rectangle:
    """A buffer without an address yet: bytes during steps [first_step, last_step], both inclusive.

    over, within: see `Buffer`.
    """

    name: str
    kind: BufferKind
    size_bytes: int
    first_step: int
    last_step: int
    values: tuple[str, ...]
    over: Over | None = None
    within: tuple[tuple[str, int], ...] = ()


def steps_of(model: MemoryModel, order: Sequence[int]) -> list[int]:
    """Task -> step, where START counts to the first step and BARRIER to the last one of phase "step"."""
    steps = [0] * len(order)
    count = 0
    for task in order:
        steps[task] = count if task < len(model.nodes) else max(count - 1, 0)
        count += task < len(model.nodes)
    return steps


def _chains(tasks: TaskGraph, order: Sequence[int], newest: bool) -> tuple[list[int], dict[int, InPlace]]:
    """Storage -> the one whose address it takes over in place (itself if none); storage -> what it may overlap."""
    position = [0] * len(order)
    for index, task in enumerate(order):
        position[task] = index
    first = [min((position[task] for task in users), default=0) for users in tasks.touchers]
    last = [max((position[task] for task in users), default=0) for users in tasks.touchers]
    head = list(range(len(tasks.size)))
    taken = [False] * len(tasks.size)
    over: dict[int, InPlace] = {}
    for now, task in enumerate(order):
        pairs = tasks.inplace[task]
        if newest:
            pairs = tuple(sorted(pairs, key=lambda pair: -first[head[pair.source]]))
        usable = [pair for pair in pairs if first[pair.output] == now and last[pair.source] == now]
        for output, source, overlap, *_ in usable:
            if overlap == tasks.size[output] == tasks.size[source] and head[output] == output and not taken[source]:
                head[output] = head[source]
                taken[source] = True
        # A placement knows one such pair per step; what saves most is as good as any other choice (docs/adr/0006).
        rest = [pair for pair in usable if head[pair.output] == pair.output and not taken[pair.source]]
        if rest:
            pair = max(rest, key=lambda item: item.overlap_bytes)
            over[pair.output] = pair
    return head, over


def _over(model: MemoryModel, head: list[int], pair: InPlace) -> Over:
    return Over(model.storages[head[pair.source]].values[0], pair.distance, pair.exact, pair.overlap_bytes)


def rectangles(model: MemoryModel, order: Sequence[int], newest: bool = False) -> tuple[Rectangle, ...]:
    """The movable buffers of an order (scratch included), in-place chains joined.

    newest: where an output could replace either of two dying inputs, take the one whose rectangle began last (the
    first declared pair otherwise). The load is the same; the packing may differ.
    """
    tasks, steps = model.tasks, steps_of(model, order)
    head, over = _chains(tasks, order, newest)
    chains: dict[int, dict[int, None]] = {}
    for task in order:
        for storage in tasks.touched[task]:
            chains.setdefault(head[storage], {})[storage] = None
    touched_at = [[steps[task] for task in users] for users in tasks.touchers]
    found = [
        Rectangle(
            model.storages[top].values[0],
            model.storages[top].kind,
            model.storages[top].size_bytes,
            min(touched_at[top]),
            max(step for storage in chain for step in touched_at[storage]),
            tuple(name for storage in chain for name in model.storages[storage].values),
            _over(model, head, over[top]) if top in over else None,
            tuple(place for storage in chain for place in model.storages[storage].within),
        )
        for top, chain in chains.items()
    ]
    found += [
        Rectangle(node.name, "scratch", tasks.scratch[task], steps[task], steps[task], ())
        for task, node in enumerate(model.nodes)
        if tasks.scratch[task] > 0
    ]
    return tuple(sorted(found, key=lambda item: (item.first_step, item.kind == "scratch", item.name)))
