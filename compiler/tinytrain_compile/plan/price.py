"""Price of a step by a plan: work of the core, and bytes that kernels access, by the target's figures.

An operator with multiply-accumulates fetches its two factors once per REUSE products; other operands are read and
written once. Caches are not modelled. This is a model for comparing plans, not a measurement.
"""

from __future__ import annotations

from tinytrain_compile.ir.cost import StepCost
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import scratch_bytes
from tinytrain_compile.ops.fused_update import taken_apart
from tinytrain_compile.plan.options import CoreModel


def step_cost(plan: MemoryPlan, core: CoreModel) -> StepCost:
    """Return modelled time and energy of one step of a plan, its second runs and page moves included."""
    work = sum(_millicycles(part, core) for node in plan.order for part in taken_apart(node))
    access = sum(memory.extra_ps for memory in plan.further)
    paging = sum(move.ps for move in plan.paging)
    return StepCost(work * 1000 // core.clock_mhz, access, paging, work * core.pj_per_cycle // 1000, plan.extra_pj)


def node_ps(node: Node, core: CoreModel) -> int:
    """Return modelled time of one node, in picoseconds."""
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


REUSE = 4
"""Products that an element serves once it is in a register: kernels work on tiles of about four."""

FACTORS = 2
"""Number of factors of an operator with multiply-accumulates: its largest inputs."""


def bytes_read(node: Node) -> list[int]:
    """Return, per input of a node, the bytes that its kernel reads; 0 for a view; page moves are priced separately."""
    parts = taken_apart(node)
    if len(parts) > 1:
        read = {value.name: size for part in parts for value, size in zip(part.inputs, bytes_read(part), strict=True)}
        return [read.get(value.name, value.size_bytes) for value in node.inputs]  # sums of squares: of none of them
    definition = op_def(node.op)
    if definition.view or definition.page:
        return [0 for _ in node.inputs]
    macs = definition.macs(node)
    sizes = [value.size_bytes for value in node.inputs]
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))[:FACTORS]:
        value = node.inputs[index]
        item = value.size_bytes // max(value.elements, 1)
        sizes[index] = max(sizes[index], macs * item // REUSE)
    return sizes


def accessed(plan: MemoryPlan) -> list[int]:
    """Return, per buffer of a plan, the bytes read and written by the kernels of one step and its update."""
    home = {name: index for index, buffer in enumerate(plan.buffers) for name in buffer.values}
    scratch = {buffer.name: index for index, buffer in enumerate(plan.buffers) if buffer.kind == "scratch"}
    total = [0] * len(plan.buffers)
    for node in plan.order:
        definition = op_def(node.op)  # page moves are priced separately
        written = [0 if definition.view or definition.page else value.size_bytes for value in node.outputs]
        for value, size in zip((*node.inputs, *node.outputs), (*bytes_read(node), *written), strict=True):
            if value.name in home:
                total[home[value.name]] += size
        if node.name in scratch:
            total[scratch[node.name]] += 2 * scratch_bytes(node)
    return total
