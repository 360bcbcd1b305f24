"""Assignment of buffers to memories: the least extra cost at which every memory holds its load at every step.

Every buffer has choices (stay in the arena, be in another memory, be paged out for a while). Each has a cost, and bytes
of every memory over time. A greedy start is followed by CP-SAT with one boolean per choice and one knapsack per memory
and step. A buffer that may cover another takes less at the step where they meet, if both are in one memory. Addresses
come later (`spread`), so an assignment that fits here may still not pack.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tinytrain_compile.ir.types import grouped

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


class Use(NamedTuple):
    """A buffer's bytes in one memory during steps [first, last]."""

    memory: int
    first: int
    last: int


class UseOption(NamedTuple):
    """Cost and uses of a choice; uses of the arena are within those of the item's first choice.

    ps: its time, if the cost is not time and time has a limit.
    """

    cost: int
    uses: tuple[Use, ...]
    ps: int = 0


class Item(NamedTuple):
    """A buffer: size in bytes, and its choices; the first is to stay in the arena, at no cost."""

    size: int
    choices: tuple[UseOption, ...]


class Cover(NamedTuple):
    """Two items, by index, that take `saved` bytes less at `step` if both always are in one memory (see `Over`)."""

    output: int
    source: int
    step: int
    saved: int


@dataclass(frozen=True)
class Assignment:
    """Per item, the index of its choice. optimal: whether a smaller sum of costs is proven impossible."""

    chosen: tuple[int, ...]
    optimal: bool


def assign(
    items: Sequence[Item],
    rooms: Sequence[int],
    units: float,
    seed: int,
    most_ps: int | None = None,
    covers: Sequence[Cover] = (),
) -> Assignment | None:
    """Return the cheapest assignment found below `rooms` (bytes per memory), or None. units: deterministic time, 0:
    greedy.

    most_ps: limit of the sum of the choices' times.
    """
    start = GreedyAssignment(items, rooms, covers).run()
    if start is not None and most_ps is not None and time_of(items, start) > most_ps:
        start = None
    return (
        Assignment(tuple(start), False)
        if units == 0 and start
        else _solve(items, rooms, start, units, seed, most_ps, covers)
    )


def time_of(items: Sequence[Item], chosen: Sequence[int]) -> int:
    """Return the sum of the times of an assignment."""
    return sum(item.choices[index].ps for item, index in zip(items, chosen, strict=True))


def cost_of(items: Sequence[Item], chosen: Sequence[int]) -> int:
    """Return the sum of the costs of an assignment."""
    return sum(item.choices[index].cost for item, index in zip(items, chosen, strict=True))


def home_of(choice: UseOption) -> int | None:
    """Return the memory that always holds a buffer; None if it is paged."""
    return choice.uses[0].memory if len(choice.uses) == 1 else None


def met(cover: Cover, items: Sequence[Item], chosen: Sequence[int]) -> int | None:
    """Return the memory in which a cover saves bytes; None if it does not."""
    one, two = (home_of(items[index].choices[chosen[index]]) for index in (cover.output, cover.source))
    return one if one == two else None


def loads_of(
    items: Sequence[Item], chosen: Sequence[int], memories: int, covers: Sequence[Cover] = ()
) -> list[list[int]]:
    """Return the live bytes per memory and step."""
    count = max((use.last for item in items for choice in item.choices for use in choice.uses), default=0) + 1
    loads = [[0] * count for _ in range(memories)]
    for item, index in zip(items, chosen, strict=True):
        _change(loads, item, index, 1)
    for cover in covers:
        memory = met(cover, items, chosen)
        if memory is not None:
            loads[memory][cover.step] -= cover.saved
    return loads


def _change(loads: list[list[int]], item: Item, index: int, sign: int) -> None:
    for use in item.choices[index].uses:
        for step in range(use.first, use.last + 1):
            loads[use.memory][step] += sign * item.size


