"""An independent judge of page moves: it shares only data types with the planner.

Without its moves a plan must be the one it was made from, every operand must stand for the same value as there, and a
parameter must not change between its page-in and the reader.
"""

from __future__ import annotations

from tinytrain_compile.ir import Node, Value
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.plan.options import PlanError


def validate_paging(before: MemoryPlan, plan: MemoryPlan) -> None:
    """Raise PlanError unless the plan runs what `before` runs, on the same contents."""
    shown: dict[str, str] = {}  # what was moved -> the value of `before` that it is a copy of
    stale: set[str] = set()  # copies of parameters that have changed since
    names = [node.name for node in plan.order if not op_def(node.op).page]
    if names != [node.name for node in before.order]:
        raise PlanError("order incomplete", "the plan without page moves is not the one it was made from")
    original = iter(before.order)
    for node in plan.order:
        _check_fresh(node, stale)
        if op_def(node.op).page:
            _check_move(node, plan)
            shown[node.outputs[0].name] = shown.get(node.inputs[0].name, node.inputs[0].name)
            continue
        twin = next(original)
        meant = [
            (shown.get(one.name, one.name), other.name) for one, other in zip(node.inputs, twin.inputs, strict=True)
        ]
        if any(one != other for one, other in meant) or _rest(node) != _rest(twin):
            raise PlanError("another computation", f"{node.name!r} does not read what it reads without page moves")
        for _, source in alias_of(node):
            _check_home(node, node.inputs[source], shown)
            stale |= {copy for copy, of in shown.items() if of == node.inputs[source].name}


def _rest(node: Node) -> tuple[object, ...]:
    return (node.name, node.op, node.outputs, node.attrs, node.phase)


def _check_fresh(node: Node, stale: set[str]) -> None:
    for value in node.inputs:
        if value.name in stale:
            raise PlanError("stale page", f"{node.name!r} reads {value.name!r}, whose original has changed since")


def _check_home(node: Node, value: Value, shown: dict[str, str]) -> None:
    if value.name in shown:
        raise PlanError("update of a copy", f"{node.name!r} changes {value.name!r}, which is a copy of a parameter")


def _check_move(node: Node, plan: MemoryPlan) -> None:
    """Out goes from the arena to another memory, in comes from there to the arena."""
    if node.inputs[0].name not in plan.offsets:
        raise PlanError("page move", f"{node.name!r} moves {node.inputs[0].name!r}, which lies in no memory")
    source = plan.place(plan.offsets[node.inputs[0].name])[0]
    target = plan.place(plan.offsets[node.outputs[0].name])[0]
    good = (source == 0 and target > 0) if op_def(node.op).page == "out" else (source > 0 and target == 0)
    if not good:
        raise PlanError("page move", f"{node.name!r} moves from memory {source} to memory {target}")
