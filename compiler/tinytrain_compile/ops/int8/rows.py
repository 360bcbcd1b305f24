"""Which integer operators can be computed a few rows of a map at a time, what rows they read, and in how much memory.

Kernels of this form are made in `lower/streams/`; the planner has to know their memory before there are any.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.int8.conv_form import (
    forward_dense,
    forward_depthwise,
    geometry,
    is_dense,
    is_depthwise,
    is_product,
)
from tinytrain_compile.ops.int8.tiles import packed_row_tiles
from tinytrain_compile.ops.names import operand, operands, position, result

POINTWISE = {"QAdd": ("a", "b"), "QRescale": ("x",), "ErrorAdd": ("a", "b"), "ErrorScale": ("e",), "QClipMask": ("y",)}
"""Operators that work element by element: which of their operands are maps (a mask is one too)."""
STREAMED = ("QConv", "QAdd", "QRescale", "QClipMask")
"""Operators of a forward pass that streams compute by rows."""
_ON = 8
_WIDE = 2


@dataclass(frozen=True)
class RowForm:
    """One row of a node's result. maps: the inputs that are read by rows; all others are read as a whole.

    Row r reads the rows r step - pad and on, `reach` of them, of its maps, as far as these have them.
    scratch_bytes: working memory at most, on any core, of which the first kept_bytes hold what is prepared once.
    windows: whether the kernel finds the rows through a table; else those of a call lie one behind the other.
    """

    maps: tuple[int, ...]
    reach: int = 1
    step: int = 1
    pad: int = 0
    kept_bytes: int = 0
    scratch_bytes: int = 0
    windows: bool = False

    def reads(self, first: int, rows: int, height: int) -> range:
        """The rows of a map of this height that rows [first, first + rows) of the result need."""
        low = first * self.step - self.pad
        return range(max(low, 0), min(low + (rows - 1) * self.step + self.reach, height))


def row_pitch(value: Value) -> int:
    """Bytes from one row of a map to the next."""
    return value.size_bytes // value.shape[1]


def row_form(node: Node) -> RowForm | None:
    """How a node of a forward pass is computed by rows of one image; None if it is not."""
    shape = node.outputs[0].shape
    if node.op not in STREAMED or node.external is not None or len(shape) != 4 or shape[0] != 1:
        return None
    return _convolution(node) if node.op == "QConv" else _pointwise(node)


def _pointwise(node: Node) -> RowForm | None:
    shape = node.outputs[0].shape
    maps = tuple(position(node, name) for name in POINTWISE[node.op])
    bits = any(value.dtype == "bits" for value in (*node.inputs, *node.outputs))
    read = [node.inputs[index] for index in maps]
    if any(value.shape != shape for value in read) or len(set(read)) < len(read):
        return None
    if getattr(node.attrs, "axes", ()) or "mask" in operands(node) or (bits and shape[2] * shape[3] % 8):
        return None
    return RowForm(maps)


def _convolution(node: Node) -> RowForm | None:
    conv, (_, _, width, outputs), channels = geometry(node), result(node, "y").shape, operand(node, "x").shape[3]
    maps = (position(node, "x"),)
    if is_product(conv):
        tiles = packed_row_tiles(width, outputs, channels)
        kept = _aligned(_WIDE * tiles.depth * tiles.strip)
        return RowForm(maps, kept_bytes=kept, scratch_bytes=kept + _aligned(_WIDE * tiles.depth * tiles.tile[0]))
    reach, step, pad = conv.kernel[0], conv.strides[0], conv.pads[0]
    if is_depthwise(node):
        deep = forward_depthwise(node)
        sizes = (deep.taps[0] * deep.padded[1], deep.taps[0] * deep.taps[1])
        return RowForm(maps, reach, step, pad, 0, sum(_aligned(_WIDE * size) for size in sizes), True)
    if not is_dense(node):
        return None
    dense = forward_dense(node)
    kept = _aligned(_WIDE * outputs * dense.taps * dense.run)
    rows = _aligned(_WIDE * dense.taps * (dense.pitch + _PADDING))
    return RowForm(maps, reach, step, pad, kept, kept + rows, True)


_PADDING = 1
"""Elements by which a widened row may be longer, so that it has whole words."""


def _aligned(size: int) -> int:
    return -(-size // _ON) * _ON
