"""Rematerialisation as a small problem over one order: which storages may be computed twice, when, at which cost and
peak.

A *decision* maps some storages to the operation of the order before which they are computed a second time. Readers from
there on use the second copy, earlier ones the first, so a storage is free from its last reader before that place.
Nothing else is decided: `expand` turns a decision into the sequence of operations, and `profile` into bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tinytrain_compile.ir.types import Graph, Node, grouped
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.plan.model import MemoryModel

Decision = Mapping[int, int]
"""Storage -> stage: the index of the operation before which the storage is computed again."""


@dataclass(frozen=True)
class Operation:
    """One node of the order as far as memory goes. Storages are indices of the memory model, without persistent ones.

    inplace: (storage that it opens, storage that it may overwrite if that dies here, bytes that this saves).
    """

    node: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    scratch: int
    inplace: tuple[tuple[int, int, int], ...]


class Again(NamedTuple):
    """A second run of a storage.

    operation: index of its producer. cost: multiply-accumulates, or elements if there are none. latest: last stage at
    which all persistent memory that the producer reads still has its old content.
    """

    operation: int
    cost: int
    latest: int


@dataclass(frozen=True)
class Problem:
    """An order with all data that a decision changes.

    uses: per storage, indices of the operations that read it, increasing. size: reserved bytes per storage.
    again: storages that may be computed twice. birth: index of the operation that makes a storage (-1: it exists at the
    start). fixed_end: index of the last operation that a storage must survive in any case (-1: none), for example an
    output.
    """

    operations: tuple[Operation, ...]
    size: tuple[int, ...]
    uses: tuple[tuple[int, ...], ...]
    birth: tuple[int, ...]
    fixed_end: tuple[int, ...]
    again: Mapping[int, Again]

    def first_touch(self, storage: int) -> int:
        """Return the index of the operation that opens a storage: its maker, or for an output one that must not disturb
        it."""
        return min((self.birth[storage], *self.uses[storage][:1]))

    def last_use(self, storage: int) -> int:
        """Return the index of the last operation that needs a storage (its maker if nothing reads it)."""
        return max((self.birth[storage], self.fixed_end[storage], *self.uses[storage][-1:]))


class Event(NamedTuple):
    """One run of an operation. `storage` is the one it makes again, or -1 for the first run of an operation."""

    operation: int
    storage: int


def build_problem(graph: Graph, model: MemoryModel, order: Sequence[int]) -> Problem:
    """Return the problem of one valid order of tasks; nodes of phase "apply" and views take no part in it."""
    count = len(model.nodes)
    tasks = [t for t in order if t < count and not op_def(model.nodes[t].op).view and model.nodes[t].phase == "step"]
    operations = tuple(_operation(model, task, _made(model, task)) for task in tasks)
    index_of = {task: index for index, task in enumerate(tasks)}
    uses: list[list[int]] = [[] for _ in model.storages]
    birth = [-1] * len(model.storages)
    for index, operation in enumerate(operations):
        for storage in operation.reads:
            uses[storage].append(index)
        for storage in operation.writes:
            birth[storage] = index
    again = _repeatable(graph, model, operations, index_of)
    fixed = _must_survive(model, tasks, order)
    return Problem(operations, model.tasks.size, tuple(map(tuple, uses)), tuple(birth), tuple(fixed), again)


def _made(model: MemoryModel, task: int) -> set[int]:
    """Return the movable storages that a node opens (not those that it overwrites by alias)."""
    firsts = {value.name for value in model.nodes[task].outputs}
    return {storage for storage in model.tasks.touched[task] if model.storages[storage].values[0] in firsts}


def _operation(model: MemoryModel, task: int, made: set[int]) -> Operation:
    touched = model.tasks.touched[task]
    return Operation(
        task,
        tuple(storage for storage in touched if storage not in made),
        tuple(storage for storage in touched if storage in made),
        model.tasks.scratch[task],
        tuple((pair.output, pair.source, pair.overlap_bytes) for pair in model.tasks.inplace[task]),
    )


def _must_survive(model: MemoryModel, tasks: Sequence[int], order: Sequence[int]) -> list[int]:
    """Return, per storage, the last operation of the step if the barrier or phase "apply" needs the storage, else
    -1."""
    fixed = [-1] * len(model.storages)
    for task in order:
        late = task == model.tasks.barrier or (task < len(model.nodes) and model.nodes[task].phase == "apply")
        for storage in model.tasks.touched[task] if late else ():
            fixed[storage] = len(tasks) - 1
    return fixed


def _repeatable(
    graph: Graph, model: MemoryModel, operations: tuple[Operation, ...], index_of: Mapping[int, int]
) -> dict[int, Again]:
    """Return storages of stateless nodes of phase "step" that only the step's nodes read."""
    held = {value.name for value in graph.outputs}
    barrier = set(model.tasks.touched[model.tasks.barrier])
    writers = _overwriters(graph, index_of)
    found: dict[int, Again] = {}
    for index, operation in enumerate(operations):
        node = model.nodes[operation.node]
        if not is_repeatable(node) or len(operation.writes) != 1:
            continue
        storage = operation.writes[0]
        values = model.storages[storage].values
        if storage in barrier or any(value in held for value in values) or _is_overwritten(model, storage):
            continue
        latest = min((writers.get(value.name, len(operations)) for value in node.inputs), default=len(operations))
        found[storage] = Again(index, node_cost(node), latest)
    return found


def is_repeatable(node: Node) -> bool:
    """Tell whether running a node twice gives the same bytes twice and changes nothing else."""
    definition = op_def(node.op)
    plain = not alias_of(node) and not definition.view and node.op != "Stream"  # no plan repeats these yet
    return node.phase == "step" and plain and len(node.outputs) == 1


