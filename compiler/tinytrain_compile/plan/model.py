"""The planner's model of a graph: tasks with precedence and the storages that they touch.

A *storage* is a set of values that share one address in every plan: a value, its views, and values that overwrite it by
`OpDef.alias`; or a value with parts and all values in it (`views.py`). A storage is live from the first to the last
task that touches it. That rule is symmetric in time, so an order may be searched from either end. In-place pairs join
two storages into one rectangle, but only in orders where the input's storage dies at the very node that opens the
output's; they are decided per order.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from tinytrain_compile.ir.buffers import BufferKind
from tinytrain_compile.ir.types import Graph, Node, Value, grouped
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import Overlap, alias_of, inplace_of, overlaps_of, scratch_bytes
from tinytrain_compile.ops.input_lines import arena_inputs, takes_lines
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.views import ViewStorages

PERSISTENT_KINDS = ("header", "state", "accumulator")


@dataclass(frozen=True)
class Storage:
    """Values with one address. `exact_bytes` is the tensor's size, `size_bytes` the reserved (aligned) size.

    within: offsets in bytes of values inside a storage that has parts; empty for all others.
    """

    kind: BufferKind
    exact_bytes: int
    size_bytes: int
    values: tuple[str, ...]
    within: tuple[tuple[str, int], ...] = ()


class InPlace(NamedTuple):
    """A task may write storage `output` over `overlap_bytes` of storage `source` if the source dies there.

    Orders count the overlap as never needed twice, whatever its size. `rectangles` joins two storages only if the
    overlap is all of both. A smaller one (a kernel that overwrites what it has read) is left to the placement. The
    source begins at least `distance` bytes above the output (`exact`: exactly there), or they share nothing.
    """

    output: int
    source: int
    overlap_bytes: int
    distance: int = 0
    exact: bool = False


@dataclass(frozen=True)
class TaskGraph:
    """Input of an order search, as plain indices. Tasks are the graph's nodes, then START, then BARRIER.

    START opens the input's storage before all else. BARRIER is between the phases "step" and "apply" and touches
    storages that must survive the whole step. Persistent storages are constant load and do not appear in `touched`.

    before: direct predecessors (data, write-after-read, phase), deduplicated and sorted, per task.
    touched: movable storages that a task reads or writes. size: reserved bytes per storage.
    scratch: reserved bytes of working memory per task. inplace: in-place possibilities per task.
    """

    before: tuple[tuple[int, ...], ...]
    touched: tuple[tuple[int, ...], ...]
    size: tuple[int, ...]
    scratch: tuple[int, ...]
    inplace: tuple[tuple[InPlace, ...], ...]

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """Direct successors, sorted, per task."""
        return _inverse(self.before, len(self.before))

    @cached_property
    def touchers(self) -> tuple[tuple[int, ...], ...]:
        """Tasks that touch a storage, sorted, per storage."""
        return _inverse(self.touched, len(self.size))

    @property
    def start(self) -> int:
        """Index of the START task."""
        return len(self.before) - 2

    @property
    def barrier(self) -> int:
        """Index of the BARRIER task."""
        return len(self.before) - 1

    def reversed(self) -> TaskGraph:
        """Return the same problem seen from the end: an order of it, reversed, is an order of this one with equal
        peak."""
        return replace(self, before=self.after)


def _inverse(table: Sequence[Sequence[int]], count: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each number below `count`, the places in the table that list it."""
    found = grouped((number, place) for place, numbers in enumerate(table) for number in numbers)
    return tuple(tuple(found.get(number, ())) for number in range(count))


@dataclass(frozen=True)
class MemoryModel:
    """A graph's memory, independent of any order."""

    nodes: tuple[Node, ...]
    storages: tuple[Storage, ...]
    tasks: TaskGraph


