"""Bytes that are live while a stream runs, by a plan without streams: what it needs, and what it needs at least."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir import Graph, Node
from tinytrain_compile.ir.buffers import load_of
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ops.base import alias_of, row_form
from tinytrain_compile.ops.rows import RowForm, row_pitch
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.streams.rewrite import StreamMaker, is_slice


@dataclass(frozen=True)
class _Layer:
    """What is asked of a node again and again. step: of the plan, when it runs; begun: buffers that it begins.

    is_slice: it may run as soon as its map is there.
    reads, writes: values -> bytes that are reserved for them; without results that overwrite an operand.
    Scratch that it takes in any stream: kept, what it prepares once; working, what it computes a row with; windows, of
    each map that it reads by rows, those that one of its rows needs; row, one of its rows.
    """

    step: int
    begun: list[int]
    reads: dict[str, int]
    writes: dict[str, int]
    kept: int = 0
    working: int = 0
    windows: dict[str, int] = field(default_factory=dict[str, int])
    row: int = 0
    is_slice: bool = False


class StreamModel:
    """What streams of a graph's nodes need, by a plan of it without any. buffers: how many that has. loads: bytes that
    live while each node runs, by that plan."""

    def __init__(self, graph: Graph, plan: MemoryPlan, options: PlanOptions) -> None:
        self._maker, self._reserved = StreamMaker(graph, options.keep), options.reserved
        self._ends, loads = _ends(plan), load_of(plan.buffers, len(plan.order))
        made = {value.name: step for step, node in enumerate(plan.order) for value in node.outputs}
        self._steps = _steps(plan, made, loads)
        self.loads = {name: loads[step] for name, step in self._steps.items()}
        self.buffers = len(plan.buffers)
        self._sizes = np.array([buffer.size_bytes for buffer in plan.buffers], dtype=np.int64)
        self._alive = np.zeros((len(plan.order), self.buffers), bool)
        self._begun: dict[str, list[int]] = {}
        for index, buffer in enumerate(plan.buffers):
            self._alive[buffer.first_step : buffer.last_step + 1, index] = True
            first = min(buffer.values or (buffer.name,), key=lambda name: made.get(name, -1))
            self._begun.setdefault(first, []).append(index)
        self._layers: dict[str, _Layer] = {}

    def stream(self, nodes: Sequence[Node]) -> Node | None:
        """The stream of these nodes, if they can be one."""
        return self._maker.stream(nodes, f"stream_{nodes[0].name}_{len(nodes)}")

    def least(self, nodes: Sequence[Node]) -> int:
        """No stream of these nodes has a smaller load: its rings hold what one row of a node needs, and one result
        covers one operand wholly."""
        layers, inside = [self._layer(node) for node in nodes], {node.name for node in nodes}
        last, readers = max(layer.step for layer in layers), self._maker.readers
        dying = (size for one in layers for name, size in one.reads.items() if self._ends.get(name, last + 1) <= last)
        made = {name: size for layer in layers for name, size in layer.writes.items()}
        results = {name: size for name, size in made.items() if not readers.get(name, inside) <= inside}
        saved = min(max(results.values(), default=0), max(dying, default=0))
        inner = made.keys() - results.keys()
        return self._beside(layers) + sum(results.values()) + _least_scratch(layers, inner) - saved

    def load(self, stream: Node, nodes: Sequence[Node]) -> int:
        """Of a stream of these nodes."""
        last = max(self._steps[node.name] for node in nodes)
        attrs = stream.attrs
        assert isinstance(attrs, StreamAttrs)
        overwriting = dict(attrs.overwrites)
        made = (value for index, value in enumerate(stream.outputs) if index not in overwriting)
        results = sum(self._reserved(value.size_bytes) for value in made)
        saved = [0]
        for cover in attrs.covers:
            source, result = stream.inputs[cover.source], stream.outputs[cover.output]
            if self._ends.get(source.name, last + 1) <= last:
                both = (self._reserved(result.size_bytes), self._reserved(source.size_bytes))
                saved.append(sum(both) - max(both[0], self._reserved(cover.distance) + both[1]))
        beside = self._beside([self._layer(node) for node in nodes])
        return beside + results + self._reserved(attrs.scratch_bytes) - max(saved)

    def _beside(self, layers: Sequence[_Layer]) -> int:
        """Bytes that live while any of these layers runs, and that none of them makes."""
        made = {name for layer in layers for name in layer.writes}
        steps = [layer.step for layer in layers if not layer.is_slice or made.isdisjoint(layer.reads)]
        alive: NDArray[np.bool_] = np.logical_or.reduce(self._alive[steps])
        alive[[index for layer in layers for index in layer.begun]] = False
        return int(self._sizes[alive].sum())

    def _layer(self, node: Node) -> _Layer:
        found = self._layers.get(node.name)
        if found is None:
            found = self._layers[node.name] = self._looked_up(node)
        return found

    def _looked_up(self, node: Node) -> _Layer:
        aliased = {output for output, _ in alias_of(node)}
        written = [value for index, value in enumerate(node.outputs) if index not in aliased]
        begun = [i for name in (node.name, *(v.name for v in node.outputs)) for i in self._begun.get(name, ())]
        reads, writes = ({v.name: self._reserved(v.size_bytes) for v in values} for values in (node.inputs, written))
        layer, form = _Layer(self._steps[node.name], begun, reads, writes, is_slice=is_slice(node)), row_form(node)
        if form is None:
            return layer
        row = form.unit * row_pitch(node.outputs[0]) if form.sum is None else 0
        working = form.scratch_bytes - form.kept_bytes
        return replace(layer, kept=form.kept_bytes, working=working, windows=_windows(node, form), row=row)


def _steps(plan: MemoryPlan, made: dict[str, int], loads: Sequence[int]) -> dict[str, int]:
    """Node -> its step: of a slice that with the least load since its map is there, since it may run at any of them."""
    found = {node.name: step for step, node in enumerate(plan.order)}
    for node in filter(is_slice, plan.order):
        own = found[node.name]
        found[node.name] = min(range(made.get(node.inputs[0].name, own), own + 1), key=lambda step: loads[step])
    return found


def _ends(plan: MemoryPlan) -> dict[str, int]:
    """Value -> the last step that needs it. That is the last one of its buffer, unless another value is written over it
    in place: in a stream the two are an operand and a result of their own."""
    found = {name: buffer.last_step for buffer in plan.buffers for name in buffer.values}
    last, same = dict[str, int](), dict[str, str]()
    for step, node in enumerate(plan.order):
        for out, source in alias_of(node):
            same[node.outputs[out].name] = same.get(node.inputs[source].name, node.inputs[source].name)
        last.update((same.get(value.name, value.name), step) for value in (*node.inputs, *node.outputs))
    for buffer in plan.buffers:
        own = {name: last.get(same.get(name, name), buffer.last_step) for name in buffer.values}
        if not buffer.within:
            found.update((name, step) for name, step in own.items() if step < max(own.values()))
    return found


def _windows(node: Node, form: RowForm) -> dict[str, int]:
    """Map that a node reads by rows -> bytes of the rows that one of its rows needs, at most."""
    found = dict[str, int]()
    for place, position in enumerate(form.maps):
        value = node.inputs[position]
        starts = range(0, form.height(node), form.unit)
        rows = max(len(form.reads_of(place, start, form.unit, value.shape[1])) for start in starts)
        found[value.name] = max(rows * row_pitch(value), found.get(value.name, 0))
    return found


def _least_scratch(layers: Sequence[_Layer], inner: Container[str]) -> int:
    """Of a stream of these layers at least: what all keep, and the most that one works with and sees through rings.

    inner: what lies in rings.
    """

    def at_once(layer: _Layer) -> int:
        seen = sum(size for name, size in layer.windows.items() if name in inner)
        return layer.working + seen + (layer.row if any(name in inner for name in layer.writes) else 0)

    return sum(layer.kept for layer in layers) + max(map(at_once, layers))
