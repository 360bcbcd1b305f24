"""Depthwise convolutions of maps of any size and dilation, for cores with products in pairs (tt_depthwise.h)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, called, first, i32, plain, struct, tensors, written
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.map_form import TAPS, paired_maps
from tinytrain_compile.ops.names import attrs_of, operand, result


def paired_depthwise(node: Node) -> KernelSpec | None:
    """Compute 3x3 windows in steps of one, dilated or not, two rows and two columns of an output at a time; None for
    others."""
    attrs, form = attrs_of(node, QConvAttrs), paired_maps(node, op_def(node.op).scratch(node))
    if form is None:
        return None
    scratch = tirx.decl_buffer((form.scratch_elements,), "int16", "cells")
    turn, operands = tirx.Var("channel", "int32"), tensors(node, "x", "w", "bias", "multiplier", "shift")
    count, channels = operand(node, "x").shape[0], operand(node, "x").shape[3]
    axes = [struct("tt_axis_of", axis.numbers) for axis in (form.down, form.across)]
    cut = (1 if form.turned else TAPS, form.strip, form.elements if form.own else 0)
    numbers: list[Expr] = [i32(number) for number in (channels, *cut, attrs.x_zero, attrs.y_zero)]

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        call = called("tt_depthwise_pairs", *map(first, (y, scratch, *given)), turn, *axes, *numbers)
        loop = tirx.For(turn, i32(0), i32(count * channels), tirx.ForKind.SERIAL, call)
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), loop)

    return KernelSpec(operands, [written(operands, result(node, "y").shape, "int8", make)], plain)
