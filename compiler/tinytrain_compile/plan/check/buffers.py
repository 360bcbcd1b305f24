"""The judge of plans (`plan.py`) on buffers, which reports draw, and on totals."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.ir import Value
from tinytrain_compile.ir.buffers import Buffer, Over, load_of
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops.base import overlaps_of, scratch_bytes
from tinytrain_compile.plan.check.facts import Facts
from tinytrain_compile.plan.options import PlanError


def check_buffers(facts: Facts) -> None:
    """What reports draw: every value in one buffer that covers its place and life; live buffers are disjoint."""
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
    """A buffer may cover another one only in the step that opens it and ends the other, as the node there declares."""
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
                continue  # judged where the node writes
            names = f"{one.name!r} and {two.name!r}"
            raise PlanError("overlap", f"buffers {names} are live together and share memory")


def check_totals(facts: Facts) -> None:
    """What the plan says of itself is the sum of its buffers."""
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
    """Every memory ends with its highest buffer, the next one begins there, and none is larger than the board's."""
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
