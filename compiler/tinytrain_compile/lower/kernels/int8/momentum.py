"""Momentum of integer parameters: the helper writes velocity and peak, and returns what the step is taken with."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import KernelSpec, address, call_int, kernel, placeholder, plain
from tinytrain_compile.lower.kernels.context import KernelContext
from tinytrain_compile.lower.kernels.int8.conv import FRACTION_BITS, SCALE, moved_weight, step
from tinytrain_compile.lower.kernels.int8.dense_gradient import weight_gradient
from tinytrain_compile.lower.kernels.int8.operands import tables
from tinytrain_compile.lower.kernels.int8.update import error_sums
from tinytrain_compile.lower.kernels.int8.update_fine import moved_fine
from tinytrain_compile.ops.int8.conv import QConvUpdateAttrs

Rule = Callable[..., Expr]


def _total(gradient: Expr, velocity: Expr, operands: dict[str, te.Tensor], channel: Expr, index: Expr) -> Expr:
    """Gradient plus momentum times velocity; velocity: the address of what is overwritten."""
    unit = operands["p"][0] + (operands["shift"][channel].astype("int32") >> 1)
    random = call_int("tt_noise", operands["noise"][0], operands["salt"][0], index)
    pointers = [address(operands[name]) for name in ("peak", "rate", "exponent")]
    return call_int("tt_momentum", velocity, gradient, *pointers, unit, random)


def _named(node: Node, first: int, *names: str) -> dict[str, te.Tensor]:
    return dict(zip(names, tables(node, first, names), strict=True))


@kernel("QMomentum")
def qmomentum(node: Node, _context: KernelContext) -> KernelSpec:
    """One element at a time."""
    channels = node.inputs[0].shape[0]
    row = node.inputs[0].elements // channels
    summed, velocity = (placeholder(v, n, (channels, row)) for v, n in zip(node.inputs, ("sum", "v"), strict=False))
    rest = _named(node, 2, "peak", "shift", "rate", "p", "exponent", "noise", "salt")

    def element(o: Expr, i: Expr) -> Expr:
        return _total(summed[o, i], address(velocity, o, i), rest, o, o * row + i)

    out = te.compute((channels, row), element, "out")
    return KernelSpec([summed, velocity, *rest.values()], [out, None, None], plain)


@kernel("QBiasGradient")
def qbias_gradient(node: Node, _context: KernelContext) -> KernelSpec:
    """The sums alone."""
    shape = node.inputs[0].shape
    g = placeholder(node.inputs[0], "g", (math.prod(shape[:-1]), shape[-1]))
    out, schedule = error_sums(g, lambda acc, _channel: acc)
    return KernelSpec([g], [out], schedule)


def _conv_momentum(node: Node, context: KernelContext, last: str, move: Rule) -> KernelSpec:
    """The weight gradient, its total, and the move of one weight: move(total, index, attrs, operands)."""
    attrs = node.attrs
    assert isinstance(attrs, QConvUpdateAttrs)
    shape = node.inputs[0].shape
    w, velocity = placeholder(node.inputs[0], "w"), placeholder(node.inputs[7], "v")
    scale = _named(node, 3, *SCALE)
    rest = _named(node, 8, "peak", "exponent", "noise", "salt", last)
    operands = {**scale, **rest, "w": w}

    def finish(acc: Expr, *index: Expr) -> Expr:
        total = _total(acc, address(velocity, *index), operands, index[0], flat_index(shape, index))
        return move(total, index, attrs, operands)

    x, g, out, schedule = weight_gradient(node, attrs, shape, finish, context)
    outputs = [out, None, None] + ([None] if last == "fraction" else [])
    return KernelSpec([w, x, g, *scale.values(), velocity, *rest.values()], outputs, schedule)


def flat_index(shape: tuple[int, ...], index: tuple[Expr, ...]) -> Expr:
    """Where an element lies in its tensor."""
    flat = index[0]
    for position, extent in zip(index[1:], shape[1:], strict=True):
        flat = flat * extent + position
    return flat


def _sizes(operands: dict[str, te.Tensor], channel: Expr) -> tuple[Expr, Expr]:
    return step([operands[name] for name in SCALE], channel, FRACTION_BITS)


@kernel("QConvMomentum")
def qconv_momentum(node: Node, context: KernelContext) -> KernelSpec:
    """Rounded by noise of its own."""

    def move(total: Expr, index: tuple[Expr, ...], attrs: QConvUpdateAttrs, o: dict[str, te.Tensor]) -> Expr:
        place = flat_index(node.inputs[0].shape, index)
        size = _sizes(o, index[0])
        return moved_weight(o["w"][index], total, size, o["noise"], o["salt_of_w"], place, attrs.limit)

    return _conv_momentum(node, context, "salt_of_w", move)


@kernel("QConvMomentumFine")
def qconv_momentum_fine(node: Node, context: KernelContext) -> KernelSpec:
    """With fractions."""

    def move(total: Expr, index: tuple[Expr, ...], attrs: QConvUpdateAttrs, o: dict[str, te.Tensor]) -> Expr:
        fraction = address(o["fraction"], *index)
        return moved_fine(o["w"][index], fraction, total, _sizes(o, index[0]), attrs.limit)

    return _conv_momentum(node, context, "fraction", move)