def node_cost(node: Node) -> int:
    """Return the multiply-accumulates of a node, or its elements if it has none, so that nothing is free."""
    return op_def(node.op).macs(node) or node.outputs[0].elements


def _is_overwritten(model: MemoryModel, storage: int) -> bool:
    """Tell whether a node overwrites a movable storage by alias, which then has more than one content."""
    names = set(model.storages[storage].values)
    users = [model.nodes[task] for task in model.tasks.touchers[storage] if task < len(model.nodes)]
    return any(node.inputs[source].name in names for node in users for _, source in alias_of(node))


def _overwriters(graph: Graph, index_of: Mapping[int, int]) -> dict[str, int]:
    """Map each persistent value (or view of one) to the index of the operation that overwrites its content."""
    shown: dict[str, str] = {}
    found: dict[str, int] = {}
    for task, node in enumerate(graph.nodes):
        definition = op_def(node.op)
        if definition.view:
            shown[node.outputs[0].name] = shown.get(node.inputs[0].name, node.inputs[0].name)
        for _, source in alias_of(node):
            if task in index_of:  # an overwriter of phase "apply" comes after every stage
                name = node.inputs[source].name
                found[shown.get(name, name)] = index_of[task]
    return found | {view: found[base] for view, base in shown.items() if base in found}


# ---- a decision, carried out ---------------------------------------------------------------------------------------


def expand(problem: Problem, decision: Decision) -> list[Event]:
    """Return the sequence of runs: every operation in its place, second runs before their stage in order of birth."""
    waiting = grouped((stage, storage) for storage, stage in decision.items())
    events: list[Event] = []
    for index in range(len(problem.operations)):
        events += [
            Event(problem.again[storage].operation, storage)
            for storage in sorted(waiting.get(index, ()), key=lambda storage: problem.again[storage].operation)
        ]
        events.append(Event(index, -1))
    return events


class Profile(NamedTuple):
    """Bytes that are live at every event, and (storage, copy) -> (first event, last event) of every copy."""

    loads: list[int]
    lives: dict[tuple[int, int], list[int]]


def profile(problem: Problem, decision: Decision) -> Profile:
    """Return the loads and lives under a decision, in-place outputs included (one byte count per event of `expand`)."""
    events = expand(problem, decision)
    copy = [0] * len(problem.size)
    lives: dict[tuple[int, int], list[int]] = {}
    for now, (index, storage) in enumerate(events):
        operation = problem.operations[index]
        if storage >= 0:
            copy[storage] = 1
        for read in operation.reads:
            begin = 0 if problem.birth[read] < 0 else now  # else: an output that needs its place before it is made
            lives.setdefault((read, copy[read]), [begin, now])[1] = now
        for written in operation.writes:
            lives.setdefault((written, copy[written]), [now, now])[1] = now
    for storage, end in enumerate(problem.fixed_end):
        if end >= 0:
            lives.setdefault((storage, copy[storage]), [0, 0])[1] = len(events) - 1
    loads = _sums(problem, events, lives)
    return Profile(loads, lives)


def _sums(problem: Problem, events: list[Event], lives: dict[tuple[int, int], list[int]]) -> list[int]:
    change = [0] * (len(events) + 1)
    for (storage, _), (first, last) in lives.items():
        change[first] += problem.size[storage]
        change[last + 1] -= problem.size[storage]
    loads: list[int] = []
    live = 0
    copy = [0] * len(problem.size)
    for now, (index, storage) in enumerate(events):
        live += change[now]
        operation = problem.operations[index]
        if storage >= 0:
            copy[storage] = 1
        saved = 0
        for _, source, overlap in operation.inplace:
            if lives[source, copy[source]][1] == now:
                saved = max(saved, overlap)
        loads.append(live + operation.scratch - saved)
    return loads


def with_sources(problem: Problem, storages: Collection[int], lacks: Callable[[int], bool]) -> frozenset[int]:
    """Return the storages, and the repeatable storages that their producers read, as far back as these are lacking."""
    found, open_ = set(storages), list(storages)
    while open_:
        for read in problem.operations[problem.again[open_.pop()].operation].reads:
            if read in problem.again and read not in found and lacks(read):
                found.add(read)
                open_.append(read)
    return frozenset(found)


def extra_cost(problem: Problem, decision: Decision) -> int:
    """Return the cost of all second runs."""
    return sum(problem.again[storage].cost for storage in decision)


def stages_of(problem: Problem, chosen: Collection[int]) -> dict[int, int]:
    """Return the decision that recomputes these storages as late as possible, without those for which that is
    useless."""
    stages: dict[int, int] = {}
    wanted: dict[int, int] = {}  # storage -> earliest stage of a second run that reads it
    for storage in sorted(chosen, key=lambda item: -problem.again[item].operation):
        begin, end = _gap(problem, storage, wanted.get(storage))
        stage = min(end, problem.again[storage].latest)
        if stage <= begin or stage <= problem.birth[storage] + 1:
            continue
        stages[storage] = stage
        for read in problem.operations[problem.again[storage].operation].reads:
            wanted[read] = min(stage, wanted.get(read, stage))
    return stages


def _gap(problem: Problem, storage: int, wanted: int | None) -> tuple[int, int]:
    """Return (last use before, first use after) the longest time without a use; an empty gap if there is no use after
    it."""
    moments = [problem.birth[storage], *problem.uses[storage]]
    if wanted is not None:
        moments = sorted({*moments, wanted})
    gaps = [(after - before, before, after) for before, after in itertools.pairwise(moments)]
    _, begin, end = max(gaps, default=(0, 0, 0))
    return begin, end
