"""What the judge of plans (`plan.py`) works out for itself: which values need an address, and how long."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir import Graph, Node, Value
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.ops.input_lines import arena_inputs
from tinytrain_compile.plan.options import PlanError, PlanOptions


@dataclass(frozen=True)
class Facts:
    """What the judge works out for itself.

    planned: values that need an address. born: half step after which a value exists (-1: before the first step).
    needed: half step until which it must stay intact. chain: persistent value -> names that hold its later contents.
    A view has no bytes of its own and reads nothing: who reads it reads what nodes have written there. written: value
    -> those values (itself, if it is no view).
    """

    graph: Graph
    plan: MemoryPlan
    options: PlanOptions
    planned: dict[str, Value]
    born: dict[str, int]
    needed: dict[str, int]
    chain: dict[str, list[str]]
    written: dict[str, list[str]]

    def range_of(self, name: str) -> tuple[int, int]:
        """Bytes [low, high) that a planned value occupies."""
        low = self.plan.offsets[name]
        return low, low + self.planned[name].size_bytes


def is_view(node: Node, position: int) -> bool:
    """Whether an output shows what is there already."""
    return op_def(node.op).view and position == 0


def _planned_values(graph: Graph, plan: MemoryPlan) -> dict[str, Value]:
    planned = {value.name: value for value in (*graph.state, *graph.accumulators, *arena_inputs(graph))}
    for node in plan.order:
        for position, value in enumerate(node.outputs):
            # A view of something in flash or in the caller's memory stays there.
            if not is_view(node, position) or node.inputs[0].name in planned:
                planned[value.name] = value
    return planned


def gather(graph: Graph, plan: MemoryPlan, options: PlanOptions) -> Facts:
    """Replay the order; PlanError if something that must be there is not."""
    planned = _planned_values(graph, plan)
    born = dict.fromkeys(planned, -1)
    needed = dict.fromkeys(planned, -1)
    held = dict.fromkeys(value.name for value in graph.outputs)
    last_output = last_step = -1
    for step, node in enumerate(plan.order):
        for value in () if op_def(node.op).view else node.inputs:
            if value.name in planned:
                needed[value.name] = max(needed[value.name], 2 * step)
        for position, value in enumerate(node.outputs):
            if value.name in planned:
                born[value.name] = 2 * step + 1
                needed[value.name] = -1 if is_view(node, position) else 2 * step + 1
        last_output = step if any(value.name in held for value in node.outputs) else last_output
        last_step = step if node.phase == "step" else last_step
    chain = _chains(graph, plan, planned)
    persistent = {name for names in chain.values() for name in names}
    ends = [(name, 2 * last_output + 1) for name in held if name not in persistent]
    ends += [(name, 2 * last_step + 1) for name in options.keep]
    ends += [(names[-1], 2 * len(plan.order) + 1) for names in chain.values()]
    for name, end in ends:
        if name in planned:
            needed[name] = max(needed[name], end)
        elif name not in graph.constants:
            raise PlanError("missing value", f"{name!r} is to be kept but has no place in the arena")
    return Facts(graph, plan, options, planned, born, needed, chain, _written(plan, planned))


def _written(plan: MemoryPlan, planned: dict[str, Value]) -> dict[str, list[str]]:
    """Value -> the values that nodes, or the user, have written and that it shows."""
    found = {name: [name] for name in planned}
    for node in plan.order:
        if op_def(node.op).view and node.outputs[0].name in planned:
            shown = (name for value in node.inputs for name in found.get(value.name, ()))
            found[node.outputs[0].name] = list(dict.fromkeys(shown))
    return found


def _chains(graph: Graph, plan: MemoryPlan, planned: dict[str, Value]) -> dict[str, list[str]]:
    """Persistent value -> the names that hold its content one after another (itself first, views left out)."""
    base = {name: name for name in planned}
    chain = {value.name: [value.name] for value in (*graph.state, *graph.accumulators)}
    owner = {name: name for name in chain}
    for node in plan.order:
        if op_def(node.op).view and node.inputs[0].name in planned:
            base[node.outputs[0].name] = base[node.inputs[0].name]
        for output, source in alias_of(node):
            root = base.get(node.inputs[source].name)
            if root is None:
                raise PlanError("constant overwritten", f"{node.name!r} writes over {node.inputs[source].name!r}")
            if root in owner:
                owner[node.outputs[output].name] = owner[root]
                chain[owner[root]].append(node.outputs[output].name)
    return chain
