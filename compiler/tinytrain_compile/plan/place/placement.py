"""Rectangles of an order, and addresses for them, greedily: several orders, first and best fit, a counted local search.

A rectangle is a buffer to be placed; until then its offset is 0. In-place pairs of equal size are one rectangle if the
input's storage dies at the node that opens the output's. Other pairs that may overlap stay two, and the output's has
the overlap (`Over`). Sizes of a packing are in units (bytes divided by their common divisor). Offsets start at 0, above
the persistent buffers.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from tinytrain_compile.ir.buffers import Buffer, Over
from tinytrain_compile.plan.model import InPlace, MemoryModel, TaskGraph


def steps_of(model: MemoryModel, order: Sequence[int]) -> list[int]:
    """Return task -> step; START belongs to the first step, BARRIER to the last one of phase "step"."""
    steps = [0] * len(order)
    count = 0
    for task in order:
        steps[task] = count if task < len(model.nodes) else max(count - 1, 0)
        count += task < len(model.nodes)
    return steps


def _chains(tasks: TaskGraph, order: Sequence[int], newest: bool) -> tuple[list[int], dict[int, InPlace]]:
    """Return (storage -> the one whose address it takes over in place, or itself; storage -> the pair in which it may
    overlap)."""
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
        # A placement has one such pair per step; the one that saves most is as good as any other choice
        # (docs/adr/0006).
        rest = [pair for pair in usable if head[pair.output] == pair.output and not taken[pair.source]]
        if rest:
            pair = max(rest, key=lambda item: item.overlap_bytes)
            over[pair.output] = pair
    return head, over


def _over(model: MemoryModel, head: list[int], pair: InPlace) -> Over:
    return Over(model.storages[head[pair.source]].values[0], pair.distance, pair.exact, pair.overlap_bytes)


def rectangles(model: MemoryModel, order: Sequence[int], newest: bool = False) -> tuple[Buffer, ...]:
    """Return the movable buffers of an order (scratch included), in-place chains joined.

    newest: if an output could replace either of two dying inputs, take the one whose rectangle began last (the
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
        Buffer(
            model.storages[top].values[0],
            model.storages[top].kind,
            model.storages[top].size_bytes,
            0,
            min(touched_at[top]),
            max(step for storage in chain for step in touched_at[storage]),
            tuple(name for storage in chain for name in model.storages[storage].values),
            _over(model, head, over[top]) if top in over else None,
            tuple(place for storage in chain for place in model.storages[storage].within),
        )
        for top, chain in chains.items()
    ]
    found += [
        Buffer(node.name, "scratch", tasks.scratch[task], 0, steps[task], steps[task], ())
        for task, node in enumerate(model.nodes)
        if tasks.scratch[task] > 0
    ]
    return tuple(sorted(found, key=lambda item: (item.first_step, item.kind == "scratch", item.name)))


FITS_PER_UNIT = 5_000_000
"""Neighbours examined per unit of deterministic time (measured: about a second in CPython)."""

GREEDY_MEETINGS = 15_000_000
"""Approximate limit of neighbours examined by all passes of `greedy`; two passes are always made."""

PATIENCE_BASE, PATIENCE_PER_BOX = 50, 5
"""Trials without a better placement after which the local search gives up."""


@dataclass(frozen=True)
class Box:
    """A rectangle in compressed coordinates: slots [begin, end), size in units.

    first: its size in the slot `begin`, in which it may cover a box that dies there (see `Tie`).
    """

    begin: int
    end: int
    size: int
    first: int


class Tie(NamedTuple):
    """Permission for box `output` to share addresses with box `source`, if that begins at least `distance` units above
    it.

    The two meet in the first slot of the output, in which no other box ends. exact: it must begin exactly `distance`
    units above.
    """

    output: int
    source: int
    distance: int
    exact: bool

    def forbidden(self, packing: Packing) -> tuple[tuple[int, int], ...]:
        """Return open intervals that must not contain the distance from the output's start up to the source's."""
        below, size = -packing.boxes[self.source].size, packing.boxes[self.output].size
        return ((below, self.distance), *([(self.distance, size)] if self.exact else []))


@dataclass(frozen=True)
class Packing:
    """Boxes to place, and which of them are ever live together.

    unit_bytes: bytes of one unit of size. live: per slot, the boxes live in it (only maximal sets are kept).
    neighbours: per box, the boxes that share a slot with it and no bytes. bound: largest load of a slot.
    ties: pairs that share a slot and may share bytes. shifts: per box in a tie, (the other one, interval of addresses
    that it takes from the box, counted from its own).
    """

    boxes: tuple[Box, ...]
    unit_bytes: int
    live: tuple[tuple[int, ...], ...]
    neighbours: tuple[tuple[int, ...], ...]
    bound: int
    ties: tuple[Tie, ...] = ()
    shifts: Mapping[int, tuple[tuple[int, int, int], ...]] = field(
        default_factory=dict[int, "tuple[tuple[int, int, int], ...]"]
    )

    @property
    def meetings(self) -> int:
        """Number of meetings of boxes: the work of a pass that places all."""
        return sum(len(near) for near in self.neighbours)


