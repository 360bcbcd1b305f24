"""Frozen weights stored in flash as kernels multiply them, so that no step has to widen them.

In a graph such a weight is another constant in the place of the int8 one: the same numbers in the same shape, of int16.
This module defines their order in flash: that of the kernel's widened weights.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tinytrain_compile.ir.types import Array, Node, Value
from tinytrain_compile.ops.int8.conv_form import (
    error_product,
    forward_dense,
    forward_lines,
    forward_product,
    geometry,
    is_dense,
    is_product,
)
from tinytrain_compile.ops.int8.tiles import DOT_TERMS, READY_COLUMNS
from tinytrain_compile.ops.names import operand, operands, result

_ENDINGS = {"QConv": "prepared", "QConvGradInput": "prepared_back"}
_WIDEN_TENTHS, _GATHER_TENTHS, _TAP_TENTHS = 11, 16, 40
"""Tenths of an instruction per weight, with DSP instructions, of tt_widen_two, tt_gather_two and a loop over taps."""


def prepared_weight(node: Node) -> Value | None:
    """Return the prepared weight that could replace a node's int8 weight; None if its kernel widens none.

    There is one for dense convolutions, and for 1x1 products and their data gradients. The latter need an even number
    of rows of weights (output channels; input channels for a data gradient), and so many pixels that kernels widen
    weights.
    """
    if node.op not in _ENDINGS or node.external is not None or node.phase != "step":
        return None
    if geometry(node).split is not None or operand(node, "w").dtype != "int8":
        return None
    if not (_is_widened_product(node) or _is_row_conv(node)):
        return None
    weight = operand(node, "w")
    return replace(weight, name=f"{weight.name}.{_ENDINGS[node.op]}", dtype="int16")


def _is_row_conv(node: Node) -> bool:
    return node.op == "QConv" and not is_product(geometry(node)) and is_dense(node)


def _is_widened_product(node: Node) -> bool:
    if not is_product(geometry(node)) or _rows(node) % READY_COLUMNS or math.prod(node.outputs[0].shape[:3]) == 1:
        return False
    return not (forward_product(node) if node.op == "QConv" else error_product(node)).direct


def with_prepared_weight(node: Node) -> Node:
    """Return the node with its weight prepared; ValueError if it has none that can be."""
    weight, before = prepared_weight(node), operands(node).get("w")
    if weight is None:
        raise ValueError(f"{node.name}: no weight to prepare")
    return replace(node, inputs=tuple(weight if value == before else value for value in node.inputs))


def prepared_shape(node: Node) -> tuple[int, ...]:
    """Return the shape of the table in flash.

    Product: (pair of rows, block, row of the pair, odd, half), as `tt_widen4` leaves them. Dense convolution: (1, 1,
    tile of channels, channel, row of taps, element), channel and row of taps exchanged if `in_turn`.
    """
    if not is_product(geometry(node)):
        tiles = forward_dense(node)
        deep = tiles.tile[1]
        window = (tiles.taps, deep) if tiles.in_turn else (deep, tiles.taps)
        return 1, 1, _rows(node) // deep, *window, tiles.run
    steps = -(-operand(node, "x" if node.op == "QConv" else "g").shape[3] // DOT_TERMS)
    return _rows(node) // READY_COLUMNS, steps, READY_COLUMNS, 2, 2


def same_table(one: Node, other: Node) -> bool:
    """Tell whether two nodes that read one prepared weight have it in the same order."""
    same = one.op == other.op and prepared_shape(one) == prepared_shape(other)
    whole = is_product(geometry(one))
    return same and (whole or forward_dense(one).in_turn == forward_dense(other).in_turn)


def prepared_bytes(node: Node) -> int:
    """Return the bytes of the table in flash."""
    return 2 * math.prod(prepared_shape(node))


def prepared_table(node: Node, weight: Array) -> Array:
    """Return the table of a weight (out, row of taps, column, in) for this node, padded with zeros."""
    shape = prepared_shape(node)
    if not is_product(geometry(node)):
        return _windows_table(node, weight, shape)
    pairs, steps, columns, odd, half = shape
    rows = weight[:, 0, 0, :] if node.op == "QConv" else weight[:, 0, 0, :].T
    padded = np.zeros((pairs * columns, steps * DOT_TERMS), np.int16)
    padded[:, : rows.shape[1]] = rows
    return np.ascontiguousarray(padded.reshape(pairs, columns, steps, half, odd).transpose(0, 2, 1, 4, 3))


def _windows_table(node: Node, weight: Array, shape: tuple[int, ...]) -> Array:
    tiles, (outputs, taps, *run) = forward_dense(node), weight.shape
    padded = np.zeros((outputs, taps, tiles.run), np.int16)
    padded[:, :, : math.prod(run)] = weight.reshape(outputs, taps, -1)
    windows = padded.reshape(-1, tiles.tile[1], taps, tiles.run)
    turned = windows.swapaxes(1, 2) if tiles.in_turn else windows
    return np.ascontiguousarray(turned.reshape(shape))


def widened_tenths(node: Node) -> int:
    """Estimate the tenths of an instruction that the kernel of a whole map needs to widen a weight that is not
    prepared."""
    elements, height = operand(node, "w").elements, node.outputs[0].shape[1]
    if _is_row_conv(node):
        if forward_lines(node):
            return 0  # its kernel has an order of its own, and needs fewer instructions
        tiles = forward_dense(node)
        return elements * _TAP_TENTHS * (1 if tiles.weights_first else height // tiles.strip)
    forward = node.op == "QConv"
    tiles = forward_product(node) if forward else error_product(node)
    times = -(-math.prod(node.outputs[0].shape[:3]) // tiles.strip) if tiles.strip_axis == 0 else 1
    return times * elements * (_WIDEN_TENTHS if forward else _GATHER_TENTHS)


def _rows(node: Node) -> int:
    """Return the number of rows of the matrix that multiplies pixels: channels of the result."""
    return result(node, "y" if node.op == "QConv" else "error").shape[3]
