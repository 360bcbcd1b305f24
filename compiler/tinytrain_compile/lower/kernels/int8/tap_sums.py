"""Weight gradients of few taps whose channels each read one of the image, on vectors: error and image are read where
they lie (tt_mve_weights.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import s_tir, te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.lanes import LANES, LARGEST_PITCH
from tinytrain_compile.lower.kernels.base import Finish, Schedule, address, call_int
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.operands import conv_shape
from tinytrain_compile.lower.schedules import keep_tables
from tinytrain_compile.ops.int8.conv_form import geometry
from tinytrain_compile.ops.names import operand

LEAST_RUN, WITH_MOMENTUM = 16, 32
"""Pixels of a run from which on sums in lanes of four channels take more instructions, if these are whole; and with
momentum. 1-D, three taps, 16x24 takes 4,438 instead of 5,243 on a Cortex-M55, 4x24 3,934 instead of 3,803."""
UNROLLED = 4
"""Most taps whose calls are written one after the other, so that all their extents are constants."""


def reads_apart(node: Node, context: KernelContext) -> bool:
    """Tell whether the sum of a tap of a channel is a call that reads both maps in memory.

    All rows are one run of pixels if the error's are as long as the image's.
    """
    conv, image, error = geometry(node), operand(node, "x").shape, operand(node, "g").shape
    if not context.uses_vectors or conv.groups != image[3] or conv.groups == 1 or conv.split is not None:
        return False
    one = conv.strides == (1, 1) and image[2] == error[2]
    whole, run = error[3] == image[3] and error[3] % LANES == 0, error[2] * (error[1] if one else 1)
    least = WITH_MOMENTUM if getattr(node.attrs, "momentum", "") else LEAST_RUN
    pitch = max(conv.strides[1] * image[3], error[3], error[2] * error[3] if one else 0)
    return pitch < LARGEST_PITCH and (run >= least or not whole)


def tap_sums(
    node: Node, operands: tuple[te.Tensor, te.Tensor], zero: int, finish: Finish, tables: Sequence[te.Tensor]
) -> tuple[te.Tensor, Schedule]:
    """Return (out, schedule) of out = finish(sum of g (x - zero), indices of the weight).

    operands: x and g; tables: what finish reads per output channel.
    """
    conv, (x, g) = geometry(node), operands
    image, (_, *error) = operand(node, "x").shape, operand(node, "g").shape
    steps = (conv.pads[:2], conv.kernel, conv.strides, conv.dilations)
    of, shared = conv_shape(image, error, steps, (0, 0, zero)), error[2] // image[3]

    def element(o: Expr, r: Expr, s: Expr, i: Expr) -> Expr:
        own = address(x, 0, 0, 0, o if shared == 1 else tirx.indexdiv(o, shared))
        return finish(call_int("tt_tap_gradient8", own, address(g, 0, 0, 0, o), r, s, of), o, r, s, i)

    def schedule(sch: s_tir.Schedule) -> None:
        channel, *taps = sch.get_loops(sch.get_sblock("out"))
        keep_tables(sch, tables, channel, 1)
        for loop in taps if math.prod(conv.kernel) <= UNROLLED else ():
            sch.unroll(loop)

    return te.compute((error[2], *conv.kernel, 1), element, "out"), schedule
