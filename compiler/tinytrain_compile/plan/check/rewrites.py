"""Checks of rewritten graphs: page moves copy the right values, second runs repeat the first ones, streams are safe.

They share only data types with the rewriting code. The check of streams replays calls row by row, on memory whose bytes
tell their map and row (prepared weights: their node). So it sees every row that is read before it is written or after
it was overwritten. The cause may be a ring that is too short, working memory, or a result that covers an operand.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import Overlap, alias_of, row_form
from tinytrain_compile.ops.input_lines import LINES
from tinytrain_compile.ops.rows import RowForm, row_pitch
from tinytrain_compile.ops.stream import StreamAttrs, position_bytes
from tinytrain_compile.plan.options import PlanError


def validate_paging(before: MemoryPlan, plan: MemoryPlan) -> None:
    """Raise PlanError unless the plan runs the nodes of `before`, on the same contents."""
    shown: dict[str, str] = {}  # moved value -> the value of `before` that it copies
    stale: set[str] = set()  # copies of parameters that have changed since
    names = [node.name for node in plan.order if not op_def(node.op).page]
    if names != [node.name for node in before.order]:
        raise PlanError("order incomplete", "the plan without page moves is not the one it was made from")
    original = iter(before.order)
    for node in plan.order:
        for value in node.inputs:
            if value.name in stale:
                raise PlanError("stale page", f"{node.name!r} reads {value.name!r}, whose original has changed since")
        if op_def(node.op).page:
            _check_move(node, plan)
            shown[node.outputs[0].name] = shown.get(node.inputs[0].name, node.inputs[0].name)
            continue
        twin = next(original)
        meant = [
            (shown.get(one.name, one.name), other.name) for one, other in zip(node.inputs, twin.inputs, strict=True)
        ]
        if any(one != other for one, other in meant) or node != replace(twin, inputs=node.inputs):
            raise PlanError("another computation", f"{node.name!r} does not read what it reads without page moves")
        for _, source in alias_of(node):
            name = node.inputs[source].name
            if name in shown:
                raise PlanError("update of a copy", f"{node.name!r} changes {name!r}, which is a copy of a parameter")
            stale |= {copy for copy, of in shown.items() if of == name}


def _check_move(node: Node, plan: MemoryPlan) -> None:
    """Check that PageOut copies from the arena to another memory, and PageIn from there to the arena."""
    if node.inputs[0].name not in plan.offsets:
        raise PlanError("page move", f"{node.name!r} moves {node.inputs[0].name!r}, which lies in no memory")
    source = plan.place(plan.offsets[node.inputs[0].name])[0]
    target = plan.place(plan.offsets[node.outputs[0].name])[0]
    good = (source == 0 and target > 0) if op_def(node.op).page == "out" else (source > 0 and target == 0)
    if not good:
        raise PlanError("page move", f"{node.name!r} moves from memory {source} to memory {target}")


def validate_remat(original: Graph, rewritten: Graph, plan: MemoryPlan) -> None:
    """Raise PlanError unless the plan of the rewritten graph gives the original's results, bit for bit."""
    if replace(rewritten, nodes=()).__dict__ != replace(original, nodes=()).__dict__:
        raise PlanError("graph changed", "rematerialisation changed more than nodes")
    _check_versions(rewritten, plan)
    _check_meaning(original, plan)


def _check_versions(graph: Graph, plan: MemoryPlan) -> None:
    """Replay the moves: every persistent memory holds one content at a time, identified by the value last written
    there."""
    persistent = {value.name for value in (*graph.state, *graph.accumulators)}
    home = {name: name for name in persistent}
    shown = {name: name for name in persistent}  # value or view -> the content it stands for
    held = {name: name for name in persistent}
    first: set[str] = set()
    for node in plan.order:
        for value in node.inputs:
            content = shown.get(value.name)
            if content is not None and held[home[content]] != content:
                again = _signature(node) in first
                verdict = "recompute after update" if again else "write after read"
                raise PlanError(verdict, f"{node.name!r} reads {value.name!r}, which was overwritten before")
        first.add(_signature(node))
        definition = op_def(node.op)
        if definition.view and node.inputs[0].name in shown:
            shown[node.outputs[0].name] = shown[node.inputs[0].name]
        for out, source in alias_of(node):
            content = shown.get(node.inputs[source].name)
            if content is not None:
                name = node.outputs[out].name
                home[name], shown[name] = home[content], name
                held[home[content]] = name


def _signature(node: Node) -> str:
    """Return a description of the node that a clone repeats, only for the text of the verdict."""
    return f"{node.op}|{node.origin}|{node.attrs!r}"


