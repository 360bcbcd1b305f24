"""Exact placement by branch and bound over skylines: decide whether everything fits below a limit.

A state is the skyline (per slot, the address below which nothing more is placed) and the set of remaining boxes. Only
canonical placements are searched: push every box down until it rests on the floor or on another one. Then, over any
slot of a valley (a run of equal floors between higher ones), there are only these cases: a box that lies wholly
in the valley rests on its floor, or bytes over that slot stay unused up to the next address at which something can
rest. The search branches on the slot with the fewest cases; a slot that is full to the limit can waste nothing, so the
search is narrow exactly where a packing is tight. Sets of boxes are bit masks, in rising order of size.

A box that may cover another one (`Tie`) is lower in its first slot, where the other one is. That models everything
except "exactly so far above". Also, a box of height 0 in a slot must come before the boxes that rest on it, which no
order of branching ensures. With such boxes, a search that finds nothing proves nothing.

Whether a depth-first search meets a placement soon is a matter of luck: a wrong early choice costs everything below it.
So runs are short at first, and most have preferences drawn at random; each length that is new is given to every
strategy. All runs share the states that are known to fail, which depend on no preference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tinytrain_compile.plan.counted import add_work
from tinytrain_compile.plan.place.placement import Decision, Packing, Placement

NODES_PER_UNIT = 25_000
"""States per unit of deterministic time (measured: about a second in CPython)."""

RUN_PER_BOX = 6
"""States of the shortest run, per box (measured: 4 to 8 are equally good on the MiniMalloc instances G, I and K)."""

_HIGH = 1 << 60
"""Address above every offset."""


class _Branch(NamedTuple):
    """One branching: boxes that may rest on the floor of a slot, and the floor if none does (-1: one must)."""

    slot: int
    boxes: int
    raised: int


@dataclass(frozen=True)
class _Strategy:
    """Preferences of a run.

    rank: (slots, size, largest load met) of a box; of those that compete for a slot the smallest rank comes first.
    lowest_first: of slots with equally few cases, take the lowest floor, else the one with most room.
    """

    rank: Callable[[int, int, int], tuple[int, ...]]
    lowest_first: bool


_STRATEGIES = (
    _Strategy(lambda width, size, _load: (-width, -size), lowest_first=True),
    _Strategy(lambda width, size, _load: (-size, -width), lowest_first=True),
    _Strategy(lambda width, size, load: (-load, -width * size), lowest_first=False),
)


@dataclass
class _Frame:
    """An open branching: remaining tries, data to undo the latest one, the state's key (None: only one way to
    continue)."""

    branch: _Branch
    floor: int
    tries: list[int]
    key: int | None
    placed: int = -1
    wasted: bool = False


class _SkylineSearch:
    """Depth-first runs with several strategies; what failed in one is not tried in another."""

    def __init__(self, packing: Packing, limit: int) -> None:
        self.order = sorted(range(len(packing.boxes)), key=lambda i: (packing.boxes[i].first, i))
        boxes = [packing.boxes[i] for i in self.order]
        self.first = [box.first for box in boxes]
        self.exact = _exact_shifts(packing, self.order)
        self.limit = limit
        self.begin, self.end = [box.begin for box in boxes], [box.end for box in boxes]
        self.size = [box.size for box in boxes]
        self.slots = max((box.end for box in boxes), default=0)
        self.cover = [0] * self.slots
        self.begins_from = [0] * (self.slots + 1)
        self.ends_by = [0] * (self.slots + 1)
        for index, box in enumerate(boxes):
            for slot in range(box.begin, box.end):
                self.cover[slot] |= 1 << index
            for slot in range(box.begin + 1):
                self.begins_from[slot] |= 1 << index
            for slot in range(box.end, self.slots + 1):
                self.ends_by[slot] |= 1 << index
        self.load, self.waiting = [0] * self.slots, [0] * self.slots
        for box in boxes:
            for slot in range(box.begin, box.end):
                self.waiting[slot] += 1
                self.load[slot] += box.size if slot > box.begin else box.first
        self.most = [max(self.load[box.begin : box.end]) for box in boxes]
        self.rank: list[tuple[float, ...]] = []
        self.lowest_first = True
        self.floor = [0] * self.slots
        self.left = (1 << len(boxes)) - 1
        self.offset = [0] * len(boxes)
        # Hashes of failed states: two of some 10**5 states sharing one of 2**61 is too unlikely to spend memory on.
        self.failed: set[int] = set()

    def prefer(self, strategy: _Strategy, draw: random.Random | None) -> None:
        """Set the preferences of the next run; with `draw`, each number of a rank is multiplied by 0 to 2."""
        boxes = zip(self.begin, self.end, self.size, self.most, strict=True)
        self.rank = [strategy.rank(end - begin, size, load) for begin, end, size, load in boxes]
        if draw is not None:
            self.rank = [tuple(number * draw.uniform(0, 2) for number in rank) for rank in self.rank]
        self.lowest_first = strategy.lowest_first

    def run(self, nodes: int) -> tuple[bool | None, int]:
        """Return (whether there is a placement, or None if `nodes` states were not enough; states visited)."""
        stack: list[_Frame] = []
        for visited in range(1, nodes + 1):
            branch = self._narrowest()
            if branch is None:
                return True, visited
            frame = self._open(branch)
            if frame is not None:
                stack.append(frame)
            while stack and not self._advance(stack[-1]):
                key = stack.pop().key
                if key is not None:
                    self.failed.add(key)
            if not stack:
                return False, visited
        while stack:
            self._undo(stack.pop())
        return None, nodes

    # ---- where to branch --------------------------------------------------------------------------------------------

    def _narrowest(self) -> _Branch | None:
        """Return the branching with the fewest cases over all slots of all valleys; None if everything is placed."""
        best: _Branch | None = None
        fewest = (_HIGH, 0, 0)
        start = 0
        while start < self.slots:
            if not self.waiting[start]:
                start += 1
                continue
            floor, stop = self.floor[start], start + 1
            while stop < self.slots and self.floor[stop] == floor and self.waiting[stop]:
                stop += 1
            before, behind = self._wall(start - 1), self._wall(stop)
            if before > floor and behind > floor:
                for slot in range(start, stop):
                    branch = self._cases(slot, start, stop, min(before, behind))
                    count = branch.boxes.bit_count() + (branch.raised >= 0)
                    if count <= 1:
                        return branch
                    among_equals = floor if self.lowest_first else floor + self.load[slot]
                    if best is None or (count, branch.raised >= 0, among_equals) < fewest:
                        best, fewest = branch, (count, branch.raised >= 0, among_equals)
            start = stop
        return best

    def _wall(self, slot: int) -> int:
        """Return the floor beside a valley; a slot in which nothing more is placed has none, but nothing crosses it
        either."""
        return self.floor[slot] if 0 <= slot < self.slots and self.waiting[slot] else _HIGH

    def _cases(self, slot: int, start: int, stop: int, wall: int) -> _Branch:
        """Return the cases for a slot of the valley [start, stop)."""
        inside = self.left & self.begins_from[start] & self.ends_by[stop]
        resting = inside & self.cover[slot]
        floor = self.floor[slot]
        slack = self.limit - floor - self.load[slot]
        if resting and not slack:
            return _Branch(slot, resting, -1)
        # If nothing rests here, the next box over this slot crosses a wall, or rests on one that misses the slot.
        raised = wall
        support = inside & ~self.cover[slot]
        if resting and support:
            raised = min(raised, floor + self.first[(support & -support).bit_length() - 1])
        return _Branch(slot, resting, raised if raised - floor <= slack else -1)

    # ---- moves and undoing them -------------------------------------------------------------------------------------

    def _open(self, branch: _Branch) -> _Frame | None:
        """Return a frame for a branching; None if it has no cases or the state is known to fail."""
        if not branch.boxes and branch.raised < 0:
            return None
        forced = branch.boxes.bit_count() + (branch.raised >= 0) == 1
        key = None if forced else self._key()
        if key in self.failed:
            return None
        tries: list[int] = []
        rest = branch.boxes
        while rest:
            tries.append((rest & -rest).bit_length() - 1)
            rest &= rest - 1
        # The best is taken from the end; of equal boxes only one is tried.
        tries.sort(key=lambda i: (self.rank[i], self.begin[i], -i), reverse=True)
        tries = [i for i in tries if self._allowed(i, self.floor[branch.slot])]
        distinct = {(self.begin[i], self.end[i], self.size[i], self.first[i], self.exact.get(i)): i for i in tries}
        return _Frame(branch, self.floor[branch.slot], list(distinct.values()), key)

    def _key(self) -> int:
        """Return a hash of the state; the floor of a slot in which nothing more is placed does not count."""
        return hash((self.left, tuple([f if waits else -1 for f, waits in zip(self.floor, self.waiting, strict=True)])))

    def _advance(self, frame: _Frame) -> bool:
        """Undo the frame's latest try and make its next one; return False if there is none."""
        over = frame.wasted
        self._undo(frame)
        if frame.tries:
            frame.placed = frame.tries.pop()
            self.offset[frame.placed] = frame.floor
            self._move(frame.placed, frame.floor, 1)
            return True
        frame.wasted = frame.branch.raised >= 0 and not over
        if frame.wasted:
            self.floor[frame.branch.slot] = frame.branch.raised
        return frame.wasted

    def _undo(self, frame: _Frame) -> None:
        """Restore the state before the frame's latest try."""
        if frame.placed >= 0:
            self._move(frame.placed, frame.floor, 0)
        elif frame.wasted:
            self.floor[frame.branch.slot] = frame.floor
        frame.placed, frame.wasted = -1, False

    def _move(self, box: int, floor: int, placed: int) -> None:
        """Place a box on a floor (1), or lift it again (0)."""
        begin, end, size = self.begin[box], self.end[box], self.size[box]
        self.floor[begin:end] = [floor + placed * size] * (end - begin)
        self.floor[begin] = floor + placed * self.first[box]
        self.left ^= 1 << box
        sign = -1 if placed else 1
        for slot in range(begin, end):
            self.load[slot] += sign * size
            self.waiting[slot] += sign
        self.load[begin] += sign * (self.first[box] - size)

    def _allowed(self, box: int, floor: int) -> bool:
        """Tell whether all exact ties permit a box at this address."""
        top = floor + self.size[box]
        return all(
            self.left >> other & 1 or top <= self.offset[other] + low or floor >= self.offset[other] + high
            for other, low, high in self.exact.get(box, ())
        )


