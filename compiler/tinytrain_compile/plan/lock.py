"""Reuse of plans: `--lock FILE` takes order and addresses from an earlier plan.json instead of searching.

The file is not trusted. Order, places and lives are validated again on the current graph, and totals are recomputed. A
minimum counts as proven only if the lower bound itself proves it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import MOST_TEXT_BYTES, read_file
from tinytrain_compile.ir.activations import ActivationKind, LowRank
from tinytrain_compile.ir.buffers import Buffer, BufferKind, Over, load_of, offsets_of, scratch_of
from tinytrain_compile.ir.stages import FurtherMemory, MemoryPlan, PageMove, Rematerialisation, SecondRun
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops.base import OPS, op_def
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.check.rewrites import validate_paging, validate_remat, validate_streams
from tinytrain_compile.plan.memories.paging import Move, replay_moves
from tinytrain_compile.plan.memories.spread import POINTER_BYTES
from tinytrain_compile.plan.model import build_model
from tinytrain_compile.plan.options import Memory, PlanError, PlanOptions
from tinytrain_compile.plan.order.order import peak_bound
from tinytrain_compile.plan.planner import Planned, plan_graph, streaming
from tinytrain_compile.plan.price import accessed
from tinytrain_compile.plan.remat.stage import replay
from tinytrain_compile.plan.streams.rewrite import inner_nodes, stream_node, with_streams, without_streams
from tinytrain_compile.plan.views import VIEWS, with_views

ARENA = "arena"
MOST = 1 << 31
"""Upper limit of numbers in a plan: memories end below it."""
WAY_OUT = "compile without --lock, then use the new plan.json"


@dataclass(frozen=True)
class Lock:
    """Contents of a lock file: names in order, buffers with places, and the --update that selects what it trains.

    Offsets run through all memories, as in a plan; bases: name and first byte of each memory besides the arena. views:
    nodes that copy nothing in this plan.
    """

    file: str
    update: str
    order: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    graph: tuple[str, ...] = ()
    again: Mapping[str, str] = field(default_factory=dict[str, str])
    """Second run -> the node that it repeats; with second runs, `graph` has the nodes in the graph's order."""
    bases: Mapping[str, int] = field(default_factory=dict[str, int])
    moves: Mapping[str, Move] = field(default_factory=dict[str, Move])
    views: tuple[str, ...] = ()
    micro_batch: int = 1
    streams: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Name of each stream -> names of the nodes that it computes row by row."""
    prepared: frozenset[str] = frozenset()
    """Nodes whose weights are prepared in flash."""
    copies: Mapping[str, LowRank] = field(default_factory=dict[str, LowRank])
    """Layer -> kind and ranks of the low-rank copy of its input that it keeps."""


def read_lock(path: Path) -> Lock:
    """Read a plan.json. CompileError E0106 if it cannot be read or is not one."""
    try:
        content: Any = json.loads(read_file(path, MOST_TEXT_BYTES))
        order = tuple(_text(node["name"]) for node in content["order"])
        bases = _bases(content)
        buffers = tuple(_buffer(entry, bases) for entry in content["buffers"])
        names = tuple(_text(name) for name in content.get("graph", ()))
        again = {_text(run["name"]): _text(run["of"]) for run in content.get("second_runs", ())}
        moves = {_text(move["name"]): _move(move, bases) for move in content.get("page_moves", ())}
        views = tuple(_text(node["name"]) for node in content["order"] if _text(node.get("op", "")) in VIEWS)
        del bases[ARENA]
        micro = max(_number(content.get("micro_batch", 1)), 1)
        streams = {_text(s["name"]): tuple(map(_text, s["nodes"])) for s in content.get("streams", ())}
        ready = frozenset(map(_text, content.get("prepared", ())))
        copies = {_text(copy["layer"]): _copy(copy) for copy in content.get("copies", ())}
        update = _text(content["update"])
        return Lock(path.name, update, order, buffers, names, again, bases, moves, views, micro, streams, ready, copies)
    except OSError as problem:
        what = f"cannot be read ({problem.strerror or problem})"
        raise CompileError("E0106", path.name, what, "give the plan.json of an earlier output") from problem
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:  # an entry has the wrong type
        what = "is not a plan that this compiler wrote"
        raise CompileError("E0106", path.name, what, "give the plan.json of an earlier output") from problem


def _text(item: object) -> str:
    if not isinstance(item, str):
        raise TypeError("a name is a string")
    return item


def _number(item: object) -> int:
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < MOST:
        raise TypeError("sizes, offsets and steps are whole numbers")
    return item


def _bases(content: Any) -> dict[str, int]:
    """Return the first byte of each memory: after the highest byte of the previous one."""
    bases, top = {ARENA: 0}, 0
    for name in (ARENA, *(_text(name) for name in content.get("memories", ()))):
        bases[name] = top
        inside = (entry for entry in content["buffers"] if entry.get("memory", ARENA) == name)
        top += max((_number(entry["offset"]) + _number(entry["size_bytes"]) for entry in inside), default=0)
        _number(top)
    return bases


def _move(entry: Mapping[str, object], bases: Mapping[str, int]) -> Move:
    op, memory = _text(entry["op"]), _text(entry["memory"])
    if not (op in OPS and op_def(op).page) or memory not in bases:
        raise ValueError("a page move goes out or in")
    return Move(op, _text(entry["of"]), memory)


def _copy(entry: Mapping[str, Any]) -> LowRank:
    kind, ranks = entry["kind"], tuple(map(_number, entry["ranks"]))
    if kind not in get_args(ActivationKind) or not ranks or min(ranks) < 1:
        raise ValueError("a copy has a kind, and ranks from 1 on")
    return LowRank(ranks, cast(ActivationKind, kind))


def _buffer(entry: Mapping[str, Any], bases: Mapping[str, int]) -> Buffer:
    kind = entry["kind"]
    if kind not in get_args(BufferKind):
        raise ValueError(f"unknown kind of buffer {kind!r}")
    size, offset, first, last = (_number(entry[key]) for key in ("size_bytes", "offset", "first_step", "last_step"))
    values = tuple(_text(name) for name in cast(Sequence[object], entry["values"]))
    over = _over(cast(Mapping[str, object], entry["over"])) if "over" in entry else None
    base = bases[_text(entry.get("memory", ARENA))]
    within = tuple((_text(name), _number(start)) for name, start in dict(entry.get("within", {})).items())
    return Buffer(_text(entry["name"]), cast(BufferKind, kind), size, base + offset, first, last, values, over, within)


def _over(entry: Mapping[str, object]) -> Over:
    return Over(_text(entry["name"]), _number(entry["distance"]), entry["exact"] is True, _number(entry["saved_bytes"]))


def plan_from_lock(graph: Graph, lock: Lock, options: PlanOptions, memories: Sequence[Memory] = ()) -> Planned:
    """Return the plan of a lock for this graph, and the graph with the lock's second runs and page moves.

    memories: the lock's further memories. CompileError E0106 if the lock does not match, or would corrupt memory or
    results.
    """
    try:
        further = _memories(lock, memories)
        options = replace(options, header_bytes=options.header_bytes + POINTER_BYTES * len(further))
        by_rows, rewritten, runs = _rewritten(graph, lock, options)
        viewed = _with_views(rewritten, lock.views)
        moved = replay_moves(viewed, lock.order, lock.moves) if lock.moves else viewed
        plan = _plan(moved, lock, options, further)
        validate_plan(moved, plan, options)
        if lock.moves:
            validate_paging(_in_order(viewed, lock, plan), plan)
        if runs:
            validate_remat(by_rows, *_written_out(by_rows, rewritten, _in_order(rewritten, lock, plan)))
            without = plan_graph(by_rows, replace(options, effort="quick")).plan.arena_bytes
            plan = replace(plan, remat=Rematerialisation(runs, without, plan.arena_bytes, False, lock.graph))
        if lock.streams:
            whole, rows = (plan_graph(one, replace(options, effort="quick")).plan for one in (graph, by_rows))
            plan = replace(plan, streams=streaming(whole, (plan if by_rows is graph else rows).arena_bytes))
    except PlanError as problem:
        raise CompileError("E0106", lock.file, f"does not fit this model and options ({problem})", WAY_OUT) from problem
    return Planned(moved, plan)


def _rewritten(graph: Graph, lock: Lock, options: PlanOptions) -> tuple[Graph, Graph, tuple[SecondRun, ...]]:
    """Return (the graph before second runs, the graph with the lock's streams and second runs, the second runs).

    Either a graph with streams has second runs, or one with second runs has streams, whose names it then does not list.
    """
    if not lock.again or set(lock.streams) & set(lock.graph):
        by_rows = _with_streams(graph, lock.streams, options)
        rewritten, runs = replay(by_rows, lock.graph, lock.again) if lock.again else (by_rows, ())
        return by_rows, rewritten, runs
    twice, runs = replay(graph, lock.graph, lock.again)
    return graph, _with_streams(twice, lock.streams, options), runs


def _written_out(before: Graph, rewritten: Graph, plan: MemoryPlan) -> tuple[Graph, MemoryPlan]:
    """Return a graph and its plan, with streams replaced by their nodes unless the graph before has these streams."""
    if any(node.op == "Stream" for node in before.nodes):
        return rewritten, plan
    order = without_streams(replace(rewritten, nodes=plan.order)).nodes
    return without_streams(rewritten), replace(plan, order=order)


def _with_streams(graph: Graph, streams: Mapping[str, Sequence[str]], options: PlanOptions) -> Graph:
    """Return the graph with the lock's streams, rebuilt: the lock tells their nodes, the validator checks them."""
    if not streams:
        return graph
    nodes, found = {node.name: node for node in graph.nodes}, list[Node]()
    for name, inner in streams.items():
        stream = stream_node(graph, [nodes[part] for part in inner if part in nodes], name, options.keep)
        if stream is None or name in nodes:
            raise PlanError("another computation", f"{name!r} cannot be computed row by row")
        found.append(stream)
    made = [inner.name for stream in found for inner in inner_nodes(stream)]
    if len(set(made)) < len(made):
        raise PlanError("another computation", "two streams compute the same node")
    by_rows = with_streams(graph, found)
    validate_streams(graph, by_rows)
    return by_rows


def _with_views(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with the lock's views; the validator checks whether they are possible."""
    able = {node.name for node in graph.nodes if op_def(node.op).as_view}
    strange = [name for name in names if name not in able]
    if strange:
        raise PlanError("another computation", f"node {strange[0]!r} is no Concat or Slice")
    return with_views(graph, names)


def _in_order(graph: Graph, lock: Lock, plan: MemoryPlan) -> MemoryPlan:
    """Return the plan in the lock's order, with the nodes of a graph without page moves."""
    nodes = {node.name: node for node in graph.nodes}
    return replace(plan, order=tuple(nodes[name] for name in lock.order if name not in lock.moves))


def _memories(lock: Lock, memories: Sequence[Memory]) -> list[Memory]:
    """Return the lock's further memories, as large as the user permits."""
    given = {memory.name: memory for memory in memories}
    for name in lock.bases:
        if name not in given:
            raise PlanError("memory", f"buffers lie in {name}: add --memory {name}=SIZE")
    return [given[name] for name in lock.bases]


def _plan(graph: Graph, lock: Lock, options: PlanOptions, memories: Sequence[Memory]) -> MemoryPlan:
    nodes = {node.name: node for node in graph.nodes}
    strange = [name for name in lock.order if name not in nodes] or sorted(set(nodes) - set(lock.order))
    if strange:
        where = "the lock" if strange[0] in lock.order else "the model"
        raise PlanError("order incomplete", f"only {where} has a node {strange[0]!r}")
    count = max(len(lock.order), 1)
    if any(not buffer.first_step <= buffer.last_step < count for buffer in lock.buffers):
        raise PlanError("lifetime", f"a buffer lives outside of the {count} steps")
    load = load_of(lock.buffers, len(lock.order))
    lower, top = max(load), max((b.offset + b.size_bytes for b in lock.buffers), default=0)
    fixed = sum(b.size_bytes for b in lock.buffers if b.kind in ("header", "state", "accumulator"))
    bases = [*lock.bases.values(), top]
    plan = MemoryPlan(
        tuple(nodes[name] for name in lock.order),
        lock.buffers,
        offsets_of(lock.buffers),
        scratch_of(lock.buffers),
        bases[0],
        sum(value.size_bytes for value in graph.state),
        lower,
        load.index(lower),
        order_proven=not lock.moves and lower <= fixed + peak_bound(build_model(graph, options).tasks),
        placement_proven=top == lower,
        paging=tuple(_priced(node, lock.moves[node.name], memories) for node in graph.nodes if node.name in lock.moves),
    )
    return replace(plan, further=tuple(_further(plan, memory, bases[k : k + 2]) for k, memory in enumerate(memories)))


def _further(plan: MemoryPlan, memory: Memory, span: Sequence[int]) -> FurtherMemory:
    """Return a used memory, with the prices of this run; PlanError if it exceeds its capacity."""
    base, end = span
    if end - base > memory.capacity_bytes:
        raise PlanError("memory", f"{memory.name} holds {end - base} B, of {memory.capacity_bytes} B")
    inside = zip(plan.buffers, accessed(plan), strict=True)
    count = sum(size for buffer, size in inside if base <= buffer.offset < end)
    return memory.used(base=base, size_bytes=end - base, accessed_bytes=count, cheapest=False)


def _priced(node: Node, move: Move, memories: Sequence[Memory]) -> PageMove:
    memory = next((memory for memory in memories if memory.name == move.memory), None)
    if memory is None:
        raise PlanError("page move", f"{node.name!r} moves to or from the arena alone")
    size = node.outputs[0].size_bytes
    return PageMove(node.name, move.value, move.op, memory.name, size, memory.move_ps(size), size * memory.copy_pj)
