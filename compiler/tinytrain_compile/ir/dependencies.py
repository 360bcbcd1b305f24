"""Which nodes of a graph can only run behind which others."""

from __future__ import annotations

from collections.abc import Iterable

from tinytrain_compile.ir.types import Graph, Node


class Dependencies:
    """What depends on what: a bit set for each node, made once, for who asks about many pairs of nodes."""

    def __init__(self, graph: Graph) -> None:
        self._bit = {node.name: 1 << place for place, node in enumerate(graph.nodes)}
        self._needed: dict[str, int] = {}
        made: dict[str, int] = {}
        for node in graph.nodes:
            needed = 0
            for value in node.inputs:
                needed |= made.get(value.name, 0)
            self._needed[node.name] = needed
            made.update(dict.fromkeys((value.name for value in node.outputs), needed | self._bit[node.name]))

    def after(self, node: Node, first: Node) -> bool:
        """Whether a node can only run behind another one."""
        return self.any_after((node.name,), (first.name,))

    def any_after(self, late: Iterable[str], first: Iterable[str]) -> bool:
        """Whether any of these nodes needs, from however far, what one of the others makes; by their names."""
        bits = sum(self._bit[name] for name in set(first))
        return any(self._needed[name] & bits for name in late)
