"""The end of an integer convolution's sums: int8 of the next layer's scale, or an int8 error."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import address, call_int, i32
from tinytrain_compile.lower.kernels.float32.linear import Finish
from tinytrain_compile.lower.kernels.int8.operands import Keep, kept_factors, kept_here
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.conv_form import is_plane, is_product, is_rows


def requantised_end(node: Node, operands: Sequence[te.Tensor]) -> tuple[Finish, list[te.Tensor]]:
    """(sum, indices -> int8, the stages that hold a channel's factor); operands: bias, multiplier, shift."""
    attrs, (bias, multiplier, shift) = node.attrs, operands
    assert isinstance(attrs, QConvAttrs)
    kept = is_product(attrs.conv) or is_rows(node) or is_plane(node)
    factor, stages = kept_factors(multiplier, lambda o: i32(shift[o]), kept and not attrs.shifts_down)

    def finish(acc: Expr, *index: Expr) -> Expr:
        o = index[-1]
        limits = (i32(attrs.y_zero), i32(attrs.low), i32(attrs.high))
        if attrs.shifts_down:
            return call_int("tt_requantise8_down", acc, bias[o], multiplier[o], i32(shift[o]), *limits, dtype="int8")
        return call_int("tt_requantise8", acc, bias[o], *factor(o), *limits, dtype="int8")

    return finish, stages


def error_end(operands: Sequence[te.Tensor], keep: Keep | None, kept: bool) -> tuple[Finish, list[te.Tensor]]:
    """(sum, indices -> int8 error, the stages that hold a channel's factor if it is kept in registers).

    operands: peak, p_out, p_in, multiplier, shift; keep: which errors are not 0.
    """
    peak, p_out, p_in, multiplier, shift = operands

    def exponent(c: Expr) -> Expr:
        return i32(shift[c]) + p_in[0] - p_out[0]

    factor, stages = kept_factors(multiplier, exponent, kept)

    def finish(acc: Expr, *index: Expr) -> Expr:
        here = (kept_here(keep, index), acc, *factor(index[-1]), address(peak))
        return call_int("tt_rescaled_error", *here, dtype="int8")

    return finish, stages