def _check_meaning(original: Graph, plan: MemoryPlan) -> None:
    """Check that every value of the plan stands for one value of the original graph, and every original node runs
    once."""
    by_name = {node.name: node for node in original.nodes}
    made_by: dict[tuple[Hashable, ...], Node] = {}
    known = _classes(original, made_by)
    meaning: dict[str, str] = {}
    ran: set[str] = set()
    for node in plan.order:
        inputs = tuple(meaning.get(value.name, value.name) for value in node.inputs)
        source = by_name.get(node.name) or made_by.get(_key(node, inputs))
        if source is None or _key(source, tuple(known.get(v.name, v.name) for v in source.inputs)) != _key(
            node, inputs
        ):
            raise PlanError("another computation", f"{node.name!r} is no run of a node of the graph")
        if node.name not in by_name and alias_of(node):
            raise PlanError("state twice", f"{node.name!r} changes what {source.name!r} changes")
        if node.name in by_name:
            ran.add(node.name)
        for one, other in zip(node.outputs, source.outputs, strict=True):
            if one.type != other.type:
                raise PlanError("another computation", f"{one.name!r} is not of the type of {other.name!r}")
            meaning[one.name] = known[other.name]
    missing = [name for name in by_name if name not in ran]
    if missing:
        raise PlanError("order incomplete", f"{missing[0]!r} never runs")


def _classes(graph: Graph, made_by: dict[tuple[Hashable, ...], Node]) -> dict[str, str]:
    """Return value -> the first value with the same content: stateless nodes that read the same give the same
    results."""
    known: dict[str, str] = {}
    for node in graph.nodes:
        key = _key(node, tuple(known.get(value.name, value.name) for value in node.inputs))
        twin = made_by.setdefault(key, node) if not alias_of(node) else node
        for value, other in zip(node.outputs, twin.outputs, strict=True):
            known[value.name] = other.name
    return known


def _key(node: Node, inputs: tuple[str, ...]) -> tuple[Hashable, ...]:
    return (node.op, node.attrs, node.phase, inputs)


_NOTHING, _PREPARED, _POSITION = -1, 1 << 40, 1 << 41
"""Marks of bytes of working memory, of prepared weights (plus the node's number), and of a stream's position."""
_ROWS = 1 << 20
"""Row numbers reserved per node; a larger one would be taken for a row of the next node."""
_ALIGNMENT = 8
"""Alignment in bytes of buffers in scratch, as in generated C (Scratch of lower/printing/c_text.py)."""

Bytes = NDArray[np.int64]


def validate_streams(graph: Graph, streamed: Graph) -> None:
    """Raise PlanError unless the streams are safe, compute what the graph does, and leave its other nodes in place."""
    nodes = [inner for node in streamed.nodes for inner in _inner(node)]
    if sorted(node.name for node in nodes) != sorted(node.name for node in graph.nodes):
        raise PlanError("stream nodes", "with what its streams compute, the graph has other nodes than before")
    before = {node.name: node for node in graph.nodes}
    different = [node.name for node in nodes if before[node.name] != node]
    if different:
        raise PlanError("stream nodes", f"{different[0]!r} is not the node of the graph")
    for node in streamed.nodes:
        if isinstance(node.attrs, StreamAttrs):
            validate_stream(node)


def validate_stream(node: Node) -> None:
    """Raise PlanError unless a stream's calls, rings, working memory and covers are safe."""
    attrs = node.attrs
    assert isinstance(attrs, StreamAttrs)
    _check_operands(node, attrs)
    for cover in (None, *attrs.covers):
        if cover is not None and (cover.step != 1 or cover.distance < 0):
            raise PlanError("stream cover", f"{node.name!r} declares a distance of {cover.distance}")
        _Replay(node, attrs, cover).run()


def _inner(node: Node) -> tuple[Node, ...]:
    return node.attrs.nodes if isinstance(node.attrs, StreamAttrs) else (node,)


def _check_operands(node: Node, attrs: StreamAttrs) -> None:
    made: set[str] = set()
    for inner in attrs.nodes:
        missing = [v.name for v in inner.inputs if v.name not in made and v.name not in attrs.inputs]
        if missing:
            raise PlanError("stream operands", f"{inner.name!r} reads {missing[0]!r} before it exists")
        if row_form(inner) is None:
            raise PlanError("stream operands", f"{inner.name!r} cannot be computed by rows")
        made.update(value.name for value in inner.outputs)
    _check_overwritten(node, attrs)
    rings = [ring.name for ring in attrs.rings]
    if any(cover.output in dict(attrs.overwrites) for cover in attrs.covers):
        raise PlanError("stream cover", f"{node.name!r} covers an operand with what overwrites another")
    if any(op_def(inner.op).error is not None for inner in attrs.nodes) and attrs.covers:
        raise PlanError("stream cover", f"{node.name!r} has errors, so that it may run twice, and covers what it reads")
    if sorted([*rings, *attrs.outputs]) != sorted(made) or made & set(attrs.inputs):
        raise PlanError("stream operands", f"{node.name!r}: a value has no place, or two")


