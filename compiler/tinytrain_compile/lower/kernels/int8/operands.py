"""What integer kernels share: operands, factors kept in registers, the masked and saturated end of an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels.base import address, call_int, i32
from tinytrain_compile.lower.kernels.tensors import tensor
from tinytrain_compile.ops.int8.error import MaskAttrs

Factor = Callable[[Any], list[Any]]
"""channel -> its factor, as tt_rescaled and its kind take it"""
Keep = Callable[..., Any]
"""index expressions of an error -> whether the clamp let this element pass"""


class Centred:
    """An int8 operand, read as int32 less its zero point."""

    def __init__(self, tensor: te.Tensor, zero: int = 0) -> None:
        self._tensor, self._zero = tensor, zero
        self.shape: Any = tensor.shape

    def __getitem__(self, index: Any, /) -> Any:
        element = i32(self._tensor[index])
        return element - i32(self._zero) if self._zero else element


def saturated(value: Any, zero: int, low: int, high: int) -> Any:
    """value + zero in [low, high], as int8."""
    return call_int("tt_saturate8", value, i32(zero), i32(low), i32(high), dtype="int8")


def mask_operand(node: Node, attrs: MaskAttrs, shape: tuple[int, ...]) -> tuple[list[te.Tensor], Keep | None]:
    """The mask as an operand and as a test; shape: how the error's elements are indexed."""
    if not attrs.kind:
        return [], None
    if attrs.kind == "value":
        value = tensor(node, "mask", shape)
        return [value], lambda *i: passes(value[i], attrs)
    bits = tensor(node, "mask")

    def bit_is_set(*index: Any) -> Any:
        flat: Any = 0
        for position, extent in zip(index, shape, strict=True):
            flat = flat * extent + position
        byte = i32(bits[tirx.indexdiv(flat, 8)])
        return tirx.NE(tirx.bitwise_and(byte >> tirx.indexmod(flat, 8), i32(1)), i32(0))

    return [bits], bit_is_set


def passes(value: Any, attrs: MaskAttrs) -> Any:
    """Whether a clamp let an int8 value pass."""
    return call_int("tt_passes", i32(value), i32(attrs.low), i32(attrs.high), dtype="bool")


def error_output(value: Any, peak: te.Tensor) -> Any:
    """An int8 error of an int32 value; the helper updates the peak."""
    return call_int("tt_error", value, address(peak), dtype="int8")


def kept_here(keep: Keep | None, index: Sequence[Any]) -> Any:
    """Whether an error's element is kept, as an operand of a helper."""
    return tirx.const(True, "bool") if keep is None else keep(*index)


def kept_factors(
    multiplier: te.Tensor, shift: Callable[[Any], Any], kept: bool = True
) -> tuple[Factor, list[te.Tensor]]:
    """(a channel's factor, the stages that hold all factors if they are kept in registers)."""

    def factor(c: Any) -> Any:
        return call_int("tt_factor", multiplier[c])

    def down(c: Any) -> Any:
        return call_int("tt_down", multiplier[c], shift(c))

    if not kept:
        return lambda c: [factor(c), down(c)], []
    stages = [te.compute(multiplier.shape, factor, "factor"), te.compute(multiplier.shape, down, "down")]
    return lambda c: [stage[c] for stage in stages], stages
