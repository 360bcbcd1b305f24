"""The forward pass of a layer of one pixel whose outputs are no whole tiles (a classifier of ten classes): one call."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, call_int, i32, plain, tensors
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.calls import called, first, written
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import is_product, is_ready
from tinytrain_compile.ops.names import operand, result

TILE = 4
"""Outputs whose sums are in registers together, and inputs that are widened together."""


def dense_forward(node: Node, context: KernelContext) -> KernelSpec | None:
    """A QConv of one pixel with a rest of outputs (tt_dense.h); None: it is another, or shared by layers.

    Nor on cores with products in pairs but no vectors: sums one by one are nearly as fast there, and less code.
    """
    attrs, (*image, inputs) = node.attrs, operand(node, "x").shape
    assert isinstance(attrs, QConvAttrs)
    outputs, scratch_bytes = result(node, "y").shape[3], 2 * inputs
    whole = outputs % TILE == 0 or inputs % TILE > 0
    if whole or math.prod(image) > 1 or not is_product(attrs.conv) or attrs.conv.split is not None or is_ready(node):
        return None
    one_by_one = context.style.small or (context.isa.dsp and not context.uses_vectors)
    if one_by_one or op_def(node.op).scratch(node) < scratch_bytes:
        return None
    scratch = tirx.decl_buffer((inputs,), "int16", "wide")
    numbers = (attrs.y_zero, attrs.low, attrs.high, int(attrs.shifts_down), int(attrs.above))

    def body(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        x, w, *ends = map(first, given)
        by = call_int("tt_dense_ends_of", *ends, *map(i32, numbers))
        sizes = (i32(outputs), i32(inputs), i32(attrs.x_zero))
        return tirx.stmt_seq(tirx.AllocBuffer(scratch), called("tt_dense8", first(y), first(scratch), x, w, *sizes, by))

    operands = tensors(node, "x", "w", "bias", "multiplier", "shift")
    return KernelSpec(operands, [written(operands, result(node, "y").shape, "int8", body)], plain)
