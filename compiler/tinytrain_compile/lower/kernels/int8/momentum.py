"""Momentum of integer parameters: the helper writes velocity and peak, and returns what the step is taken with."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import (
    KernelSpec,
    address,
    call_int,
    channel_rows,
    kernel,
    placeholder,
    plain,
    tensor,
)
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.clip import with_squares
from tinytrain_compile.lower.kernels.int8.conv import FRACTION_BITS, SCALE, moved_weight, step
from tinytrain_compile.lower.kernels.int8.dense_gradient import weight_gradient
from tinytrain_compile.lower.kernels.int8.update import error_sums
from tinytrain_compile.lower.kernels.int8.update_fine import moved_fine
from tinytrain_compile.ops.int8.conv import QConvUpdateAttrs
from tinytrain_compile.ops.names import operand, operands

Rule = Callable[..., Expr]


def _total(gradient: Expr, velocity: Expr, operands: dict[str, te.Tensor], channel: Expr, index: Expr) -> Expr:
    """Gradient plus momentum times velocity; velocity: the address of what is overwritten."""
    unit = operands["p"][0] + (operands["shift"][channel].astype("int32") >> 1)
    random = call_int("tt_noise", operands["noise"][0], operands["salt"][0], index)
    pointers = [address(operands[name]) for name in ("peak", "rate", "exponent")]
    return call_int("tt_momentum", velocity, gradient, *pointers, unit, random)


def _others(node: Node, *names: str) -> dict[str, te.Tensor]:
    """All operands but these, in order."""
    return {name: tensor(node, name) for name in operands(node) if name not in names}


@kernel("QMomentum")
def qmomentum(node: Node, _context: KernelContext) -> KernelSpec:
    """One element at a time."""
    channels, row = channel_rows(operand(node, "sum"))
    summed = tensor(node, "sum", (channels, row))
    velocity = placeholder(operand(node, "velocity"), "v", (channels, row))
    rest = _others(node, "sum", "velocity")

    def element(o: Expr, i: Expr) -> Expr:
        return _total(summed[o, i], address(velocity, o, i), rest, o, o * row + i)

    out = te.compute((channels, row), element, "out")
    return KernelSpec([summed, velocity, *rest.values()], [out, None, None], plain)


@kernel("QBiasGradient")
def qbias_gradient(node: Node, _context: KernelContext) -> KernelSpec:
    """The sums alone."""
    *pixels, channels = operand(node, "g").shape
    g = tensor(node, "g", (math.prod(pixels), channels))
    out, schedule = error_sums(g, lambda acc, _channel: acc)
    return KernelSpec([g], [out], schedule)


def _conv_momentum(node: Node, context: KernelContext, move: Rule) -> KernelSpec:
    """The weight gradient, its total, and the move of one weight: move(total, index, attrs, operands)."""
    attrs = node.attrs
    assert isinstance(attrs, QConvUpdateAttrs)
    shape, velocity = operand(node, "w").shape, placeholder(operand(node, "velocity"), "v")
    given = _others(node, "x", "g", "velocity", "rows")

    def finish(acc: Expr, *index: Expr) -> Expr:
        total = _total(acc, address(velocity, *index), given, index[0], flat_index(shape, index))
        return move(total, index, attrs, given)

    end, rows = with_squares(node, finish)
    x, g, out, schedule = weight_gradient(node, attrs, shape, end, context)
    given |= {"x": x, "g": g, "velocity": velocity} | dict(zip(("rows",), rows, strict=False))
    rest = [None] * (len(node.outputs) - 1)
    return KernelSpec([given[name] for name in operands(node)], [out, *rest], schedule)


def flat_index(shape: tuple[int, ...], index: tuple[Expr, ...]) -> Expr:
    """Where an element lies in its tensor."""
    flat = index[0]
    for position, extent in zip(index[1:], shape[1:], strict=True):
        flat = flat * extent + position
    return flat


def _sizes(operands: dict[str, te.Tensor], channel: Expr) -> tuple[Expr, Expr]:
    return step([operands[name] for name in SCALE], channel, FRACTION_BITS)


@kernel("QConvMomentum", "QConvMomentumSquared")
def qconv_momentum(node: Node, context: KernelContext) -> KernelSpec:
    """Rounded by noise of its own."""

    def move(total: Expr, index: tuple[Expr, ...], attrs: QConvUpdateAttrs, o: dict[str, te.Tensor]) -> Expr:
        place = flat_index(operand(node, "w").shape, index)
        size = _sizes(o, index[0])
        return moved_weight(o["w"][index], total, size, o["noise"], o["salt_of_w"], place, attrs.limit)

    return _conv_momentum(node, context, move)


@kernel("QConvMomentumFine", "QConvMomentumFineSquared")
def qconv_momentum_fine(node: Node, context: KernelContext) -> KernelSpec:
    """With fractions."""

    def move(total: Expr, index: tuple[Expr, ...], attrs: QConvUpdateAttrs, o: dict[str, te.Tensor]) -> Expr:
        fraction = address(o["fraction"], *index)
        return moved_fine(o["w"][index], fraction, total, _sizes(o, index[0]), attrs.limit)

    return _conv_momentum(node, context, move)