def _exact_shifts(packing: Packing, order: list[int]) -> dict[int, tuple[tuple[int, int, int], ...]]:
    """Return `Packing.shifts` of exact ties, by position in `order`."""
    place = {index: position for position, index in enumerate(order)}
    exact = {index for tie in packing.ties if tie.exact for index in (tie.output, tie.source)}
    return {
        place[index]: tuple((place[other], low, high) for other, low, high in packing.shifts[index] if other in exact)
        for index in exact
    }


def _lengths() -> Iterator[int]:
    """Yield 1, 1, 2, 1, 1, 2, 4, ...: lengths of runs for unknown luck (Luby, Sinclair and Zuckerman, 1993)."""
    number, length = 1, 1
    while True:
        yield length
        number, length = (number + 1, 1) if number & -number == length else (number, 2 * length)


def _runs(tried: _SkylineSearch) -> Iterator[int]:
    """Prepare `tried` for run after run, and yield the states of each."""
    draw, longest = random.Random(0), 0
    for length in _lengths():
        nodes = length * RUN_PER_BOX * len(tried.order)
        if length > longest:
            longest = length
            for strategy in _STRATEGIES:
                tried.prefer(strategy, None)
                yield nodes
        else:
            tried.prefer(draw.choice(_STRATEGIES), draw)
            yield nodes


def search(packing: Packing, limit: int, units: float) -> Decision:
    """Look for a placement of height at most `limit`, with `units` of deterministic time for all runs."""
    if limit < packing.bound:
        return Decision("no", None)
    tried, left = _SkylineSearch(packing, limit), int(units * NODES_PER_UNIT)
    for nodes in _runs(tried):
        found, visited = tried.run(min(nodes, left))
        left -= visited
        add_work("node", visited)
        if found:
            return _placed(packing, tried)
        if found is False:
            loose = any(tie.exact or tie.distance == 0 for tie in packing.ties)
            return Decision("unknown" if loose else "no", None)
        if not left:
            break
    return Decision("unknown", None)


def _placed(packing: Packing, tried: _SkylineSearch) -> Decision:
    """Return the placement at which a search has arrived."""
    offsets = [0] * len(packing.boxes)
    for position, index in enumerate(tried.order):
        offsets[index] = tried.offset[position]
    height = max((o + box.size for o, box in zip(offsets, packing.boxes, strict=True)), default=0)
    return Decision("yes", Placement(tuple(offsets), height, height == packing.bound))
