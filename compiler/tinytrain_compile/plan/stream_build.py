"""One stream: in which order its rows are computed, how long its ring buffers are, and where these lie in scratch.

The last map is asked for row by row; what that needs is computed just before, and what only others need (masks) as
soon as it can be. So a ring holds what windows see, and little more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir import Node, Value
from tinytrain_compile.ops.base import Overlap, row_form
from tinytrain_compile.ops.input_lines import LINES
from tinytrain_compile.ops.row_form import RowForm, row_pitch
from tinytrain_compile.ops.stream import Ring, RowCall, StreamAttrs, position_bytes

ALIGNMENT = 8
"""Of everything that lies in a stream's scratch, in bytes."""

Moments = NDArray[np.bool_]
"""For every call of a stream, whether something is in use."""


@dataclass(frozen=True)
class _Part:
    """Bytes [start, start + size) of an item of scratch, in use at these calls."""

    start: int
    size: int
    used: Moments


def build_stream(nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> StreamAttrs | None:
    """The stream of these nodes, which are in topological order; None if one of them has no form by rows.

    inputs: all that they read from outside; outputs: results that somebody else needs, each written whole.
    """
    forms = [form for node in nodes if (form := row_form(node)) is not None]
    if len(forms) < len(nodes) or not outputs:
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
    )


class _Chain:
    """The nodes of a stream, and which rows of what each of them reads."""

    def __init__(self, nodes: Sequence[Node], forms: Sequence[RowForm], kept: set[str]) -> None:
        self.nodes, self.forms, self.kept = nodes, forms, kept
        self.maker = {node.outputs[0].name: index for index, node in enumerate(nodes)}
        self.heights = [node.outputs[0].shape[1] for node in nodes]
        self.inner = [node.outputs[0] for node in nodes if node.outputs[0].name not in kept]

    def maps(self, index: int) -> Iterator[Value]:
        """The values of which a node reads rows."""
        return (self.nodes[index].inputs[position] for position in self.forms[index].maps)

    def calls(self) -> list[RowCall]:
        """One row a call, in the order of the module's docstring."""
        last = max(i for i, node in enumerate(self.nodes) if node.outputs[0].name in self.kept and self._is_last(i))
        needed = self._ancestors(last)
        beside = [index for index in range(len(self.nodes)) if index not in needed]
        done, found = [0] * len(self.nodes), list[RowCall]()

        def ready(index: int) -> bool:
            first = done[index]
            return first < self.heights[index] and all(
                value.name not in self.maker or done[self.maker[value.name]] >= self._until(index, first, value)
                for value in self.maps(index)
            )

        def compute(index: int) -> None:
            found.append(RowCall(index, done[index], 1))
            done[index] += 1
            for other in beside:
                while other != index and ready(other):
                    found.append(RowCall(other, done[other], 1))
                    done[other] += 1

        def ensure(index: int, until: int) -> None:
            while (row := done[index]) < until:
                for value in self.maps(index):
                    if value.name in self.maker:
                        ensure(self.maker[value.name], self._until(index, row, value))
                if done[index] == row:  # or it was computed as soon as it could be
                    compute(index)

        for index in (last, *(i for i, node in enumerate(self.nodes) if node.outputs[0].name in self.kept)):
            for row in range(self.heights[index]):
                ensure(index, row + 1)
        return found

    def _until(self, index: int, row: int, value: Value) -> int:
        reads = self.forms[index].reads(row, 1, value.shape[1])
        return reads.stop if reads else 0

    def _is_last(self, index: int) -> bool:
        """Whether a kept map is no mask beside another one."""
        return self.nodes[index].outputs[0].dtype != "bits" or all(n.outputs[0].dtype == "bits" for n in self.nodes)

    def _ancestors(self, index: int) -> set[int]:
        found = {index}
        for node in range(index, -1, -1):
            if node in found:
                found |= {self.maker[value.name] for value in self.maps(node) if value.name in self.maker}
        return found


class _Uses:
    """When every row is written and last read, by the calls of a stream."""

    def __init__(self, chain: _Chain, calls: Sequence[RowCall]) -> None:
        self._chain, self._calls = chain, calls
        self._written: dict[str, list[int]] = {name: [] for name in chain.maker}
        self._read: dict[str, dict[int, int]] = {}
        for time, call in enumerate(calls):
            node, form = chain.nodes[call.node], chain.forms[call.node]
            self._written[node.outputs[0].name] += [time] * call.rows
            for value in chain.maps(call.node):
                last = self._read.setdefault(value.name, {})
                last.update(dict.fromkeys(form.reads(call.first, call.rows, value.shape[1]), time))

    def _lives(self, name: str) -> list[tuple[int, int]]:
        """Of every row that is computed: the calls that write it and read it last."""
        read = self._read.get(name, {})
        return [(time, read.get(row, time)) for row, time in enumerate(self._written[name])]

    def ring_rows(self, value: Value) -> int:
        """The fewest slots in which no row is overwritten that is still read."""
        lives = self._lives(value.name)
        first, most = 0, 1
        for row, (written, _) in enumerate(lives):
            while lives[first][1] < written:
                first += 1
            most = max(most, row - first + 1)
        return most

    def ring(self, value: Value, rows: int) -> list[_Part]:
        """A ring as an item of scratch."""
        used = np.zeros(len(self._calls), bool)
        for written, read in self._lives(value.name):
            used[written : read + 1] = True
        return [_Part(0, rows * row_pitch(value), used)]

    def work(self, index: int) -> list[_Part]:
        """The working memory of a node: what is prepared stays, the rest is free between its calls."""
        form = self._chain.forms[index]
        own = np.array([call.node == index for call in self._calls])
        kept = _Part(0, form.kept_bytes, np.ones(len(self._calls), bool))
        rest = _Part(form.kept_bytes, form.scratch_bytes - form.kept_bytes, own)
        return [part for part in (kept, rest) if part.size]

    def always(self, size: int) -> list[_Part]:
        """So many bytes that stay from the first call to the last."""
        return [_Part(0, size, np.ones(len(self._calls), bool))]

    def covers(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Iterator[Overlap]:
        """Which results may lie over which maps from outside, and how far these have to begin above them."""
        for source, value in enumerate(inputs):
            last = self._read.get(value.name)
            if last is None or list(inputs).count(value) > 1:
                continue
            needed = np.full(len(self._calls) + 1, value.shape[1])
            for row, time in last.items():
                needed[time] = min(needed[time], row)
            oldest = np.minimum.accumulate(needed[::-1])[::-1]  # the first row that a call or a later one reads
            for output, result in enumerate(outputs):
                far = [
                    (row + 1) * row_pitch(result) - int(oldest[time]) * row_pitch(value)
                    for row, time in enumerate(self._written[result.name])
                    if oldest[time] < value.shape[1]
                ]
                yield Overlap(output, source, max([0, *far]))


def _packed(items: Sequence[Sequence[_Part]]) -> tuple[list[int], int]:
    """(where each item begins, bytes of all): what is never in use at the same time may share bytes."""

    def size(index: int) -> int:
        return sum(part.size for part in items[index])

    def always(index: int) -> int:
        return sum(part.size * int(part.used.sum()) for part in items[index])

    numbers = range(len(items))
    ways = [_placed(items, sorted(numbers, key=lambda i: (-key(i), i))) for key in (size, always)]
    return min(ways, key=lambda way: way[1])


def _placed(items: Sequence[Sequence[_Part]], order: Iterable[int]) -> tuple[list[int], int]:
    """Each item as low as it fits, in this order."""
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
