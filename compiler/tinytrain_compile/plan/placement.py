"""Addresses for rectangles, greedily: several orders, first fit and best fit, and a counted local search.

Sizes here are in units (bytes divided by their common divisor). Offsets start at 0, above whatever lies below.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tinytrain_compile.plan.model import Rectangle

FITS_PER_UNIT = 5_000_000
"""Neighbours looked at per unit of deterministic time (measured: about a second in CPython)."""

PATIENCE_BASE, PATIENCE_PER_BOX = 50, 5
"""Trials without a better placement after which the local search gives up."""


@dataclass(frozen=True)
class Box:
    """A rectangle in compressed coordinates: slots [begin, end), size in units."""

    begin: int
    end: int
    size: int


@dataclass(frozen=True)
class Packing:
    """Boxes to place, and which of them are ever live together.

    unit_bytes: what one unit of size is. live: per slot, the boxes live in it (only maximal sets are kept).
    neighbours: per box, the boxes that share a slot with it. bound: largest load of a slot.
    """

    boxes: tuple[Box, ...]
    unit_bytes: int
    live: tuple[tuple[int, ...], ...]
    neighbours: tuple[tuple[int, ...], ...]
    bound: int


@dataclass(frozen=True)
class Placement:
    """An offset per box and the height of the whole, in units. `proven`: no placement of these boxes is lower."""

    offsets: tuple[int, ...]
    height: int
    proven: bool


@dataclass(frozen=True)
class Decision:
    """Whether a placement below a limit exists, and one if so."""

    answer: Literal["yes", "no", "unknown"]
    placement: Placement | None


def build_packing(items: Sequence[Rectangle]) -> Packing:
    """Compress: time to ranks of first steps (every largest live set occurs at one), sizes by their divisor."""
    starts = sorted({item.first_step for item in items})
    rank = {step: index for index, step in enumerate(starts)}
    slots: list[list[int]] = [[] for _ in starts]
    unit = math.gcd(*(item.size_bytes for item in items)) or 1
    boxes: list[Box] = []
    for index, item in enumerate(items):
        begin = end = rank[item.first_step]
        while end < len(starts) and starts[end] <= item.last_step:
            slots[end].append(index)
            end += 1
        boxes.append(Box(begin, end, item.size_bytes // unit))
    meets: list[list[int]] = [[] for _ in boxes]
    for slot, live in enumerate(slots):
        for position, index in enumerate(live):
            if boxes[index].begin < slot:
                continue  # its meetings were noted when it, or the other one, was born
            for place, other in enumerate(live):
                if boxes[other].begin < slot or place < position:
                    meets[index].append(other)
                    meets[other].append(index)
    neighbours = tuple(tuple(sorted(found)) for found in meets)
    bound = max((sum(boxes[i].size for i in slot) for slot in slots), default=0)
    return Packing(tuple(boxes), unit, _maximal(slots, boxes), neighbours, bound)


def _maximal(slots: Sequence[Sequence[int]], boxes: Sequence[Box]) -> tuple[tuple[int, ...], ...]:
    """Live sets not contained in the next one: those at whose end a box dies before another is born."""
    keep: list[tuple[int, ...]] = []
    for index, slot in enumerate(slots):
        if index + 1 == len(slots) or any(boxes[i].end == index + 1 for i in slot):
            keep.append(tuple(slot))
    return tuple(keep)


# ---- one pass -------------------------------------------------------------------------------------------------------


def fit(packing: Packing, sequence: Iterable[int], tightest: bool = False) -> Placement:
    """Place boxes in this sequence, each in the lowest (or the tightest) gap that its neighbours leave."""
    offsets = [-1] * len(packing.boxes)
    height = 0
    for index in sequence:
        size = packing.boxes[index].size
        occupied = sorted(
            (offsets[other], offsets[other] + packing.boxes[other].size)
            for other in packing.neighbours[index]
            if offsets[other] >= 0
        )
        offset = _gap(occupied, size, tightest)
        offsets[index] = offset
        height = max(height, offset + size)
    return Placement(tuple(offsets), height, height == packing.bound)


def _gap(occupied: list[tuple[int, int]], size: int, tightest: bool) -> int:
    """Offset of the lowest gap of at least `size`, or of the smallest such gap."""
    top, best, slack = 0, -1, -1
    for low, high in occupied:
        room = low - top - size
        if room >= 0 and (slack < 0 or room < slack):
            best, slack = top, room
            if not tightest:
                return best
        top = max(top, high)
    return best if slack >= 0 else top


def sequences(packing: Packing) -> list[list[int]]:
    """Orders in which to place: by size, lifetime, area, total load met, birth and death."""
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
    """The lowest of several greedy placements and the sequence that gave it; stops when the bound is met."""
    best: Placement | None = None
    chosen: list[int] = []
    for sequence in sequences(packing):
        for tightest in (False, True):
            found = fit(packing, sequence, tightest)
            if best is None or found.height < best.height:
                best, chosen = found, sequence
            if best.proven:
                return best, chosen
    if best is None:
        raise AssertionError("there is always a sequence to try")
    return best, chosen


# ---- local search ---------------------------------------------------------------------------------------------------


def improve_placement(
    packing: Packing, start: Placement, sequence: Sequence[int], units: float, seed: int
) -> Placement:
    """Hill climbing on the placing sequence: boxes near the top, and their neighbours, are placed earlier."""
    draw = random.Random(seed)
    cost = sum(len(near) for near in packing.neighbours) + len(packing.boxes)
    rounds = int(units * FITS_PER_UNIT / max(cost, 1))
    current, placed, best = list(sequence), fit(packing, sequence), start
    idle, patience = 0, PATIENCE_BASE + PATIENCE_PER_BOX * len(packing.boxes)
    for _ in range(rounds):
        if best.proven or idle > patience:
            break
        idle += 1
        trial = _perturbed(packing, current, placed, draw)
        found = fit(packing, trial)
        if found.height <= placed.height:
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
