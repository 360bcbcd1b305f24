"""An independent judge of plans: it shares only data types with the planner and knows nothing of storages or chains.

It replays the order value by value: every write of a node (outputs, scratch) must leave intact what is still needed.
Time is counted in half steps: a read at step t needs its value at 2t, a value that must outlive step t at 2t + 1.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tinytrain_compile.ir import Graph, Node, Value
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of, inplace_of, overlaps_of, scratch_bytes
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.plan.check.buffers import check_buffers, check_totals
from tinytrain_compile.plan.check.facts import Facts, gather, is_view
from tinytrain_compile.plan.options import PlanError, PlanOptions


def validate_plan(graph: Graph, plan: MemoryPlan, options: PlanOptions) -> None:
    """Raise PlanError, with a verdict per way to be wrong, unless running the plan corrupts nothing."""
    _check_order(graph, plan)
    _check_image(graph, plan)
    facts = gather(graph, plan, options)
    _check_addresses(facts)
    _check_shared_addresses(facts)
    _check_persistent(facts)
    _check_guard(facts)
    _check_writes(facts)
    check_buffers(facts)
    check_totals(facts)


# ---- order ----------------------------------------------------------------------------------------------------------


def _check_order(graph: Graph, plan: MemoryPlan) -> None:
    if sorted(node.name for node in plan.order) != sorted(node.name for node in graph.nodes):
        raise PlanError("order incomplete", "the plan does not run every node exactly once")
    by_name = {node.name: node for node in graph.nodes}
    produced = graph.producers()
    known: set[str] = set()
    applying = False
    for node in plan.order:
        if by_name[node.name] != node:
            raise PlanError("order incomplete", f"node {node.name!r} is not the one of the graph")
        for value in node.inputs:
            if value.name in produced and value.name not in known:
                raise PlanError("order not topological", f"{node.name!r} runs before {value.name!r} exists")
        known.update(value.name for value in node.outputs)
        if applying and node.phase == "step":
            raise PlanError("phase", f"{node.name!r} of phase step runs after an apply node")
        applying = applying or node.phase == "apply"


def _check_image(graph: Graph, plan: MemoryPlan) -> None:
    """An image that comes row by row has no place: nobody else may read it, or run before it without need."""
    image = graph.inputs[:1]
    others = [node.name for node in graph.nodes if not takes_lines(node) and any(v in image for v in node.inputs)]
    takers = sum(takes_lines(node) for node in graph.nodes)
    if takers > 1 or (takers and others):
        raise PlanError("image", f"it is taken row by row, and by {(*others, 'another node')[0]!r} too")
    for step, node in enumerate(plan.order):
        if takes_lines(node):
            early = {other.name for other in plan.order[:step]} - graph.ancestors(node.outputs)
            if early:
                raise PlanError("image", f"{min(early)!r} runs before the image is there")


# ---- addresses ------------------------------------------------------------------------------------------------------


def _check_addresses(facts: Facts) -> None:
    plan = facts.plan
    for name in facts.planned:
        if name not in plan.offsets:
            raise PlanError("missing value", f"{name!r} has no address")
    for name in plan.offsets:
        if name not in facts.planned:
            raise PlanError("unknown value", f"{name!r} has an address but does not live in the arena")
    ranges = [(name, *facts.range_of(name)) for name in facts.planned]
    for node in plan.order:
        size = scratch_bytes(node)
        if size > 0 and node.name not in plan.scratch_offsets:
            raise PlanError("missing scratch", f"{node.name!r} needs {size} bytes of scratch and has no address for it")
        if size > 0:
            low = plan.scratch_offsets[node.name]
            ranges.append((node.name, low, low + size))
    for name, low, high in (*ranges, *((item.name, item.offset, item.offset) for item in plan.buffers)):
        if low % facts.options.alignment_bytes:
            raise PlanError("misaligned", f"{name!r} lies at {low}, alignment {facts.options.alignment_bytes}")
        if low < 0 or high > plan.total_bytes:
            raise PlanError("outside arena", f"{name!r} takes bytes [{low}, {high}) of {plan.total_bytes}")
        if any(low < memory.base < high for memory in plan.further):
            raise PlanError("across memories", f"{name!r} takes bytes [{low}, {high}), where another memory begins")


def _check_shared_addresses(facts: Facts) -> None:
    offsets = facts.plan.offsets
    for node in facts.plan.order:
        definition = op_def(node.op)
        if definition.view and node.outputs[0].name in facts.planned:
            _check_view(facts, node)
        for output, source in alias_of(node):
            one, other = node.outputs[output].name, node.inputs[source].name
            if offsets[one] != offsets[other]:
                raise PlanError("alias broken", f"{one!r} is not where {other!r} is")
    for old, new in facts.graph.updates:
        if new.name not in facts.chain.get(old.name, ()):
            raise PlanError("state moved", f"{new.name!r} does not overwrite {old.name!r} step by step")


def _check_view(facts: Facts, node: Node) -> None:
    """What the operator's definition would move, moves nowhere: it is run on the addresses of elements."""
    name = node.outputs[0].name
    missing = [value.name for value in node.inputs if value.name not in facts.planned]
    if missing:
        raise PlanError("view broken", f"{name!r} shows {missing[0]!r}, which has no place in the arena")
    if node.outputs[0].dtype == "bits":
        broken = facts.plan.offsets[name] != facts.plan.offsets[node.inputs[0].name] or len(node.inputs) > 1
    else:
        places = tuple(_addresses(facts, value) for value in node.inputs)
        (shown,) = op_def(node.op).reference(places, node.attrs)
        broken = not np.array_equal(shown, _addresses(facts, node.outputs[0]))
    if broken:
        raise PlanError("view broken", f"{name!r} is not where {', '.join(value.name for value in node.inputs)!r} is")


