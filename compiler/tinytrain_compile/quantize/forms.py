"""What a float value of the training graph has become in the int8 graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tinytrain_compile.ir.types import Node, Quant, Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP, MaskAttrs


@dataclass(frozen=True)
class Mask:
    """What an error is masked with: the clamp it goes through, and the operand that tells where that was active."""

    attrs: MaskAttrs = NO_CLAMP
    operand: tuple[Value, ...] = ()


NO_MASK = Mask()


@dataclass(frozen=True)
class Act:
    """An activation (or weight) stored as int8."""

    value: Value
    quant: Quant

    def mask(self, kind: str) -> MaskAttrs:
        """Return the mask of a clamp to this format."""
        return MaskAttrs(kind, self.quant.low, self.quant.high)


def narrowed(quant: Quant, clip: ClipAttrs) -> Quant:
    """Return the int8 bounds that a Clip leaves of a format."""
    scale, zero = quant.scale[0], quant.zero
    low = max(quant.low, round(clip.low / scale) + zero) if np.isfinite(clip.low) else quant.low
    high = min(quant.high, round(clip.high / scale) + zero) if np.isfinite(clip.high) else quant.high
    return Quant(quant.scale, zero, low, high)


@dataclass(frozen=True, eq=False)
class Err:
    """A gradient stored as int8: real = value * 2**exponent * unit; one unit, or one per channel (last axis)."""

    value: Value
    exponent: Value
    unit: Any

    @property
    def plain(self) -> bool:
        """Whether the unit is the same for all channels."""
        return np.ndim(self.unit) == 0


@dataclass(frozen=True, eq=False)
class Deferred:
    """A node whose integer form depends on who reads it: it is emitted when its only reader comes."""

    node: Node


@dataclass(eq=False)
class ShiftTables:
    """The shift tables that stand for the scales of a layer's channels; filled as the nodes that read them are emitted.

    forward: of its requantisation; error: of the error at its output; weight, bias: of their update constants.
    channels: what of them changes with a rescale: the trained output channels, or None for all.
    """

    name: str
    channels: tuple[int, ...] | None
    forward: Value | None = None
    error: Value | None = None
    weight: Value | None = None
    bias: Value | None = None

    @property
    def complete(self) -> bool:
        """Whether the layer is trained: then all tables but that of the bias, which it may lack, are there."""
        return None not in (self.forward, self.error, self.weight)


Role = Literal["forward", "error", "weight", "bias"]

Form = Act | Err | Deferred | Value
"""A plain Value is float32 (or a mask, an index, a label): it is used as it is."""
