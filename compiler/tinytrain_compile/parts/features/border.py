"""The step cut where training begins: the frozen part computes features, the rest runs on them (--features).

Docs: docs/training-loop.md, ADR 38. No plan is changed for this. The whole step's plan gives a value that crosses the
border a place from its frozen producer to its last reader. So it is copied there just before the calls that read it,
and the calls that would have made it are left out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import op_def


@dataclass(frozen=True)
class Crossing:
    """A value that crosses: `at` bytes into the features."""

    value: Value
    at: int


@dataclass(frozen=True)
class Stretch:
    """Consecutive calls of a step, all frozen or none. crossing: values that must be in place before them."""

    nodes: tuple[Node, ...]
    frozen: bool
    crossing: tuple[Crossing, ...] = ()


@dataclass(frozen=True)
class Border:
    """A step, with what only an inference computes, in stretches.

    size_bytes: of all features. starts: nodes that a step or an inference calls first in a stretch; a stretch of only
    views calls none.
    """

    stretches: tuple[Stretch, ...]
    size_bytes: int
    starts: frozenset[str]


@dataclass(frozen=True)
class FeatureCut:
    """A step that is cut where training begins (--features). size_bytes: of the features of a call.

    values: that cross, by the user's names; frozen: nodes of the plan that a step on features leaves out.
    """

    size_bytes: int
    values: tuple[str, ...]
    frozen: tuple[str, ...]


def border_of(train: TrainGraph, plan: MemoryPlan) -> Border | None:
    """Find the border; None if only views are frozen, since features would be the input."""
    return _Cutter(train, plan).border()


def feature_cut(train: TrainGraph, plan: MemoryPlan) -> FeatureCut | None:
    """Return the report's data on a border."""
    border = border_of(train, plan)
    if border is None:
        return None
    values = [crossing.value for stretch in border.stretches for crossing in stretch.crossing]
    names = dict.fromkeys(value.origin or value.name for value in values)
    frozen = [node.name for stretch in border.stretches if stretch.frozen for node in stretch.nodes]
    return FeatureCut(border.size_bytes, tuple(names), tuple(frozen))


class _Cutter:
    """Finder of the frozen part of one plan: nodes that depend only on the input and on constants."""

    def __init__(self, train: TrainGraph, plan: MemoryPlan) -> None:
        graph = replace(train.graph, nodes=plan.order)  # with its streams
        self._image = graph.inputs[0]
        changing = {value.name for value in (*graph.state, *graph.accumulators)}
        self._fixed = set(graph.constants) - changing
        self._crossing = {self._image.name}
        self._makers: dict[str, Node] = {}
        step = graph.ancestors((train.loss, *(new for _, new in graph.updates)))
        self._calls = step, graph.ancestors(graph.outputs)
        """Names of the nodes of a step, and of those of an inference."""
        wanted = step.union(*self._calls)
        self._nodes = [node for node in plan.order if node.phase == "step" and node.name in wanted]
        self._frozen = {node.name for node in self._nodes if self._is_frozen(node)}
        self._give_back()
        self._repeats = {} if plan.remat is None else {run.name: run.of for run in plan.remat.runs}
        self._by_name = {node.name: node for node in self._nodes}

    def _is_frozen(self, node: Node) -> bool:
        """Tell, in the plan's order, whether a node depends only on the input and constants."""
        self._makers |= {value.name: node for value in node.outputs}
        names = {value.name for value in node.inputs}
        if not names <= self._fixed | self._crossing:
            return False
        known = self._crossing if names & self._crossing else self._fixed
        known.update(value.name for value in node.outputs)
        return True

    def _give_back(self) -> None:
        """Let values that depend only on constants be computed in a step on features too, or cross.

        Like all values, they have their bytes only until the last reader. If only trained nodes read one, a step on
        features computes it; if frozen ones do as well, it crosses.
        """
        readers = dict[str, list[Node]]()
        for node in reversed(self._nodes):
            names = {value.name for value in node.outputs}
            found = [reader for name in names for reader in readers.get(name, ())]
            trained = any(reader.name not in self._frozen for reader in found)
            if node.name in self._frozen and trained and not names & self._crossing:
                if any(reader.name in self._frozen for reader in found):
                    self._crossing |= names
                else:
                    self._frozen.remove(node.name)
            for value in node.inputs:
                readers.setdefault(value.name, []).append(node)

    def border(self) -> Border | None:
        """See `border_of`."""
        if not any(node.name in self._frozen and not op_def(node.op).view for node in self._nodes):
            return None
        places, size = dict[str, int](), 0
        there = set[str]()
        stretches = list[Stretch]()
        for frozen, run in groupby(self._nodes, lambda node: node.name in self._frozen):
            nodes = tuple(run)
            crossing = list[Crossing]()
            for value in self._read(nodes) if not frozen else ():
                source = self._source(value).name
                if source not in places:
                    places[source], size = size, size + value.size_bytes
                if value.name not in there:
                    there.add(value.name)
                    crossing.append(Crossing(value, places[source]))
            stretches.append(Stretch(nodes, frozen, tuple(crossing)))
        return Border(tuple(stretches), size, frozenset(_starts(stretches, self._calls)))

    def _read(self, nodes: Sequence[Node]) -> Iterator[Value]:
        """Yield the values of the frozen part that these nodes read, each once, as named by the producer."""
        read = (value for node in nodes for value in node.inputs if value.name in self._crossing)
        yield from {held.name: held for value in read for held in (self._held(value),)}.values()

    def _held(self, value: Value) -> Value:
        """Return the value of which a frozen view shows all bytes."""
        while (made := self._makers.get(value.name)) is not None and op_def(made.op).view:
            if made.inputs[0].size_bytes != value.size_bytes:
                break
            value = made.inputs[0]
        return value

    def _source(self, value: Value) -> Value:
        """Return the first value with the same bytes, which a second run repeats, unless nothing reads the first
        one."""
        made = self._makers.get(value.name)
        first = None if made is None else self._by_name.get(self._repeats.get(made.name, ""))
        return value if made is None or first is None else first.outputs[made.outputs.index(value)]


def _starts(stretches: Sequence[Stretch], calls: Iterable[Container[str]]) -> Iterator[str]:
    """Yield the node that each of these calls runs first in each stretch."""
    for names in calls:
        for stretch in stretches:
            called = (node.name for node in stretch.nodes if node.name in names and not op_def(node.op).view)
            yield from islice(called, 1)
