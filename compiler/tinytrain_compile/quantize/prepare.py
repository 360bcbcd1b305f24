"""Puts the saturation of int8 storage into the float graph, so that its gradient is the gradient of what will run."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.ir.types import Graph, Node, Quant, Value
from tinytrain_compile.ops.activation import ClipAttrs

KEEPS_RANGE = ("Reshape", "Transpose", "Slice", "Concat", "MaxPool", "Embed", "Expand")
"""Ops whose outputs cannot leave the range of their inputs: they need no clamp of their own."""
MATRIX_OPS = ("Conv", "ConvGradInput", "Gemm")


def prepare(graph: Graph, float_head: bool) -> Graph:
    """A graph in which every quantised value is clamped to its int8 range by a Clip that carries the annotation.

    float_head: the last Conv or Gemm, and all behind it, stays float: annotations there are dropped.
    """
    free = _behind_head(graph) if float_head else frozenset[str]()
    renamed: dict[str, Value] = {}
    taken = {v.name for node in graph.nodes for v in node.outputs} | set(graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(renamed.get(v.name, v) for v in node.inputs)
        out = node.outputs[0]
        if out.quant is None or out.name in free or _keeps_range(node, out.quant):
            bare = tuple(replace(v, quant=None) if v.name in free else v for v in node.outputs)
            renamed.update({v.name: v for v in bare})
            nodes.append(replace(node, inputs=inputs, outputs=bare))
        elif node.op == "Clip" and isinstance(node.attrs, ClipAttrs):
            low, high = real_range(out.quant)
            attrs = ClipAttrs(max(low, node.attrs.low), min(high, node.attrs.high))
            nodes.append(replace(node, inputs=inputs, attrs=attrs))
        else:
            clamped = _clamp(out, taken)
            plain = replace(out, quant=None)
            renamed[out.name] = clamped.outputs[0]
            nodes += [replace(node, inputs=inputs, outputs=(plain, *node.outputs[1:])), clamped]
    outputs = tuple(renamed.get(v.name, v) for v in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _keeps_range(node: Node, quant: Quant) -> bool:
    """Whether a node cannot leave the range of its output's format, by more than half a step.

    A format behind it may be narrower than the one before it: a ReLU that became a part of rounding. (A Concat brings
    its inputs to its own format, with saturation.)
    """
    if node.op not in KEEPS_RANGE:
        return False
    if node.op == "Concat":
        return True
    low, high = real_range(quant)
    ranges = [real_range(value.quant) for value in node.inputs if value.quant is not None]
    half = quant.scale[0] / 2
    return all(low - half <= a and b <= high + half for a, b in ranges)


def real_range(quant: Quant) -> tuple[float, float]:
    """Smallest and largest real value that the format holds."""
    return (quant.low - quant.zero) * quant.scale[0], (quant.high - quant.zero) * quant.scale[0]


def _clamp(value: Value, taken: set[str]) -> Node:
    name, count = f"{value.name}.int8", 1
    while name in taken:
        count += 1
        name = f"{value.name}.int8.{count}"
    taken.add(name)
    assert value.quant is not None
    low, high = real_range(value.quant)
    out = replace(value, name=name)
    return Node(name, "Clip", (replace(value, quant=None),), (out,), ClipAttrs(low, high), value.origin)


def _behind_head(graph: Graph) -> frozenset[str]:
    """Names of the head's output and of everything computed from it."""
    heads = [node for node in graph.nodes if node.op in MATRIX_OPS]
    if not heads:
        return frozenset()
    behind = {v.name for v in heads[-1].outputs}
    for node in graph.nodes:
        if any(v.name in behind for v in node.inputs):
            behind.update(v.name for v in node.outputs)
    return frozenset(behind)
