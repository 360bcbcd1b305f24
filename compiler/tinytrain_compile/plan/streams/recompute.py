"""Second runs for streams: the forward pass is kept at a few waists, and what lies between two of them is computed
again right before its errors, so that both can be computed row by row in one stream.

A waist is a value that is all the rest of the forward pass needs. The waists that are kept cut the forward pass into
stages. What the backward pass reads of a stage that does not run again, as behind the last waist, stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tinytrain_compile.ir import Graph, Node, Value
from tinytrain_compile.ir.stages import SecondRun
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import has_trait, row_form
from tinytrain_compile.plan.remat.problem import is_repeatable
from tinytrain_compile.plan.remat.rewrite import cloned
from tinytrain_compile.plan.streams.rewrite import with_readers_beside


@dataclass(frozen=True)
class Recomputed:
    """A graph with second runs. groups: nodes of it that follow each other: of every stage its second runs, errors and
    updates, the last stage first."""

    graph: Graph
    runs: tuple[SecondRun, ...]
    groups: tuple[tuple[Node, ...], ...]


class Waists:
    """Where the forward pass of a training graph can be kept."""

    def __init__(self, graph: Graph, loss: str) -> None:
        self.graph = with_readers_beside(graph)
        values = {value.name: value for node in graph.nodes for value in node.outputs}
        names = graph.ancestors((values[loss],))
        self.forward = [node for node in graph.nodes if node.name in names]
        made = {value.name for node in self.forward for value in node.outputs}
        beside = [node for node in graph.nodes if node.name not in names and is_repeatable(node)]
        self.beside = [n for n in beside if all(v.name in made or v.name in graph.constants for v in n.inputs)]
        self.beside = [n for n in self.beside if any(v.name in made for v in n.inputs)]
        self.found = tuple(self._waists())

    def _waists(self) -> Iterator[Value]:
        place = dict.fromkeys((value.name for value in self.graph.data), -1)
        place |= {value.name: index for index, node in enumerate(self.forward) for value in node.outputs}
        last = {v.name: index for index, node in enumerate(self.forward) for v in node.inputs if v.name in place}
        for index, node in enumerate(self.forward):
            live = [name for name, end in last.items() if end > index and place[name] <= index]
            if live == [node.outputs[0].name] and len(node.outputs[0].shape) == 4 and is_repeatable(node):
                yield node.outputs[0]

    def narrow(self) -> list[Value]:
        """Waists that are smaller than what is in front of them and no larger than the next one; and sums."""
        sizes = [value.size_bytes for value in self.found]
        sums = {
            node.outputs[0].name for node in self.forward if len(node.inputs) > 1 and has_trait(node.op, "elementwise")
        }
        return [
            value
            for index, value in enumerate(self.found)
            if sizes[index] <= min(sizes[index + 1 : index + 2], default=0)
            and (value.name in sums or sizes[index] < min(sizes[index - 1 : index], default=0))
        ]

    def keep(self, kept: Sequence[str], again: Collection[int] | None = None) -> Recomputed:
        """The graph where of the stages that run again nothing is kept but these waists, which are in their order.

        again: numbers of stages: the first ends with the first waist. None: all up to the last waist.
        """
        return _Writer(self, kept, range(len(kept)) if again is None else again).written()

    def saved(self, first: str | None, last: str) -> int:
        """Bytes of what the backward pass reads of the stage between two waists (None: of the first stage)."""
        names = [value.name for value in self.found]
        start = 0 if first is None else names.index(first) + 1
        return sum(self._read[start : names.index(last) + 1])

    @cached_property
    def _read(self) -> list[int]:
        """Bytes that the backward pass reads, between each waist and the one before, without these."""
        late = {node.name for node in (*self.forward, *self.beside)}
        read = {value.name for node in self.graph.nodes if node.name not in late for value in node.inputs}
        place = dict.fromkeys((value.name for value in self.graph.data), 0)
        stage, bytes_read = 0, [0] * (len(self.found) + 1)
        waists = {value.name for value in self.found}
        for node in self.forward:
            place.update((value.name, stage) for value in node.outputs)
            stage += node.outputs[0].name in waists
        for node in (*self.forward, *self.beside):
            places = [place[value.name] for value in (*node.inputs, *node.outputs) if value.name in place]
            sizes = (value.size_bytes for value in node.outputs if value.name in read - waists)
            bytes_read[max(places, default=0)] += sum(sizes)
        return bytes_read


class _Writer:
    """Collects nodes. stage: of each value of the forward pass; what is kept ends one. twice: stages that run again."""

    def __init__(self, waists: Waists, kept: Sequence[str], twice: Collection[int]) -> None:
        self._graph, self._kept, self._twice = waists.graph, set(kept), twice
        self._stage: dict[str, int] = {}
        stage = 0
        for node in waists.forward:
            self._stage.update((value.name, stage) for value in node.outputs)
            stage += any(value.name in self._kept for value in node.outputs)
        for node in waists.beside:
            stages = [self._stage[v.name] + (v.name in self._kept) for v in node.inputs if v.name in self._stage]
            self._stage.update((value.name, max(stages, default=0)) for value in node.outputs)
        self._early = {node.name for node in waists.forward}
        self._late = {node.name for node in waists.beside}
        self._taken = {node.name for node in self._graph.nodes} | {v.name for n in self._graph.nodes for v in n.outputs}
        self._nodes: list[Node] = []
        self._runs: list[SecondRun] = []
        self._groups: list[list[Node]] = []
        self._open = False
        self._current: dict[str, Value] = {}

    def written(self) -> Recomputed:
        """The graph."""
        # In the graph's order, since a mask that is kept belongs beside its map.
        self._nodes += [node for node in self._graph.nodes if self._is_made(node) and self._is_there(node)]
        ready = set[int]()
        for node in self._graph.nodes:
            if self._is_made(node):
                continue
            for value in node.inputs:
                stage = None if value.name in self._kept else self._stage.get(value.name)
                self._open &= stage is None or stage in ready
                if stage is not None and stage in self._twice and stage not in ready:
                    ready.add(stage)
                    self._groups.append([])
                    self._open = True
                    self._run_again(stage)
            self._add(replace(node, inputs=tuple(self._current.get(v.name, v) for v in node.inputs)))
        graph = replace(self._graph, nodes=tuple(self._nodes))
        return Recomputed(graph, tuple(self._runs), tuple(map(tuple, self._groups)))

    def _is_there(self, node: Node) -> bool:
        return node.name in self._early or self._stage[node.outputs[0].name] not in self._twice

    def _add(self, node: Node) -> None:
        self._nodes.append(node)
        if row_form(node) is None or node.phase != "step":
            self._open = False
        elif self._open:
            self._groups[-1].append(node)

    def _run_again(self, stage: int) -> None:
        """What the backward pass reads of a stage, and what that needs."""
        own = [n for n in self._graph.nodes if self._stage.get(n.outputs[0].name) == stage and self._is_made(n)]
        late = (node for node in self._graph.nodes if node.name not in self._early)
        needed = {value.name for node in late for value in node.inputs}
        for node in reversed(own):
            if any(value.name in needed for value in node.outputs):
                needed |= {value.name for value in node.inputs}
        for node in own:
            if node.outputs[0].name not in needed or node.outputs[0].name in self._kept:
                continue
            inputs = tuple(self._current.get(value.name, value) for value in node.inputs)
            if node.name in self._late:
                self._add(replace(node, inputs=inputs))
                continue
            clone = cloned(node, inputs, self._taken)
            self._current.update({v.name: copy for v, copy in zip(node.outputs, clone.outputs, strict=True)})
            self._add(clone)
            size, macs = node.outputs[0].size_bytes, op_def(node.op).macs(node)
            self._runs.append(SecondRun(clone.name, node.name, node.origin, size, macs))

    def _is_made(self, node: Node) -> bool:
        return node.name in self._early or node.name in self._late
