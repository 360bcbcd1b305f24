"""A plan in several memories: buffers that do not fit into the arena go where they cost least.

The order is that of the plan in one memory. Kernels access every memory in place, and a page move copies bytes, so no
byte of any result changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinytrain_compile.ir.buffers import Buffer, load_of, offsets_of, scratch_of
from tinytrain_compile.ir.stages import FurtherMemory, MemoryPlan
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.check.rewrites import validate_paging
from tinytrain_compile.plan.memories.assign import Cover, assign
from tinytrain_compile.plan.memories.paging import Option, Options, Paged
from tinytrain_compile.plan.model import PERSISTENT_KINDS
from tinytrain_compile.plan.options import Memory, PlanOptions
from tinytrain_compile.plan.place.choose import decide
from tinytrain_compile.plan.place.placement import build_packing, greedy
from tinytrain_compile.plan.planner import Planned
from tinytrain_compile.plan.price import accessed

TRIES = 8
"""Most assignments: if one does not pack below a room, the next must leave that much more room."""

ASSIGN_UNITS = 2.0
"""CP-SAT's deterministic time for one assignment with effort "full"."""

PACK_UNITS = 1.0
"""CP-SAT's deterministic time for one placement that greedy methods do not find."""

POINTER_BYTES = 8
"""Bytes of the handle per further memory, for its address (8 on a host, and plans are the same everywhere)."""


def spread(graph: Graph, plan: MemoryPlan, options: PlanOptions, memories: Sequence[Memory]) -> Planned | None:
    """Return the plan with buffers moved or paged out of the arena until it fits options.capacity_bytes; None if none
    found.

    Minimises extra time, or energy (options.spend). The graph has the plan's page moves. The result is
    checked by `validate_plan` and `validate_paging`.
    """
    capacity = options.capacity_bytes
    if capacity is None or not memories:
        return None
    asked, options = options, replace(options, header_bytes=options.header_bytes + POINTER_BYTES * len(memories))
    traffic = accessed(plan)
    choices = Options(graph, plan, options, memories, traffic)
    head = options.reserved(options.header_bytes)
    items = choices.items([head if buffer.kind == "header" else buffer.size_bytes for buffer in plan.buffers])
    limits = [capacity, *(memory.capacity_bytes for memory in memories)]
    rooms, covers = list(limits), _covers(plan)
    for _ in range(TRIES):
        units = ASSIGN_UNITS if options.effort == "full" else 0.0
        found = assign(items, rooms, units, options.seed, options.most_ps, covers)
        if found is None:
            return None
        chosen = [options_of[index] for options_of, index in zip(choices.of, found.chosen, strict=True)]
        paged = Paged(graph, plan, chosen, memories)
        pieces = _covering(paged.pieces)
        pieces = [(replace(b, size_bytes=head) if b.kind == "header" else b, memory) for b, memory in pieces]
        placed = [_place(pieces, memory, limit, options) for memory, limit in enumerate(limits)]
        over = [_top(part) - limit for part, limit in zip(placed, limits, strict=True)]
        if max(over) <= 0:
            used = [memory for memory, part in zip(memories, placed[1:], strict=True) if part]
            if len(used) < len(memories):  # the handle does not need the addresses of the others
                return spread(graph, plan, asked, used)
            further = _further(placed, chosen, memories, found.optimal)
            moved = _assembled(plan, paged, placed, further)
            validate_plan(paged.graph, moved, options)
            validate_paging(plan, moved)
            return Planned(paged.graph, moved)
        rooms = [room - max(excess, 0) for room, excess in zip(rooms, over, strict=True)]
        if min(rooms) < 0:
            return None
    return None


def _covers(plan: MemoryPlan) -> list[Cover]:
    """Return pairs of the plan's buffers of which one may cover the other, by index."""
    index = {buffer.name: number for number, buffer in enumerate(plan.buffers) if buffer.kind != "scratch"}
    overs = [(number, buffer.first_step, buffer.over) for number, buffer in enumerate(plan.buffers) if buffer.over]
    return [Cover(number, index[over.name], step, over.saved_bytes) for number, step, over in overs]


def _covering(pieces: Sequence[tuple[Buffer, int]]) -> list[tuple[Buffer, int]]:
    """Return pieces, dropping covers of another piece unless that is in the same memory and dies where they begin."""
    there = {(piece.name, piece.last_step, memory) for piece, memory in pieces if piece.kind != "scratch"}
    return [
        (
            piece if piece.over and (piece.over.name, piece.first_step, memory) in there else replace(piece, over=None),
            memory,
        )
        for piece, memory in pieces
    ]


def _top(placed: dict[int, Buffer]) -> int:
    return max((buffer.offset + buffer.size_bytes for buffer in placed.values()), default=0)


def _place(pieces: Sequence[tuple[Buffer, int]], memory: int, limit: int, options: PlanOptions) -> dict[int, Buffer]:
    """Return piece index -> the buffer with its offset in one memory: persistent ones at the bottom, as in one
    memory."""
    here = {index: buffer for index, (buffer, place) in enumerate(pieces) if place == memory}
    placed: dict[int, Buffer] = {}
    below = 0
    for index, buffer in here.items():
        if buffer.kind in PERSISTENT_KINDS:
            placed[index] = replace(buffer, offset=below)
            below += buffer.size_bytes
    movable = [index for index in here if index not in placed]
    if not movable:
        return placed
    packing = build_packing([here[index] for index in movable])
    placement = greedy(packing)[0]
    room = max(limit - below, 0) // packing.unit_bytes
    if placement.height > room and options.effort == "full":
        placement = decide(packing, room, PACK_UNITS, options.seed).placement or placement
    for index, offset in zip(movable, placement.offsets, strict=True):
        placed[index] = replace(here[index], offset=below + offset * packing.unit_bytes)
    return placed


def _further(
    placed: Sequence[dict[int, Buffer]], chosen: Sequence[Option], memories: Sequence[Memory], optimal: bool
) -> tuple[FurtherMemory, ...]:
    """Return the used memories in one range of bytes: each begins where the previous one ends."""
    base, found = _top(placed[0]), list[FurtherMemory]()
    for number, (part, memory) in enumerate(zip(placed[1:], memories, strict=True), 1):
        count = sum(option.accessed for option in chosen if option.memory == number)
        found.append(memory.used(base=base, size_bytes=_top(part), accessed_bytes=count, cheapest=optimal))
        base += _top(part)
    return tuple(found)


def _assembled(
    plan: MemoryPlan, paged: Paged, placed: Sequence[dict[int, Buffer]], further: tuple[FurtherMemory, ...]
) -> MemoryPlan:
    line = dict(placed[0])
    for part, memory in zip(placed[1:], further, strict=True):
        line |= {index: replace(buffer, offset=memory.base + buffer.offset) for index, buffer in part.items()}
    buffers = tuple(line[index] for index in range(len(line)))
    load = load_of(buffers, len(paged.order))
    return replace(
        plan,
        order=tuple(paged.order),
        buffers=buffers,
        offsets=offsets_of(buffers),
        scratch_offsets=scratch_of(buffers),
        arena_bytes=_top(placed[0]),
        lower_bound_bytes=max(load),
        peak_step=load.index(max(load)),
        order_proven=plan.order_proven and not paged.moves,
        placement_proven=further[-1].base + further[-1].used_bytes == max(load),
        further=further,
        paging=tuple(paged.moves),
    )
