"""Judges of rewritten graphs: page moves copy what they say, and second runs compute what the first ones did."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.plan.options import PlanError


def validate_paging(before: MemoryPlan, plan: MemoryPlan) -> None:
    """Raise PlanError unless the plan runs what `before` runs, on the same contents."""
    shown: dict[str, str] = {}  # what was moved -> the value of `before` that it is a copy of
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
    """Check that out goes from the arena to another memory, in comes from there to the arena."""
    if node.inputs[0].name not in plan.offsets:
        raise PlanError("page move", f"{node.name!r} moves {node.inputs[0].name!r}, which lies in no memory")
    source = plan.place(plan.offsets[node.inputs[0].name])[0]
    target = plan.place(plan.offsets[node.outputs[0].name])[0]
    good = (source == 0 and target > 0) if op_def(node.op).page == "out" else (source > 0 and target == 0)
    if not good:
        raise PlanError("page move", f"{node.name!r} moves from memory {source} to memory {target}")


def validate_remat(original: Graph, rewritten: Graph, plan: MemoryPlan) -> None:
    """Raise PlanError unless the plan of the rewritten graph gives the original's results in every bit."""
    if replace(rewritten, nodes=()).__dict__ != replace(original, nodes=()).__dict__:
        raise PlanError("graph changed", "rematerialisation changed more than nodes")
    _check_versions(rewritten, plan)
    _check_meaning(original, plan)


def _check_versions(graph: Graph, plan: MemoryPlan) -> None:
    """Replay the moves: every persistent memory holds one content at a time, known by the value last written there."""
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
    """Return a clone is named after what it repeats; here only to word the verdict."""
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
    """Return value -> the first value that holds the same: nodes without state that agree in all they read make the
    same."""
    known: dict[str, str] = {}
    for node in graph.nodes:
        key = _key(node, tuple(known.get(value.name, value.name) for value in node.inputs))
        twin = made_by.setdefault(key, node) if not alias_of(node) else node
        for value, other in zip(node.outputs, twin.outputs, strict=True):
            known[value.name] = other.name
    return known


def _key(node: Node, inputs: tuple[str, ...]) -> tuple[Hashable, ...]:
    return (node.op, node.attrs, node.phase, inputs)
