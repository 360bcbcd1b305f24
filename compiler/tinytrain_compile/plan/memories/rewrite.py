"""Chosen page moves as a graph: PageOut and PageIn are nodes like any, later readers read what came back.

Everything behind the planner sees an ordinary graph. The order stays; moves are put in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan, PageMove
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.plan.memories.pages import Option
from tinytrain_compile.plan.options import Memory, PlanError


class Paged:
    """A graph with page moves, its order, and its buffers without addresses.

    pieces: (buffer, memory). moves: what was added.
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
        """Add moves in front of a step; return the copies that only this step reads."""
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
        """Add moves out behind a step."""
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
        """Return old step at which a value is made; -1 for the input."""
        return next(
            (step for step, node in enumerate(self.plan.order) if any(v.name == name for v in node.outputs)), -1
        )


class Move(NamedTuple):
    """A page move as a lock names it: PageOut or PageIn, of which value, to or from which memory."""

    op: str
    value: str
    memory: str


def replay_moves(graph: Graph, order: Sequence[str], moves: Mapping[str, Move]) -> Graph:
    """Return the graph with the moves of an order. PlanError for names that it does not know.

    A PageIn of what is away brings it back for all later readers; any other one is a copy for the next node.
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
