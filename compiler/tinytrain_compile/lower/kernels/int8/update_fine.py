"""Updates of int8 weights with 8 fraction bits: the helper writes the fraction and returns the weight."""

from __future__ import annotations

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    address,
    call_int,
    channel_rows,
    i32,
    kernel,
    placeholder,
    plain,
    tensor,
    tensors,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.clip import with_squares
from tinytrain_compile.lower.kernels.int8.conv import FRACTION_BITS, SCALE, step
from tinytrain_compile.lower.kernels.int8.dense_gradient import weight_gradient
from tinytrain_compile.lower.kernels.int8.dense_update import dense_update
from tinytrain_compile.lower.kernels.int8.update import summed_weight
from tinytrain_compile.ops.int8.conv import QConvUpdateAttrs, QWeightApplyAttrs
from tinytrain_compile.ops.names import operand


def moved_fine(w: Expr, fraction: Expr, gradient: Expr, scale: tuple[Expr, Expr], limit: int) -> Expr:
    """An int8 weight after its step; fraction: the address of its fraction, which is overwritten."""
    return call_int("tt_moved_fine", fraction, i32(w), gradient, *scale, i32(limit), dtype="int8")


@kernel("QConvUpdateFine", "QConvUpdateFineSquared")
def qconv_update_fine(node: Node, context: KernelContext) -> KernelSpec:
    """QConvUpdate with fractions."""
    attrs = node.attrs
    assert isinstance(attrs, QConvUpdateAttrs)
    if (rank_one := dense_update(node)) is not None:
        return rank_one
    w, scale, fraction = tensor(node, "w"), tensors(node, *SCALE), placeholder(operand(node, "fraction"), "f")

    def finish(acc: Expr, *index: Expr) -> Expr:
        return moved_fine(w[index], address(fraction, *index), acc, step(scale, index[0], FRACTION_BITS), attrs.limit)

    end, rows = with_squares(node, finish)
    x, g, out, schedule = weight_gradient(node, attrs, operand(node, "w").shape, end, context)
    return KernelSpec([w, x, g, *scale, fraction, *rows], [out, None, *(None for _ in rows)], schedule)


@kernel("QWeightApplyFine")
def qweight_apply_fine(node: Node, _context: KernelContext) -> KernelSpec:
    """QWeightApply with fractions."""
    attrs = node.attrs
    assert isinstance(attrs, QWeightApplyAttrs)
    shape = channel_rows(operand(node, "w"))
    w, (summed, gradient) = tensor(node, "w", shape), summed_weight(node)
    scale, fraction = tensors(node, *SCALE), placeholder(operand(node, "fraction"), "f", shape)

    def element(o: Expr, i: Expr) -> Expr:
        size = step(scale, o, FRACTION_BITS)
        return moved_fine(w[o, i], address(fraction, o, i), gradient(o, i), size, attrs.limit)

    return KernelSpec([w, summed, *scale, fraction], [te.compute(shape, element, "out"), None], plain)
