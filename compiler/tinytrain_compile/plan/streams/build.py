"""One stream: the order in which its rows are computed, the lengths of its ring buffers, and their places in scratch.

The last map is computed row by row; rows that it needs are computed just before, and rows that only others need (masks,
sums over rows) as soon as possible. So a ring holds the rows under windows, and little more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import Overlap, alias_of, op_def, row_form
from tinytrain_compile.ops.input_lines import LINES
from tinytrain_compile.ops.rows import RowForm, row_pitch
from tinytrain_compile.ops.stream import Ring, RowCall, StreamAttrs, position_bytes

ALIGNMENT = 8
"""Alignment of all items in a stream's scratch, in bytes."""

MOST = 255
"""Most nodes of a stream, and most rows of a call: the tables in C are bytes."""

REMEMBERED = 4096
"""Number of remembered streams, with their nodes, inputs and outputs."""

Moments = NDArray[np.bool_]
"""For every call of a stream, whether an item is in use."""


@dataclass(frozen=True)
class _Part:
    """Bytes [start, start + size) of an item of scratch, in use at these calls."""

    start: int
    size: int
    used: Moments


def build_stream(nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> StreamAttrs | None:
    """Return the stream of these nodes, which are in topological order; None if a node has no form by rows.

    None also for more than MOST nodes. inputs: all values read from outside; outputs: results that other nodes need,
    each written whole. Training graphs of one model share most of their streams, so results are remembered.
    """
    return _built(tuple(nodes), tuple(inputs), tuple(outputs))


@lru_cache(maxsize=REMEMBERED)
def _built(nodes: tuple[Node, ...], inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> StreamAttrs | None:
    forms = [form for node in nodes if (form := row_form(node)) is not None]
    if len(forms) < len(nodes) or not outputs or len(nodes) > MOST or max(form.unit for form in forms) > MOST:
        return None
    chain = _Chain(nodes, forms, {value.name for value in outputs})
    calls = chain.calls()
    uses = _Uses(chain, calls)
    rings = {value.name: uses.ring_rows(value) for value in chain.inner}
    items = [*(uses.ring(value, rings[value.name]) for value in chain.inner), *map(uses.work, range(len(nodes)))]
    resumable = nodes[0].op == LINES
    places, scratch = _packed([*items, *([uses.always(position_bytes(len(nodes)))] if resumable else [])])
    return StreamAttrs(
        tuple(nodes),
        tuple(value.name for value in inputs),
        tuple(value.name for value in outputs),
        tuple(Ring(v.name, rings[v.name], at) for v, at in zip(chain.inner, places[: len(rings)], strict=True)),
        tuple(places[len(rings) : len(items)]),
        tuple(calls),
        scratch,
        tuple(uses.covers(inputs, outputs)),
        places[len(items)] if resumable else -1,
        tuple(_overwritten(nodes, inputs, outputs)),
    )


def _overwritten(nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> Iterator[tuple[int, int]]:
    """Yield (output index, input index) of the results of these nodes that overwrite an operand."""
    for node in nodes:
        for out, source in alias_of(node):
            yield outputs.index(node.outputs[out]), inputs.index(node.inputs[source])


class _Chain:
    """The nodes of a stream, and the rows that each of them reads."""

    def __init__(self, nodes: Sequence[Node], forms: Sequence[RowForm], kept: set[str]) -> None:
        self.nodes, self.forms, self.kept = nodes, forms, kept
        self.maker = {n.outputs[0].name: i for i, n in enumerate(nodes) if forms[i].sum is None}
        self.heights = [form.height(node) for node, form in zip(nodes, forms, strict=True)]
        self.inner = [nodes[index].outputs[0] for name, index in self.maker.items() if name not in kept]
        self._needs: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def maps(self, index: int) -> Iterator[tuple[int, Value]]:
        """Yield the values that a node reads by rows, with their places in its form."""
        return ((place, self.nodes[index].inputs[at]) for place, at in enumerate(self.forms[index].maps))

    def calls(self) -> list[RowCall]:
        """Return calls of one row (or unit) each, in the order of the module's docstring."""
        ends = [i for i, node in enumerate(self.nodes) if alias_of(node) or node.outputs[0].name in self.kept]
        last = max(ends, key=lambda index: (self._rank(index), index))
        order = _Order(self, self._ancestors(last), ends)
        for index in (last, *ends):
            for row in range(self.heights[index]):
                order.ensure(index, row + 1)
        return order.found

    def unit(self, value: Value) -> int:
        """Return the number of rows of which a ring must be a multiple, because they are written or read as one
        piece."""
        forms = [self.forms[self.maker[value.name]]]
        for index, form in enumerate(self.forms):
            forms += [form for place, read in self.maps(index) if read == value and (place or not form.windows)]
        return math.lcm(*(form.unit for form in forms))

    def needs(self, index: int, row: int) -> list[tuple[int, int]]:
        """Return (node, end of rows) pairs that must be computed before a node's row."""
        known = self._needs.get((index, row))
        if known is None:
            known = self._needs[index, row] = [*self._looked_up(index, row)]
        return known

    def _looked_up(self, index: int, row: int) -> Iterator[tuple[int, int]]:
        form = self.forms[index]
        for place, value in self.maps(index):
            if value.name in self.maker:
                reads = form.reads_of(place, row, form.unit, value.shape[1])
                yield self.maker[value.name], reads.stop if reads else 0

    def _rank(self, index: int) -> int:
        """Return a rank for the choice of the last map: a map is better than a sum or a peak, and a mask is worst."""
        value = self.nodes[index].outputs[0]
        return 0 if value.dtype == "bits" else 2 if value.name in self.maker and value.name in self.kept else 1

    def _ancestors(self, index: int) -> set[int]:
        found = {index}
        for node in range(index, -1, -1):
            if node in found:
                found |= {self.maker[value.name] for _, value in self.maps(node) if value.name in self.maker}
        return found


class _Order:
    """Calls in the order found. needed: nodes that the last map needs; ends: nodes that must be computed completely."""

    def __init__(self, chain: _Chain, needed: set[int], ends: Sequence[int]) -> None:
        self._chain, self._needed = chain, needed
        self._beside = [index for index in ends if index not in needed]
        self._done = [0] * len(chain.nodes)
        self.found: list[RowCall] = []

    def ensure(self, index: int, until: int) -> None:
        """Compute the missing rows of a node below `until`, and the rows that these need."""
        while self._done[index] < until:
            before = self._done[index]
            for need in self._chain.needs(index, before):
                self.ensure(*need)
            if self._done[index] == before:
                self._compute(index)

    def _compute(self, index: int) -> None:
        """Compute a node's next rows, then all others that have become possible."""
        unit = self._chain.forms[index].unit
        self.found.append(RowCall(index, self._done[index], unit))
        self._done[index] += unit
        for other in self._beside:
            while other != index and self._is_ready(other):
                self.ensure(other, self._done[other] + 1)

    def _is_ready(self, index: int) -> bool:
        """Tell whether a node's next row can be computed without a further row for the last map."""
        row = self._done[index]
        return row < self._chain.heights[index] and all(self._is_there(*n) for n in self._chain.needs(index, row))

    def _is_there(self, index: int, until: int) -> bool:
        """Tell whether a node's rows below `until` are computed, or can be. Later rows of a node need all that earlier
        ones do."""
        done, unit = self._done[index], self._chain.forms[index].unit
        if done >= until or index in self._needed:
            return done >= until
        needs = dict[int, int]()
        for row in range(done, until, unit):
            for maker, below in self._chain.needs(index, row):
                needs[maker] = max(below, needs.get(maker, 0))
        return all(self._is_there(maker, below) for maker, below in needs.items())


class _Uses:
    """Times, as numbers of calls, at which every row is written and last read."""

    def __init__(self, chain: _Chain, calls: Sequence[RowCall]) -> None:
        self._chain, self._calls = chain, calls
        self._written: dict[str, list[int]] = {name: [] for name in chain.maker}
        self._read: dict[str, dict[int, int]] = {}
        for time, call in enumerate(calls):
            node, form = chain.nodes[call.node], chain.forms[call.node]
            if form.sum is None:
                self._written[node.outputs[0].name] += [time] * call.rows
            for place, value in chain.maps(call.node):
                last = self._read.setdefault(value.name, {})
                last.update(dict.fromkeys(form.reads_of(place, call.first, call.rows, value.shape[1]), time))

    def _lives(self, name: str) -> list[tuple[int, int]]:
        """Return, for every row that is computed, the calls that write it and read it last."""
        read = self._read.get(name, {})
        return [(time, read.get(row, time)) for row, time in enumerate(self._written[name])]

    def ring_rows(self, value: Value) -> int:
        """Return the fewest slots, in whole units, in which no row is overwritten that is still read."""
        lives, unit = self._lives(value.name), self._chain.unit(value)
        first, most = 0, 1
        for row, (written, _) in enumerate(lives):
            while lives[first][1] < written:
                first += 1
            most = max(most, row - first + 1)
        return -(-most // unit) * unit

    def ring(self, value: Value, rows: int) -> list[_Part]:
        """Return a ring as an item of scratch."""
        used = np.zeros(len(self._calls), bool)
        for written, read in self._lives(value.name):
            used[written : read + 1] = True
        return [_Part(0, rows * row_pitch(value), used)]

    def work(self, index: int) -> list[_Part]:
        """Return the working memory of a node: the prepared part stays, the rest is free between its calls."""
        form = self._chain.forms[index]
        own = np.array([call.node == index for call in self._calls])
        kept = _Part(0, form.kept_bytes, np.ones(len(self._calls), bool))
        rest = _Part(form.kept_bytes, form.scratch_bytes - form.kept_bytes, own)
        return [part for part in (kept, rest) if part.size]

    def always(self, size: int) -> list[_Part]:
        """Return an item of `size` bytes that stays from the first call to the last."""
        return [_Part(0, size, np.ones(len(self._calls), bool))]

    def covers(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Iterator[Overlap]:
        """Yield results that may cover maps from outside, with the distance by which these must begin above them.

        None for a stream with errors: the first step runs it more than once.
        """
        errors = any(op_def(node.op).error is not None for node in self._chain.nodes)
        for source, value in () if errors else enumerate(inputs):
            last = self._read.get(value.name)
            if last is None or list(inputs).count(value) > 1:
                continue
            needed = np.full(len(self._calls) + 1, value.shape[1])
            for row, time in last.items():
                needed[time] = min(needed[time], row)
            oldest = np.minimum.accumulate(needed[::-1])[::-1]  # the first row that a call or a later one reads
            for output, result in enumerate(outputs):
                if result.name not in self._written:
                    continue
                far = [
                    (row + 1) * row_pitch(result) - int(oldest[time]) * row_pitch(value)
                    for row, time in enumerate(self._written[result.name])
                    if oldest[time] < value.shape[1]
                ]
                yield Overlap(output, source, max([0, *far]))


def _packed(items: Sequence[Sequence[_Part]]) -> tuple[list[int], int]:
    """Return (offset of each item, bytes of all): items that are never in use at the same time may share bytes."""

    def size(index: int) -> int:
        return sum(part.size for part in items[index])

    def always(index: int) -> int:
        return sum(part.size * int(part.used.sum()) for part in items[index])

    numbers = range(len(items))
    found = _placed(items, sorted(numbers, key=lambda i: (-size(i), i)))
    used = [part.size * part.used for item in items for part in item]
    if not used or found[1] <= _aligned(int(np.sum(used, axis=0).max())):
        return found  # items in use at once take as much
    return min(found, _placed(items, sorted(numbers, key=lambda i: (-always(i), i))), key=lambda way: way[1])


def _placed(items: Sequence[Sequence[_Part]], order: Iterable[int]) -> tuple[list[int], int]:
    """Place each item as low as it fits, in this order."""
    places, taken, top = [0] * len(items), list[_Part](), 0
    for index in order:
        item = items[index]
        starts = sorted({0, *(_aligned(max(0, p.start + p.size - o.start)) for p in taken for o in item)})
        places[index] = next(start for start in starts if not _hits(item, start, taken))
        moved = [_Part(places[index] + part.start, part.size, part.used) for part in item]
        taken += moved
        top = max([top, *(part.start + part.size for part in moved)])
    return places, _aligned(top)


def _hits(item: Sequence[_Part], start: int, taken: Sequence[_Part]) -> bool:
    return any(
        start + part.start < other.start + other.size
        and other.start < start + part.start + part.size
        and bool((part.used & other.used).any())
        for part in item
        for other in taken
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
