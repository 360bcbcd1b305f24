"""What a float value of the training graph has become in the int8 graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Node, Quant, Value


@dataclass(frozen=True)
class Act:
    """An activation (or weight) stored as int8."""

    value: Value
    quant: Quant


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
