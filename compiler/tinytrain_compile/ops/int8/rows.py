"""Integer operators that can be computed a few rows of a map at a time: the rows they read, and the memory they need.

Their kernels are in `lower/kernels/int8/rows.py`; the planner has to know their memory before they are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tinytrain_compile.ir.types import Attrs, Node, Value
from tinytrain_compile.ops.base import form_name, op_def, operand_names
from tinytrain_compile.ops.conv import TILE_WIDTH, forward_patch, gathers
from tinytrain_compile.ops.int8.conv_form import (
    backward_dense,
    backward_depthwise,
    backward_phases,
    error_patch,
    error_row_product,
    forward_dense,
    forward_depthwise,
    forward_row_lines,
    forward_row_product,
    geometry,
    is_dense,
    is_depthwise,
    is_product,
    is_rank_one,
    is_spread,
)
from tinytrain_compile.ops.names import operand, operands, position, result
from tinytrain_compile.ops.rows import RowForm, RowSum, window_rows

_ON, _WIDE, _SUM = 8, 2, 4
"""Alignment of a buffer in bytes; bytes of a widened element (int16); bytes of a sum (int32)."""


class Half(NamedTuple):
    """One of the two operators that an update over rows is made of."""

    op: str
    attrs: Attrs


def rows_of_elements(*names: str) -> Callable[[Node], RowForm | None]:
    """Return the rule of an operator that works element by element, on maps with these names (a mask is one too)."""

    def rule(node: Node) -> RowForm | None:
        shape = node.outputs[0].shape
        maps = tuple(position(node, name) for name in (*names, *_mask(node)))
        read = [node.inputs[index] for index in maps]
        if any(value.shape != shape for value in read) or len(set(read)) < len(read):
            return None
        if getattr(node.attrs, "axes", ()) or not _whole_bytes(node):
            return None
        return RowForm(maps)

    return rule


def convolution_rows(node: Node) -> RowForm | None:
    """Return the rule of a convolution."""
    conv, outputs = geometry(node), result(node, "y").shape[3]
    maps = (position(node, "x"),)
    if is_product(conv):
        tiles, stays = forward_row_product(node)
        if tiles.ready:
            return RowForm(maps, scratch_bytes=_aligned(tiles.scratch_bytes))
        strip = _aligned(tiles.strip_bytes) + _aligned(tiles.ends_bytes)
        size = strip + (0 if tiles.direct else _aligned(_WIDE * tiles.depth * tiles.tile[1 - tiles.strip_axis]))
        kept = strip if stays else _aligned(_SUM * outputs)  # vectors keep a sum of every channel's weights
        return RowForm(maps, kept_bytes=kept, scratch_bytes=max(kept, size))
    reach, step, pad = conv.kernel[0], conv.strides[0], conv.pads[0]
    if is_depthwise(node) and not is_spread(node):
        deep = forward_depthwise(node)
        sizes = (deep.taps[0] * deep.padded[1], deep.taps[0] * deep.taps[1])
        return RowForm(maps, reach, step, pad, 0, sum(_aligned(_WIDE * size) for size in sizes), True)
    if not is_dense(node):
        patch = forward_patch(conv, operand(node, "x").shape)
        copied = _aligned(_WIDE * patch.elements(TILE_WIDTH)) if gathers(conv) else 0
        return window_rows(conv.kernel, conv.strides, conv.dilations, conv.pads, copied)
    (kept, rows), lines = forward_dense(node).bytes_of_rows(outputs), forward_row_lines(node)
    return RowForm(maps, reach, step, pad, max(kept, lines.kept_bytes) if lines else kept, kept + rows, True)


def error_rows(node: Node) -> RowForm | None:
    """Return the rule of a data gradient: 1x1, depthwise, or dense k x k without dilations."""
    conv = geometry(node)
    maps = tuple(position(node, name) for name in ("g", *_mask(node)))
    if not _whole_bytes(node):
        return None
    if is_product(conv):
        tiles, stays = error_row_product(node)
        if tiles.ready:
            return RowForm(maps, scratch_bytes=_aligned(tiles.scratch_bytes))
        strip = _aligned(tiles.strip_bytes) + _aligned(tiles.ends_bytes)
        size = strip + _aligned(_WIDE * tiles.depth * tiles.tile[1 - tiles.strip_axis])
        return RowForm(maps, kept_bytes=strip if stays else 0, scratch_bytes=size)
    if not is_depthwise(node):
        return _dense_error_rows(node, maps)
    phases = backward_phases(node)
    deep, high = backward_depthwise(node), phases[0]
    reach = deep.taps[0] + (high - 1 + conv.pads[0] % high) // high
    sizes = (reach * deep.padded[1], math.prod(phases) * deep.taps[0] * deep.taps[1])
    scratch = sum(_aligned(_WIDE * size) for size in sizes)
    pad = deep.taps[0] - 1 - conv.pads[0] // high
    return RowForm(maps, reach, 1, pad, 0, scratch, True, conv.strides[0] // high, high)


def _dense_error_rows(node: Node, maps: tuple[int, ...]) -> RowForm | None:
    tiles, along = backward_dense(node, by_rows=True), error_patch(node).rows
    if tiles is None:
        return None
    kept, rows = tiles.bytes_of_rows(result(node, "error").shape[3])
    return RowForm(maps, along.window, 1, -along.ends[0], kept, kept + rows, True, along.holes, along.phases)


def rows_of_sum(node: Node, names: tuple[str, ...], add: Half, apply: Half) -> RowForm | None:
    """Return how an update sums over rows of the maps with these names: `add` adds a row of each, `apply` uses the sum.

    A weight's gradient is summed separately for each row of taps: from the last map's row and the first map's row under
    it. An update of a running sum of samples (its operand `sum`) adds the whole sum over rows at once, since the
    running one may saturate. None: the maps are not of one image, dilations leave rows out, or the update moves by
    steps of rows, whose definition is not that of a sum.
    """
    own, conv = operands(node), getattr(node.attrs, "conv", None)
    maps = own.several(*names)
    if any(len(value.shape) != 4 or value.shape[0] != 1 for value in maps) or is_rank_one(node):
        return None
    parameter, added = node.inputs[0], add.attrs
    reach, step, pad, shape = 1, 1, 0, parameter.shape
    if conv is not None:
        if conv.dilations[0] != 1:
            return None
        (reach, across), (step, _), (pad, left, _, right) = conv.kernel, conv.strides, conv.pads
        added = replace(added, conv=replace(conv, kernel=(1, across), pads=(0, left, 0, right)))  # type: ignore[call-arg]
        shape = (shape[0], 1, *shape[2:])
    total = Value(f"{node.name}.sum", parameter.shape, "int32")
    rows = {name: replace(own[name], shape=(1, 1, *own[name].shape[2:])) for name in names}

    def half(op: str, attrs: Attrs, known: dict[str, Value], outputs: tuple[Value, ...]) -> Node:
        given = tuple(known[name] for name in operand_names(op, attrs))
        return Node(f"{node.name}.{form_name(op, attrs)}", op, given, outputs, attrs, node.origin)

    one = replace(total, shape=shape)
    first = half(add.op, added, {**own, **rows, "sum": one}, (replace(one, name=f"{one.name}.next"),))
    parts = RowSum(total, first, half(apply.op, apply.attrs, {"sum": total, **own, "rows": total}, node.outputs))
    kept = _aligned(total.size_bytes)
    scratch = kept + _aligned(op_def(add.op).scratch(first))
    places = tuple(position(node, name) for name in names)
    return RowForm(places, reach, step, pad, kept, scratch, reach > 1 or step > 1, sum=parts)


def _mask(node: Node) -> tuple[str, ...]:
    return ("mask",) if "mask" in operands(node) else ()


def _whole_bytes(node: Node) -> bool:
    """Tell whether rows of bits, if there are any, begin with a byte."""
    bits = any(value.dtype == "bits" for value in (*node.inputs, *node.outputs))
    return not bits or math.prod(node.outputs[0].shape[2:]) % 8 == 0


def _aligned(size: int) -> int:
    return -(-size // _ON) * _ON
