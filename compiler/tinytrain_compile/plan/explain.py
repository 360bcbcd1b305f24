"""Questions that a report asks about a plan."""

from __future__ import annotations

from tinytrain_compile.ir.stages import Buffer, MemoryPlan


def live_buffers_at(plan: MemoryPlan, step: int) -> list[Buffer]:
    """Buffers that hold something while `plan.order[step]` runs, largest first (then by offset)."""
    live = [buffer for buffer in plan.buffers if buffer.first_step <= step <= buffer.last_step]
    return sorted(live, key=lambda buffer: (-buffer.size_bytes, buffer.offset, buffer.name))


def load_per_step(plan: MemoryPlan) -> list[int]:
    """Live bytes at every step (header, persistent buffers, scratch and alignment included); one entry at least."""
    return load_of(plan.buffers, len(plan.order))


def load_of(buffers: tuple[Buffer, ...], step_count: int) -> list[int]:
    """Live bytes at every step of `step_count` (an empty program still has one moment: its input lies there)."""
    change = [0] * (max(step_count, 1) + 1)
    for buffer in buffers:
        change[buffer.first_step] += buffer.size_bytes
        change[buffer.last_step + 1] -= buffer.size_bytes
    load = 0
    result: list[int] = []
    for step in range(max(step_count, 1)):
        load += change[step]
        result.append(load)
    return result
