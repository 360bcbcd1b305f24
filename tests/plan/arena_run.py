"""Runs a plan in one line of bytes with the numpy references: what the firmware will do, without any C."""

from __future__ import annotations

import numpy as np

from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.types import Array, Graph, Node, Value
from tinytrain_compile.ops import op_def, run_node

POISON = 0xA5


class Arena:
    """The arena and the graph's constants; what is not in the plan is looked up in flash."""

    def __init__(self, graph: Graph, plan: MemoryPlan, feeds: dict[str, Array]) -> None:
        self.graph, self.plan = graph, plan
        self.memory = np.full(plan.total_bytes, POISON, np.uint8)
        self.flash: dict[str, Array] = {**graph.constants, **feeds}
        for value in graph.state:
            self.write(value, graph.constants[value.name])
        for value in graph.accumulators:
            self.write(value, np.zeros(value.shape, value.dtype))
        for value in graph.inputs[:1]:
            self.write(value, feeds[value.name])

    def write(self, value: Value, data: Array) -> None:
        low = self.plan.offsets[value.name]
        self.memory[low : low + value.size_bytes] = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)

    def read(self, value: Value) -> Array:
        if value.name not in self.plan.offsets:
            return self.flash[value.name]
        low = self.plan.offsets[value.name]
        raw = self.memory[low : low + value.size_bytes].copy()
        dtype = "uint8" if value.dtype == "bits" else value.dtype
        return raw.view(dtype).reshape((-1,) if value.dtype == "bits" else value.shape)

    def run(self, nodes: list[Node]) -> None:
        for node in nodes:
            if op_def(node.op).view and node.outputs[0].name in self.plan.offsets:
                continue  # what it shows must be there already
            results = run_node(node, tuple(self.read(value) for value in node.inputs))
            scratch = op_def(node.op).scratch(node)
            if scratch:
                low = self.plan.scratch_offsets[node.name]
                self.memory[low : low + scratch] = POISON
            for value, result in zip(node.outputs, results, strict=True):
                if value.name in self.plan.offsets:
                    self.write(value, result)
                else:
                    self.flash[value.name] = result


def infer(graph: Graph, plan: MemoryPlan, feeds: dict[str, Array]) -> list[Array]:
    """What m_infer does: only ancestors of the outputs, in plan order, with the same addresses."""
    arena = Arena(graph, plan, feeds)
    needed = graph.ancestors(graph.outputs)
    arena.run([node for node in plan.order if node.name in needed])
    return [arena.read(value) for value in graph.outputs]


def train(graph: Graph, plan: MemoryPlan, feeds: dict[str, Array], keep: tuple[str, ...]) -> dict[str, Array]:
    """What m_train_step does: the step, then apply. Returns kept values (read in between) and all state."""
    arena = Arena(graph, plan, feeds)
    arena.run([node for node in plan.order if node.phase == "step"])
    values = {value.name: value for node in graph.nodes for value in (*node.inputs, *node.outputs)}
    found = {name: arena.read(values[name]) for name in keep}
    arena.run([node for node in plan.order if node.phase == "apply"])
    for value in (*graph.state, *graph.accumulators):
        found[value.name] = arena.read(value)
    return found


def truth_of(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    """Every value, each in memory of its own. Arrays are copied, since numpy's sums depend on strides."""
    known: dict[str, Array] = {**graph.constants, **feeds}
    for node in graph.nodes:
        results = run_node(node, tuple(known[value.name].copy() for value in node.inputs))
        known.update({v.name: np.asarray(r, order="C") for v, r in zip(node.outputs, results, strict=True)})
    return known
