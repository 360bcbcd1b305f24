"""What a plan costs a step: work of the core by the target's figures, and what further memories and page moves add."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir import Node
from tinytrain_compile.ir.cost import StepCost
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.fused_update import taken_apart


@dataclass(frozen=True)
class CoreModel:
    """What computing costs, in thousandths of a cycle: a multiply-accumulate, an element that other operators write."""

    clock_mhz: int
    int8_mac: int
    float_mac: int
    element: int
    pj_per_cycle: int


def step_cost(plan: MemoryPlan, core: CoreModel) -> StepCost:
    """Modelled time and energy of one step of a plan, its second runs and page moves included."""
    work = sum(_millicycles(part, core) for node in plan.order for part in taken_apart(node))
    access = sum(memory.extra_ps for memory in plan.further)
    paging = sum(move.ps for move in plan.paging)
    return StepCost(work * 1000 // core.clock_mhz, access, paging, work * core.pj_per_cycle // 1000, plan.extra_pj)


def node_ps(node: Node, core: CoreModel) -> int:
    """Modelled time of one node, in picoseconds."""
    return sum(_millicycles(part, core) for part in taken_apart(node)) * 1000 // core.clock_mhz


def _millicycles(node: Node, core: CoreModel) -> int:
    definition = op_def(node.op)
    if definition.view or definition.page:
        return 0
    macs = definition.macs(node)
    if not macs:
        return core.element * sum(value.elements for value in node.outputs)
    floats = any(value.dtype == "float32" for value in (*node.inputs, *node.outputs))
    return macs * (core.float_mac if floats else core.int8_mac)
