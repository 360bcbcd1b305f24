"""Depthwise 3x3 convolutions of maps of any size and dilation, for cores with products in pairs (tt_depthwise.h)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.ir import Expr
from tvm.tirx import Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, called, i32, struct
from tinytrain_compile.lower.kernels.int8.odd import called_in_turns
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.map_form import TAPS, paired_maps
from tinytrain_compile.ops.names import attrs_of, operand


def paired_depthwise(node: Node) -> KernelSpec | None:
    """Compute 3x3 windows in steps of one, dilated or not, two rows and two columns of an output at a time; None for
    others."""
    attrs, form = attrs_of(node, QConvAttrs), paired_maps(node, op_def(node.op).scratch(node))
    if form is None:
        return None
    count, _, _, channels = operand(node, "x").shape
    cut = (1 if form.turned else TAPS, form.strip, form.elements if form.own else 0)
    numbers = [i32(number) for number in (channels, *cut, attrs.x_zero, attrs.y_zero)]
    axes = [struct("tt_axis_of", axis.numbers) for axis in (form.down, form.across)]

    def body(places: Sequence[Expr], operands: Sequence[Expr], turn: Expr) -> Stmt:
        return called("tt_depthwise_pairs", *places, *operands, turn, *axes, *numbers)

    return called_in_turns(node, ("int16", form.scratch_elements), count * channels, body)
