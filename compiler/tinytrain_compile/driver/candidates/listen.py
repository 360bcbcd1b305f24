"""Inference on a stream (`--listen on`): a forward pass of a few new rows, with rings of the rows before them.

The window's rows are moments in time. A layer without padding in time needs, for its new rows, the new rows of its
input and a few older ones. Those wait in a *ring*, a buffer that outlives the call. A node that reads the whole window
(a dense layer, a mean over time) gets a ring of all of its input. The pass has its own memory at the start of the
arena, in front of all that a training step uses, so it may run while a step is open (docs/listening.md, ADR 51).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from tinytrain_compile.driver.candidates.heard_time import NO_PADDING, PADS, HeardTime, heard_time
from tinytrain_compile.driver.candidates.inference import beside
from tinytrain_compile.driver.candidates.upright import form_by_rows, time_behind, upright
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import COUNTER_BYTES, Listening, TrainGraph
from tinytrain_compile.ir.types import Array, Attrs, Graph, Node, Quant, Value
from tinytrain_compile.ops.base import has_trait, infer, op_def
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.names import is_prepared
from tinytrain_compile.ops.pool import PoolAttrs
from tinytrain_compile.ops.shape import ConcatAttrs, ReshapeAttrs, SliceAttrs
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_graph

MARK = "@hear"
"""Ending of the names of what belongs to the pass of a stream."""
STRIDES = "choose window and strides in time so that every row is read, each as often"
REMEMBERED = 8
"""Steps whose pass on a stream is kept: a search asks for it once to price a step, and once to plan it."""


@dataclass(frozen=True)
class Rows:
    """Time axis of a value, and its new rows in a call.

    axis: of time, all axes before it have size 1. hop: new rows in a call. calls: of each new row, oldest first: calls
    after which it no longer depends on the weights before an update; 0: it never did.
    """

    axis: int
    hop: int
    calls: tuple[int, ...]

    def since(self, need: int) -> tuple[int, ...]:
        """Return such calls of the last `need` rows, of which earlier calls brought the older ones."""
        found = list[int]()
        for behind in reversed(range(need)):
            age, place = divmod(behind, self.hop)
            calls = self.calls[-1 - place]
            found.append(calls + age if calls else 0)
        return tuple(found)


@lru_cache(maxsize=REMEMBERED)
def listen(
    train: TrainGraph, model: ImportedModel, wanted: int | Literal["off", "on", "only"], seed: int, alignment_bytes: int
) -> Listening:
    """Return the pass on a stream beside a step of one sample. wanted: --listen.

    Errors: E0113 names the layer that does not stream, E0101 and E0113 an axis that is none of time.
    """
    graph, time = beside(train.graph, train.graph, MARK), heard_time(model, wanted)
    streamed = _Streamed(graph, time, {value.name for value in train.graph.state}, train.formats)
    hop = streamed.hop()
    found = streamed.graph(hop)
    settle, whole = streamed.settle, streamed.whole()
    kept = sorted(border(found, {value.name for value in train.graph.state}) & set(whole.values()))
    header = PlanOptions().header_bytes + COUNTER_BYTES
    options = PlanOptions(alignment_bytes=alignment_bytes, header_bytes=header, seed=seed, keep=tuple(kept))
    planned = plan_graph(found, options)
    return Listening(planned.graph, planned.plan, hop, graph.inputs[0].shape[time.axis], settle, whole)


def border(graph: Graph, trained: set[str]) -> set[str]:
    """Return the values that do not depend on what is trained, and that a node reads which does; no constants."""
    moved, found, fixed = set(trained), set[str](), set(graph.constants)
    for node in graph.nodes:
        names, made = {value.name for value in node.inputs}, {value.name for value in node.outputs}
        if names & moved:
            moved |= made
            found |= names
        fixed |= made if names <= fixed else set()
    return found - moved - fixed


class _Streamed:
    """Rewrites a forward pass of a window as one of new rows.

    trained: names of state, which updates change. formats: of int8 values, by their names in the training step.
    """

    def __init__(self, graph: Graph, time: HeardTime, trained: set[str], formats: Mapping[str, Quant]) -> None:
        self._input, self._heard = graph.inputs[0], time
        self._graph = graph = upright(graph, time.axis)
        self._trained = {*trained}
        self._formats = formats
        self._views = {n.outputs[0].name: n.inputs[0].name for n in graph.nodes if op_def(n.op).view}
        values = (self._input, *(value for node in graph.nodes for value in node.outputs))
        self._shapes = {value.name: value.shape for value in values}
        self.settle = 0

    def hop(self) -> int:
        """Return the rows of the input that make one new row of the slowest map: the product of the strides."""
        for hop in range(1, self._input.shape[self._heard.axis] + 1):
            try:
                self.graph(hop)
            except _HopError:
                continue
            return hop
        layer = self._input.origin or self._input.name
        raise self._heard.refused(layer, "has no number of new rows with which all layers move on", STRIDES)

    def graph(self, hop: int) -> Graph:
        """Return the pass of `hop` new rows. Errors: _HopError if a layer would need a part of a row; E0113."""
        self._now = dict[str, Value]()
        self._time = {self._input.name: Rows(self._heard.axis, hop, (0,) * hop)}
        self._nodes, self._rings = list[Node](), list[tuple[Value, Value]]()
        self._initial = dict[str, Array]()
        self._windows = dict[tuple[str, int], Value]()
        self._raw = {self._input.name}
        self._calls = 0
        frames = self._cut(self._input, self._time[self._input.name])
        self._now[self._input.name] = frames
        for node in self._graph.nodes:
            self._take(node)
        output = self._graph.outputs[0]
        if output.name in self._time:
            what = "still has rows of its own for each moment at the output"
            raise self._heard.refused(
                output.origin or output.name, what, "give the model an output for the whole window"
            )
        self.settle = self._calls
        return Graph(
            self._graph.name,
            tuple(self._nodes),
            (frames,),
            (self._now[output.name],),
            {**self._graph.constants, **self._initial},
            state=tuple(ring for ring, _ in self._rings),
            updates=tuple(self._rings),
        )

    def whole(self) -> dict[str, str]:
        """Return value of a window -> the value of this pass that holds all of it after a call."""
        found = dict[str, str]()
        for name, now in self._now.items():
            rows = self._time.get(name)
            kept = now if rows is None else self._windows.get((name, self._shapes[name][rows.axis]))
            if kept is not None:
                found[name.removesuffix(MARK)] = kept.name
        return found

    def _take(self, node: Node) -> None:
        moving = {i: self._time[value.name] for i, value in enumerate(node.inputs) if value.name in self._time}
        changes = any(value.name in self._trained for value in node.inputs)
        if not moving:
            self._trained |= {value.name for value in node.outputs if changes}
            self._put(node, tuple(self._now.get(value.name, value) for value in node.inputs), node.attrs)
            return
        if node.op == "Reshape" and (rows := self._reshaped(node, moving[0])) is not None:
            self._raw |= {node.outputs[0].name} if node.inputs[0].name in self._raw else set()
            attrs = ReshapeAttrs(self._cut(node.outputs[0], rows).shape)
            self._put(node, (self._now[node.inputs[0].name],), attrs, rows)
            return
        if isinstance(node.attrs, SliceAttrs):
            self._cut_rows(node, node.attrs, moving[0])
            return
        if self._side_by_side(node, moving):
            inputs = tuple(self._now[value.name] for value in node.inputs)
            self._put(node, inputs, node.attrs, self._together(moving))
            return
        form = form_by_rows(node)
        by_rows = form is not None and form.sum is None and form.apart == form.unit == 1
        if form is not None and by_rows and set(moving) == set(form.maps) and self._aligned(moving):
            self._by_rows(node, moving, changes)
            return
        if self._row_of_its_row(node, moving):
            self._raw |= {value.name for value in node.outputs if node.inputs[min(moving)].name in self._raw}
            inputs = tuple(self._now.get(value.name, value) for value in node.inputs)
            self._put(node, inputs, node.attrs, self._together(moving, changes))
            return
        if form is not None and form.pad:
            raise self._heard.refused(_name(node), PADS, NO_PADDING)
        shapes = [value.shape for value in (*(node.inputs[i] for i in moving), *node.outputs)]
        is_map = self._aligned(moving) and all(len(shape) == 4 and shape[1] == shapes[0][1] for shape in shapes)
        if not is_map and any(node.inputs[i].name in self._raw for i in moving):
            raise self._heard.whole(node, {i: rows.axis for i, rows in moving.items()}, self._graph)
        inputs = tuple(self._window(value) for value in node.inputs)
        self._put(node, inputs, node.attrs)
        for i, rows in moving.items():
            self._calls = max(self._calls, *rows.since(node.inputs[i].shape[rows.axis]))

    def _aligned(self, moving: Mapping[int, Rows]) -> bool:
        return len({(rows.axis, rows.hop) for rows in moving.values()}) == 1 and next(iter(moving.values())).axis == 1

    @staticmethod
    def _together(moving: Mapping[int, Rows], changes: bool = False) -> Rows:
        """Return the rows of what each operand's own row makes. changes: so do weights."""
        each = zip(*(rows.calls for rows in moving.values()), strict=True)
        return replace(next(iter(moving.values())), calls=tuple(max(*calls, int(changes)) for calls in each))

    def _side_by_side(self, node: Node, moving: Mapping[int, Rows]) -> bool:
        """Tell whether a node joins rows of the same moments along another axis than time."""
        if not isinstance(node.attrs, ConcatAttrs) or len(moving) < len(node.inputs):
            return False
        return self._aligned(moving) and node.attrs.axis != moving[0].axis

    def _row_of_its_row(self, node: Node, moving: Mapping[int, Rows]) -> bool:
        """Tell whether a node makes each number of those in the same place, and of ones that are alike in all rows.

        Its kernel has no row form: a few numbers are computed one by one, and more by vectors. That is the same here.
        """
        if not has_trait(node.op, "ieee") or len({(rows.axis, rows.hop) for rows in moving.values()}) > 1:
            return False
        shape, axis = node.outputs[0].shape, next(iter(moving.values())).axis
        others = (value.shape for i, value in enumerate(node.inputs) if i not in moving)
        alike = all(len(one) < len(shape) - axis or one[axis - len(shape)] == 1 for one in others)
        return alike and all(node.inputs[i].shape == shape for i in moving)

    def _by_rows(self, node: Node, moving: Mapping[int, Rows], changes: bool) -> None:
        """Compute the new rows of a node whose rows need some of its input."""
        form = form_by_rows(node)
        assert form is not None
        rows = moving[form.maps[0]]
        first = node.inputs[form.maps[0]]
        height, made = first.shape[1], node.outputs[0].shape[1]
        if form.pad or form.step * (made - 1) + form.reach > height:
            raise self._heard.refused(_name(node), PADS, NO_PADDING)
        if rows.hop % form.step:
            raise _HopError(node.name)
        late = height - form.step * (made - 1) - form.reach
        hop = rows.hop // form.step
        need = form.reach + (hop - 1) * form.step
        if late or need < rows.hop:
            what = f"leaves out the last {late or rows.hop - need} rows of its input"
            raise self._heard.refused(_name(node), what, STRIDES)
        inputs = tuple(
            self._window(value, need if i == form.maps[0] else hop) if i in moving else self._now.get(value.name, value)
            for i, value in enumerate(node.inputs)
        )
        read, others = rows.since(need), [moving[i].calls for i in form.maps[1:]]
        own = (max(read[row * form.step :][: form.reach]) for row in range(hop))
        calls = tuple(max(*each, int(changes)) for each in zip(own, *others, strict=True))
        out = Rows(1, hop, calls)
        self._put(node, *self._as_product(node, inputs, _of_rows(node.attrs, hop)), out)

    def _as_product(self, node: Node, inputs: tuple[Value, ...], attrs: Attrs) -> tuple[tuple[Value, ...], Attrs]:
        """Return a convolution of one whole window as 1x1 of all its numbers, which lie in the order of the weight."""
        conv = attrs.conv if isinstance(attrs, QConvAttrs) else attrs
        if not isinstance(conv, ConvAttrs) or conv.groups > 1 or conv.split is not None or is_prepared(node):
            return inputs, attrs
        x, w, *others = inputs
        if conv.kernel == (1, 1) or any(conv.pads) or conv.dilations != (1, 1) or x.shape[1:3] != conv.kernel:
            return inputs, attrs
        inner = math.prod(x.shape)
        flat = self._viewed(x, (1, 1, 1, inner)), self._viewed(w, (w.shape[0], 1, 1, inner))
        whole = replace(conv, kernel=(1, 1), strides=(1, 1))
        return (*flat, *others), replace(attrs, conv=whole) if isinstance(attrs, QConvAttrs) else whole

    def _viewed(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Add a Reshape of a value, which moves nothing."""
        view = replace(value, name=f"{value.name}.flat{MARK}", shape=shape)
        self._nodes.append(Node(f"{view.name}.view", "Reshape", (value,), (view,), ReshapeAttrs(shape), value.origin))
        return view

    def _cut_rows(self, node: Node, attrs: SliceAttrs, rows: Rows) -> None:
        """Take a Slice: rows left out at the start of a window do not matter, those at its end are a delay."""
        value, axis = node.inputs[0], rows.axis
        late = value.shape[axis] - attrs.starts[axis] - attrs.sizes[axis]
        if attrs.steps[axis] != 1:
            raise self._heard.refused(_name(node), "takes rows in another order, or leaves some out", STRIDES)
        window = self._window(value, rows.hop + late)
        whole = replace(attrs, starts=_with(attrs.starts, axis, 0), sizes=_with(attrs.sizes, axis, rows.hop))
        self._put(node, (window,), whole, replace(rows, calls=rows.since(rows.hop + late)[: rows.hop]))

    def _reshaped(self, node: Node, rows: Rows) -> Rows | None:
        """Return where time is after a Reshape that keeps it as the first axis with more than one row."""
        axis = time_behind(node, rows.axis)
        return None if axis is None else replace(rows, axis=axis)

    def _window(self, value: Value, need: int | None = None) -> Value:
        """Return the last `need` rows of a value, or all of it; a ring keeps those before this call."""
        rows = self._time.get(value.name)
        if rows is None:
            return self._now.get(value.name, value)
        new, need = self._now[value.name], value.shape[rows.axis] if need is None else need
        if need == rows.hop:
            return new
        if (value.name, need) not in self._windows:
            self._windows[value.name, need] = self._ring(value, new, rows, need)
        return self._windows[value.name, need]

    def _ring(self, value: Value, new: Value, rows: Rows, need: int) -> Value:
        shape, origin = _with(new.shape, rows.axis, need), value.origin or value.name
        ring, after = (replace(new, name=f"{value.name}.{need}.{end}", shape=shape) for end in ("ring", "rows"))
        self._nodes.append(Node(f"{value.name}.{need}.push", "PushRows", (ring, new), (after,), origin=origin))
        self._rings.append((ring, after))
        self._initial[ring.name] = np.full(shape, self._zero(value), ring.dtype)
        return after

    def _zero(self, value: Value) -> int:
        """Return the number that stands for a real 0: what a ring holds before the first rows."""
        if value.dtype != "int8":
            return 0
        name = value.name
        while name.partition(MARK)[0] not in self._formats:  # a view of bytes that have a format
            name = self._views[name]
        return self._formats[name.partition(MARK)[0]].zero

    def _put(self, node: Node, inputs: tuple[Value, ...], attrs: Attrs, rows: Rows | None = None) -> None:
        """Add a node on these operands, and note its results. rows: how the first moves in time."""
        types = infer(node.op, inputs, attrs)
        outputs = tuple(replace(v, shape=t.shape) for v, t in zip(node.outputs, types, strict=True))
        if rows is not None:
            self._time[node.outputs[0].name] = rows
        elif outputs[0].shape != node.outputs[0].shape:
            raise self._heard.refused(_name(node), "does not give the same shape on new rows")
        self._now |= {old.name: new for old, new in zip(node.outputs, outputs, strict=True)}
        self._nodes.append(replace(node, inputs=inputs, outputs=outputs, attrs=attrs))

    @staticmethod
    def _cut(value: Value, rows: Rows) -> Value:
        return replace(value, shape=_with(value.shape, rows.axis, rows.hop))


class _HopError(ValueError):
    """So many new rows do not make whole rows of a layer's output."""


def _of_rows(attrs: Attrs, rows: int) -> Attrs:
    """Return attributes that state the height of the result, for this many rows."""
    return replace(attrs, output_hw=(rows, attrs.output_hw[1])) if isinstance(attrs, PoolAttrs) else attrs


def _with(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _name(node: Node) -> str:
    return node.origin or node.name
