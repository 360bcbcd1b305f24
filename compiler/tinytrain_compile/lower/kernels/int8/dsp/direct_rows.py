"""3x3 depthwise convolutions of a few rows, multiplied as the rows lie: nothing of the image is copied."""

from __future__ import annotations

from collections.abc import Sequence

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
    attrs, (_, _, width, channels) = node.attrs, operand(node, "x").shape
    assert isinstance(attrs, QConvAttrs)
    conv, shape = attrs.conv, output_shape(node, block.count)
    stride, across = conv.strides[0], node.outputs[0].shape[2]
    if conv.kernel != (3, 3) or conv.strides not in ((1, 1), (2, 2)) or conv.pads[1] != 1 or conv.split is not None:
        return None
    if width != across * stride or across % TURN or channels > FARTHEST or not short_ends(node):
        return None
    numbers = map(i32, (across, channels, stride, attrs.x_zero, attrs.y_zero))

    def body(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        return called("tt_depthwise_rows3", *map(first, (y, *given)), i32(block.count), *numbers)

    inputs = [block.image, *tensors(node, "w", "bias", "multiplier", "shift")]
    return KernelSpec(inputs, [written([*inputs, block.row_at], shape, "int8", body)], plain)
