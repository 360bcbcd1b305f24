"""Convolutions on vectors whose shapes no schedule takes: odd output channels, dilated windows (tt_mve_conv.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tvm.ir import Expr
from tvm.tirx import Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES
from tinytrain_compile.lower.kernels.base import KernelSpec, call_int, called, i32, struct
from tinytrain_compile.lower.kernels.int8.helium.product import copied_rows
from tinytrain_compile.lower.kernels.int8.odd import called_in_turns, shape_of
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import forward_product
from tinytrain_compile.ops.int8.window_form import window_map
from tinytrain_compile.ops.names import attrs_of, operand, result

_WORD = 4
"""Bytes of a correction."""
LEAST_WINDOW = 12
"""Elements of a window that is worth copying for less than four channels: 3x3 28x28x1 to 2 takes 47,064 instead of
34,882 instructions on a Cortex-M55, 1-D 100x3 to 1 by five taps 2,050 instead of 4,190."""


def end_of(attrs: QConvAttrs) -> Expr:
    """Return the tt_end8 of a layer."""
    return struct("tt_end8_of", (attrs.y_zero, attrs.low, attrs.high, attrs.shifts_down, attrs.above, attrs.once))


def odd_product(node: Node) -> KernelSpec | None:
    """Compute 1x1 of any number of output channels; None for other nodes, and if few channels have few pixels."""
    attrs, (*image, inputs), outputs = attrs_of(node, QConvAttrs), operand(node, "x").shape, result(node, "y").shape[3]
    pixels = math.prod(image)
    if window_map(node) is None or pixels == 1 or inputs == 1:
        return None
    strip = copied_rows((pixels, outputs, inputs), forward_product(node), False)
    if outputs < LANES and strip < LANES:
        return None
    sizes = list(map(i32, (outputs, inputs, attrs.x_zero, strip)))

    def body(places: Sequence[Expr], operands: Sequence[Expr], turn: Expr) -> Stmt:
        return called("tt_product8", *places, turn, call_int("tt_conv_tables_of", *operands), *sizes, end_of(attrs))

    return called_in_turns(node, ("int8", strip * inputs), pixels // strip, body)


def any_conv(node: Node) -> KernelSpec | None:
    """Compute k x k over all channels, dilated or not, of any number of output channels.

    None for other nodes, and if the scratch of the plan does not hold a window, or few channels have few pixels.
    """
    attrs, of, outputs = attrs_of(node, QConvAttrs), window_map(node), result(node, "y").shape[3]
    if of is None:
        return None
    if op_def(node.op).overlaps(node) == () and of.copied_bytes + of.elements > op_def(node.op).scratch(node):
        of = replace(of, strip=0)  # no output takes the place of the image, so windows may be read there
    beside = of.copied_bytes + (_WORD * outputs if attrs.x_zero else 0)
    room, columns = op_def(node.op).scratch(node) - beside, of.out[1]
    most = min(room // of.elements, columns)
    if most < 1:
        return None
    across = -(-columns // -(-columns // most))
    if outputs < LANES and (across < LANES or of.elements < LEAST_WINDOW):
        return None

    def body(places: Sequence[Expr], operands: Sequence[Expr], turn: Expr) -> Stmt:
        tables = call_int("tt_conv_tables_of", *operands)
        return called("tt_conv8", *places, turn, tables, shape_of(node, of.strip, across), end_of(attrs))

    lines = operand(node, "x").shape[0] * of.out[0]
    return called_in_turns(node, ("int8", beside + across * of.elements), lines, body)
