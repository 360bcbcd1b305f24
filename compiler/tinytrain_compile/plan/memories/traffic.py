"""How many bytes kernels read and write in each buffer in one step: the model behind the choice of memories.

An operator with multiply-accumulates fetches its two factors once per REUSE products; all else is read and written
once. Caches are not modelled. This is a model for comparing plans, not a measurement.
"""

from __future__ import annotations

from tinytrain_compile.ir import Node
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import scratch_bytes
from tinytrain_compile.ops.fused_update import taken_apart

REUSE = 4
"""Products that an element serves once it is in a register: kernels work on tiles of about four."""

FACTORS = 2
"""The largest inputs of an operator with multiply-accumulates are what it multiplies."""


def bytes_read(node: Node) -> list[int]:
    """Per input of a node, the bytes that its kernel reads; nothing for a view; page moves are priced apart."""
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


def bytes_written(node: Node) -> list[int]:
    """Per output of a node, the bytes that its kernel writes; scratch is counted by `accessed`, page moves apart."""
    definition = op_def(node.op)
    return [0 if definition.view or definition.page else value.size_bytes for value in node.outputs]


def accessed(plan: MemoryPlan) -> list[int]:
    """Per buffer of a plan, bytes read and written by the kernels of one step and its update."""
    home = {name: index for index, buffer in enumerate(plan.buffers) for name in buffer.values}
    scratch = {buffer.name: index for index, buffer in enumerate(plan.buffers) if buffer.kind == "scratch"}
    total = [0] * len(plan.buffers)
    for node in plan.order:
        moved = zip((*node.inputs, *node.outputs), (*bytes_read(node), *bytes_written(node)), strict=True)
        for value, size in moved:
            if value.name in home:
                total[home[value.name]] += size
        if node.name in scratch:
            total[scratch[node.name]] += 2 * scratch_bytes(node)
    return total
