"""Debug builds: tables for tt_debug.h of the bytes that are live, and those that may be touched, at every call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tinytrain_compile.emit.c_text import comment_text
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import op_def, scratch_bytes
from tinytrain_compile.ops.stream import errors_of

Span = tuple[int, int]
"""Bytes [low, high)."""


class Watch:
    """One table per step, from the plan alone: a wrong plan gives a wrong table, and the build finds it."""

    def __init__(self, plan: MemoryPlan, stem: str = "live", shared: Sequence[tuple[int, int]] = ()) -> None:
        """Watch a plan. stem: of the tables' names; shared: (memory, bytes at its bottom) that every call may read."""
        self._plan = plan
        self._stem, self._shared = stem, shared
        self._home = {name: buffer for buffer in plan.buffers for name in buffer.values}
        self._scratch = {buffer.name: buffer for buffer in plan.buffers if buffer.kind == "scratch"}
        self._sizes = {v.name: v.size_bytes for node in plan.order for v in (*node.inputs, *node.outputs)}
        self._made = {value.name: step for step, node in enumerate(plan.order) for value in node.outputs}
        self._views = {node.outputs[0].name for node in plan.order if op_def(node.op).view}
        self._steps: Mapping[str, int] = {node.name: step for step, node in enumerate(plan.order)}

    def knows(self, node: Node) -> bool:
        """Tell whether the plan has this node."""
        return node.name in self._steps

    def tables(self) -> list[str]:
        """Define the tables in C, one per step that calls a kernel."""
        lines: list[str] = []
        for step, node in enumerate(self._plan.order):
            if not op_def(node.op).view:
                found = [self._row(*place) for place in self._ranges(step, node)]
                rows = ", ".join([*found, *(_cells(memory, 0, size, "TT_OPERAND") for memory, size in self._shared)])
                lines.append(f"static const tt_range_t {self._stem}_{step}[] = {{{rows}}};")
        return lines

    def around(self, node: Node, lines: list[str]) -> list[str]:
        """Watch the lines of a call."""
        step = self._steps[node.name]
        known = f"{self._stem}_{step}"
        table = f"{known}, sizeof {known} / sizeof *{known}"
        name = comment_text(node.name).replace("\\", "?").replace('"', "?")
        rest = f'(MEMORIES_, {table}, "step {step} ({name})");'
        return [f"tt_debug_enter{rest}", *lines, f"tt_debug_leave{rest}"]

    def _row(self, offset: int, size: int, kind: str) -> str:
        memory, at = self._plan.place(offset)
        return _cells(memory, at, size, kind)

    def _ranges(self, step: int, node: Node) -> Iterator[tuple[int, int, str]]:
        live = [buffer for buffer in self._plan.buffers if buffer.first_step <= step <= buffer.last_step]
        written = [(buffer, span) for buffer, span in self._written(node) if buffer in live]
        covered = {buffer.over.name for buffer in live if buffer.over is not None and buffer.first_step == step}
        rows = list(dict.fromkeys((low, high - low, "TT_WRITTEN") for _, (low, high) in written))
        for buffer in live:
            dying = buffer.kind != "scratch" and buffer.name in covered
            beside = [span for owner, span in written if dying or (owner == buffer and self._own(buffer, span, node))]
            for span in self._held(buffer, step):
                rows += [(low, high - low, "TT_KEPT") for low, high in _outside(span, beside)]
        yield from sorted(rows)
        if self._plan.further:  # the handle holds the addresses of the other memories
            yield 0, next(buffer.size_bytes for buffer in live if buffer.kind == "header"), "TT_OPERAND"
        for value in (*node.inputs, *node.outputs):
            if value.name in self._home and self._home[value.name] in live and value.size_bytes:
                yield self._plan.offsets[value.name], value.size_bytes, "TT_OPERAND"
        size = scratch_bytes(node)
        if size and self._scratch[node.name] in live:
            yield self._plan.scratch_offsets[node.name], size, "TT_OPERAND"

    def _written(self, node: Node) -> list[tuple[Buffer, Span]]:
        """List the writes of a call: buffers, or a part of one that has parts."""
        values = [*node.outputs]
        for _, error in errors_of(node):
            values += [error.peak, error.exponent]  # in the first step
        found = [(self._home[value.name], self._span(value.name)) for value in values if value.name in self._home]
        scratch = [self._scratch[node.name]] if scratch_bytes(node) else []
        return [*found, *((buffer, _whole(buffer)) for buffer in scratch)]

    def _span(self, name: str) -> Span:
        buffer, low = self._home[name], self._plan.offsets[name]
        return (low, low + self._sizes[name]) if buffer.within else _whole(buffer)

    def _own(self, buffer: Buffer, span: Span, node: Node) -> bool:
        """Tell whether a call may write bytes of this buffer that are live: a part only in place of an operand."""
        names = (value.name for value in node.inputs if value.name in self._home)
        return not buffer.within or any(self._span(name) == span for name in names)

    def _held(self, buffer: Buffer, step: int) -> list[Span]:
        """List bytes of a live buffer that have been written before: all except parts still to be written."""
        if not buffer.within:
            return [_whole(buffer)]
        names = [name for name in buffer.values if name not in self._views and self._made.get(name, -1) < step]
        found: list[Span] = []
        for low, high in sorted(self._span(name) for name in names):
            if found and low <= found[-1][1]:
                low, high = found[-1][0], max(found.pop()[1], high)
            found.append((low, high))
        return found


def _cells(memory: int, at: int, size: int, kind: str) -> str:
    return f"{{{memory}u, {at}u, {size}u, {kind}}}"


def _whole(buffer: Buffer) -> Span:
    return buffer.offset, buffer.offset + buffer.size_bytes


def _outside(span: Span, written: list[Span]) -> Iterator[Span]:
    """Yield bytes of a live span that the call does not write: it must not change them."""
    low, end = span
    for begin, stop in sorted(written):
        if low < begin < end:
            yield low, begin
        if begin < end:
            low = max(low, stop)
    if low < end:
        yield low, end