class _Collector:
    """One walk over a graph in program order that finds storages, versions (contents) and their readers."""

    def __init__(self, graph: Graph, options: PlanOptions) -> None:
        self.options = options
        self.kinds: list[BufferKind] = []
        self.exact: list[int] = []
        self.values: list[list[str]] = []
        self.storage_of: dict[str, int] = {}
        # A version is one content of a storage: a value and its views. Overwriting by alias starts the next version.
        self.version_of: dict[str, int] = {}
        self.version_readers: list[list[int]] = []
        self.writer_of_version: dict[int, int] = {}
        self.lasting: dict[int, None] = {}  # tasks of phase "step" that overwrite storages that outlive it
        self.touched: list[dict[int, None]] = [{} for _ in range(len(graph.nodes) + 2)]
        self.held: set[tuple[int, int]] = set()
        self.parts = ViewStorages(graph, {*options.keep, *(value.name for value in graph.outputs)})
        self.parted: dict[int, int] = {}  # number in `parts` -> storage
        for value in graph.state:
            self.open_storage(value, "state")
        for value in graph.accumulators:
            self.open_storage(value, "accumulator")
        for value in arena_inputs(graph):
            self.touch(len(graph.nodes), self.open_storage(value, "input"))
        for index, node in enumerate(graph.nodes):
            self.visit(index, node)

    def open_storage(self, value: Value, kind: BufferKind) -> int:
        """Return the storage of a value that a node writes; a value inside another one joins that one's storage."""
        home = self.parts.place[value.name].home if value.name in self.parts.place else None
        if home not in self.parted:
            self.kinds.append(kind)
            self.exact.append(value.size_bytes if home is None else self.parts.sizes[home])
            self.values.append([])
        storage = len(self.kinds) - 1 if home is None else self.parted.setdefault(home, len(self.kinds) - 1)
        self.join(value, storage)
        return storage

    def start(self, name: str) -> int:
        """Return a value's offset in its storage, in bytes."""
        return self.parts.place[name].start if name in self.parts.place else 0

    def join(self, value: Value, storage: int, version: int | None = None) -> None:
        if value.size_bytes != self.exact[storage] and value.name not in self.parts.place:
            raise PlanError(
                "alias size", f"{value.name!r} shares the memory of {self.values[storage]} but not its size"
            )
        self.values[storage].append(value.name)
        self.storage_of[value.name] = storage
        if version is None:
            version = len(self.version_readers)
            self.version_readers.append([])
        self.version_of[value.name] = version

    def touch(self, task: int, storage: int) -> None:
        if self.kinds[storage] not in PERSISTENT_KINDS:
            self.touched[task][storage] = None

    def read(self, task: int, name: str) -> None:
        """Note that a task needs a value's content; values in flash or in the caller's memory need no plan."""
        if name in self.storage_of:
            self.touch(task, self.storage_of[name])
            self.version_readers[self.version_of[name]].append(task)

    def visit(self, index: int, node: Node) -> None:
        definition = op_def(node.op)
        for value in node.inputs:
            self.read(index, value.name)
        overwrites = dict(alias_of(node))
        for position, value in enumerate(node.outputs):
            if definition.view and position == 0:
                self._view(node, node.inputs[0], value)
            elif position in overwrites:
                self._overwrite(index, node, node.inputs[overwrites[position]], value)
            else:
                self.open_storage(value, "tensor")
            if value.name in self.storage_of:
                self.touch(index, self.storage_of[value.name])

    def _view(self, node: Node, source: Value, value: Value) -> None:
        if value.name not in self.parts.place and op_def(node.op).placed.starts(node) != (0,):
            raise PlanError("no view", f"what {node.name!r} reads cannot lie where it shows it")
        if source.name in self.storage_of:  # else: a view of flash or of the caller's memory needs no plan either
            self.join(value, self.storage_of[source.name], self.version_of[source.name])

    def _overwrite(self, index: int, node: Node, source: Value, value: Value) -> None:
        if source.name not in self.storage_of or source.name in self.parts.place:
            raise PlanError("constant overwritten", f"node {node.name!r} writes over {source.name!r}")
        version = self.version_of[source.name]
        if version in self.writer_of_version:
            raise PlanError("two writers", f"node {node.name!r} and another one overwrite {source.name!r}")
        self.writer_of_version[version] = index
        if self.kinds[self.storage_of[source.name]] in PERSISTENT_KINDS and node.phase == "step":
            self.lasting[index] = None
        self.join(value, self.storage_of[source.name])

    def hold_outputs(self, graph: Graph) -> None:
        """Hold outputs: inference returns after the last producer of an output, and all outputs must be intact then."""
        producers = graph.producers()
        position = {node.name: index for index, node in enumerate(graph.nodes)}
        for task in (position[producers[v.name].name] for v in graph.outputs if v.name in producers):
            for value in graph.outputs:
                self.read(task, value.name)
                if value.name in self.storage_of:
                    self.held.add((task, self.storage_of[value.name]))

    def write_after_read(self) -> list[tuple[int, int]]:
        """Return edges from every reader of an overwritten content to the task that overwrites it."""
        return [
            (reader, writer)
            for version, writer in self.writer_of_version.items()
            for reader in self.version_readers[version]
            if reader != writer
        ]

    def guarded(self, graph: Graph) -> list[tuple[int, int]]:
        """Return edges from the guard's producer to every task that overwrites storages that outlive the step."""
        made = [index for index, node in enumerate(graph.nodes) if graph.guard in (v.name for v in node.outputs)]
        return [(first, writer) for first in made for writer in self.lasting]

    def in_place(self, index: int, node: Node) -> tuple[InPlace, ...]:
        """Return storages that a node may overwrite; never an output that must outlive this node."""
        pairs: list[InPlace] = []
        for output, source in inplace_of(node):
            # An op may declare pairs for optional operands that this node does not have.
            if output >= len(node.outputs) or source >= len(node.inputs):
                continue
            over = self.storage_of.get(node.inputs[source].name)
            storage = self.storage_of[node.outputs[output].name]
            if over in (None, storage) or self.kinds[over] in PERSISTENT_KINDS or (index, over) in self.held:
                continue
            sizes = {
                self.exact[over],
                self.exact[storage],
                node.inputs[source].size_bytes,
                node.outputs[output].size_bytes,
            }
            if len(sizes) == 1 and self.opens(storage, node.outputs[output].name):
                pairs.append(InPlace(storage, over, self.options.reserved(self.exact[storage])))
        times = Counter(self.storage_of.get(value.name) for value in (*node.inputs, *node.outputs))
        pairs += [pair for overlap in overlaps_of(node) for pair in self.overlap(index, node, overlap, times)]
        return tuple(dict.fromkeys(pairs))

    def opens(self, storage: int, name: str) -> bool:
        """Tell whether a value may be the first content of a storage; with parts, the order decides which value is."""
        return self.values[storage][0] == name or name in self.parts.place

    def overlap(self, index: int, node: Node, overlap: Overlap, times: Mapping[int | None, int]) -> Iterator[InPlace]:
        """Yield the pair of a declared overlap, if it joins two storages and saves bytes. times: how often the node
        reads and writes a storage."""
        source, output = node.inputs[overlap.source].name, node.outputs[overlap.output].name
        over, storage = self.storage_of.get(source), self.storage_of[output]
        # The distance does not hold for a second operand in the same memory.
        if over is None or over == storage or times[over] > 1 or times[storage] > 1:
            return
        if self.kinds[over] in PERSISTENT_KINDS or (index, over) in self.held:
            return
        step = math.lcm(overlap.step, self.options.alignment_bytes)
        # The distance is between values, which need not begin where their storages do.
        inside = self.start(output) - self.start(source)
        if step > self.options.alignment_bytes and inside % step:
            return
        distance = -(-max(overlap.distance + inside, 0) // step) * step
        sizes = [self.options.reserved(self.exact[which]) for which in (storage, over)]
        saved = sum(sizes) - max(sizes[0], distance + sizes[1])
        if saved > 0 and self.opens(storage, output):
            yield InPlace(storage, over, saved, distance, step > self.options.alignment_bytes)


def _data_edges(graph: Graph) -> list[tuple[int, int]]:
    producer = {out.name: index for index, node in enumerate(graph.nodes) for out in node.outputs}
    return [
        (producer[value.name], index)
        for index, node in enumerate(graph.nodes)
        for value in node.inputs
        if value.name in producer
    ]


def _phase_edges(graph: Graph) -> list[tuple[int, int]]:
    start, barrier = len(graph.nodes), len(graph.nodes) + 1
    edges = [(start, barrier)]
    for index, node in enumerate(graph.nodes):
        edges += [(start, index), (index, barrier) if node.phase == "step" else (barrier, index)]
    return edges


def _image_edges(graph: Graph) -> list[tuple[int, int]]:
    """Return edges that make the node that takes the image row by row run before nodes it does not need: the label
    comes later."""
    edges: list[tuple[int, int]] = []
    for index, node in enumerate(graph.nodes):
        if takes_lines(node):
            needed = graph.ancestors(node.outputs)
            edges += [(index, other) for other, one in enumerate(graph.nodes) if one.name not in needed]
    return edges


def build_model(graph: Graph, options: PlanOptions) -> MemoryModel:
    """Collect storages, precedence and in-place possibilities; PlanError if no order can run the graph safely."""
    found = _Collector(graph, options)
    barrier = len(graph.nodes) + 1
    for name in options.keep:
        if name not in found.storage_of and name not in graph.constants:
            raise PlanError("missing value", f"{name!r} is to be kept but is not in the graph's memory")
        found.read(barrier, name)
    found.hold_outputs(graph)
    before: list[dict[int, None]] = [{} for _ in range(barrier + 1)]
    edges = (*_data_edges(graph), *_phase_edges(graph), *_image_edges(graph))
    for first, second in (*edges, *found.write_after_read(), *found.guarded(graph)):
        before[second][first] = None
    sizes = tuple(options.reserved(size) for size in found.exact)
    tasks = TaskGraph(
        tuple(tuple(sorted(edges)) for edges in before),
        tuple(tuple(storages) for storages in found.touched),
        sizes,
        (*(options.reserved(scratch_bytes(node)) for node in graph.nodes), 0, 0),
        (*(found.in_place(index, node) for index, node in enumerate(graph.nodes)), (), ()),
    )
    storages = tuple(
        Storage(
            kind,
            exact,
            size,
            tuple(values),
            tuple((name, found.start(name)) for name in values if name in found.parts.place),
        )
        for kind, exact, size, values in zip(found.kinds, found.exact, sizes, found.values, strict=True)
    )
    program_order(tasks)  # raises if the precedence is cyclic
    return MemoryModel(graph.nodes, storages, tasks)


def program_order(tasks: TaskGraph) -> list[int]:
    """Return the topological order nearest to the order in which the graph lists its nodes."""
    waiting = [len(edges) for edges in tasks.before]
    ready = [task for task, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        task = heapq.heappop(ready)
        order.append(task)
        for follower in tasks.after[task]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) != len(waiting):
        raise PlanError("cyclic", "a value must be read after it is overwritten: no order can run this graph")
    return order
