"""The activation at the end of a model, which its loss may contain already."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.ops.normalise import AxisAttrs
from tinytrain_compile.ops.shape import ReduceAttrs, TransposeAttrs

_ACTIVATIONS = ("Sigmoid", "Softmax", "LogSoftmax")
_VIEWS = ("Reshape", "Transpose")
_PICKING = ("Clip", *_VIEWS, "AveragePool", "MaxPool", "Slice")
"""Operators whose results lie between the numbers of their first input."""


@dataclass(frozen=True, eq=False)
class End:
    """An output, the activation whose numbers it is (None if none), and the nodes that move these to where they are."""

    output: Value
    activation: Node | None = None
    views: tuple[Node, ...] = ()

    @property
    def op(self) -> str:
        """The activation's operator, or ""."""
        return "" if self.activation is None else self.activation.op

    def axis(self) -> int | None:
        """The axis of the output that a softmax is along; None if it has become a part of another, or for a sigmoid."""
        node = self.activation
        if node is None or not isinstance(node.attrs, AxisAttrs):
            return None
        axis: int | None = node.attrs.axis % len(node.outputs[0].shape)
        for view in self.views:
            if isinstance(view.attrs, TransposeAttrs):
                axis = view.attrs.perm.index(axis)
            else:
                axis = _in_shape(axis, view.inputs[0].shape, view.outputs[0].shape)
            if axis is None:
                return None
        return axis


def end_of(graph: Graph, output: Value) -> End:
    """What an output ends in. The clamp of its storage is no obstacle: the loss is of the number in front of it."""
    makers, views = graph.producers(), list[Node]()
    node = makers.get(output.name)
    while node is not None and node.op in ("Clip", *_VIEWS):
        if node.op in _VIEWS:
            views.append(node)
        node = makers.get(node.inputs[0].name)
    if node is None or node.op not in _ACTIVATIONS:
        return End(output)
    return End(output, node, tuple(reversed(views)))


def is_probability(graph: Graph, output: Value) -> bool:
    """Whether every number of an output is one from 0 to 1: of a sigmoid or softmax, moved, picked or averaged."""
    makers = graph.producers()
    node = makers.get(output.name)
    while node is not None and (node.op in _PICKING or _is_mean(node)):
        node = makers.get(node.inputs[0].name)
    return node is not None and node.op in ("Sigmoid", "HardSigmoid", "Softmax")


def _is_mean(node: Node) -> bool:
    """Whether a node sums and divides by how many it sums."""
    if not isinstance(node.attrs, ReduceAttrs):
        return False
    count = math.prod(node.inputs[0].shape[axis] for axis in node.attrs.axes)
    return math.isclose(node.attrs.scale * count, 1.0, rel_tol=1e-5)


def absorb(
    builder: GraphBuilder, end: End, ops: tuple[str, ...], axis: int | None = None
) -> tuple[Value, tuple[str, ...]]:
    """The value before a trailing activation that the loss contains already; the output itself if there is none.

    An activation that the loss does not contain stays, and a note says what that means. axis: of the classes.
    """
    node = end.activation
    if node is None:
        return end.output, ()
    name = node.origin or node.name
    if node.op in ops and end.axis() == axis:
        logits = node.inputs[0]
        for view in end.views:
            logits = builder.emit(view.op, (logits,), view.attrs, name=f"{view.name}.logits", origin=view.origin)
        note = f"trailing {node.op} {name!r} absorbed into the loss: training reads its input, m_infer its output"
        return logits, (note,)
    fitting = "bce" if node.op == "Sigmoid" else "cross-entropy"
    way = "leave it out of the model" if node.op in ops else f"use --loss {fitting}, or leave it out of the model"
    return end.output, (f"the loss takes what {node.op} {name!r} gives for scores: {way}",)


def _in_shape(axis: int, before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
    """Where an axis lies after a Reshape that only adds and removes axes of size 1; None after any other."""
    kept, found = ([index for index, dim in enumerate(shape) if dim > 1] for shape in (before, after))
    if axis not in kept or [before[index] for index in kept] != [after[index] for index in found]:
        return None
    return found[kept.index(axis)]
