"""Page moves: the choices of each buffer of a plan besides staying in the arena, and the graph of those chosen.

A tensor that waits between two steps may be copied to another memory after the first and back before the second. A
parameter that lives in another memory may be copied into the arena for a kernel that reads it often.

PageOut and PageIn are ordinary nodes, and later readers read the copy that came back, so stages after the planner see
an ordinary graph. The order stays; moves are inserted.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan, PageMove
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.ops.names import error_operands
from tinytrain_compile.plan.memories.assign import Item, Use, UseOption
from tinytrain_compile.plan.options import Memory, PlanError, PlanOptions, Spend
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
    """One choice in full. memory: of the buffer (0: arena) or, with gaps, the one to which it is paged.

    gaps: times at which it is away. copies: (step, value) read from a copy in the arena.
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
        """Values that a node overwrites in place, never in a copy."""
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
        """Return the cost of accesses in place, of one move per copy and of two per absence."""
        memory = self.memories[option.memory - 1]
        moves = 2 * len(option.gaps) + len(option.copies)
        return option.accessed * memory.extra(spend) + moves * memory.move(size, spend)

    def _gaps(self, index: int, buffer: Buffer) -> list[Gap]:
        """Return the waits of a tensor that span a step at which the arena is too full; one with parts is never
        moved."""
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
        """Return reads of a parameter that cost more than a copy of it, and the bytes that they then no longer
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
    """Return the bytes that a node reads of a value; 0 if it is a view or changes the value's memory."""
    definition, error = op_def(node.op), error_operands(node)
    if error is not None and name in (error.peak.name, error.exponent.name):
        return 0  # in the first step the exponents are found in place
    if definition.view or any(node.inputs[source].name == name for _, source in alias_of(node)):
        return 0
    return sum(count for value, count in zip(node.inputs, bytes_read(node), strict=True) if value.name == name)


