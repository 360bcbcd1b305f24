"""Questions that a report asks about a plan."""

from __future__ import annotations

from tinytrain_compile.ir.buffers import Buffer, load_of
from tinytrain_compile.ir.stages import MemoryPlan


def live_buffers_at(plan: MemoryPlan, step: int) -> list[Buffer]:
    """Buffers that hold something while `plan.order[step]` runs, largest first (then by offset)."""
    live = [buffer for buffer in plan.buffers if buffer.first_step <= step <= buffer.last_step]
    return sorted(live, key=lambda buffer: (-buffer.size_bytes, buffer.offset, buffer.name))


def load_per_step(plan: MemoryPlan) -> list[int]:
    """Live bytes at every step (header, persistent buffers, scratch and alignment included); one entry at least."""
    return load_of(plan.buffers, len(plan.order))
