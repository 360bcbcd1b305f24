"""Independent checks of plans: they share only data types with the planner and do not use storages or chains.

They replay the order value by value: no write of a node (outputs, scratch) may change a value that is still needed.
Time is counted in half steps: a read at step t needs its value at 2t, a value that must outlive step t at 2t + 1.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.buffers import Buffer, Over, load_of
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of, inplace_of, overlaps_of, scratch_bytes
from tinytrain_compile.ops.input_lines import arena_inputs, takes_lines
from tinytrain_compile.plan.options import PlanError, PlanOptions


@dataclass(frozen=True)
class Facts:
    """Facts that these checks derive themselves.

    planned: values that need an address. born: half step after which a value exists (-1: before the first step).
    needed: half step until which it must stay intact. chain: persistent value -> names that hold its later contents.
    A view has no bytes of its own and reads nothing: its readers read what nodes have written there. written: value ->
    these written values (itself, unless it is a view).
    """

    graph: Graph
    plan: MemoryPlan
    options: PlanOptions
    planned: dict[str, Value]
    born: dict[str, int]
    needed: dict[str, int]
    chain: dict[str, list[str]]
    written: dict[str, list[str]]

    def range_of(self, name: str) -> tuple[int, int]:
        """Return bytes [low, high) that a planned value occupies."""
        low = self.plan.offsets[name]
        return low, low + self.planned[name].size_bytes


def is_view(node: Node, position: int) -> bool:
    """Tell whether an output is a view of existing bytes."""
    return op_def(node.op).view and position == 0


def _planned_values(graph: Graph, plan: MemoryPlan) -> dict[str, Value]:
    planned = {value.name: value for value in (*graph.state, *graph.accumulators, *arena_inputs(graph))}
    for node in plan.order:
        for position, value in enumerate(node.outputs):
            # A view of something in flash or in the caller's memory stays there.
            if not is_view(node, position) or node.inputs[0].name in planned:
                planned[value.name] = value
    return planned


def gather(graph: Graph, plan: MemoryPlan, options: PlanOptions) -> Facts:
    """Replay the order; PlanError if a needed value does not exist."""
    planned = _planned_values(graph, plan)
    born = dict.fromkeys(planned, -1)
    needed = dict.fromkeys(planned, -1)
    held = dict.fromkeys(value.name for value in graph.outputs)
    last_output = last_step = -1
    for step, node in enumerate(plan.order):
        for value in () if op_def(node.op).view else node.inputs:
            if value.name in planned:
                needed[value.name] = max(needed[value.name], 2 * step)
        for position, value in enumerate(node.outputs):
            if value.name in planned:
                born[value.name] = 2 * step + 1
                needed[value.name] = -1 if is_view(node, position) else 2 * step + 1
        last_output = step if any(value.name in held for value in node.outputs) else last_output
        last_step = step if node.phase == "step" else last_step
    chain = _chains(graph, plan, planned)
    persistent = {name for names in chain.values() for name in names}
    ends = [(name, 2 * last_output + 1) for name in held if name not in persistent]
    ends += [(name, 2 * last_step + 1) for name in options.keep]
    ends += [(names[-1], 2 * len(plan.order) + 1) for names in chain.values()]
    for name, end in ends:
        if name in planned:
            needed[name] = max(needed[name], end)
        elif name not in graph.constants:
            raise PlanError("missing value", f"{name!r} is to be kept but has no place in the arena")
    return Facts(graph, plan, options, planned, born, needed, chain, _written(plan, planned))


def _written(plan: MemoryPlan, planned: dict[str, Value]) -> dict[str, list[str]]:
    """Return value -> the values, written by nodes or the user, that it shows."""
    found = {name: [name] for name in planned}
    for node in plan.order:
        if op_def(node.op).view and node.outputs[0].name in planned:
            shown = (name for value in node.inputs for name in found.get(value.name, ()))
            found[node.outputs[0].name] = list(dict.fromkeys(shown))
    return found


def _chains(graph: Graph, plan: MemoryPlan, planned: dict[str, Value]) -> dict[str, list[str]]:
    """Return persistent value -> the names that hold its content one after another (itself first, views left out)."""
    base = {name: name for name in planned}
    chain = {value.name: [value.name] for value in (*graph.state, *graph.accumulators)}
    owner = {name: name for name in chain}
    for node in plan.order:
        if op_def(node.op).view and node.inputs[0].name in planned:
            base[node.outputs[0].name] = base[node.inputs[0].name]
        for output, source in alias_of(node):
            root = base.get(node.inputs[source].name)
            if root is None:
                raise PlanError("constant overwritten", f"{node.name!r} writes over {node.inputs[source].name!r}")
            if root in owner:
                owner[node.outputs[output].name] = owner[root]
                chain[owner[root]].append(node.outputs[output].name)
    return chain


def check_buffers(facts: Facts) -> None:
    """Check the buffers that reports draw: every value is in one that covers its place and life; live ones are
    disjoint."""
    plan, last = facts.plan, max(len(facts.plan.order) - 1, 0)
    home: dict[str, Buffer] = {}
    for buffer in plan.buffers:
        for name in buffer.values:
            if name in home or name not in facts.planned:
                raise PlanError("buffer", f"{name!r} is in two buffers, or in one but not in the arena")
            home[name] = buffer
    for name, value in facts.planned.items():
        inside = plan.offsets[name] - home[name].offset if name in home else -1
        if inside < 0 or inside + value.size_bytes > home[name].size_bytes:
            raise PlanError("buffer", f"no buffer holds {name!r} where it lies")
        first, until = max(facts.born[name], 0) // 2, min(max(facts.needed[name], 0) // 2, last)
        if home[name].first_step > first or home[name].last_step < until:
            raise PlanError("lifetime", f"{name!r} lives in steps [{first}, {until}], its buffer does not")
    always = [home[names[0]] for names in facts.chain.values()]
    always += [buffer for buffer in plan.buffers if buffer.kind == "header"]
    if any((buffer.first_step, buffer.last_step) != (0, last) for buffer in always):
        raise PlanError("lifetime", "a persistent buffer does not live in every step")
    _check_scratch_buffers(facts)
    for buffer in plan.buffers:
        if buffer.over is not None:
            _check_over(facts, buffer, buffer.over, home)
    _check_disjoint(plan.buffers)


def _check_scratch_buffers(facts: Facts) -> None:
    scratch = {buffer.name: buffer for buffer in facts.plan.buffers if buffer.kind == "scratch"}
    for step, node in enumerate(facts.plan.order):
        size = scratch_bytes(node)
        if size == 0:
            continue
        buffer = scratch.get(node.name)
        if buffer is None or buffer.size_bytes < size or buffer.offset != facts.plan.scratch_offsets[node.name]:
            raise PlanError("buffer", f"no buffer holds the scratch of {node.name!r} where it lies")
        if not buffer.first_step <= step <= buffer.last_step:
            raise PlanError("lifetime", f"the scratch of {node.name!r} is not there when it runs")


def _check_over(facts: Facts, buffer: Buffer, over: Over, home: dict[str, Buffer]) -> None:
    """Check covers: a buffer may cover another one only in the step that opens it and ends the other, as that node
    declares."""
    node = facts.plan.order[buffer.first_step]
    found = [
        item
        for item in overlaps_of(node)
        if home.get(node.outputs[item.output].name) == buffer
        if getattr(home.get(node.inputs[item.source].name), "name", None) == over.name
        if item.allows(
            over.distance
            + _inside(facts, node.inputs[item.source], home)
            - _inside(facts, node.outputs[item.output], home)
        )
    ]
    source = home[node.inputs[found[0].source].name] if found else buffer
    together = source.size_bytes + buffer.size_bytes - max(buffer.size_bytes, over.distance + source.size_bytes)
    beside = [other for other in facts.plan.buffers if other.over and other.first_step == buffer.first_step]
    timely = source.last_step == buffer.first_step and beside == [buffer]
    if not found or not timely or not 0 < over.saved_bytes == together:
        raise PlanError("cover", f"{buffer.name!r} may not cover {over.name!r}, or does not save what the plan says")


def _inside(facts: Facts, value: Value, home: dict[str, Buffer]) -> int:
    return facts.plan.offsets[value.name] - home[value.name].offset


def _check_disjoint(buffers: tuple[Buffer, ...]) -> None:
    columns = np.array(
        [(b.offset, b.offset + b.size_bytes, b.first_step, b.last_step) for b in buffers], dtype=np.int64
    ).reshape(-1, 4)
    for index, (low, high, first, last) in enumerate(columns[:-1]):
        rest = columns[index + 1 :]
        hit = (rest[:, 0] < high) & (rest[:, 1] > low) & (rest[:, 2] <= last) & (rest[:, 3] >= first)
        for other in np.flatnonzero(hit):
            one, two = buffers[index], buffers[index + 1 + int(other)]
            if any(a.over is not None and a.over.name == b.name for a, b in ((one, two), (two, one))):
                continue  # checked at the node's writes
            names = f"{one.name!r} and {two.name!r}"
            raise PlanError("overlap", f"buffers {names} are live together and share memory")


def check_totals(facts: Facts) -> None:
    """Check that the plan's totals are the sums of its buffers."""
    plan = facts.plan
    _check_memories(plan)
    if plan.persistent_bytes != sum(value.size_bytes for value in facts.graph.state):
        raise PlanError("totals", f"{plan.persistent_bytes} is not the size of the state")
    load = load_of(plan.buffers, len(plan.order))
    if plan.lower_bound_bytes != max(load) or load[plan.peak_step] != max(load):
        raise PlanError("totals", f"the largest load is {max(load)}, the plan says {plan.lower_bound_bytes}")
    if plan.placement_proven and plan.total_bytes < max(load):
        raise PlanError("totals", "an arena below the largest load cannot be")


