"""Which buffer goes to which memory: the least extra cost at which every memory holds its load at every step.

A greedy start, then CP-SAT with one boolean per buffer and memory and one knapsack per step and memory. Addresses come
later (`spread`), so what fits here may still not pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Item(NamedTuple):
    """A buffer: bytes during steps [first, last]; cost: extra, per memory. A fixed one stays in the arena."""

    size: int
    first: int
    last: int
    cost: tuple[int, ...]
    fixed: bool


@dataclass(frozen=True)
class Assignment:
    """Per item, its memory. optimal: whether a smaller sum of costs is proven impossible."""

    memory: tuple[int, ...]
    optimal: bool


def assign(items: Sequence[Item], rooms: Sequence[int], units: float, seed: int) -> Assignment | None:
    """The cheapest assignment found below `rooms` (bytes per memory), or None. units: deterministic time, 0: greedy."""
    start = _greedy(items, rooms)
    return Assignment(tuple(start), False) if units == 0 and start else _solve(items, rooms, start, units, seed)


def cost_of(items: Sequence[Item], memory: Sequence[int]) -> int:
    """Sum of the costs of an assignment."""
    return sum(item.cost[place] for item, place in zip(items, memory, strict=True))


def loads_of(items: Sequence[Item], memory: Sequence[int], rooms: Sequence[int]) -> list[list[int]]:
    """Per memory and step, the bytes that are live."""
    count = max((item.last for item in items), default=0) + 1
    loads = [[0] * count for _ in rooms]
    for item, place in zip(items, memory, strict=True):
        for step in range(item.first, item.last + 1):
            loads[place][step] += item.size
    return loads


def _greedy(items: Sequence[Item], rooms: Sequence[int]) -> list[int] | None:
    """Moves, while the arena is too full somewhere, what is cheapest per byte out of there; then back what fits."""
    memory = [0] * len(items)
    loads = loads_of(items, memory, rooms)
    while max(loads[0]) > rooms[0]:
        step = loads[0].index(max(loads[0]))
        here = [i for i, item in enumerate(items) if memory[i] == 0 and item.first <= step <= item.last]
        moves = [(item, place) for item in here if not items[item].fixed for place in range(1, len(rooms))]
        moves = [move for move in moves if _has_room(items[move[0]], loads[move[1]], rooms[move[1]])]
        if not moves:
            return None
        chosen, place = min(moves, key=lambda move: (items[move[0]].cost[move[1]] / items[move[0]].size, move))
        _move(items[chosen], loads[0], loads[place])
        memory[chosen] = place
    for index in sorted(range(len(items)), key=lambda i: (-items[i].cost[memory[i]], i)):
        if memory[index] and _has_room(items[index], loads[0], rooms[0]):
            _move(items[index], loads[memory[index]], loads[0])
            memory[index] = 0
    return memory


def _has_room(item: Item, load: list[int], room: int) -> bool:
    return max(load[item.first : item.last + 1]) + item.size <= room


def _move(item: Item, source: list[int], target: list[int]) -> None:
    for step in range(item.first, item.last + 1):
        source[step] -= item.size
        target[step] += item.size


def _solve(
    items: Sequence[Item], rooms: Sequence[int], start: list[int] | None, units: float, seed: int
) -> Assignment | None:
    # Imported here: loading ortools takes most of a second, which plans in one memory do not have.
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    there = [[model.new_bool_var(f"b{i}m{k}") for k in range(len(rooms))] for i in range(len(items))]
    for item, places in zip(items, there, strict=True):
        model.add_exactly_one(places)
        if item.fixed:
            model.add(places[0] == 1)
    for step in sorted({item.first for item in items}):  # a largest load begins where an item does
        live = [i for i, item in enumerate(items) if item.first <= step <= item.last]
        for k, room in enumerate(rooms):
            model.add(sum(items[i].size * there[i][k] for i in live) <= room)
    model.minimize(
        sum(item.cost[k] * place for item, row in zip(items, there, strict=True) for k, place in enumerate(row))
    )
    for row, place in zip(there, start or (), strict=False):
        for k, literal in enumerate(row):
            model.add_hint(literal, int(k == place))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = units
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None if start is None else Assignment(tuple(start), False)
    found = [next(k for k, place in enumerate(row) if solver.boolean_value(place)) for row in there]
    if start is not None and cost_of(items, start) < cost_of(items, found):
        found = start
    return Assignment(tuple(found), status == cp_model.OPTIMAL)
