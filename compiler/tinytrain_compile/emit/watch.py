"""Debug builds: what must be alive, and what may be touched, at every call, as tables for tt_debug.h."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tinytrain_compile.emit.names import comment_text
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import op_def, scratch_bytes
from tinytrain_compile.ops.qupdate import ERROR_OPS


class Watch:
    """One table per step, from the plan alone: a wrong plan gives a wrong table, and the build finds it."""

    def __init__(self, plan: MemoryPlan) -> None:
        self._plan = plan
        self._home = {name: buffer for buffer in plan.buffers for name in buffer.values}
        self._scratch = {buffer.name: buffer for buffer in plan.buffers if buffer.kind == "scratch"}
        self._steps: Mapping[str, int] = {node.name: step for step, node in enumerate(plan.order)}

    def tables(self) -> list[str]:
        """C definitions, one per step that calls a kernel."""
        lines: list[str] = []
        for step, node in enumerate(self._plan.order):
            if not op_def(node.op).view:
                rows = ", ".join(self._row(*found) for found in self._ranges(step, node))
                lines.append(f"static const tt_range_t live_{step}[] = {{{rows}}};")
        return lines

    def around(self, node: Node, lines: list[str]) -> list[str]:
        """The lines of a call, watched."""
        step = self._steps[node.name]
        table = f"live_{step}, sizeof live_{step} / sizeof *live_{step}"
        name = comment_text(node.name).replace("\\", "?").replace('"', "?")
        rest = f'(MEMORIES_, {table}, "step {step} ({name})");'
        return [f"tt_debug_enter{rest}", *lines, f"tt_debug_leave{rest}"]

    def _row(self, offset: int, size: int, kind: str) -> str:
        memory, at = self._plan.place(offset)
        return f"{{{memory}u, {at}u, {size}u, {kind}}}"

    def _ranges(self, step: int, node: Node) -> Iterator[tuple[int, int, str]]:
        live = [buffer for buffer in self._plan.buffers if buffer.first_step <= step <= buffer.last_step]
        written = self._written(node)
        covered = {buffer.over.name for buffer in live if buffer.over is not None and buffer.first_step == step}
        rows: list[tuple[int, int, str]] = []
        for buffer in live:
            if buffer.kind != "scratch" and buffer.name in covered:
                rows += [(low, high - low, "TT_KEPT") for low, high in _outside(buffer, written)]
            else:
                rows.append((buffer.offset, buffer.size_bytes, "TT_WRITTEN" if buffer in written else "TT_KEPT"))
        yield from sorted(rows)
        if self._plan.further:  # the handle holds the addresses of the other memories
            yield 0, next(buffer.size_bytes for buffer in live if buffer.kind == "header"), "TT_OPERAND"
        for value in (*node.inputs, *node.outputs):
            if value.name in self._home and self._home[value.name] in live and value.size_bytes:
                yield self._plan.offsets[value.name], value.size_bytes, "TT_OPERAND"
        size = scratch_bytes(node)
        if size and self._scratch[node.name] in live:
            yield self._plan.scratch_offsets[node.name], size, "TT_OPERAND"

    def _written(self, node: Node) -> list[Buffer]:
        values = [*node.outputs, *(node.inputs[:2] if node.op in ERROR_OPS else ())]  # exponents, in the first step
        found = [self._home[value.name] for value in values if value.name in self._home]
        return [*found, *([self._scratch[node.name]] if scratch_bytes(node) else [])]


def _outside(dying: Buffer, written: list[Buffer]) -> Iterator[tuple[int, int]]:
    """Bytes [low, high) of a dying buffer that no written one covers: the call must not change them."""
    low, end = dying.offset, dying.offset + dying.size_bytes
    for buffer in sorted(written, key=lambda item: item.offset):
        if low < buffer.offset < end:
            yield low, buffer.offset
        if buffer.offset < end:
            low = max(low, buffer.offset + buffer.size_bytes)
    if low < end:
        yield low, end
