"""Shared pieces of integer kernels: operands, factors in registers, the end of an error, kernels that are one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.intrinsics.tensor import ends_2x2
from tinytrain_compile.lower.kernels.base import (
    Elements,
    Finish,
    Index,
    KernelSpec,
    Schedule,
    address,
    call_int,
    i32,
    select,
    struct,
    tensor,
    tensors,
    weight_of,
)
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.conv_form import is_dense, is_depthwise, is_product, reads_ragged, short_ends
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.names import attrs_of, result

Factor = Callable[[Expr], list[Expr]]
"""channel -> its factor, as arguments of tt_rescaled and its relatives"""
Keep = Callable[..., Expr]
"""index expressions of an error -> whether the clamp let this element pass"""


class Centred:
    """An int8 operand, read as int32 minus its zero point."""

    def __init__(self, tensor: Elements, zero: int = 0) -> None:
        self._tensor, self._zero = tensor, zero
        self.shape: Sequence[Index] = tensor.shape

    def __getitem__(self, index: Index | tuple[Index, ...], /) -> Expr:
        element = i32(self._tensor[index])
        return element - i32(self._zero) if self._zero else element


def saturated(value: Expr, zero: int, low: int, high: int) -> Expr:
    """Return value + zero in [low, high], as int8."""
    return call_int("tt_saturate8", value, i32(zero), i32(low), i32(high), dtype="int8")


def mask_operand(node: Node, attrs: MaskAttrs, shape: tuple[Index, ...]) -> tuple[list[te.Tensor], Keep | None]:
    """Return the mask as an operand and as a test; shape: extents of the error's indices."""
    if not attrs.kind:
        return [], None
    if attrs.kind == "value":
        value = tensor(node, "mask", shape)
        return [value], lambda *i: passes(value[i], attrs)
    bits = tensor(node, "mask")

    def bit_is_set(*index: Expr) -> Expr:
        flat: Index = 0
        for position, extent in zip(index, shape, strict=True):
            flat = flat * extent + position
        byte = i32(bits[tirx.indexdiv(flat, 8)])
        return tirx.NE(tirx.bitwise_and(byte >> tirx.indexmod(flat, 8), i32(1)), i32(0))

    return [bits], bit_is_set


def passes(value: Expr, attrs: MaskAttrs) -> Expr:
    """Tell whether a clamp let an int8 value pass."""
    return call_int("tt_passes", i32(value), i32(attrs.low), i32(attrs.high), dtype="bool")


def error_output(value: Expr, peak: te.Tensor) -> Expr:
    """Return an int8 error of an int32 value; the helper updates the peak."""
    return call_int("tt_error", value, address(peak), dtype="int8")


def kept_here(keep: Keep | None, index: Sequence[Expr]) -> Expr:
    """Tell whether an error's element is kept, as an operand of a helper."""
    return tirx.const(True, "bool") if keep is None else keep(*index)


def kept_factors(
    multiplier: te.Tensor, shift: Callable[[Expr], Expr], kept: bool = True, bias: te.Tensor | None = None
) -> tuple[Factor, list[te.Tensor]]:
    """Return (a channel's factor, after its bias if there is one; the stage that holds those of all channels if kept).

    The stage is (channel, number), so the end of a sum reads neighbours.
    """

    def factor(c: Expr) -> list[Expr]:
        whole = [call_int("tt_factor", multiplier[c]), call_int("tt_down", multiplier[c], shift(c))]
        return whole if bias is None else [bias[c], *whole]

    return kept_numbers(multiplier.shape[0], factor) if kept else (factor, [])


def kept_numbers(
    channels: Index, numbers: Callable[[Expr], Sequence[Expr]], name: str = "ends"
) -> tuple[Factor, list[te.Tensor]]:
    """Return (a channel's numbers, the stage that holds those of all channels)."""
    count = len(numbers(tirx.const(0, "int32")))

    def number(c: Expr, which: Expr) -> Expr:
        *first, value = numbers(c)
        for place, other in reversed(list(enumerate(first))):
            value = select(tirx.EQ(which, place), other, value)
        return value

    stage = te.compute((channels, count), number, name)
    return lambda c: [stage[c, place] for place in range(count)], [stage]


def end_numbers(attrs: QConvAttrs) -> list[Expr]:
    """Return the last arguments of the helper that ends sums: zero point, bounds, and `above` if it is an argument."""
    numbers = [attrs.y_zero, attrs.low, attrs.high, *([int(attrs.above)] if attrs.once else [])]
    return [i32(number) for number in numbers]


