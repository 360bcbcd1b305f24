"""Maps of a 1-D signal, which lie in one row, stood upright: their points in time become rows.

A layer over a signal of T moments is a layer over a map of 1 x T pixels (NHWC). `listen.py` moves on rows. T rows of
one pixel are the same bytes, and a kernel of K x 1 is the same bytes as one of 1 x K, so nothing is moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tinytrain_compile.ir.types import Attrs, Graph, Node, Value
from tinytrain_compile.ops.base import has_trait, infer, row_form
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.names import is_prepared, operand
from tinytrain_compile.ops.pool import PoolAttrs
from tinytrain_compile.ops.rows import RowForm, element_rows
from tinytrain_compile.ops.shape import ConcatAttrs, ReshapeAttrs, SliceAttrs, TransposeAttrs

T = TypeVar("T")
_ALONG = 2
"""Axis of time in a map that lies in one row."""
_MAP = 4


def upright(graph: Graph, axis: int) -> Graph:
    """Return a forward pass with its signals upright. axis: of time, of the input."""
    standing = _Standing({graph.inputs[0].name: axis})
    nodes = tuple(made for node in graph.nodes for made in standing.taken(node))
    return replace(graph, nodes=nodes, outputs=tuple(map(standing.seen, graph.outputs)))


def time_behind(node: Node, axis: int) -> int | None:
    """Return the axis of time behind a Reshape or Transpose that keeps it the first with more than one row."""
    source, shape = node.inputs[0].shape, node.outputs[0].shape
    found = next((k for k, size in enumerate(shape) if size > 1), None)
    if found is None or shape[found] != source[axis] or math.prod(source[:axis]) != 1:
        return None
    return found


def form_by_rows(node: Node) -> RowForm | None:
    """Return how a node is computed by rows; a pass has no streams, so any operator on single elements is."""
    shape, form = node.outputs[0].shape, row_form(node)
    if form is not None or node.external is not None or not has_trait(node.op, "elementwise"):
        return form
    return element_rows(node) if len(shape) == _MAP and shape[0] == 1 else None


@dataclass
class _Standing:
    """axes: of time as in the graph, where it is known; values: those that stand upright, by name; lying: views of
    these as they were.
    """

    axes: dict[str, int]
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    lying: dict[str, Value] = field(default_factory=dict[str, Value])

    def seen(self, value: Value) -> Value:
        """Return a value as it stands."""
        return self.values.get(value.name, value)

    def taken(self, node: Node) -> Iterator[Node]:
        """Yield what stands for a node."""
        moving = [value for value in node.inputs if value.name in self.axes]
        if not moving:
            yield node
            return
        if _is_view(node):
            yield self._view(node)
            return
        lying = all(
            self.axes[one.name] == _ALONG and one.shape[:2] == (1, 1) and len(one.shape) == _MAP for one in moving
        )
        if lying and len(node.outputs) == 1 and (made := self._stood(node, moving)) is not None:
            self.axes[node.outputs[0].name] = _ALONG
            yield from made
            return
        yield from self._lying(node)
        alike = (one for one in node.outputs if one.shape == moving[0].shape or one.shape[:2] == (1, 1))
        self.axes |= {one.name: self.axes[moving[0].name] for one in alike}

    def _view(self, node: Node) -> Node:
        """Return a Reshape, its result upright if it is a signal."""
        source, made = self.seen(node.inputs[0]), node.outputs[0]
        axis = time_behind(node, self.axes[source.name])
        if axis is not None:
            self.axes[made.name] = axis
        if axis == _ALONG and len(made.shape) == _MAP and made.shape[0] == 1:
            self.values[made.name] = made = replace(made, shape=_swapped(made.shape))
        return replace(node, op="Reshape", inputs=(source,), outputs=(made,), attrs=ReshapeAttrs(made.shape))

    def _lying(self, node: Node) -> Iterator[Node]:
        """Yield a node on its operands as they were, and the views of these."""
        for value in node.inputs:
            if value.name in self.values and value.name not in self.lying:
                self.lying[value.name] = view = replace(value, name=f"{value.name}.lying")
                self.axes[view.name] = self.axes[value.name]
                yield _reshape(self.values[value.name], view)
        yield replace(node, inputs=tuple(self.lying.get(value.name, value) for value in node.inputs))

    def _stood(self, node: Node, moving: Sequence[Value]) -> list[Node] | None:
        """Return a node on upright operands, with views of these; None if it does not work along time alone."""
        attrs, made, inputs = _turned(node.attrs), list[Node](), dict[str, Value]()
        if is_prepared(node):
            return None
        for value in moving:
            inputs[value.name] = self.seen(value)
            if value.name not in self.values:
                inputs[value.name] = replace(value, name=f"{value.name}.upright", shape=_swapped(value.shape))
                made.append(_reshape(value, inputs[value.name]))
        if isinstance(attrs, ConvAttrs | QConvAttrs):
            weight = operand(node, "w")
            stood = replace(weight, name=f"{weight.name}.{node.name}.upright", shape=_swapped(weight.shape))
            inputs[weight.name] = stood
            made.append(_reshape(weight, stood))
        output = replace(node.outputs[0], shape=_swapped(node.outputs[0].shape))
        given = tuple(inputs.get(value.name, value) for value in node.inputs)
        stood = replace(node, inputs=given, outputs=(output,), attrs=node.attrs if attrs is None else attrs)
        if attrs is None:
            form = form_by_rows(stood)
            if form is None or form.windows or form.sum is not None:
                return None
        if infer(node.op, stood.inputs, stood.attrs)[0].shape != output.shape:
            return None
        self.values[output.name] = output
        self.values |= {value.name: inputs[value.name] for value in moving}
        return [*made, stood]


def _reshape(source: Value, view: Value) -> Node:
    return Node(f"{view.name}.view", "Reshape", (source,), (view,), ReshapeAttrs(view.shape), source.origin)


def _is_view(node: Node) -> bool:
    """Tell whether a node leaves the bytes of its operand as they are."""
    if not isinstance(node.attrs, TransposeAttrs):
        return node.op == "Reshape"
    order = [axis for axis in node.attrs.perm if node.inputs[0].shape[axis] > 1]
    return order == sorted(order)


def _swapped(whole: tuple[T, ...]) -> tuple[T, ...]:
    """Return height and width in each other's place."""
    first, height, width, last = whole
    return first, width, height, last


def _turned(attrs: Attrs) -> Attrs | None:
    """Return attributes with height and width in each other's place; None for those that do not name the two."""
    if isinstance(attrs, QConvAttrs):
        return replace(attrs, conv=_of_windows(attrs.conv))
    if isinstance(attrs, ConvAttrs):
        return _of_windows(attrs)
    if isinstance(attrs, PoolAttrs):
        return replace(_of_windows(attrs), output_hw=attrs.output_hw[::-1])
    if isinstance(attrs, SliceAttrs):
        return SliceAttrs(_swapped(attrs.starts), _swapped(attrs.steps), _swapped(attrs.sizes))
    if isinstance(attrs, ConcatAttrs):
        return ConcatAttrs({1: 2, 2: 1}.get(attrs.axis, attrs.axis))
    return None


Windows = TypeVar("Windows", ConvAttrs, PoolAttrs)


def _of_windows(attrs: Windows) -> Windows:
    top, left, bottom, right = attrs.pads
    turned = {"kernel": attrs.kernel[::-1], "strides": attrs.strides[::-1], "dilations": attrs.dilations[::-1]}
    return replace(attrs, pads=(left, top, right, bottom), **turned)
