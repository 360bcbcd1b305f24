"""Choice of the frozen weights stored in flash as kernels multiply them (`ops/int8/prepared.py`), if flash is left.

First come those that reduce the plan's largest load, by bytes of scratch per byte of flash; then those that save the
most instructions per byte of flash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.buffers import load_of
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Graph, Node
from tinytrain_compile.ops.base import scratch_bytes
from tinytrain_compile.ops.int8.prepared import (
    prepared_bytes,
    prepared_weight,
    widened_tenths,
    with_prepared_weight,
)
from tinytrain_compile.ops.names import operand
from tinytrain_compile.ops.stream import StreamAttrs, computed
from tinytrain_compile.plan.lock import WAY_OUT, Lock
from tinytrain_compile.plan.streams.build import build_stream


@dataclass(frozen=True)
class _Way:
    """A weight that could be prepared. step: of the plan, at which its reader runs."""

    name: str
    step: int
    flash_bytes: int
    tenths: int
    """Tenths of an instruction that its widening takes in a training step."""


def with_prepared(graph: Graph, names: Collection[str]) -> Graph:
    """Return the graph in which these nodes read prepared weights; ValueError for one whose weight cannot be.

    int8 weights that are no longer read are dropped from its constants.
    """
    nodes = tuple(with_prepared_weight(node) if node.name in names else node for node in graph.nodes)
    constants, kept = dict(graph.constants), {value.name for value in (*graph.parameters, *graph.state)}
    for old, node in zip(graph.nodes, nodes, strict=True):
        if node is not old:
            constants[operand(node, "w").name] = graph.constants[operand(old, "w").name].astype(np.int16)
            kept.add(operand(node, "w").name)
    before, read = ({value.name for node in each for value in node.inputs} for each in (graph.nodes, nodes))
    constants = {name: data for name, data in constants.items() if name in read | kept or name not in before}
    return replace(graph, nodes=nodes, constants=constants)


def prepared_as_locked(train: TrainGraph, lock: Lock, vectors: bool) -> TrainGraph:
    """Return the graph with the prepared weights of a lock. CompileError E0106 for a node that has none to prepare.

    vectors: whether kernels use integer vectors, which read int8 weights.
    """
    frozen = _frozen(train.graph)
    able = {node.name for node in train.graph.nodes if not vectors and _is_able(node, frozen)}
    if strange := sorted(lock.prepared - able):
        what = f"the weight of {strange[0]!r} cannot be prepared in flash"
        raise CompileError("E0106", lock.file, what, WAY_OUT)
    return replace(train, graph=with_prepared(train.graph, lock.prepared)) if lock.prepared else train


def _frozen(graph: Graph) -> set[str]:
    """Return constants that no step changes."""
    return set(graph.constants) - {value.name for value in graph.state}


def _is_able(node: Node, frozen: Collection[str]) -> bool:
    return prepared_weight(node) is not None and operand(node, "w").name in frozen


def choose_prepared(graph: Graph, plan: MemoryPlan, free_bytes: int) -> tuple[str, ...]:
    """Return names of the nodes whose weights are prepared in `free_bytes` of flash, in the graph's order."""
    chosen = _Choice(graph, plan, free_bytes)
    chosen.lower_load()
    chosen.save_instructions()
    return tuple(node.name for node in graph.nodes if node.name in chosen.names)


class _Choice:
    """The choice so far, and the flash that is left."""

    def __init__(self, graph: Graph, plan: MemoryPlan, free_bytes: int) -> None:
        self._order, self._free, self.names = plan.order, free_bytes, set[str]()
        self._ways = {way.name: way for way in _ways(plan, _frozen(graph))}
        self._load = load_of(plan.buffers, len(plan.order))
        self._scratch = [scratch_bytes(node) for node in plan.order]

    def lower_load(self) -> None:
        """Prepare weights of the step with the largest load, until that step has none that fits and saves scratch."""
        while True:
            step = max(range(len(self._load)), key=lambda step: self._load[step])
            here = ((self._saved(way), way) for way in self._ways.values() if way.step == step and self._fits(way))
            best = max(here, key=lambda item: (item[0] / item[1].flash_bytes, item[1].name), default=None)
            if best is None or best[0] <= 0:
                return
            saved, way = best
            self._take(way)
            self._load[step] -= saved
            self._scratch[step] -= saved

    def save_instructions(self) -> None:
        """Prepare all that fits, most instructions per byte first."""
        for way in sorted(self._ways.values(), key=lambda way: (-way.tenths / way.flash_bytes, way.name)):
            if way.tenths and self._fits(way):
                self._take(way)

    def _fits(self, way: _Way) -> bool:
        return way.name not in self.names and way.flash_bytes <= self._free

    def _take(self, way: _Way) -> None:
        self.names.add(way.name)
        self._free -= way.flash_bytes

    def _saved(self, way: _Way) -> int:
        """Return the bytes of scratch of its step that a weight saves in addition to those already chosen."""
        after = _scratch_with(self._order[way.step], self.names | {way.name})
        return self._scratch[way.step] - after


def _ways(plan: MemoryPlan, frozen: Collection[str]) -> Iterator[_Way]:
    inner = [one for node in plan.order for one in computed(node)]
    readers = Counter(value.name for one in inner for value in dict.fromkeys(one.inputs))
    for step, node in enumerate(plan.order):
        for one in computed(node):
            if not _is_able(one, frozen):
                continue
            weight = operand(one, "w")
            freed = weight.size_bytes if readers[weight.name] == 1 else 0
            yield _Way(one.name, step, prepared_bytes(one) - freed, widened_tenths(one))


def _scratch_with(node: Node, names: Collection[str]) -> int:
    """Return the scratch of a node if it, or those of its inner nodes that are in `names`, read prepared weights."""
    attrs = node.attrs
    if not isinstance(attrs, StreamAttrs):
        return scratch_bytes(with_prepared_weight(node) if node.name in names else node)
    inner = tuple(with_prepared_weight(one) if one.name in names else one for one in computed(node))
    made = {value.name for one in inner for value in one.outputs}
    inputs = tuple(dict.fromkeys(value for one in inner for value in one.inputs if value.name not in made))
    built = build_stream(inner, inputs, node.outputs)
    return scratch_bytes(node) if built is None else built.scratch_bytes
