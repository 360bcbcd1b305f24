"""Gradients of integer parameters: what they are made of, until their update comes, and how they are summed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.update import QSumAttrs
from tinytrain_compile.ops.shape import ExpandAttrs
from tinytrain_compile.quantize.forms import Act, Err
from tinytrain_compile.quantize.forward import IntegerLayer
from tinytrain_compile.quantize.state import Rewriter


@dataclass(frozen=True, eq=False)
class _Gradient:
    """The error that it is made of, whose exponent and unit it has, and whose it is."""

    error: Err
    layer: IntegerLayer


@dataclass(frozen=True, eq=False)
class BiasGradient(_Gradient):
    """The channel sums of an error."""


@dataclass(frozen=True, eq=False)
class WeightGradient(_Gradient):
    """Of one of the two kinds below."""


@dataclass(frozen=True, eq=False)
class ProductGradient(WeightGradient):
    """Operands of a weight gradient that has not been computed: x, error, geometry."""

    x: Act
    conv: ConvAttrs


@dataclass(frozen=True, eq=False)
class FloatGradient(WeightGradient):
    """One that was computed in float32, from a low-rank copy: in steps of the activation times units of the error."""

    value: Value


Uses = tuple[WeightGradient, ...] | tuple[BiasGradient, ...]
"""What each layer that reads a parameter adds to its gradient; nearly always there is one."""


def stored_gradient(rewriter: Rewriter, node: Node, parameter: Value, use: WeightGradient | BiasGradient) -> Value:
    """What one use adds to the gradient of a parameter, as an int32 tensor of its own."""
    if isinstance(use, BiasGradient):
        return rewriter.emit("QSum", (use.error.value,), QSumAttrs("errors", running=False), node)[0]
    if isinstance(use, FloatGradient):
        return rewriter.emit("QSum", (use.value,), QSumAttrs("float", running=False), node)[0]
    zero = rewriter.table("zero", np.zeros((1,) * len(parameter.shape), np.int32))
    (empty,) = rewriter.emit("Expand", (zero,), ExpandAttrs(parameter.shape), node)
    return added_gradient(rewriter, node, use, empty)


def added_gradient(rewriter: Rewriter, node: Node, use: WeightGradient | BiasGradient, total: Value) -> Value:
    """A running sum with what one use adds to it."""
    if isinstance(use, FloatGradient):
        return rewriter.emit("QSum", (total, use.value), QSumAttrs("float"), node)[0]
    if isinstance(use, ProductGradient):
        attrs = QSumAttrs("product", conv=use.conv, x_zero=use.x.quant.zero)
        return rewriter.emit("QSum", (total, use.x.value, use.error.value), attrs, node)[0]
    return rewriter.emit("QSum", (total, use.error.value), QSumAttrs("errors"), node)[0]