def _addresses(facts: Facts, value: Value) -> np.ndarray[Any, np.dtype[np.int64]]:
    item = value.size_bytes // value.elements
    return (facts.plan.offsets[value.name] + item * np.arange(value.elements, dtype=np.int64)).reshape(value.shape)


def _check_persistent(facts: Facts) -> None:
    """What exists before the first step is disjoint; nothing but persistent memory passes from step to apply."""
    present = [(name, *facts.range_of(name)) for name, born in facts.born.items() if born == -1]
    present.append(("header", 0, facts.options.header_bytes))
    for (name, low, high), (other, start, end) in itertools.combinations(present, 2):
        if low < end and start < high:
            raise PlanError("overlap", f"{name!r} and {other!r} share memory before the first step")
    persistent = {name for names in facts.chain.values() for name in names}
    made_by = facts.graph.producers()
    for node in facts.plan.order:
        for value in node.inputs if node.phase == "apply" else ():
            maker = made_by.get(value.name)
            transient = value.name in facts.planned and _root(facts, value.name) not in persistent
            if transient and (maker is None or maker.phase == "step"):
                raise PlanError("phase", f"{node.name!r} of phase apply reads {value.name!r}, which m_accumulate loses")
    blocks = sorted(
        (facts.plan.offsets[value.name], facts.options.reserved(value.size_bytes)) for value in facts.graph.state
    )
    bases = {memory.base for memory in facts.plan.further}
    for (low, size), (following, _) in itertools.pairwise(blocks):
        if low + size != following and following not in bases:
            raise PlanError(
                "state scattered", f"nothing of the state lies at {low + size}: each memory holds it in one block"
            )


def _check_guard(facts: Facts) -> None:
    """Nothing that outlives a step is overwritten before the value is known on which that depends."""
    guard = facts.graph.guard
    lasting = {name for names in facts.chain.values() for name in names[1:]}
    known = guard not in facts.graph.producers()
    for node in facts.plan.order:
        early = [value.name for value in node.outputs if value.name in lasting and not known]
        if early and node.phase == "step":
            raise PlanError("guard", f"{node.name!r} writes {early[0]!r} before {guard!r} is known")
        known = known or guard in (value.name for value in node.outputs)


