"""Which integer operators can be computed a few rows of a map at a time, what rows they read, and in how much memory.

Kernels of this form are in `lower/kernels/int8/rows.py`; the planner has to know their memory before there are any.
"""

from __future__ import annotations

from collections.abc import Callable

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.conv import TILE_WIDTH, forward_patch, gathers
from tinytrain_compile.ops.int8.conv_form import (
    forward_dense,
    forward_depthwise,
    forward_row_product,
    geometry,
    is_dense,
    is_depthwise,
    is_product,
)
from tinytrain_compile.ops.names import operand, operands, position, result
from tinytrain_compile.ops.row_form import RowForm
from tinytrain_compile.ops.rows import window_rows

_ON = 8
_WIDE, _SUM = 2, 4
_PADDING = 1
"""Elements by which a widened row may be longer, so that it has whole words."""


def rows_of_elements(*names: str) -> Callable[[Node], RowForm | None]:
    """The rule of an operator that works element by element, on maps with these names (a mask is one too)."""

    def rule(node: Node) -> RowForm | None:
        shape = node.outputs[0].shape
        maps = tuple(position(node, name) for name in names)
        bits = any(value.dtype == "bits" for value in (*node.inputs, *node.outputs))
        read = [node.inputs[index] for index in maps]
        if any(value.shape != shape for value in read) or len(set(read)) < len(read):
            return None
        if getattr(node.attrs, "axes", ()) or "mask" in operands(node) or (bits and shape[2] * shape[3] % 8):
            return None
        return RowForm(maps)

    return rule


def convolution_rows(node: Node) -> RowForm | None:
    """The rule of a convolution."""
    conv, outputs = geometry(node), result(node, "y").shape[3]
    maps = (position(node, "x"),)
    if is_product(conv):
        tiles, stays = forward_row_product(node)
        strip = _aligned(_WIDE * tiles.depth * tiles.strip)
        size = strip + (0 if tiles.direct else _aligned(_WIDE * tiles.depth * tiles.tile[1 - tiles.strip_axis]))
        kept = strip if stays else _aligned(_SUM * outputs)  # vectors keep a sum of every channel's weights
        return RowForm(maps, kept_bytes=kept, scratch_bytes=max(kept, size))
    reach, step, pad = conv.kernel[0], conv.strides[0], conv.pads[0]
    if is_depthwise(node):
        deep = forward_depthwise(node)
        sizes = (deep.taps[0] * deep.padded[1], deep.taps[0] * deep.taps[1])
        return RowForm(maps, reach, step, pad, 0, sum(_aligned(_WIDE * size) for size in sizes), True)
    if not is_dense(node):
        patch = forward_patch(conv, operand(node, "x").shape)
        copied = _aligned(_WIDE * patch.elements(TILE_WIDTH)) if gathers(conv) else 0
        return window_rows(conv.kernel, conv.strides, conv.dilations, conv.pads, copied)
    dense = forward_dense(node)
    kept = _aligned(_WIDE * outputs * dense.taps * dense.run)
    rows = _aligned(_WIDE * dense.taps * (dense.pitch + _PADDING))
    return RowForm(maps, reach, step, pad, kept, kept + rows, True)


def _aligned(size: int) -> int:
    return -(-size // _ON) * _ON