def _check_memories(plan: MemoryPlan) -> None:
    """Check that every memory ends with its highest buffer, the next one begins there, and none is larger than the
    board's."""
    ends = [0] * (1 + len(plan.further))
    for buffer in plan.buffers:
        memory = plan.place(buffer.offset)[0]
        ends[memory] = max(ends[memory], buffer.offset + buffer.size_bytes)
    if plan.arena_bytes != ends[0]:
        raise PlanError("totals", f"the arena of {plan.arena_bytes} bytes does not end with its highest buffer")
    begin = plan.arena_bytes
    for memory, end in zip(plan.further, ends[1:], strict=True):
        if memory.base != begin or max(end, begin) != begin + memory.used_bytes:
            raise PlanError("totals", f"memory {memory.name!r} does not begin and end with its buffers")
        if memory.used_bytes > memory.capacity_bytes:
            raise PlanError(
                "outside memory", f"{memory.used_bytes} bytes in {memory.name!r} of {memory.capacity_bytes}"
            )
        begin += memory.used_bytes


def validate_plan(graph: Graph, plan: MemoryPlan, options: PlanOptions) -> None:
    """Raise PlanError, with a verdict per kind of mistake, unless running the plan corrupts nothing."""
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
    """Check that an image that comes row by row has no place: no other node may read it, or run before it without
    need."""
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
    """Check that a view's operator moves no element, by running its definition on addresses of elements."""
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
    """Check that values that exist before the first step are disjoint; only persistent memory passes from step to
    apply."""
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
            transient = value.name in facts.planned and persistent.isdisjoint(facts.written[value.name])
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
    """Check that nothing that outlives a step is overwritten before the guard value is computed."""
    guard = facts.graph.guard
    lasting = {name for names in facts.chain.values() for name in names[1:]}
    known = guard not in facts.graph.producers()
    for node in facts.plan.order:
        early = [value.name for value in node.outputs if value.name in lasting and not known]
        if early and node.phase == "step":
            raise PlanError("guard", f"{node.name!r} writes {early[0]!r} before {guard!r} is known")
        known = known or guard in (value.name for value in node.outputs)


# ---- writes ---------------------------------------------------------------------------------------------------------


def _writes(facts: Facts, node: Node) -> list[tuple[str, int, int]]:
    """Return (value name, or "" for scratch; low; high) of all that a node writes."""
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
    # The values under a view must be intact from their writes on: the view's bytes of each value written there.
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
    """Judge a node that writes over a value that is needed at this step or later: allowed only as a declared last
    use."""
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