@dataclass(frozen=True)
class Placement:
    """An offset per box and the height of the whole, in units. `proven`: no placement of these boxes is lower."""

    offsets: tuple[int, ...]
    height: int
    proven: bool


@dataclass(frozen=True)
class Decision:
    """Answer whether a placement below a limit exists, and one if so."""

    answer: Literal["yes", "no", "unknown"]
    placement: Placement | None


def build_packing(items: Sequence[Buffer]) -> Packing:
    """Compress time to ranks of first steps (every largest live set occurs at one), sizes by their divisor.

    A step at which a box may cover another is two slots: the other one dies in the first.
    """
    overs = [(index, item.over) for index, item in enumerate(items) if item.over is not None]
    covered = {(over.name, items[index].first_step) for index, over in overs}
    starts = sorted({(item.first_step, 0) for item in items} | {(items[index].first_step, 1) for index, _ in overs})
    rank = {start: index for index, start in enumerate(starts)}
    slots: list[list[int]] = [[] for _ in starts]
    unit = math.gcd(*(item.size_bytes for item in items), *(over.distance for _, over in overs)) or 1
    boxes: list[Box] = []
    for index, item in enumerate(items):
        begin = end = rank[item.first_step, 0]
        last = (item.last_step, 0 if item.kind != "scratch" and (item.name, item.last_step) in covered else 1)
        while end < len(starts) and starts[end] <= last:
            slots[end].append(index)
            end += 1
        size = item.size_bytes // unit
        boxes.append(Box(begin, end, size, min(size, item.over.distance // unit) if item.over else size))
    ties = _ties(items, [(index, over) for index, over in overs], unit)
    neighbours = _meetings(slots, boxes, {(tie.output, tie.source) for tie in ties})
    packing = Packing(tuple(boxes), unit, _maximal(slots, boxes), neighbours, _largest_load(boxes), ties)
    return replace(packing, shifts=_shifts(packing))


def _meetings(
    slots: Sequence[Sequence[int]], boxes: Sequence[Box], apart: set[tuple[int, int]]
) -> tuple[tuple[int, ...], ...]:
    """Return, per box, those that live at the same time, except ties. Each meeting is recorded at the later one's
    birth."""
    meets: list[list[int]] = [[] for _ in boxes]
    tied = {index for pair in apart for index in pair}
    for slot, live in enumerate(slots):
        there = [index for index in live if boxes[index].begin < slot]
        for index in live:
            if boxes[index].begin == slot:
                met = there
                if index in tied:
                    met = [other for other in there if (index, other) not in apart and (other, index) not in apart]
                meets[index] += met
                for other in met:
                    meets[other].append(index)
                there = [*there, index]
    return tuple(tuple(sorted(found)) for found in meets)


def _ties(items: Sequence[Buffer], overs: Sequence[tuple[int, Over]], unit: int) -> tuple[Tie, ...]:
    home = {item.name: index for index, item in enumerate(items) if item.kind != "scratch"}
    return tuple(Tie(index, home[over.name], over.distance // unit, over.exact) for index, over in overs)


def _shifts(packing: Packing) -> dict[int, tuple[tuple[int, int, int], ...]]:
    """Return `shifts` for `fit`: a box may be below `low - size` or above `high` of every interval."""
    found: dict[int, tuple[tuple[int, int, int], ...]] = {}
    for tie in packing.ties:
        output, source = packing.boxes[tie.output].size, packing.boxes[tie.source].size
        for low, high in tie.forbidden(packing):
            found[tie.source] = (*found.get(tie.source, ()), (tie.output, low + source, high))
            found[tie.output] = (*found.get(tie.output, ()), (tie.source, output - high, -low))
    return found


def _largest_load(boxes: Sequence[Box]) -> int:
    """Return the largest load of any slot."""
    change = [0] * (max((box.end for box in boxes), default=0) + 2)
    for box in boxes:
        change[box.begin] += box.first
        change[box.begin + 1] += box.size - box.first
        change[box.end] -= box.size
    return max(itertools.accumulate(change))


def _maximal(slots: Sequence[Sequence[int]], boxes: Sequence[Box]) -> tuple[tuple[int, ...], ...]:
    """Return live sets not contained in the next one: those at whose end a box dies before another is born."""
    keep, ends = list[tuple[int, ...]](), {box.end for box in boxes}
    for index, slot in enumerate(slots):
        if index + 1 == len(slots) or index + 1 in ends:
            keep.append(tuple(slot))
    return tuple(keep)


# ---- one pass -------------------------------------------------------------------------------------------------------


def fit(packing: Packing, sequence: Iterable[int], tightest: bool = False) -> Placement:
    """Place boxes in this sequence, each in the lowest (or the tightest) gap that its neighbours leave."""
    found = fit_below(packing, sequence, math.inf, tightest)
    assert found is not None, "there is no limit"
    return found


def fit_below(
    packing: Packing,
    sequence: Iterable[int],
    limit: float,
    tightest: bool = False,
    begun: Mapping[int, int] | None = None,
) -> Placement | None:
    """Return `fit`, or None as soon as it is not below a limit. begun: boxes placed already -> their offsets."""
    places: list[tuple[int, int] | None] = [None] * len(packing.boxes)
    for index, offset in (begun or {}).items():
        places[index] = offset, offset + packing.boxes[index].size
    for index in sequence:
        size = packing.boxes[index].size
        occupied = [place for other in packing.neighbours[index] if (place := places[other]) is not None]
        for other, low, high in packing.shifts.get(index, ()):
            place = places[other]
            if place is not None and high > low - size:
                occupied.append((place[0] + low, place[0] + high))
        occupied.sort()
        offset = _gap(occupied, size, tightest)
        if offset + size >= limit:
            return None
        places[index] = offset, offset + size
    offsets = tuple(-1 if place is None else place[0] for place in places)
    height = max((place[1] for place in places if place is not None), default=0)
    return Placement(offsets, height, height == packing.bound)


def _gap(occupied: list[tuple[int, int]], size: int, tightest: bool) -> int:
    """Return the offset of the lowest gap of at least `size`, or of the smallest such gap."""
    top, best, slack = 0, -1, -1
    for low, high in occupied:
        room = low - top - size
        if room >= 0 and (slack < 0 or room < slack):
            best, slack = top, room
            if not tightest:
                return best
        if high > top:
            top = high
    return best if slack >= 0 else top


def sequences(packing: Packing) -> list[list[int]]:
    """Return placing sequences: by size, lifetime, area, total load met, birth and death."""
    boxes = packing.boxes
    slot_load = [0] * (max((box.end for box in boxes), default=0) + 1)
    for box in boxes:
        for slot in range(box.begin, box.end):
            slot_load[slot] += box.size
    total = [max(slot_load[box.begin : box.end], default=0) for box in boxes]
    width = [box.end - box.begin for box in boxes]
    area = [(box.end - box.begin) * box.size for box in boxes]
    keys: list[Callable[[int], tuple[int, ...]]] = [
        lambda i: (-boxes[i].size, boxes[i].begin),
        lambda i: (-width[i], -boxes[i].size),
        lambda i: (-area[i], boxes[i].begin),
        lambda i: (-total[i], -area[i], -width[i]),
        lambda i: (-total[i], -width[i], -area[i]),
        lambda i: (-width[i], -area[i], -total[i]),
        lambda i: (boxes[i].begin, -boxes[i].size),
        lambda i: (-boxes[i].end, -boxes[i].size),
    ]
    return [sorted(range(len(boxes)), key=lambda i, key=key: (*key(i), i)) for key in keys]


def greedy(packing: Packing) -> tuple[Placement, list[int]]:
    """Return the lowest of several greedy placements, and its sequence; stop at the bound, or at the limit of work."""
    best: Placement | None = None
    chosen: list[int] = []
    passes = max(2, GREEDY_MEETINGS // max(packing.meetings, 1))
    for number, sequence in enumerate(sequences(packing)):
        if 2 * number >= passes:
            break
        for tightest in (False, True):
            found = fit_below(packing, sequence, math.inf if best is None else best.height, tightest)
            if found is not None:
                best, chosen = found, sequence
                if best.proven:
                    return best, chosen
    assert best is not None, "there is always a sequence to try"
    return best, chosen


# ---- local search ---------------------------------------------------------------------------------------------------


def improve_placement(
    packing: Packing, start: Placement, sequence: Sequence[int], units: float, seed: int
) -> Placement:
    """Improve by hill climbing on the placing sequence: boxes near the top, and their neighbours, are placed
    earlier."""
    draw = random.Random(seed)
    cost = packing.meetings + len(packing.boxes)
    rounds = int(units * FITS_PER_UNIT / max(cost, 1))
    current, placed, best = list(sequence), fit(packing, sequence), start
    idle, patience = 0, PATIENCE_BASE + PATIENCE_PER_BOX * len(packing.boxes)
    for _ in range(rounds):
        if best.proven or idle > patience:
            break
        idle += 1
        trial = _perturbed(packing, current, placed, draw)
        same = next((i for i, pair in enumerate(zip(current, trial, strict=True)) if pair[0] != pair[1]), len(trial))
        begun = {index: placed.offsets[index] for index in trial[:same]}  # where that sequence had them
        found = fit_below(packing, trial[same:], placed.height + 1, begun=begun)
        if found is not None:
            current, placed = trial, found
            if found.height < best.height:
                best, idle = found, 0
    return best


def _perturbed(packing: Packing, sequence: list[int], placed: Placement, draw: random.Random) -> list[int]:
    """Move a box that reaches the top, or swap one of its neighbours with any other box."""
    tops = [i for i, box in enumerate(packing.boxes) if placed.offsets[i] + box.size == placed.height]
    top = draw.choice(tops)
    trial = list(sequence)
    if draw.random() < 0.5 or not packing.neighbours[top]:
        trial.remove(top)
        trial.insert(draw.randrange(len(trial) + 1), top)
        return trial
    first = trial.index(draw.choice(packing.neighbours[top]))
    second = draw.randrange(len(trial))
    trial[first], trial[second] = trial[second], trial[first]
    return trial
