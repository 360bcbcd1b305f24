"""What a float value of the training graph has become in the int8 graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Node, Quant, Value
from tinytrain_compile.ops.qerror import NO_CLAMP, MaskAttrs


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
        """The mask of a clamp to this format."""
        return MaskAttrs(kind, self.quant.low, self.quant.high)


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


Form = Act | Err | Deferred | Value
"""A plain Value is float32 (or a mask, an index, a label): it is used as it is."""
