"""3x3 depthwise convolutions multiplied as rows lie, nothing of the image copied: a few rows, or whole maps."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, i32, plain, tensors
from tinytrain_compile.lower.kernels.int8.calls import called, first, written
from tinytrain_compile.lower.kernels.int8.dsp.windows import RowBlock, output_shape
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import short_ends
from tinytrain_compile.ops.names import operand

TURN = 4
"""Outputs of a turn of the helper's loop."""
FARTHEST = 255
"""Bytes to the next pixel of a channel: what a load moves its pointer on by."""


def direct_rows(node: Node, block: RowBlock) -> KernelSpec | None:
    """One call of tt_depthwise_rows3, whose sums all shift down; None where it is not for a layer."""
    if not _fits(node):
        return None
    shape, numbers = output_shape(node, block.count), _numbers(node)

    def body(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        return called("tt_depthwise_rows3", *map(first, (y, *given)), i32(block.count), *numbers)

    inputs = [block.image, *tensors(node, "w", "bias", "multiplier", "shift")]
    return KernelSpec(inputs, [written([*inputs, block.row_at], shape, "int8", body)], plain)


def direct_maps(node: Node) -> KernelSpec | None:
    """One call of tt_depthwise_maps3, for maps in steps of two; those in steps of one are faster as pairs of rows.

    Its instructions wait for one another: a quarter fewer than with the image in scratch, but 6 % more cycles by the
    model of a core that issues two at once.
    """
    attrs, (images, height, _, _) = node.attrs, operand(node, "x").shape
    assert isinstance(attrs, QConvAttrs)
    if attrs.conv.strides[0] == 1 or not _fits(node):
        return None
    shape = output_shape(node)
    numbers = [*map(i32, (images, height, attrs.conv.pads[0], shape[1])), *_numbers(node)]

    def body(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        return called("tt_depthwise_maps3", *map(first, (y, *given)), *numbers)

    inputs = tensors(node, "x", "w", "bias", "multiplier", "shift")
    return KernelSpec(inputs, [written(inputs, shape, "int8", body)], plain)


def _fits(node: Node) -> bool:
    attrs, (_, _, width, channels) = node.attrs, operand(node, "x").shape
    assert isinstance(attrs, QConvAttrs)
    conv, across = attrs.conv, node.outputs[0].shape[2]
    if conv.kernel != (3, 3) or conv.strides not in ((1, 1), (2, 2)) or conv.pads[1] != 1 or conv.split is not None:
        return False
    return width == across * conv.strides[0] and not across % TURN and channels <= FARTHEST and short_ends(node)


def _numbers(node: Node) -> list[Expr]:
    """(outputs of a row, channels, stride, zero points)"""
    attrs, (_, _, across, channels) = node.attrs, node.outputs[0].shape
    assert isinstance(attrs, QConvAttrs)
    return [i32(number) for number in (across, channels, attrs.conv.strides[0], attrs.x_zero, attrs.y_zero)]