def _root(facts: Facts, name: str) -> str:
    """The value whose memory a view shows."""
    made_by = facts.graph.producers()
    while name in made_by and op_def(made_by[name].op).view:
        name = made_by[name].inputs[0].name
    return name


# ---- writes ---------------------------------------------------------------------------------------------------------


def _writes(facts: Facts, node: Node) -> list[tuple[str, int, int]]:
    """(value name, or "" for scratch; low; high) of all that a node writes."""
    found = [
        (value.name, *facts.range_of(value.name))
        for position, value in enumerate(node.outputs)
        if not is_view(node, position)
    ]
    size = scratch_bytes(node)
    if size > 0:
        low = facts.plan.scratch_offsets[node.name]
        found.append(("", low, low + size))
    return found


def _check_writes(facts: Facts) -> None:
    # What a view shows must be intact from where it was written: its bytes of each value that is written there.
    names = [(name, source) for name, shown in facts.written.items() for source in shown]
    ranges = [(*facts.range_of(name), *facts.range_of(source)) for name, source in names]
    low = np.array([max(one, other) for one, _, other, _ in ranges], dtype=np.int64)
    high = np.array([min(one, other) for _, one, _, other in ranges], dtype=np.int64)
    there = low < high
    born = np.array([facts.born[source] for _, source in names], dtype=np.int64)
    needed = np.array([facts.needed[name] for name, _ in names], dtype=np.int64)
    for step, node in enumerate(facts.plan.order):
        writes = _writes(facts, node)
        for (one, start, end), (two, begin, stop) in itertools.combinations(writes, 2):
            if start < stop and begin < end:
                raise PlanError(
                    "overlap", f"{node.name!r} writes {one or 'scratch'!r} and {two or 'scratch'!r} over each other"
                )
        for written, start, end in writes:
            if start < facts.options.header_bytes:
                raise PlanError("overlap", f"{node.name!r} writes {written or 'scratch'!r} over the header")
            hit = there & (born < 2 * step) & (needed >= 2 * step) & (low < end) & (high > start)
            for index in np.flatnonzero(hit):
                _judge(facts, step, node, written, names[int(index)][0])


def _judge(facts: Facts, step: int, node: Node, written: str, victim: str) -> None:
    """A node writes over a value that is needed at this step or later: allowed only as a declared last use."""
    same = written != "" and facts.plan.offsets[written] == facts.plan.offsets[victim]
    pairs = [
        (output, source)
        for output, value in enumerate(node.outputs)
        for source, read in enumerate(node.inputs)
        if value.name == written and read.name == victim
    ]
    if facts.needed[victim] > 2 * step:
        verdict = "write after read" if pairs else "overlap"
        raise PlanError(
            verdict, f"{node.name!r} writes {written or 'scratch'!r} over {victim!r}, which is needed later"
        )
    if any(pair in alias_of(node) for pair in pairs):
        return
    declared = {(item.output, item.source): item for item in overlaps_of(node)}
    if pairs and all(pair in declared for pair in pairs):
        above = facts.plan.offsets[victim] - facts.plan.offsets[written]
        if all(declared[pair].allows(above) for pair in pairs):
            return
        raise PlanError("distance", f"{node.name!r} writes {written!r} where it has yet to read {victim!r}")
    if not pairs or not same:
        raise PlanError("overlap", f"{node.name!r} writes {written or 'scratch'!r} over {victim!r}, which it reads")
    equal = facts.planned[written].size_bytes == facts.planned[victim].size_bytes
    if not equal or not any(pair in inplace_of(node) for pair in pairs):
        raise PlanError("in place", f"{node.op} ({node.name!r}) may not work in place on {victim!r}")
