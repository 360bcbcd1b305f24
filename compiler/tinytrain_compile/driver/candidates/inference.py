"""How one sample is inferred where a step takes several: a forward pass of its own, planned in the step's arena.

Weights and other state lie where the step's plan has them, at the bottom of the arena. All else of this pass is
placed above that, so an inference never touches what outlives it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tinytrain_compile.ir.stages import Inference, MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Array, Graph, Node, Value
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_graph

MARK = "@one"
"""Behind the names of what belongs to the pass of one sample."""
OPEN = "@open"
"""Behind the names of what belongs to the pass while a step is open."""
REMEMBERED = 8
"""Steps whose pass is kept: a search asks for it once to price a step, and once to plan it."""


class NoRoomError(ValueError):
    """The pass of one sample does not fit into the arena of a step."""


def infer_one(one: TrainGraph, train: TrainGraph, plan: MemoryPlan, settings: PlanOptions) -> Inference:
    """Return the forward pass of `one`, which takes one sample, beside the plan of `train`. Errors: NoRoomError."""
    graph = beside(one.graph, train.graph, MARK)
    ends = [b.offset + b.size_bytes for b in plan.buffers if b.kind in ("header", "state", "accumulator")]
    bottom = max(end for end in ends if plan.place(end - 1)[0] == 0)
    for effort in ("quick", "full"):
        options = replace(settings, capacity_bytes=plan.arena_bytes, header_bytes=bottom, effort=effort, keep=())
        planned = plan_graph(graph, options)
        if planned.plan.arena_bytes <= plan.arena_bytes:
            return Inference(planned.graph, planned.plan)
    what = f"inference of one sample needs an arena of {planned.plan.arena_bytes} B, the step has {plan.arena_bytes} B"
    raise NoRoomError(what)


@lru_cache(maxsize=REMEMBERED)
def infer_open(train: TrainGraph, settings: PlanOptions) -> Inference:
    """Return the forward pass of a step of one sample, in memory that begins behind the header of these settings."""
    planned = plan_graph(beside(train.graph, train.graph, OPEN), settings)
    return Inference(planned.graph, planned.plan)


def beside(one: Graph, whole: Graph, mark: str) -> Graph:
    """Return what the outputs of `one` depend on, under names that end in `mark`.

    State and equal constants are those of `whole`.
    """
    needed = one.ancestors(one.outputs)
    nodes = [node for node in one.nodes if node.name in needed]
    state = {value.name for value in whole.state}
    read = {value.name for node in nodes for value in node.inputs} & set(one.constants)
    shared = {name for name in read if name in state or _equal(one.constants[name], whole.constants.get(name))}
    renamed = _Renamed(frozenset(shared), mark)
    return Graph(
        one.name,
        tuple(map(renamed.node, nodes)),
        (renamed.value(one.inputs[0]),),
        tuple(map(renamed.value, one.outputs)),
        {renamed.name(name): one.constants[name] for name in one.constants if name in read},
    )


def _equal(array: Array, other: Array | None) -> bool:
    return other is not None and array.dtype == other.dtype and np.array_equal(array, other)


@dataclass(frozen=True)
class _Renamed:
    kept: frozenset[str]
    mark: str

    def name(self, name: str) -> str:
        return name if name in self.kept else name + self.mark

    def value(self, value: Value) -> Value:
        return replace(value, name=self.name(value.name))

    def node(self, node: Node) -> Node:
        inputs, outputs = (tuple(map(self.value, values)) for values in (node.inputs, node.outputs))
        return replace(node, name=node.name + self.mark, inputs=inputs, outputs=outputs)