def _check_overwritten(node: Node, attrs: StreamAttrs) -> None:
    """Check that operands overwritten by inner nodes come from outside, are declared, and have no later or simultaneous
    reader.

    A sum is applied after the last call; all other nodes overwrite in every call.
    """
    found: list[tuple[int, int]] = []
    for inner in attrs.nodes:
        form = row_form(inner)
        for out, source in alias_of(inner):
            victim, result = inner.inputs[source].name, inner.outputs[out].name
            if victim not in attrs.inputs or result not in attrs.outputs:
                raise PlanError("stream operands", f"{inner.name!r} overwrites {victim!r}, which is not from outside")
            found.append((attrs.outputs.index(result), attrs.inputs.index(victim)))
            beside = [o for o in attrs.nodes if o is not inner and victim in (value.name for value in o.inputs)]
            late = [other for other in beside if form is None or form.sum is None or _sums(other)]
            if late or [v.name for v in inner.inputs].count(victim) > 1:
                raise PlanError("stream operands", f"{inner.name!r} overwrites {victim!r}, which others read too")
    if sorted(found) != sorted(attrs.overwrites) or len({source for _, source in found}) < len(found):
        raise PlanError("stream operands", f"{node.name!r} does not say what it overwrites, or overwrites it twice")


def _sums(node: Node) -> bool:
    form = row_form(node)
    return form is not None and form.sum is not None


@dataclass(frozen=True)
class _Map:
    """Place of rows: row r is at start + r % slots * pitch of a memory. number: marks its bytes, together with the
    row."""

    memory: Bytes
    start: int
    pitch: int
    slots: int
    number: int

    def row(self, row: int) -> slice:
        """Return the bytes of a row."""
        low = self.start + row % self.slots * self.pitch
        return slice(low, low + self.pitch)

    def says(self, row: int) -> int:
        """Return the mark of a row's bytes."""
        return self.number * _ROWS + row