def requantised_end(node: Node, operands: Sequence[te.Tensor], stays: bool = True) -> tuple[Finish, list[te.Tensor]]:
    """Return (sum, indices -> int8, the stage with the numbers of all channels); operands: bias, multiplier, shift.

    stays: the kernel has a place for these numbers.
    """
    attrs, (bias, multiplier, shift) = attrs_of(node, QConvAttrs), operands
    kept = stays and (is_product(attrs.conv) or is_dense(node) or is_depthwise(node)) and not reads_ragged(node)

    def down(o: Expr) -> list[Expr]:
        return [bias[o], call_int("tt_factor", multiplier[o]), i32(0) - i32(shift[o])]

    if not attrs.shifts_down:
        factor, stages = kept_factors(multiplier, lambda o: i32(shift[o]), kept, bias)
    else:
        factor, stages = kept_numbers(bias.shape[0], down) if kept else (down, list[te.Tensor]())
    end, numbers = (
        f"tt_requantise8{'_kept' if attrs.shifts_down else ''}{'_above' if attrs.above else ''}",
        end_numbers(attrs),
    )
    if attrs.once:
        end = "tt_requantise8_once"

    def finish(acc: Expr, *index: Expr) -> Expr:
        return call_int(end, acc, *factor(index[-1]), *numbers, dtype="int8")

    return finish, stages


def tile_end(node: Node) -> str | None:
    """Return the intrinsic that applies requantised_end's `finish` to all sums of a 2x2 tile, if there is one."""
    attrs = attrs_of(node, QConvAttrs)
    return ends_2x2(attrs.y_zero, result(node, "y").shape[3]) if short_ends(node) else None


def error_end(operands: Sequence[te.Tensor], keep: Keep | None, kept: bool) -> tuple[Finish, list[te.Tensor]]:
    """Return (sum, indices -> int8 error, the stages that hold a channel's factor if it is kept in registers).

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


class ErrorLayer:
    """A data gradient except the error that it reads: its other operands, its weight, and the end of its sums.

    shape: extents of its result's indices; masked: the node with the rows of the mask, if these are few.
    """

    def __init__(self, node: Node, shape: Sequence[Index], kept: bool = True, masked: Node | None = None) -> None:
        attrs = attrs_of(node, QConvGradInputAttrs)
        self._exponents, self._factor = tensors(node, "peak", "p_out", "p_in"), tensors(node, "multiplier", "shift")
        self._masks, keep = mask_operand(masked or node, attrs.mask, tuple(shape))
        self.finish, self.stages = error_end((*self._exponents, *self._factor), keep, kept)
        self.weights, self.whole = weight_of(node, attrs.conv.split)

    def spec(self, g: te.Tensor, computed: tuple[te.Tensor, Schedule]) -> KernelSpec:
        """Return the kernel of (result, schedule); g: the error that it reads."""
        out, schedule = computed
        return KernelSpec([*self._exponents, g, *self._factor, *self.weights, *self._masks], [out, None], schedule)


# ---- kernels that are one call --------------------------------------------------------------------------------------


KEPT = {"": 0, "value": 1, "bits": 2}
"""TT_ALL_KEPT, TT_KEPT_BY_VALUE, TT_KEPT_BY_BITS of tt_errors.h, by MaskAttrs.kind."""


def kept_of(mask: MaskAttrs) -> Expr:
    """Return the tt_keep of a mask."""
    return struct("tt_keep_of", (KEPT[mask.kind], mask.low, mask.high))


def dense_ends(attrs: QConvAttrs, tables: Sequence[Expr]) -> Expr:
    """Return the tt_dense_ends of a layer; tables: addresses of bias, multiplier and shift."""
    numbers = (attrs.y_zero, attrs.low, attrs.high, attrs.shifts_down, attrs.above, attrs.once)
    return call_int("tt_dense_ends_of", *tables, *(i32(int(number)) for number in numbers))


def conv_shape(
    image: Sequence[int], out: Sequence[int], steps: Sequence[tuple[int, int]], cut: tuple[int, int, int]
) -> Expr:
    """Return a tt_conv_shape. image: count, height, width, channels; out: height, width, channels.

    steps: padding in front, kernel, strides and dilations, each (rows, columns); cut: strip, across and zero.
    """
    (high, wide, outputs), sizes = out, [size for pair in steps for size in pair]
    return struct("tt_conv_shape_of", (*image, outputs, *sizes, high, wide, *cut))
