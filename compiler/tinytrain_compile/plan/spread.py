"""A plan in several memories: what does not fit into the arena goes where its accesses cost least.

The order is that of the plan in one memory. Kernels reach every memory in place, so nothing else changes: not the
graph, not a byte of any result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinytrain_compile.ir import Graph
from tinytrain_compile.ir.stages import Buffer, FurtherMemory, MemoryPlan
from tinytrain_compile.plan.assign import Assignment, Item, assign
from tinytrain_compile.plan.choose import decide
from tinytrain_compile.plan.explain import load_of
from tinytrain_compile.plan.model import PERSISTENT_KINDS, Rectangle
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.placement import build_packing, greedy
from tinytrain_compile.plan.traffic import accessed
from tinytrain_compile.plan.validate import validate_plan

TRIES = 8
"""Assignments at most: where one does not pack below a room, the next must leave that much more room."""

ASSIGN_UNITS = 2.0
"""CP-SAT's deterministic time for one assignment with effort "full"."""

PACK_UNITS = 1.0
"""Deterministic time for one placement that greedy methods do not find."""

POINTER_BYTES = 8
"""Of the handle, per further memory: its address (on a host 8 bytes, and plans are the same everywhere)."""


@dataclass(frozen=True)
class Memory:
    """A memory besides the arena. extra_ps, extra_pj: what a byte accessed in it costs more than in the arena."""

    name: str
    capacity_bytes: int
    extra_ps: int
    extra_pj: int


def spread(graph: Graph, plan: MemoryPlan, options: PlanOptions, memories: Sequence[Memory]) -> MemoryPlan | None:
    """The plan with buffers moved out of the arena until it fits options.capacity_bytes; None if that is not found.

    Minimises extra time. The result is checked by `validate_plan`.
    """
    capacity = options.capacity_bytes
    if capacity is None or not memories:
        return None
    asked, options = options, replace(options, header_bytes=options.header_bytes + POINTER_BYTES * len(memories))
    size = options.reserved(options.header_bytes)
    buffers = [replace(buffer, size_bytes=size) if buffer.kind == "header" else buffer for buffer in plan.buffers]
    traffic = accessed(plan)
    items = [_item(buffer, count, memories) for buffer, count in zip(buffers, traffic, strict=True)]
    limits = [capacity, *(memory.capacity_bytes for memory in memories)]
    rooms = list(limits)
    for _ in range(TRIES):
        found = assign(items, rooms, ASSIGN_UNITS if options.effort == "full" else 0.0, options.seed)
        if found is None:
            return None
        placed = [_place(buffers, found, memory, limit, options) for memory, limit in enumerate(limits)]
        over = [_top(part) - limit for part, limit in zip(placed, limits, strict=True)]
        if max(over) <= 0:
            used = [memory for memory, part in zip(memories, placed[1:], strict=True) if part]
            if len(used) < len(memories):  # the handle need not hold the address of the others
                return spread(graph, plan, asked, used)
            moved = _assembled(plan, placed, traffic, found, memories)
            validate_plan(graph, moved, options)
            return moved
        rooms = [room - max(excess, 0) for room, excess in zip(rooms, over, strict=True)]
        if min(rooms) < 0:
            return None
    return None


def _item(buffer: Buffer, count: int, memories: Sequence[Memory]) -> Item:
    cost = (0, *(count * memory.extra_ps for memory in memories))
    return Item(buffer.size_bytes, buffer.first_step, buffer.last_step, cost, buffer.kind == "header")


def _top(placed: dict[int, Buffer]) -> int:
    return max((buffer.offset + buffer.size_bytes for buffer in placed.values()), default=0)


def _place(
    buffers: Sequence[Buffer], found: Assignment, memory: int, limit: int, options: PlanOptions
) -> dict[int, Buffer]:
    """Buffer index -> the buffer with its offset in one memory: persistent ones at the bottom, as in one memory."""
    here = [index for index, place in enumerate(found.memory) if place == memory]
    placed: dict[int, Buffer] = {}
    below = 0
    for index in here:
        if buffers[index].kind in PERSISTENT_KINDS:
            placed[index] = replace(buffers[index], offset=below)
            below += buffers[index].size_bytes
    movable = [index for index in here if index not in placed]
    if not movable:
        return placed
    packing = build_packing([_rectangle(buffers[index]) for index in movable])
    placement = greedy(packing)[0]
    room = max(limit - below, 0) // packing.unit_bytes
    if placement.height > room and options.effort == "full":
        placement = decide(packing, room, PACK_UNITS, options.seed).placement or placement
    for index, offset in zip(movable, placement.offsets, strict=True):
        placed[index] = replace(buffers[index], offset=below + offset * packing.unit_bytes)
    return placed


def _rectangle(buffer: Buffer) -> Rectangle:
    return Rectangle(buffer.name, buffer.kind, buffer.size_bytes, buffer.first_step, buffer.last_step, buffer.values)


def _assembled(
    plan: MemoryPlan,
    placed: Sequence[dict[int, Buffer]],
    traffic: Sequence[int],
    found: Assignment,
    memories: Sequence[Memory],
) -> MemoryPlan:
    """One line of bytes: each memory begins where the one before it ends."""
    base, further, line = _top(placed[0]), list[FurtherMemory](), dict(placed[0])
    for part, memory in zip(placed[1:], memories, strict=True):
        count = sum(traffic[index] for index in part)
        figures = (memory.capacity_bytes, count, count * memory.extra_ps, count * memory.extra_pj, found.optimal)
        further.append(FurtherMemory(memory.name, base, _top(part), *figures))
        line |= {index: replace(buffer, offset=base + buffer.offset) for index, buffer in part.items()}
        base += _top(part)
    buffers = tuple(line[index] for index in range(len(line)))
    load = load_of(buffers, len(plan.order))
    return replace(
        plan,
        buffers=buffers,
        offsets={name: buffer.offset for buffer in buffers for name in buffer.values},
        scratch_offsets={buffer.name: buffer.offset for buffer in buffers if buffer.kind == "scratch"},
        arena_bytes=_top(placed[0]),
        lower_bound_bytes=max(load),
        peak_step=load.index(max(load)),
        placement_proven=base == max(load),
        further=tuple(further),
    )