class _Replay:
    """One run of a stream. cover: a result that overlaps an operand, at the declared distance."""

    def __init__(self, node: Node, attrs: StreamAttrs, cover: Overlap | None) -> None:
        self._node, self._attrs = node, attrs
        self._scratch: Bytes = np.full(attrs.scratch_bytes, _NOTHING)
        forms = [row_form(inner) for inner in attrs.nodes]
        self._forms = [form for form in forms if form is not None]
        self._maps = dict(self._outside(cover)) | dict(self._rings())

    def _outside(self, cover: Overlap | None) -> Iterator[tuple[str, _Map]]:
        """Yield operands, which exist, and results; each in its own memory, except the two of a cover."""
        node, attrs = self._node, self._attrs
        read = {inner.inputs[i].name for inner, f in zip(attrs.nodes, self._forms, strict=True) for i in f.maps}
        pairs = [*zip(attrs.inputs, node.inputs, strict=True), *zip(attrs.outputs, node.outputs, strict=True)]
        memories: dict[str, tuple[Bytes, int]] = {}
        if cover is not None:
            over, under = attrs.outputs[cover.output], attrs.inputs[cover.source]
            sizes = [node.outputs[cover.output].size_bytes, node.inputs[cover.source].size_bytes + cover.distance]
            shared: Bytes = np.full(max(sizes), _NOTHING)
            memories = {over: (shared, 0), under: (shared, cover.distance)}
        maps = {inner.outputs[0].name for inner, f in zip(attrs.nodes, self._forms, strict=True) if f.sum is None}
        for number, (name, value) in enumerate(pairs):
            if name in read or name in maps:
                memory, start = memories.get(name) or (np.full(value.size_bytes, _NOTHING), 0)
                found = _Map(memory, start, row_pitch(value), value.shape[1], number)
                if number < len(attrs.inputs):
                    for row in range(value.shape[1]):
                        memory[found.row(row)] = found.says(row)
                yield name, found

    def _rings(self) -> Iterator[tuple[str, _Map]]:
        values = {value.name: value for inner in self._attrs.nodes for value in inner.outputs}
        first = len(self._attrs.inputs) + len(self._attrs.outputs)
        for number, ring in enumerate(self._attrs.rings, first):
            pitch = row_pitch(values[ring.name])
            outside = ring.rows < 1 or ring.offset < 0 or ring.offset + ring.rows * pitch > self._attrs.scratch_bytes
            if outside or ring.offset % _ALIGNMENT:
                raise PlanError("stream scratch", f"the ring of {ring.name!r} does not lie in scratch")
            yield ring.name, _Map(self._scratch, ring.offset, pitch, ring.rows, number)

    def run(self) -> None:
        """Raise PlanError at the first call that reads a missing row."""
        attrs, done = self._attrs, [0] * len(self._attrs.nodes)
        for index, form in enumerate(self._forms):
            low = attrs.work[index]
            if low < 0 or low % _ALIGNMENT or low + form.scratch_bytes > attrs.scratch_bytes:
                raise PlanError("stream scratch", f"node {index} of {self._node.name!r} works outside of scratch")
            self._scratch[low : low + form.kept_bytes] = _PREPARED + index
        self._begin()
        for call in attrs.calls:
            if not 0 <= call.node < len(done) or call.first != done[call.node] or call.rows < 1:
                raise PlanError("stream order", f"{self._node.name!r} computes row {call.first} out of turn")
            done[call.node] += call.rows
            self._call(call.node, call.first, call.rows)
            self._position()
        for name, value in zip(attrs.outputs, self._node.outputs, strict=True):
            if name in self._maps:
                self._check(name, range(value.shape[1]), "the end")
        for index, (inner, form) in enumerate(zip(attrs.nodes, self._forms, strict=True)):
            read = inner.outputs[0] if form.sum is None else inner.inputs[form.maps[-1]]
            if alias_of(inner) and done[index] != read.shape[1]:
                raise PlanError("stream sum", f"{inner.name!r} leaves its last rows out, which count")
            if form.sum is not None:
                self._prepared(index)

    def _begin(self) -> None:
        """Begin a call: a stream that waits for rows keeps its position; its first node alone gets one row per call."""
        attrs = self._attrs
        taken = [index for index, inner in enumerate(attrs.nodes) if inner.op == LINES]
        if taken != ([0] if attrs.position >= 0 else []) or any(c.rows != 1 for c in attrs.calls if c.node in taken):
            raise PlanError("stream order", f"{self._node.name!r} takes rows from its caller otherwise than it says")
        if attrs.position >= 0:
            high = attrs.position + position_bytes(len(attrs.nodes))
            if attrs.position % _ALIGNMENT or high > attrs.scratch_bytes:
                raise PlanError("stream scratch", f"the position of {self._node.name!r} does not lie in scratch")
            self._scratch[attrs.position : high] = _POSITION

    def _position(self) -> None:
        low, size = self._attrs.position, position_bytes(len(self._attrs.nodes))
        if low >= 0 and (self._scratch[low : low + size] != _POSITION).any():
            raise PlanError("stream scratch", f"the position of {self._node.name!r} is overwritten")

    def _call(self, index: int, first: int, rows: int) -> None:
        """Work and write; then check what the call reads and works in (a missing row cannot reappear)."""
        node, form = self._attrs.nodes[index], self._forms[index]
        result = node.outputs[0]
        if first + rows > form.height(node) or rows % form.unit or (form.sum is not None and rows > 1):
            raise PlanError("stream order", f"{node.name!r} computes more rows than it has, or than a call may")
        low = self._attrs.work[index]
        working = slice(low + form.kept_bytes, low + form.scratch_bytes)
        self._scratch[working] = _NOTHING
        if form.sum is None:
            to = self._maps[result.name]
            self._in_one_piece(node, to, first, rows)
            for row in range(first, first + rows):
                to.memory[to.row(row)] = to.says(row)
        self._reads(node, form, first, rows)
        self._prepared(index)
        if (self._scratch[working] != _NOTHING).any():
            raise PlanError("stream scratch", f"{node.name!r} writes its result over its own working memory")

    def _prepared(self, index: int) -> None:
        low, kept = self._attrs.work[index], self._forms[index].kept_bytes
        if (self._scratch[low : low + kept] != _PREPARED + index).any():
            raise PlanError("stream scratch", f"what node {index} of {self._node.name!r} prepares is overwritten")

    def _reads(self, node: Node, form: RowForm, first: int, rows: int) -> None:
        for place, position in enumerate(form.maps):
            value: Value = node.inputs[position]
            needed = form.reads_of(place, first, rows, value.shape[1])
            self._check(value.name, needed, node.name)
            if not (form.windows and place == 0) and needed:
                self._in_one_piece(node, self._maps[value.name], needed.start, len(needed))

    def _check(self, name: str, rows: range, reader: str) -> None:
        found = self._maps[name]
        for row in rows:
            if (found.memory[found.row(row)] != found.says(row)).any():
                raise PlanError("stream row", f"row {row} of {name!r} is not there when {reader!r} reads it")

    def _in_one_piece(self, node: Node, found: _Map, first: int, rows: int) -> None:
        if first % found.slots + rows > found.slots:
            raise PlanError("stream order", f"the rows of a call of {node.name!r} do not lie behind each other")
