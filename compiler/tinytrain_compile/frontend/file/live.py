"""What of a model file counts: the nodes that its outputs need, and what these read.

Everything else may be as it likes (another framework's operators, weights of element types that no network computes
with, inputs of unknown shape): what does not reach the output is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from tinytrain_compile.frontend.file.subgraphs import reads


@dataclass(frozen=True, eq=False)
class LivePart:
    """nodes: in file order; read: names of all tensors that these or the outputs read."""

    nodes: tuple[onnx.NodeProto, ...]
    read: frozenset[str]


def live_part(graph: onnx.GraphProto) -> LivePart:
    """The part of a graph that its outputs depend on. Names of results are unique (the guard has checked that)."""
    nodes = list(graph.node)
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    read = {value.name for value in graph.output}
    kept, pending = set[int](), sorted(read)
    while pending:
        index = makers.get(pending.pop())
        if index is None or index in kept:
            continue
        kept.add(index)
        needed = reads(nodes[index])
        pending += needed
        read.update(name for name in needed if name)
    return LivePart(tuple(nodes[index] for index in sorted(kept)), frozenset(read))
