"""Buffers of a memory plan: rectangles in bytes and steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

BufferKind = Literal["header", "state", "accumulator", "input", "tensor", "scratch"]


@dataclass(frozen=True)
class Over:
    """What a buffer may cover in its first step: one that dies there, as far as the node has read it by then.

    name: the dying buffer. Where the two share bytes, it begins `distance` bytes above the buffer or more (`exact`: no
    more). saved_bytes: what the two take less than their sizes while the step runs.
    """

    name: str
    distance: int
    exact: bool
    saved_bytes: int


@dataclass(frozen=True)
class Buffer:
    """One rectangle of the arena: bytes [offset, offset + size) during steps [first, last], both inclusive.

    A step is an index into MemoryPlan.order. `values` are the names of the graph values that share the buffer
    (in-place chains, views, updates); a scratch buffer's name is that of its node. over: see there; None mostly.
    within: values of a buffer with parts, and where each begins, in bytes from the buffer's start (all others: there).
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
    """Value -> its first byte."""
    found: dict[str, int] = {}
    for buffer in buffers:
        found |= dict.fromkeys(buffer.values, buffer.offset)
        found |= {name: buffer.offset + start for name, start in buffer.within}
    return found


def load_of(buffers: tuple[Buffer, ...], step_count: int) -> list[int]:
    """Live bytes at every step of `step_count` (an empty program still has one moment: its input lies there)."""
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
