"""What a float value of the training graph has become in the int8 graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tinytrain_compile.ir.types import Array, Node, Quant, Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP, MaskAttrs
from tinytrain_compile.ops.int8.update import QSumAttrs


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
    """A gradient stored as int8: real = value * 2**exponent * unit; one unit, or one per channel (last axis).

    layer: at whose output it is, all of it or some channels.
    """

    value: Value
    exponent: Value
    unit: Any
    layer: IntegerLayer | None = None

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


@dataclass(frozen=True, eq=False)
class IntegerLayer:
    """A convolution (or dense layer) that runs in integers, and what its backward pass needs.

    parts: int8 weight values (arena part, flash part), and the table of their channels' places, if there is one; bias:
    int32 value; scale: per output channel, of the weight; x: its input; conv: geometry as a convolution; tables: where
    a rescale of its channels finds what it changes, if it can have one. bias_unit: real value of one unit of the bias
    as it is stored: the accumulator's, unless it is shared.
    """

    parts: tuple[Value, ...]
    bias: Value
    scale: Array
    x: Act
    conv: ConvAttrs
    node: Node
    tables: ShiftTables | None
    bias_unit: Array

    @property
    def accumulator_scale(self) -> Array:
        """Real value of one accumulator unit, per output channel."""
        return self.scale * self.x.quant.scale[0]


@dataclass(frozen=True, eq=False)
class Gradient:
    """What a layer adds to the gradient of its weight or bias, until the update comes.

    error: that it is made of, whose exponent and unit it has; at a layer's output. sum: how QSum adds it to a running
    sum, of these operands: the channel sums of the error ("errors", of a bias), a product that has not been computed
    ("product"), or what was computed in float32 from a low-rank copy, in steps of the activation times units of the
    error ("float").
    """

    error: Err
    sum: QSumAttrs
    operands: tuple[Value, ...]

    @property
    def layer(self) -> IntegerLayer:
        """The layer whose parameter it is for."""
        assert self.error.layer is not None
        return self.error.layer

    @property
    def of_bias(self) -> bool:
        """Whether it is the gradient of a bias, not of a weight."""
        return self.sum.of == "errors"


def bias_gradient(error: Err) -> tuple[Gradient, ...]:
    """Return the gradient of the bias of the layer at whose output an error is."""
    return (Gradient(error, QSumAttrs("errors"), (error.value,)),)


Uses = tuple[Gradient, ...]
"""What each layer that reads a parameter adds to its gradient; nearly always there is one."""

Role = Literal["forward", "error", "weight", "bias"]

Form = Act | Err | Deferred | Value
"""A plain Value is float32 (or a mask, an index, a label): it is used as it is."""

Rule = Callable[[Node], Form | Uses | bool | None]
"""Emits the integer form of a node, if it has one here: returns the form of result 0, or the gradient that it is part
of. True: the rule has kept what it has made. None, False, or no uses: it has no such form."""