class GreedyAssignment:
    """Greedy assignment: while a step overfills the arena, the item cheapest per byte leaves it; then cheaper choices
    that fit are taken."""

    def __init__(self, items: Sequence[Item], rooms: Sequence[int], covers: Sequence[Cover] = ()) -> None:
        self.items, self.rooms = items, rooms
        self.chosen = [0] * len(items)
        self.loads = loads_of(items, self.chosen, len(rooms), covers)
        self.covers = grouped((index, cover) for cover in covers for index in (cover.output, cover.source))

    def run(self) -> list[int] | None:
        """Return the choice of every item; None if a step stays too full."""
        while max(self.loads[0]) > self.rooms[0]:
            step = self.loads[0].index(max(self.loads[0]))
            moves = [(self.price(i, k), i, k) for i in range(len(self.items)) for k in self.moves(i, step)]
            if not moves:
                return None
            _, index, choice = min(moves)
            self.take(index, choice)
        for index in sorted(range(len(self.items)), key=lambda i: (-self.cost(i), i)):
            item = self.items[index]
            for choice in sorted(range(len(item.choices)), key=lambda k, item=item: (item.choices[k].cost, k)):
                if item.choices[choice].cost < self.cost(index) and self.fits(index, choice, (0,)):
                    self.take(index, choice)
                    break
        return self.chosen

    def cost(self, index: int) -> int:
        """Return the cost of an item's choice."""
        return self.items[index].choices[self.chosen[index]].cost

    def price(self, index: int, choice: int) -> float:
        """Return the extra cost of another choice over the present one, per byte of the item."""
        item = self.items[index]
        return (item.choices[choice].cost - self.cost(index)) / max(item.size, 1)

    def moves(self, index: int, step: int) -> list[int]:
        """Return choices that leave the arena at a step, use it for fewer steps than now, and fit elsewhere."""
        item = self.items[index]
        if not _takes(item.choices[self.chosen[index]], step):
            return []
        now = _steps(item.choices[self.chosen[index]])
        others = [k for k, c in enumerate(item.choices) if not _takes(c, step) and _steps(c) < now]
        return [k for k in others if self.fits(index, k, ())]

    def fits(self, index: int, choice: int, also: tuple[int, ...]) -> bool:
        """Tell whether a choice keeps the further memories (and those of `also`) below their rooms, ignoring covers."""
        item = self.items[index]
        self._change(index, -1)
        good = all(
            max(self.loads[use.memory][use.first : use.last + 1]) + item.size <= self.rooms[use.memory]
            for use in item.choices[choice].uses
            if use.memory or use.memory in also
        )
        self._change(index, 1)
        return good

    def take(self, index: int, choice: int) -> None:
        """Make a choice, and update the loads."""
        self._change(index, -1)
        self.chosen[index] = choice
        self._change(index, 1)

    def _change(self, index: int, sign: int) -> None:
        _change(self.loads, self.items[index], self.chosen[index], sign)
        for cover in self.covers.get(index, ()):
            memory = met(cover, self.items, self.chosen)
            if memory is not None:
                self.loads[memory][cover.step] -= sign * cover.saved


def _takes(choice: UseOption, step: int) -> bool:
    return any(use.memory == 0 and use.first <= step <= use.last for use in choice.uses)


def _steps(choice: UseOption) -> int:
    return sum(use.last + 1 - use.first for use in choice.uses if use.memory == 0)


def _solve(
    items: Sequence[Item],
    rooms: Sequence[int],
    start: list[int] | None,
    units: float,
    seed: int,
    most_ps: int | None,
    covers: Sequence[Cover],
) -> Assignment | None:
    # Imported here: loading ortools takes most of a second, which plans in one memory avoid.
    from ortools.sat.python import cp_model

    from tinytrain_compile.plan.solver import new_solver

    model = cp_model.CpModel()
    taken = [[model.new_bool_var(f"b{i}c{k}") for k in range(len(item.choices))] for i, item in enumerate(items)]
    for row in taken:
        model.add_exactly_one(row)
    paired = [
        (item, choice, literal)
        for item, row in zip(items, taken, strict=True)
        for choice, literal in zip(item.choices, row, strict=True)
    ]
    live = grouped((use, (item.size, literal)) for item, choice, literal in paired for use in choice.uses)
    saved = _saved(model, items, taken, len(rooms), covers)
    for memory, step in sorted({(use.memory, use.first) for use in live}):  # a largest load begins with a use
        here = [pair for use, pairs in live.items() if _there(use, memory, step) for pair in pairs]
        here += saved.get((memory, step), [])
        model.add(sum(size * literal for size, literal in here) <= rooms[memory])
    model.minimize(sum(choice.cost * literal for _, choice, literal in paired))
    if most_ps is not None:
        model.add(sum(choice.ps * literal for _, choice, literal in paired) <= most_ps)
    for row, index in zip(taken, start or (), strict=False):
        for k, literal in enumerate(row):
            model.add_hint(literal, int(k == index))
    solver = new_solver(seed, units)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None if start is None else Assignment(tuple(start), False)
    found = [next(k for k, literal in enumerate(row) if solver.boolean_value(literal)) for row in taken]
    if start is not None and cost_of(items, start) < cost_of(items, found):
        found = start
    return Assignment(tuple(found), status == cp_model.OPTIMAL)


def _saved(
    model: cp_model.CpModel,
    items: Sequence[Item],
    taken: Sequence[Sequence[cp_model.IntVar]],
    memories: int,
    covers: Sequence[Cover],
) -> dict[tuple[int, int], list[tuple[int, cp_model.IntVar]]]:
    """Return (memory, step) -> terms of bytes saved by covers, each with a boolean that is true only if both items are
    there."""
    saved: dict[tuple[int, int], list[tuple[int, cp_model.IntVar]]] = {}
    for (number, cover), memory in itertools.product(enumerate(covers), range(memories)):
        both = model.new_bool_var(f"over{number}m{memory}")
        saved.setdefault((memory, cover.step), []).append((-cover.saved, both))
        for index in (cover.output, cover.source):
            pairs = zip(items[index].choices, taken[index], strict=True)
            model.add(both <= sum(literal for choice, literal in pairs if home_of(choice) == memory))
    return saved


def _there(use: Use, memory: int, step: int) -> bool:
    return use.memory == memory and use.first <= step <= use.last
