"""What may be paged: the choices that each buffer of a plan has besides staying in the arena.

A tensor that waits between two steps may be copied to another memory behind the first and back in front of the second.
A parameter that lives in another memory may be copied into the arena for a kernel that reads it often.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.ops.names import error_operands
from tinytrain_compile.plan.memories.assign import Item, Use, UseOption
from tinytrain_compile.plan.options import Memory, PlanOptions, Spend
from tinytrain_compile.plan.planner import load_per_step
from tinytrain_compile.plan.price import bytes_read


@dataclass(frozen=True)
class Gap:
    """`value` waits from step `last` (its last use before) to step `next` (its first use after)."""

    value: str
    last: int
    next: int


@dataclass(frozen=True)
class Option:
    """One choice in full. memory: where the buffer lies (0: arena) or, with gaps, where it is paged to.

    gaps: times at which it is away. copies: (step, value) that are read from a copy in the arena.
    """

    memory: int = 0
    gaps: tuple[Gap, ...] = ()
    copies: tuple[tuple[int, str], ...] = ()
    accessed: int = 0


class Options:
    """The options of every buffer, as items for `assign`."""

    def __init__(
        self, graph: Graph, plan: MemoryPlan, options: PlanOptions, memories: Sequence[Memory], traffic: Sequence[int]
    ) -> None:
        self.plan, self.memories, self.traffic = plan, memories, traffic
        self.spend: Spend = options.spend
        self.held = {value.name for value in graph.outputs} | set(options.keep)
        self.changed = {node.inputs[source].name for node in plan.order for _, source in alias_of(node)}
        """Values that a node overwrites where they lie: never a copy of them."""
        load, room = load_per_step(plan), options.capacity_bytes or 0
        self.high = [step for step, size in enumerate(load) if size > room]
        self.home = {name: index for index, buffer in enumerate(plan.buffers) for name in buffer.values}
        self.reads: list[dict[int, list[str]]] = [{} for _ in plan.buffers]
        self.writes: list[dict[int, list[str]]] = [{} for _ in plan.buffers]
        for step, node in enumerate(plan.order):
            for table, values in ((self.reads, node.inputs), (self.writes, node.outputs)):
                for value in values:
                    if value.name in self.home:
                        table[self.home[value.name]].setdefault(step, []).append(value.name)
        self.of = [tuple(self._options(index, buffer)) for index, buffer in enumerate(plan.buffers)]

    def items(self, sizes: Sequence[int]) -> list[Item]:
        """Return, for every buffer, its choices; `sizes` may differ from the plan's (the handle grows)."""
        return [
            Item(size, tuple(self._choice(buffer, size, option) for option in found))
            for buffer, size, found in zip(self.plan.buffers, sizes, self.of, strict=True)
        ]

    def _options(self, index: int, buffer: Buffer) -> list[Option]:
        found = [Option()]
        if buffer.kind == "header":
            return found
        gaps = self._gaps(index, buffer)
        for memory in range(1, len(self.memories) + 1):
            found.append(Option(memory, accessed=self.traffic[index]))
            found += [Option(memory, (gap,)) for gap in gaps]
            found += [Option(memory, tuple(gaps))] if len(gaps) > 1 else []
            copies, saved = self._copies(index, buffer, memory)
            found += [Option(memory, copies=copies, accessed=self.traffic[index] - saved)] if copies else []
        return found

    def _choice(self, buffer: Buffer, size: int, option: Option) -> UseOption:
        whole = Use(0, buffer.first_step, buffer.last_step)
        if option.memory == 0:
            return UseOption(0, (whole,))
        if option.gaps:
            away = tuple(Use(option.memory, gap.last, gap.next) for gap in option.gaps)
            starts = [buffer.first_step, *(gap.next for gap in option.gaps)]
            ends = [*(gap.last for gap in option.gaps), buffer.last_step]
            uses = (*(Use(0, first, last) for first, last in zip(starts, ends, strict=True)), *away)
        else:
            here = tuple(Use(0, step, step) for step, _ in option.copies)
            uses = (Use(option.memory, buffer.first_step, buffer.last_step), *here)
        return UseOption(self._price(option, size, self.spend), uses, self._price(option, size, "time"))

    def _price(self, option: Option, size: int, spend: Spend) -> int:
        """Return accesses in place, and a move for every copy and two for every absence."""
        memory = self.memories[option.memory - 1]
        moves = 2 * len(option.gaps) + len(option.copies)
        return option.accessed * memory.extra(spend) + moves * memory.move(size, spend)

    def _gaps(self, index: int, buffer: Buffer) -> list[Gap]:
        """Return waits of a tensor over a step at which the arena is too full; one with parts is never moved."""
        if buffer.within:
            return []
        if buffer.kind not in ("tensor", "input") or self.held.intersection(buffer.values):
            return []
        steps = sorted({*self.reads[index], *self.writes[index]})
        found = (self._gap(index, last, after) for last, after in itertools.pairwise(steps))
        return [gap for gap in found if gap is not None]

    def _gap(self, index: int, last: int, after: int) -> Gap | None:
        order = self.plan.order
        if order[last].phase != order[after].phase or not any(last < step < after for step in self.high):
            return None
        born = {name for step, names in self.writes[index].items() if step >= after for name in names}
        later = {name for step, names in self.reads[index].items() if step >= after for name in names}
        waiting = later - born
        return Gap(waiting.pop(), last, after) if len(waiting) == 1 and not waiting & self.changed else None

    def _copies(self, index: int, buffer: Buffer, memory: int) -> tuple[tuple[tuple[int, str], ...], int]:
        """Return reads of a parameter that are dearer than a copy of it, and the bytes that they need no longer
        access."""
        bank, found, saved = self.memories[memory - 1], list[tuple[int, str]](), 0
        for step, names in self.reads[index].items() if buffer.kind == "state" else ():
            node = self.plan.order[step]
            count = _factor_bytes(node, names[0])
            if len(set(names)) == 1 and count * bank.extra(self.spend) > bank.move(buffer.size_bytes, self.spend):
                found.append((step, names[0]))
                saved += count
        return tuple(found), saved


def _factor_bytes(node: Node, name: str) -> int:
    """Return bytes that a node reads of a value; 0 if it is a view or changes the value's memory."""
    definition, error = op_def(node.op), error_operands(node)
    if error is not None and name in (error.peak.name, error.exponent.name):
        return 0  # in the first step the exponents are found in place
    if definition.view or any(node.inputs[source].name == name for _, source in alias_of(node)):
        return 0
    return sum(count for value, count in zip(node.inputs, bytes_read(node), strict=True) if value.name == name)
