"""A decision as a graph: the nodes that run again are added as clones, later readers read the clones' outputs.

Everything behind the planner then sees an ordinary graph: clones have the operator, shapes and attributes of what they
repeat, so they share its kernel and give its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tinytrain_compile.ir import Graph, Node, Value
from tinytrain_compile.ir.stages import SecondRun
from tinytrain_compile.ops import op_def
from tinytrain_compile.plan.model import MemoryModel
from tinytrain_compile.plan.options import PlanError
from tinytrain_compile.plan.remat.problem import Decision, Problem, expand


def rewrite(
    graph: Graph, model: MemoryModel, problem: Problem, decision: Decision
) -> tuple[Graph, tuple[SecondRun, ...]]:
    """The graph with second runs, its nodes in the decision's order, and what was added."""
    writer = _Writer(graph)
    for value in (*graph.inputs, *graph.accumulators, *(v for node in graph.nodes for v in node.inputs)):
        if value.name not in writer.producers:
            writer.show(value)
    for event in expand(problem, decision):
        node = model.nodes[problem.operations[event.operation].node]
        if event.storage < 0:
            writer.add(node)
        else:
            writer.repeat(node)
    for node in graph.nodes:
        if node.phase == "apply" and node.name not in writer.done:
            writer.add(node)
    return replace(graph, nodes=tuple(writer.nodes)), tuple(writer.runs)


def replay(graph: Graph, names: Sequence[str], again: Mapping[str, str]) -> tuple[Graph, tuple[SecondRun, ...]]:
    """The graph whose nodes have these names in this order; again: name of a second run -> node that it repeats.

    Raises PlanError if there is no such graph. What it computes is for `validate_remat` to judge.
    """
    nodes = {node.name: node for node in graph.nodes}
    writer = _Writer(graph)
    for value in (*graph.inputs, *graph.accumulators, *(v for node in graph.nodes for v in node.inputs)):
        if value.name not in writer.producers:
            writer.show(value)
    for name in names:
        source = nodes.get(again.get(name, name))
        if name in again and source is not None and len(source.outputs) == 1:
            writer.repeat(source)
        elif name in nodes:
            writer.add(nodes[name])
    if [node.name for node in writer.nodes] != list(names):
        raise PlanError("second runs", "its second runs are not those of this graph")
    return replace(graph, nodes=tuple(writer.nodes)), tuple(writer.runs)


class _Writer:
    """Collects nodes; knows for every value which copy readers get from now on."""

    def __init__(self, graph: Graph) -> None:
        self.producers = graph.producers()
        self.views: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if op_def(node.op).view:
                self.views.setdefault(node.inputs[0].name, []).append(node)
        self.taken = {node.name for node in graph.nodes} | set(self.producers) | set(graph.constants)
        self.nodes: list[Node] = []
        self.done: set[str] = set()
        self.runs: list[SecondRun] = []
        self.current: dict[str, Value] = {}

    def add(self, node: Node) -> None:
        """A node in its own place, with the current copies of what it reads, and the views of what it makes."""
        if node.name in self.done:
            return
        self.done.add(node.name)
        self.nodes.append(replace(node, inputs=tuple(map(self.reader, node.inputs))))
        for value in node.outputs:
            self.show(value)

    def show(self, value: Value) -> None:
        """Views are free: each stands right behind what it shows."""
        for view in self.views.get(value.name, ()):
            if view.phase == "step":
                self.add(view)

    def reader(self, value: Value) -> Value:
        return self.current.get(value.name, value)

    def repeat(self, node: Node) -> None:
        """A clone; from here on its output, and views of that, take the place of the first ones."""
        clone = self.clone(node)
        (value,) = node.outputs
        self.runs.append(SecondRun(clone.name, node.name, node.origin, value.size_bytes, op_def(node.op).macs(node)))

    def clone(self, node: Node) -> Node:
        clone = cloned(node, tuple(map(self.reader, node.inputs)), self.taken)
        self.nodes.append(clone)
        for value, copy in zip(node.outputs, clone.outputs, strict=True):
            self.current[value.name] = copy
            for view in self.views.get(value.name, ()):
                self.clone(view)
        return clone


def cloned(node: Node, inputs: tuple[Value, ...], taken: set[str]) -> Node:
    """The node once more, on these inputs, with names that are free; `taken` gains them."""
    outputs = tuple(replace(value, name=_unique(value.name, taken)) for value in node.outputs)
    name = outputs[0].name if node.name == node.outputs[0].name else _unique(node.name, taken)
    return replace(node, name=name, inputs=inputs, outputs=outputs)


def _unique(name: str, taken: set[str]) -> str:
    """`name@2`, or the next number that is free."""
    count = 2
    while f"{name}@{count}" in taken:
        count += 1
    taken.add(f"{name}@{count}")
    return f"{name}@{count}"
