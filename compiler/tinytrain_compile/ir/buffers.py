"""Buffers of a memory plan: rectangles in bytes and steps; and a build's use of each memory of the microcontroller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tinytrain_compile.ir.stages import MemoryPlan
    from tinytrain_compile.target.model import Board

BufferKind = Literal["header", "state", "accumulator", "input", "tensor", "scratch"]


@dataclass(frozen=True)
class Over:
    """A dying buffer that another buffer may cover in its first step, as far as the node has read it by then.

    name: the dying buffer. If the two share bytes, it begins at least `distance` bytes above the other (`exact`:
    exactly). saved_bytes: reduction of the bytes of both while the step runs.
    """

    name: str
    distance: int
    exact: bool
    saved_bytes: int


@dataclass(frozen=True)
class Buffer:
    """One rectangle of the arena: bytes [offset, offset + size) during steps [first, last], both inclusive.

    A step is an index into MemoryPlan.order. `values` are the names of the graph values that share the buffer
    (in-place chains, views, updates); a scratch buffer's name is that of its node. over: see Over; mostly None. within:
    values of a buffer with parts, with their offsets in bytes from the buffer's start (0 for all others).
    """

    name: str
    kind: BufferKind
    size_bytes: int
    offset: int
    first_step: int
    last_step: int
    values: tuple[str, ...]
    over: Over | None = None
    within: tuple[tuple[str, int], ...] = ()


def offsets_of(buffers: Iterable[Buffer]) -> dict[str, int]:
    """Return value -> its first byte."""
    found: dict[str, int] = {}
    for buffer in buffers:
        found |= dict.fromkeys(buffer.values, buffer.offset)
        found |= {name: buffer.offset + start for name, start in buffer.within}
    return found


def scratch_of(buffers: Iterable[Buffer]) -> dict[str, int]:
    """Return node -> the first byte of its scratch."""
    return {buffer.name: buffer.offset for buffer in buffers if buffer.kind == "scratch"}


def load_of(buffers: tuple[Buffer, ...], step_count: int) -> list[int]:
    """Return live bytes at every step of `step_count` (an empty program still has one entry, for its input)."""
    change = [0] * (max(step_count, 1) + 1)
    for buffer in buffers:
        change[buffer.first_step] += buffer.size_bytes
        change[buffer.last_step + 1] -= buffer.size_bytes
        if buffer.over is not None:
            change[buffer.first_step] -= buffer.over.saved_bytes
            change[buffer.first_step + 1] += buffer.over.saved_bytes
    load = 0
    result: list[int] = []
    for step in range(max(step_count, 1)):
        load += change[step]
        result.append(load)
    return result


# ---- RAM of a board --------------------------------------------------------------------------------------------------
# A build's use of each memory, including buffers of the loop around the step.

ALIGNMENT_BYTES = 4
"""Granularity, in bytes, of a buffer in a memory."""


@dataclass(frozen=True)
class RuntimeBuffer:
    """RAM beside the arena that a part of the loop (--runtime) needs. what: description for people.

    definition: in C, placed after the macro of its memory; {p} and {P} are the prefix.
    """

    part: str
    what: str
    size_bytes: int
    definition: str = ""

    @property
    def placed_bytes(self) -> int:
        """Bytes that it takes in a memory."""
        return -(-self.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True)
class RamUse:
    """A consumer of RAM, and its memory of the board: "" for a core, or if no memory has room."""

    what: str
    size_bytes: int
    memory: str = ""


@dataclass(frozen=True)
class PartRam:
    """All RAM that a build takes. size_bytes: of all memories of the board, None for a core, whose parts differ.

    buffers: those of --runtime, outside the arena. fits: whether everything is in a memory. lacking: buffers for which
    no memory has room.
    """

    uses: tuple[RamUse, ...]
    size_bytes: int | None = None
    lacking: tuple[RuntimeBuffer, ...] = ()
    too_large: bool = False
    buffers: tuple[RuntimeBuffer, ...] = ()

    @property
    def fits(self) -> bool:
        """True if a firmware of this build would link."""
        return not self.lacking and not self.too_large

    @property
    def used_bytes(self) -> int:
        """The sum of all uses."""
        return sum(use.size_bytes for use in self.uses)


def part_ram(board: Board | None, plan: MemoryPlan, buffers: Sequence[RuntimeBuffer]) -> PartRam:
    """Return the RAM of a plan, the buffers and (for a board) the stack and the reserve."""
    if board is None:
        uses = [RamUse("arena", plan.arena_bytes), *(RamUse(m.name, m.used_bytes) for m in plan.further)]
        found = (*uses, *(RamUse(buffer.what, buffer.size_bytes) for buffer in buffers))
        return PartRam(found, buffers=tuple(buffers))
    names, taken = [memory.name for memory in board.memories], taken_by(board, plan)
    places = placed(board, taken, buffers)
    uses = [RamUse("arena", plan.arena_bytes, names[0])]
    uses += [RamUse("buffers of the plan", memory.used_bytes, memory.name) for memory in plan.further]
    uses += [RamUse(buffer.what, buffer.size_bytes, places.get(buffer.part, "")) for buffer in buffers]
    uses.append(RamUse("stack", board.stack.stack_bytes, board.stack.name))
    uses.append(RamUse("reserve", board.reserve.reserve_bytes, board.reserve.name))
    lacking = tuple(buffer for buffer in buffers if buffer.part not in places)
    size = sum(memory.region.size_bytes for memory in board.memories)
    too_large = any(taken[memory.name] > memory.model_bytes for memory in board.memories)
    return PartRam(tuple(uses), size, lacking, too_large, tuple(buffers))


def taken_by(board: Board, plan: MemoryPlan) -> dict[str, int]:
    """Return the bytes of every memory that a plan takes."""
    taken = dict.fromkeys((memory.name for memory in board.memories), 0)
    taken[board.memories[0].name] = plan.arena_bytes
    return taken | {memory.name: memory.used_bytes for memory in plan.further}


def placed(board: Board, taken: Mapping[str, int], buffers: Sequence[RuntimeBuffer]) -> dict[str, str]:
    """Return part -> memory: all buffers in the first memories that have room.

    If they do not fit, the largest one is left out, and so on.
    """
    ways = assignments(board, taken, buffers)
    found = next(ways, None)
    if found is not None:
        return found
    smaller = sorted(buffers, key=lambda buffer: buffer.size_bytes)[:-1]
    return placed(board, taken, [buffer for buffer in buffers if buffer in smaller])


def reserved(board: Board, buffers: Sequence[RuntimeBuffer]) -> dict[str, int] | None:
    """Return memory -> bytes that buffers leave to a plan, in the assignment with the largest arena; None if there is
    none."""
    left = [
        {m.name: m.model_bytes - sum(b.placed_bytes for b in buffers if way[b.part] == m.name) for m in board.memories}
        for way in assignments(board, {}, buffers)
    ]
    first = board.memories[0].name
    best = max(left, key=lambda one: one[first], default=None)
    return best if best is not None and best[first] > 0 else None


def most_records(board: Board, taken: Mapping[str, int], others: Sequence[RuntimeBuffer], record_bytes: int) -> int:
    """Return the largest number of records that fit beside a plan and other buffers."""
    most = 0
    for way in assignments(board, taken, others):
        for memory in board.memories:
            inside = sum(buffer.placed_bytes for buffer in others if way[buffer.part] == memory.name)
            most = max(most, (memory.model_bytes - taken.get(memory.name, 0) - inside) // record_bytes)
    return most


def assignments(board: Board, taken: Mapping[str, int], buffers: Sequence[RuntimeBuffer]) -> Iterator[dict[str, str]]:
    """Yield every way to put the buffers (there are few) into memories with room; early memories first."""
    names = [memory.name for memory in board.memories]
    free = {memory.name: memory.model_bytes - taken.get(memory.name, 0) for memory in board.memories}
    for way in product(names, repeat=len(buffers)):
        pairs = list(zip(buffers, way, strict=True))
        if all(sum(b.placed_bytes for b, name in pairs if name == one) <= free[one] for one in set(way)):
            yield {buffer.part: name for buffer, name in pairs}
