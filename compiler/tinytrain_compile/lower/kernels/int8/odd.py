"""Convolutions over all channels by the windows of two pixels: odd maps and channels, dilation, strides (tt_conv.h).

Layers of small windows or of few output channels read a window once, without a pair (tt_few.h): see few_windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te, tirx
from tvm.ir import Expr
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    called,
    first,
    i32,
    plain,
    tensors,
    written,
)
from tinytrain_compile.lower.kernels.context import LOW_REGISTERS, KernelContext
from tinytrain_compile.lower.kernels.int8.operands import conv_shape, dense_ends
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import is_dense, is_product
from tinytrain_compile.ops.int8.tiles import DOT_TERMS
from tinytrain_compile.ops.int8.window_form import (
    WORTH,
    PairedWindows,
    few_windows,
    is_paired,
    paired_windows,
    window_map,
)
from tinytrain_compile.ops.names import attrs_of, operand, result


def odd_conv(node: Node, context: KernelContext) -> KernelSpec | None:
    """Compute two pixels and two output channels at a time, whatever their numbers; None for nodes that have better
    kernels, and if the scratch of the plan does not hold the windows of two pixels."""
    attrs, (_, rows, columns, outputs) = attrs_of(node, QConvAttrs), result(node, "y").shape
    if context.style.small or rows * columns == 1:
        return None
    room, shares = op_def(node.op).scratch(node), bool(op_def(node.op).overlaps(node))
    few = few_windows(node, room) if context.isa.dsp else None
    if few is None and is_product(attrs.conv) and not is_paired(node):
        return None
    cut = paired_windows(node, room, shares)
    if cut is None:
        return None
    even = is_dense(node) and columns % 2 == outputs % 2 == 0
    if even and few is None and not _pays(node, cut, context):
        return None

    images = operand(node, "x").shape[0]

    def body(places: Sequence[Expr], operands: Sequence[Expr], turn: Expr) -> Stmt:
        w, *tables = operands
        by, where = dense_ends(attrs, tables), (*places, w, turn)
        if few is not None:
            return called("tt_conv_few", *where, shape_of(node, few.strip, 1), i32(few.held), i32(int(few.sums)), by)
        kept = map(i32, (cut.kept, int(cut.ends)))
        return called("tt_conv16", *where, shape_of(node, cut.strip, 2), *kept, by)

    if few is not None:
        return called_in_turns(node, ("int32", -(-few.scratch_bytes // 4)), images * few.turns, body)
    return called_in_turns(node, ("int16", -(-cut.scratch_bytes // 2)), images * cut.turns, body)


def _pays(node: Node, cut: PairedWindows, context: KernelContext) -> bool:
    """Tell whether pairs of windows are faster than whole tiles of two by two, which other kernels have.

    With SMLAD: also if rows of a window are no whole blocks. 3x3 16x16x13 to 24 takes 635,355 instead of 762,213
    instructions on a Cortex-M7, and 32x32x3 to 16 takes 511,215 instead of 531,213.
    Cores without SMLAD: if they have few registers. 1-D, 128x32 to 32 by five taps takes 3,086,355 instead of 5,410,650
    instructions on a Cortex-M0+, but 1,798,623 instead of 1,452,597 on a Cortex-M3.
    """
    conv, outputs = attrs_of(node, QConvAttrs).conv, result(node, "y").shape[3]
    if not context.isa.dsp and context.isa.gpr > LOW_REGISTERS:
        return False
    if 1 in conv.kernel or conv.strides != (1, 1):
        return True
    channels = operand(node, "x").shape[3]
    if channels % DOT_TERMS > 0:
        return context.isa.dsp and channels > 1
    return cut.kept >= min(outputs, WORTH)


def shape_of(node: Node, strip: int, across: int) -> Expr:
    """Return the tt_conv_shape of a layer."""
    of, outputs = window_map(node), result(node, "y").shape[3]
    assert of is not None
    count, zero = operand(node, "x").shape[0], attrs_of(node, QConvAttrs).x_zero
    steps = (of.pads, of.kernel, of.strides, of.dilations)
    return conv_shape((count, *of.size, of.channels), (*of.out, outputs), steps, (strip, across, zero))


def called_in_turns(
    node: Node,
    scratch: tuple[str, int],
    turns: int,
    body: Callable[[Sequence[Expr], Sequence[Expr], Expr], Stmt],
) -> KernelSpec:
    """Return the kernel that is one call per turn. scratch: its type and size, kept from turn to turn.

    body: (places of y, scratch and x; those of weights, bias, multiplier and shift; the turn) -> the call.
    """
    kind, size = scratch
    buffer, turn = tirx.decl_buffer((size,), kind, "windows"), tirx.Var("turn", "int32")
    operands = tensors(node, "x", "w", "bias", "multiplier", "shift")

    def make(y: Buffer, given: Sequence[Buffer]) -> Stmt:
        x, *tables = map(first, given)
        call = body((first(y), first(buffer), x), tables, turn)
        return tirx.stmt_seq(tirx.AllocBuffer(buffer), tirx.For(turn, i32(0), i32(turns), tirx.ForKind.SERIAL, call))

    out: te.Tensor = written(operands, result(node, "y").shape, "int8", make)
    return KernelSpec(operands, [out], plain)
