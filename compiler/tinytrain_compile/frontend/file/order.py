"""Topological order of a model's nodes, and what keeps one from having it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import OnnxNode


def sort_nodes(nodes: Sequence[OnnxNode], known: set[str], outputs: Sequence[str]) -> tuple[OnnxNode, ...]:
    """Nodes so that every read comes after its definition, otherwise in file order.

    The standard wants this order in the file; files that break it but have one are accepted. Raises E0215 on a name
    that nothing defines and E0207 on a cycle.
    """
    made = {name for node in nodes for name in node.outputs if name}
    for node in nodes:
        for name in node.inputs:
            if name and name not in known and name not in made:
                raise _undefined(f"node {node.name} ({node.op})", name)
    for name in outputs:
        if name not in known and name not in made:
            raise _undefined("model output", name)
    return tuple(nodes[index] for index in _order(nodes, known))


def _order(nodes: Sequence[OnnxNode], known: set[str]) -> list[int]:
    """Kahn's algorithm; of the nodes that could come next always the first one in the file."""
    missing = [{name for name in node.inputs if name and name not in known} for node in nodes]
    readers: dict[str, list[int]] = {}
    for index, names in enumerate(missing):
        for name in names:
            readers.setdefault(name, []).append(index)
    ready = [index for index, names in enumerate(missing) if not names]
    ordered: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(index)
        for name in nodes[index].outputs:
            for reader in readers.get(name, []):
                missing[reader].discard(name)
                if not missing[reader]:
                    heapq.heappush(ready, reader)
    if len(ordered) < len(nodes):
        stuck = [node for node, names in zip(nodes, missing, strict=True) if names]
        what = f"it waits for its own result ({len(stuck)} nodes lie on or behind the cycle)"
        raise CompileError("E0207", f"node {stuck[0].name} ({stuck[0].op})", what, "export the graph without cycles")
    return ordered


def _undefined(where: str, name: str) -> CompileError:
    return CompileError("E0215", where, f"it reads {name or '(no name)'}, which nothing defines", "keep its producer")
