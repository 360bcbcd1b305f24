"""Forms in the int8 graph of the float values of the training graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tinytrain_compile.ir.types import Array, Node, Quant, Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP, MaskAttrs
from tinytrain_compile.ops.int8.update import QSumAttrs


@dataclass(frozen=True)
class Mask:
    """Mask of an error: the clamp it goes through, and the operand that shows where that was active."""

    attrs: MaskAttrs = NO_CLAMP
    operand: tuple[Value, ...] = ()


NO_MASK = Mask()


@dataclass(frozen=True)
class Act:
    """An activation (or weight) stored as int8. ends: of the clamp that made it (see `ends_of`); None: the format's."""

    value: Value
    quant: Quant
    ends: tuple[int, int] | None = None

    def mask(self, kind: str) -> MaskAttrs:
        """Return the mask of the clamp that made it."""
        return MaskAttrs(kind, *(self.ends or (self.quant.low, self.quant.high)))

    @property
    def passes_all(self) -> bool:
        """True if the clamp that made it stops no error."""
        low, high = self.ends or (self.quant.low, self.quant.high)
        return low < self.quant.low and high > self.quant.high


def ends_of(quant: Quant, clip: ClipAttrs) -> tuple[int, int]:
    """Return the stored values at which a Clip ends; one beyond the format where that saturates before the Clip."""
    wider = narrowed(replace(quant, low=quant.low - 1, high=quant.high + 1), clip)
    return wider.low, wider.high


def narrowed(quant: Quant, clip: ClipAttrs) -> Quant:
    """Return a format with its int8 bounds narrowed by a Clip."""
    scale, zero = quant.scale[0], quant.zero
    low = max(quant.low, round(clip.low / scale) + zero) if np.isfinite(clip.low) else quant.low
    high = min(quant.high, round(clip.high / scale) + zero) if np.isfinite(clip.high) else quant.high
    return Quant(quant.scale, zero, low, high)


@dataclass(frozen=True, eq=False)
class Err:
    """A gradient stored as int8: real = value * 2**exponent * unit; one unit, or one per channel (last axis).

    layer: the layer at whose output it is, all of it or some channels.
    """

    value: Value
    exponent: Value
    unit: Any
    layer: IntegerLayer | None = None

    @property
    def plain(self) -> bool:
        """True if the unit is the same for all channels."""
        return np.ndim(self.unit) == 0


@dataclass(frozen=True, eq=False)
class Deferred:
    """A node whose integer form depends on its reader: it is emitted when its only reader is."""

    node: Node


@dataclass(eq=False)
class ShiftTables:
    """The shift tables that stand for the scales of a layer's channels; filled as the nodes that read them are emitted.

    forward: of its requantisation; error: of the error at its output; weight, bias: of their update constants.
    channels: entries that a rescale changes: the trained output channels, or None for all.
    """

    name: str
    channels: tuple[int, ...] | None
    forward: Value | None = None
    error: Value | None = None
    weight: Value | None = None
    bias: Value | None = None

    @property
    def complete(self) -> bool:
        """True if the layer is trained: then all tables exist, except that of the bias if there is none."""
        return None not in (self.forward, self.error, self.weight)


@dataclass(frozen=True, eq=False)
class IntegerLayer:
    """A convolution (or dense layer) that runs in integers, and the data that its backward pass needs.

    parts: int8 weight values (arena part, flash part), and the table of their channels' places, if there is one; bias:
    int32 value; scale: per output channel, of the weight; x: its input; conv: geometry as a convolution; tables: those
    that a rescale of its channels changes, if it can have one. bias_unit: real value of one unit of the stored bias:
    the accumulator's, unless the bias is shared.
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
    """One layer's term of the gradient of its weight or bias, kept until the update.

    error: the error at a layer's output from which it is made, and whose exponent and unit it has. sum: how QSum adds
    it to a running sum, from `operands`. "errors": the channel sums of the error, for a bias; "product": a product not
    yet computed; "float": a float32 result from a low-rank copy, in steps of the activation times units of the error.
    """

    error: Err
    sum: QSumAttrs
    operands: tuple[Value, ...]

    @property
    def layer(self) -> IntegerLayer:
        """The layer that has the parameter."""
        assert self.error.layer is not None
        return self.error.layer

    @property
    def of_bias(self) -> bool:
        """True if it is the gradient of a bias, not of a weight."""
        return self.sum.of == "errors"


def bias_gradient(error: Err) -> tuple[Gradient, ...]:
    """Return the bias gradient of the layer at whose output an error is."""
    return (Gradient(error, QSumAttrs("errors"), (error.value,)),)


Uses = tuple[Gradient, ...]
"""Terms of a parameter's gradient, one for each layer that reads it; nearly always there is one."""

Role = Literal["forward", "error", "weight", "bias"]

Form = Act | Err | Deferred | Value
"""Form of a float value. A plain Value is float32 (or a mask, an index, a label) and is used unchanged."""

Rule = Callable[[Node], Form | Uses | bool | None]
"""Function that emits the integer form of a node, if there is one: returns the form of result 0, or the gradient that
it is part of. True: the rule has kept its result. None, False, or no uses: there is no integer form."""
