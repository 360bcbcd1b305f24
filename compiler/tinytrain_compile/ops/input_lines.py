"""Definition of InputLines: the entry of an image whose rows the caller hands over one after the other.

Its operand is the caller's image: like a label, never in the arena; camera bytes, which are 128 more, or int8. Its
result is the image for the rest of the graph: a ring of some rows inside a stream, the whole image outside.
"""

from __future__ import annotations

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Graph, Node, TensorType, Value
from tinytrain_compile.ops.base import MOVES_DATA, NonDifferentiable, operator
from tinytrain_compile.ops.rows import RowForm
from tinytrain_compile.ops.stream import StreamAttrs

LINES = "InputLines"
BYTE_ZERO = 128
"""Difference between a camera byte and the int8 that it stands for."""


def _infer(inputs: tuple[Value, ...], _attrs: Attrs) -> tuple[TensorType, ...]:
    given = inputs[0].type
    return (given._replace(dtype="int8") if given.dtype == "uint8" else given,)


def _reference(arrays: tuple[Array, ...], _attrs: Attrs) -> tuple[Array, ...]:
    (x,) = arrays
    return ((x.astype(np.int16) - BYTE_ZERO).astype(np.int8) if x.dtype == np.uint8 else x.copy(),)


def _rows(_node: Node) -> RowForm:
    """Return a form that reads no map: its rows are the caller's, one per call."""
    return RowForm(())


def takes_lines(node: Node) -> bool:
    """Tell whether a node takes the image row by row from the caller: InputLines, or a stream that begins with it."""
    attrs = node.attrs
    return node.op == LINES or (isinstance(attrs, StreamAttrs) and attrs.nodes[0].op == LINES)


def arena_inputs(graph: Graph) -> tuple[Value, ...]:
    """Return the graph's inputs that are in the arena: all data, unless an image comes by rows.

    Labels stay with the caller.
    """
    if any(takes_lines(node) for node in graph.nodes):
        return ()
    return graph.data


operator(
    LINES,
    "The image, row by row from the caller.",
    _infer,
    _reference,
    NonDifferentiable("lines are planned after differentiation"),
    rows=_rows,
    inputs=("x",),
    outputs=("y",),
    traits=MOVES_DATA,
)
