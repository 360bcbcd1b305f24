"""Plans that are used again: `--lock FILE` takes order and addresses from an earlier plan.json instead of searching.

Nothing in the file is believed. Order, places and lives are re-validated on the graph at hand, totals are worked out
anew, and a minimum counts as proven only where the lower bound itself proves it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.buffers import Buffer, BufferKind, Over, load_of
from tinytrain_compile.ir.stages import MemoryPlan, Rematerialisation
from tinytrain_compile.plan.bounds import peak_bound
from tinytrain_compile.plan.model import build_model
from tinytrain_compile.plan.options import PlanError, PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.plan.remat import Planned
from tinytrain_compile.plan.remat_rewrite import replay
from tinytrain_compile.plan.validate import validate_plan
from tinytrain_compile.plan.validate_remat import validate_remat

WAY_OUT = "compile without --lock, then use the new plan.json"


@dataclass(frozen=True)
class Lock:
    """What a lock file says: names in order, buffers with places, and how --update would ask for what it trains."""

    file: str
    update: str
    order: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    graph: tuple[str, ...] = ()
    again: Mapping[str, str] = field(default_factory=dict[str, str])
    """With second runs: the nodes as the graph lists them, and what each second run repeats."""


def read_lock(path: Path) -> Lock:
    """Read a plan.json. CompileError E0106 if it cannot be read or is not one."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        order = tuple(_text(node["name"]) for node in content["order"])
        buffers = tuple(_buffer(entry) for entry in content["buffers"])
        names = tuple(_text(name) for name in content.get("graph", ()))
        again = {_text(run["name"]): _text(run["of"]) for run in content.get("second_runs", ())}
        return Lock(path.name, _text(content["update"]), order, buffers, names, again)
    except OSError as problem:
        what = f"cannot be read ({problem.strerror or problem})"
        raise CompileError("E0106", path.name, what, "give the plan.json of an earlier output") from problem
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        what = "is not a plan that this compiler wrote, in one memory"
        raise CompileError("E0106", path.name, what, "give the plan.json of an earlier output") from problem


def _text(item: object) -> str:
    if not isinstance(item, str):
        raise TypeError("a name is a string")
    return item


def _number(item: object) -> int:
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < 1 << 40:
        raise TypeError("sizes, offsets and steps are whole numbers")
    return item


def _buffer(entry: Mapping[str, object]) -> Buffer:
    if entry.get("memory", "arena") != "arena":
        raise ValueError("a lock is a plan in one memory")
    kind = entry["kind"]
    if kind not in get_args(BufferKind):
        raise ValueError(f"unknown kind of buffer {kind!r}")
    size, offset, first, last = (_number(entry[key]) for key in ("size_bytes", "offset", "first_step", "last_step"))
    values = tuple(_text(name) for name in cast(Sequence[object], entry["values"]))
    over = _over(cast(Mapping[str, object], entry["over"])) if "over" in entry else None
    return Buffer(_text(entry["name"]), cast(BufferKind, kind), size, offset, first, last, values, over)


def _over(entry: Mapping[str, object]) -> Over:
    return Over(_text(entry["name"]), _number(entry["distance"]), entry["exact"] is True, _number(entry["saved_bytes"]))


def plan_from_lock(graph: Graph, lock: Lock, options: PlanOptions) -> Planned:
    """The plan of a lock for this graph, and the graph with the lock's second runs.

    CompileError E0106 if the lock does not match, or would corrupt memory or results.
    """
    try:
        rewritten, runs = replay(graph, lock.graph, lock.again) if lock.again else (graph, ())
        plan = _plan(rewritten, lock, options)
        validate_plan(rewritten, plan, options)
        if runs:
            validate_remat(graph, rewritten, plan)
            without = plan_memory(graph, replace(options, effort="quick")).arena_bytes
            plan = replace(plan, remat=Rematerialisation(runs, without, plan.arena_bytes, False))
    except PlanError as problem:
        raise CompileError("E0106", lock.file, f"does not fit this model and options ({problem})", WAY_OUT) from problem
    return Planned(rewritten, plan)


def _plan(graph: Graph, lock: Lock, options: PlanOptions) -> MemoryPlan:
    nodes = {node.name: node for node in graph.nodes}
    strange = [name for name in lock.order if name not in nodes] or sorted(set(nodes) - set(lock.order))
    if strange:
        where = "the lock" if strange[0] in lock.order else "the model"
        raise PlanError("order incomplete", f"only {where} has a node {strange[0]!r}")
    count = max(len(lock.order), 1)
    if any(not buffer.first_step <= buffer.last_step < count for buffer in lock.buffers):
        raise PlanError("lifetime", f"a buffer lives outside of the {count} steps")
    load = load_of(lock.buffers, len(lock.order))
    lower, arena = max(load), max((b.offset + b.size_bytes for b in lock.buffers), default=0)
    fixed = sum(b.size_bytes for b in lock.buffers if b.kind in ("header", "state", "accumulator"))
    return MemoryPlan(
        tuple(nodes[name] for name in lock.order),
        lock.buffers,
        {name: buffer.offset for buffer in lock.buffers for name in buffer.values},
        {buffer.name: buffer.offset for buffer in lock.buffers if buffer.kind == "scratch"},
        arena,
        sum(value.size_bytes for value in graph.state),
        lower,
        load.index(lower),
        order_proven=lower <= fixed + peak_bound(build_model(graph, options).tasks),
        placement_proven=arena == lower,
    )