class Paged:
    """A graph with page moves, its order, and its buffers without addresses.

    pieces: (buffer, memory). moves: the added nodes.
    """

    def __init__(self, graph: Graph, plan: MemoryPlan, chosen: Sequence[Option], memories: Sequence[Memory]) -> None:
        self.plan, self.chosen, self.memories = plan, chosen, memories
        self.values = {v.name: v for node in plan.order for v in (*node.inputs, *node.outputs)}
        self.taken = set(self.values) | {node.name for node in plan.order} | set(graph.constants)
        self.order: list[Node] = []
        self.moves: list[PageMove] = []
        self.current: dict[str, Value] = {}
        self.place: list[int] = []  # old step -> new step
        self.added: dict[tuple[str, int, int], tuple[Value, int]] = {}  # (kind, buffer, step) -> value, new step
        for step, node in enumerate(plan.order):
            local = self.before(step, node)
            self.place.append(len(self.order))
            inputs = tuple(local.get(v.name, self.current.get(v.name, v)) for v in node.inputs)
            self.order.append(replace(node, inputs=inputs))
            self.after(step, node)
        self.graph = replace(graph, nodes=tuple(self.order))
        self.pieces = [piece for index, buffer in enumerate(plan.buffers) for piece in self._pieces(index, buffer)]

    def before(self, step: int, node: Node) -> dict[str, Value]:
        """Add moves before a step; return the copies that only this step reads."""
        local: dict[str, Value] = {}
        for index, option in enumerate(self.chosen):
            for gap in option.gaps:
                if gap.next == step:
                    source = self.added["out", index, gap.last][0]
                    self.current[gap.value] = self._move("in", index, step, source, gap.value, node)
            for at, name in option.copies:
                if at == step:
                    local[name] = self._move("copy", index, step, self.values[name], name, node)
        return local

    def after(self, step: int, node: Node) -> None:
        """Add moves out after a step."""
        for index, option in enumerate(self.chosen):
            for gap in option.gaps:
                if gap.last == step:
                    source = self.current.get(gap.value, self.values[gap.value])
                    self._move("out", index, step, source, gap.value, node)

    def _move(self, kind: str, index: int, step: int, source: Value, of: str, beside: Node) -> Value:
        memory = self.memories[self.chosen[index].memory - 1]
        value = replace(source, name=self._unique(f"{of}@{'out' if kind == 'out' else 'in'}"))
        op = "PageOut" if kind == "out" else "PageIn"
        self.added[kind, index, step] = value, len(self.order)
        self.order.append(Node(value.name, op, (source,), (value,), phase=beside.phase, origin=beside.origin))
        size = value.size_bytes
        self.moves.append(PageMove(value.name, of, op, memory.name, size, memory.move_ps(size), size * memory.copy_pj))
        return value

    def _unique(self, name: str) -> str:
        count, found = 1, name
        while found in self.taken:
            count += 1
            found = f"{name}{count}"
        self.taken.add(found)
        return found

    def _pieces(self, index: int, buffer: Buffer) -> list[tuple[Buffer, int]]:
        option = self.chosen[index]
        first = self.place[buffer.first_step] if buffer.first_step and self.place else 0
        last = self.place[buffer.last_step] if self.place else 0
        if not option.gaps:
            pieces = [(replace(buffer, first_step=first, last_step=last), option.memory)]
            for step, _ in option.copies:
                value, at = self.added["copy", index, step]
                pieces.append((self._tensor(value, buffer, at, self.place[step]), 0))
            return pieces
        pieces: list[tuple[Buffer, int]] = []
        rest = list(buffer.values)
        name, kind = buffer.name, buffer.kind
        for gap in option.gaps:
            out, leaves = self.added["out", index, gap.last]
            back, returns = self.added["in", index, gap.next]
            early = [value for value in rest if self._born(value) <= gap.last]
            part = replace(buffer, name=name, kind=kind, values=(*(() if name == buffer.name else (name,)), *early))
            pieces.append((replace(part, first_step=first, last_step=leaves), 0))
            # The source of a page-in stays until the first use: a port may still be copying.
            pieces.append((self._tensor(out, buffer, leaves, self.place[gap.next]), option.memory))
            rest = [value for value in rest if value not in early]
            first, name, kind = returns, back.name, "tensor"
        end = replace(buffer, name=name, kind=kind, first_step=first, last_step=last, values=(name, *rest))
        return [*pieces, (end, 0)]

    def _tensor(self, value: Value, like: Buffer, first: int, last: int) -> Buffer:
        return Buffer(value.name, "tensor", like.size_bytes, 0, first, last, (value.name,))

    def _born(self, name: str) -> int:
        """Return the old step that makes a value; -1 for the input."""
        return next(
            (step for step, node in enumerate(self.plan.order) if any(v.name == name for v in node.outputs)), -1
        )


class Move(NamedTuple):
    """A page move in a lock: PageOut or PageIn, the value, and the memory to or from which it moves."""

    op: str
    value: str
    memory: str


def replay_moves(graph: Graph, order: Sequence[str], moves: Mapping[str, Move]) -> Graph:
    """Return the graph with the moves of an order. PlanError for names that it does not know.

    A PageIn of an absent value brings it back for all later readers; any other PageIn is a copy for the next node.
    """
    nodes, values = {node.name: node for node in graph.nodes}, dict[str, Value]()
    for node in graph.nodes:
        values |= {value.name: value for value in (*node.inputs, *node.outputs)}
    current, away, local, found = dict[str, Value](), dict[str, Value](), dict[str, Value](), list[Node]()
    beside = next((nodes[name] for name in order if name in nodes), None)
    for at, name in enumerate(order):
        if name in nodes:
            beside = nodes[name]
            inputs = tuple(local.get(v.name, current.get(v.name, v)) for v in beside.inputs)
            found.append(replace(beside, inputs=inputs))
            local.clear()
            continue
        move = moves.get(name)
        if move is None or move.value not in values or name in values or beside is None:
            raise PlanError("order incomplete", f"only the lock has a node {name!r}")
        source = current.get(move.value, values[move.value])
        if move.op == "PageIn":
            beside = next((nodes[later] for later in order[at:] if later in nodes), beside)
            source = away.get(move.value, source)
        value = replace(source, name=name)
        into = away if move.op == "PageOut" else current if away.pop(move.value, None) is not None else local
        into[move.value] = value
        found.append(Node(name, move.op, (source,), (value,), phase=beside.phase, origin=beside.origin))
    return replace(graph, nodes=tuple(found))
