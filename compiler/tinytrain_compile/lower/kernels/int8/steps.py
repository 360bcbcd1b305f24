"""The step of an integer weight or bias in a kernel: the move by a gradient, its momentum, and its squares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import te
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import Finish, address, call_int, channel_rows, i32, tensors
from tinytrain_compile.ops.int8.clip import square_limit
from tinytrain_compile.ops.names import operand

FRACTION_BITS = 8
"""Fraction bits of a weight while an update is rounded: the noise is a byte."""


def step(operands: Sequence[te.Tensor], channel: Expr, fraction_bits: int, signed: bool = False) -> tuple[Expr, Expr]:
    """Return (multiplier, exponent) that scale a channel's gradient, or a sign; operands: those of SCALE."""
    multiplier, shift, rate, p = operands
    exponent = shift[channel].astype("int32") + rate[1]
    exponent = exponent + i32(fraction_bits - 31) if signed else exponent + p[0] + i32(fraction_bits - 31)
    return call_int("tt_high_multiply", multiplier[channel], rate[0]), exponent


def kept_steps(
    scale: Sequence[te.Tensor], kept: Callable[[Expr], Expr] = lambda exponent: exponent
) -> tuple[Callable[[Expr], tuple[Expr, Expr]], list[te.Tensor]]:
    """Return (channel -> (its multiplier, its kept exponent), the stages that hold them in registers)."""
    shape = scale[0].shape
    size = te.compute(shape, lambda o: step(scale, o, FRACTION_BITS)[0], "size")
    exponent = te.compute(shape, lambda o: kept(step(scale, o, FRACTION_BITS)[1]), "exponent")
    return lambda o: (size[o], exponent[o]), [size, exponent]


def moved_weight(
    w: Expr,
    gradient: Expr,
    scale: tuple[Expr, Expr],
    noise: te.Tensor,
    salt: te.Tensor | None,
    index: Expr,
    limit: int,
    spare: int = 0,
    move: str = "tt_quick_move",
) -> Expr:
    """Return an int8 weight after its step; index: of the weight in its tensor; spare: free bits above the gradient's.

    noise: its state, or without a salt the seed of both.
    """
    random = call_int("tt_noise", noise[0], i32(0) if salt is None else salt[0], index)
    return call_int(move, i32(w), gradient, *scale, random, i32(limit), i32(spare), dtype="int8")


def moved_fine(w: Expr, fraction: Expr, gradient: Expr, scale: tuple[Expr, Expr], limit: int) -> Expr:
    """Return an int8 weight after its step; fraction: the address of its fraction, which is overwritten."""
    return call_int("tt_moved_fine", fraction, i32(w), gradient, *scale, i32(limit), dtype="int8")


def with_momentum(
    gradient: Expr, velocity: Expr, operands: Mapping[str, te.Tensor], place: tuple[Expr, Expr], signed: bool
) -> Expr:
    """Return gradient plus momentum times velocity, or the sign of both; velocity: the address of the velocity, which
    is overwritten.

    place: the channel, and the element's index in its tensor.
    """
    channel, index = place
    if signed:
        unit = operands["p"][0] + operands["shift"][channel].astype("int32")
    else:
        unit = operands["p"][0] + (operands["shift"][channel].astype("int32") >> 1)
    random = call_int("tt_noise", operands["noise"][0], operands["salt"][0], index)
    pointers = [address(operands[name]) for name in ("peak", "rate", "exponent")]
    helper = "tt_sign_momentum" if signed else "tt_momentum"
    return call_int(helper, velocity, gradient, *pointers, unit, random)


def flat_index(shape: tuple[int, ...], index: tuple[Expr, ...]) -> Expr:
    """Return the index of an element in its flat tensor."""
    flat = index[0]
    for position, extent in zip(index[1:], shape[1:], strict=True):
        flat = flat * extent + position
    return flat


def with_squares(node: Node, finish: Finish) -> tuple[Finish, list[te.Tensor]]:
    """Return the end of a weight gradient's sums, and its operand `rows`, if any, to which squares are added."""
    rows = tensors(node, "rows?")
    if not rows:
        return finish, rows
    limit = square_limit(channel_rows(operand(node, "w"))[1])

    def end(acc: Expr, *index: Expr) -> Expr:
        return finish(call_int("tt_squared", address(rows[0], index[0], 0), acc, i32(limit)), *index)

    return end, rows
