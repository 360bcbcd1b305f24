"""Frozen weights of 1x1 products that lie in flash as kernels multiply them, so that no step has to widen them.

In a graph such a weight is another constant in the place of the int8 one: the same numbers in the same shape, of int16.
How these lie in flash is said here: in blocks of four products for each of two rows, as `tt_widen4` leaves them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tinytrain_compile.ir.types import Array, Node, Value
from tinytrain_compile.ops.int8.conv_form import error_product, forward_product, geometry, is_product
from tinytrain_compile.ops.int8.tiles import DOT_TERMS, READY_COLUMNS
from tinytrain_compile.ops.names import operand, operands, result

_READERS = ("QConv", "QConvGradInput")


def is_prepared(node: Node) -> bool:
    """Whether a node reads a weight that lies prepared."""
    return node.op in _READERS and operand(node, "w").dtype == "int16"


def prepared_weight(node: Node) -> Value | None:
    """What could stand in the place of a node's int8 weight; None: it has none that its kernel would widen.

    Of a 1x1 product with an even number of rows of weights (output channels, of a data gradient input channels), and
    more pixels than such kernels read weights for as they lie.
    """
    if node.op not in _READERS or node.external is not None or node.phase != "step":
        return None
    conv = geometry(node)
    if not is_product(conv) or conv.split is not None or operand(node, "w").dtype != "int8":
        return None
    tiles = forward_product(node) if node.op == "QConv" else error_product(node)
    if tiles.direct or _rows(node) % READY_COLUMNS or math.prod(node.outputs[0].shape[:3]) == 1:
        return None
    weight = operand(node, "w")
    return replace(weight, name=f"{weight.name}.{'pairs' if node.op == 'QConv' else 'pairs_back'}", dtype="int16")


def with_prepared_weight(node: Node) -> Node:
    """The node with its weight prepared; ValueError if it has none that can be."""
    weight, before = prepared_weight(node), operands(node).get("w")
    if weight is None:
        raise ValueError(f"{node.name}: no weight to prepare")
    return replace(node, inputs=tuple(weight if value == before else value for value in node.inputs))


def prepared_shape(node: Node) -> tuple[int, int, int, int, int]:
    """Of the table in flash: (pair of rows, block, row of the pair, odd, half), as a kernel's stage has them."""
    steps = -(-_terms(node) // DOT_TERMS)
    return _rows(node) // READY_COLUMNS, steps, READY_COLUMNS, 2, 2


def prepared_bytes(node: Node) -> int:
    """Of that table."""
    return 2 * math.prod(prepared_shape(node))


def lying(node: Node, weight: Array) -> Array:
    """The table of a weight (out, 1, 1, in) for this node, rows filled up with zeros to whole blocks."""
    rows = weight[:, 0, 0, :] if node.op == "QConv" else weight[:, 0, 0, :].T
    pairs, steps, columns, odd, half = prepared_shape(node)
    padded = np.zeros((pairs * columns, steps * DOT_TERMS), np.int16)
    padded[:, : rows.shape[1]] = rows
    return np.ascontiguousarray(padded.reshape(pairs, columns, steps, half, odd).transpose(0, 2, 1, 4, 3))


def _rows(node: Node) -> int:
    """Rows of the matrix that pixels are multiplied with."""
    return (result(node, "y") if node.op == "QConv" else result(node, "error")).shape[3]


def _terms(node: Node) -> int:
    """Products in a sum."""
    return operand(node, "x" if node.op == "QConv" else "g").shape[3]


_WIDEN_TENTHS, _GATHER_TENTHS = 11, 16
"""Of an instruction, that tt_widen_two and tt_gather_two take for a weight on a core with DSP instructions."""


def widened_tenths(node: Node) -> int:
    """Of an instruction, about how many the kernel of a whole map takes to widen a weight that is not prepared."""
    forward = node.op == "QConv"
    tiles = forward_product(node) if forward else error_product(node)
    times = -(-math.prod(node.outputs[0].shape[:3]) // tiles.strip) if tiles.strip_axis == 0 else 1
    return times * operand(node, "w").elements * (_WIDEN_TENTHS if forward else _GATHER_TENTHS)
