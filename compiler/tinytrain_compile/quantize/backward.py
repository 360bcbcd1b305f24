"""Integer forms of backward nodes: errors are int8, a layer's weight gradient goes straight into the update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Attrs, Node, Value
from tinytrain_compile.ops.base import has_trait, steps_floats
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.fixed_point import INT32_MAX
from tinytrain_compile.ops.int8.conv import QConvGradInputAttrs
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.pointwise import ErrorAttrs
from tinytrain_compile.ops.int8.pool import QMaxPoolGradAttrs, sum_bound
from tinytrain_compile.ops.int8.update import QSumAttrs
from tinytrain_compile.ops.names import attrs_of, operand, operands
from tinytrain_compile.ops.pool import PoolGradAttrs, always_full, overlap
from tinytrain_compile.ops.shape import ConcatAttrs, ExpandAttrs, ReshapeAttrs, SliceAttrs
from tinytrain_compile.quantize.forms import (
    NO_MASK,
    Deferred,
    Err,
    Form,
    Gradient,
    Mask,
    ShiftTables,
    Uses,
    bias_gradient,
)
from tinytrain_compile.quantize.forward import Forward, pool_as_conv
from tinytrain_compile.quantize.state import Rewriter

ADD_PROBE = -12
"""Exponent above the larger operand's with which the sum of two errors cannot overflow 2**29."""
POOL_PROBE = -12
"""Exponent above the operand's with which the sum of the errors of overlapping windows cannot overflow."""


class Backward:
    """Rewriter of backward nodes; gradients of integer parameters are kept as operands until their update."""

    def __init__(self, rewriter: Rewriter, forward: Forward) -> None:
        self._r = rewriter
        self._f = forward

    # ---- clamps -------------------------------------------------------------------------------------------------

    def through_clamp(self, node: Node) -> Form | None:
        """Emit the gradient before a clamp: masked, and in the unit that the node before the clamp needs."""
        dy, mask = operand(node, "dy"), self._mask(node)
        if mask is None:
            return None
        layer = self._f.layers.get(self._clamp_input(node))
        unit: Any = 1.0 if layer is None else 1.0 / layer.accumulator_scale
        tables = None if layer is None else layer.tables
        form = self._r.forms.get(dy.name, dy)
        if isinstance(form, Deferred):
            error = self._data_error(form.node, unit, mask, tables)
        else:
            known = form if isinstance(form, Err) else self._r.plain_error(dy, node)
            error = self._r.rescaled(known, unit, node, mask, tables)
        return replace(error, layer=layer)

    def _mask(self, node: Node) -> Mask | None:
        """Return a node's mask for a clamp, if that runs in integers: the bits, or the clamp's output; none if all
        errors pass."""
        o = operands(node)
        act = self._r.int8(self._clamp_output(node))
        if act is not None and act.passes_all:
            return NO_MASK
        if "mask" in o:
            form = self._r.forms.get(o["mask"].name)
            return Mask(MaskAttrs("bits"), (form,)) if isinstance(form, Value) and form.dtype == "bits" else None
        return None if act is None else Mask(act.mask("value"), (act.value,))

    def _clamp_output(self, node: Node) -> Value:
        """Return the float value of the clamp that this node differentiates."""
        o = operands(node)
        return operand(self._r.producers[o["mask"].name], "y") if "mask" in o else o["y"]

    def _clamp_input(self, node: Node) -> str:
        """Return the float name of the value whose clamp this node differentiates."""
        return self._f.clamped.get(self._clamp_output(node).name, "")

    # ---- layers -------------------------------------------------------------------------------------------------

    def weight(self, node: Node) -> Uses:
        """Return the operands of a weight's gradient; a dense layer counts as a 1x1 convolution."""
        act, error = self._r.int8(operand(node, "x")), self._r.error(operand(node, "dy"))
        if act is None or error is None or error.layer is None:
            return ()
        pair, conv = (act.value, error.value), node.attrs
        if not isinstance(conv, ConvAttrs):
            pair, conv = tuple(self._r.as_image(value, node) for value in pair), ConvAttrs((1, 1))
        return (Gradient(error, QSumAttrs("product", conv=conv, x_zero=act.quant.zero), pair),)

    def bias(self, node: Node) -> Uses:
        """Return the error of a layer, whose sums are the gradient of the bias."""
        error = self._r.error(node.inputs[0])
        return () if error is None or error.layer is None else bias_gradient(error)

    def data(self, node: Node) -> Form | None:
        """Emit the gradient of a layer, or of the mean of windows, for its data.

        It is in the unit that its only reader needs, or plain if there are several readers.
        """
        error, attrs = self._r.error(node.inputs[0]), node.attrs
        ready = error is not None and error.layer is not None
        if isinstance(attrs, PoolGradAttrs):
            ready = error is not None and always_full(attrs.pool, attrs.input_hw)
        if not ready:
            return None
        reader = self._r.only_reader(node.outputs[0])
        if reader is not None and self._takes_deferred(reader) and len(node.outputs[0].shape) == 4:
            return Deferred(node)
        return self._data_error(node, 1.0, NO_MASK)

    def _takes_deferred(self, reader: Node) -> bool:
        """Tell whether the gradient goes through an integer clamp; then it can absorb that mask and unit."""
        return has_trait(reader.op, "through_clamp") and self._mask(reader) is not None

    def _data_error(self, node: Node, unit: Any, mask: Mask, owner: ShiftTables | None = None) -> Err:
        """Emit an error as the data gradient of a convolution; that of a dense layer has one pixel a row."""
        error, shape = self._r.error(node.inputs[0]), node.outputs[0].shape
        assert error is not None
        value, channels = error.value, shape[-1]
        if isinstance(node.attrs, PoolGradAttrs):
            pool, hw = node.attrs.pool, node.attrs.input_hw
            conv, ones = pool_as_conv(self._r, pool, channels)
            parts, ratio = (ones,), np.asarray(error.unit) / (pool.kernel[0] * pool.kernel[1]) / np.asarray(unit)
        else:
            assert error.layer is not None
            x, conv, parts = error.layer.x, error.layer.conv, error.layer.parts
            hw, ratio = (x.value.shape[1], x.value.shape[2]), 1.0 / (x.quant.scale[0] * np.asarray(unit))
        if len(shape) == 2:
            value = self._r.as_image(value, node)
        factors = np.broadcast_to(ratio, (channels,))
        multiplier, shift, largest = self._r.factors(node.name, factors, owner, "error")
        attrs = QConvGradInputAttrs(replace(conv, bias=False), hw, largest, mask.attrs)
        inputs = (value, multiplier, shift, *parts, *mask.operand)
        result = self._r.emit_error("QConvGradInput", (error.exponent,), inputs, attrs, node, unit)
        if len(shape) == 2:
            result = replace(result, value=self._r.emit("Reshape", (result.value,), ReshapeAttrs(shape), node))
        return result

    # ---- between layers -----------------------------------------------------------------------------------------

    def add(self, node: Node) -> Form | Uses | None:
        """Emit the sum of two gradients of one value, if at least one is an int8 error; of a parameter, its uses."""
        first, second = (self._r.gradients.get(value.name) for value in node.inputs)
        if first is not None and second is not None:
            return first + second
        if not any(isinstance(self._r.forms.get(v.name), Err | Deferred) for v in node.inputs):
            return None
        a, b = (self._r.plain_error(v, node) for v in node.inputs)
        if a.unit != b.unit:
            b = self._r.rescaled(b, a.unit, node)
        exponents, values = (a.exponent, b.exponent), (a.value, b.value)
        return self._r.emit_error("ErrorAdd", exponents, values, ErrorAttrs(ADD_PROBE), node, a.unit)

    def expand(self, node: Node) -> Form | None:
        """Emit the gradient of a mean: the same error everywhere, with the factor in its unit."""
        attrs = attrs_of(node, ExpandAttrs)
        if self._r.error(node.inputs[0]) is None and not self._leads_to_integers(node):
            return None
        error = self._r.plain_error(node.inputs[0], node)
        out = self._r.emit(node.op, (error.value,), replace(attrs, scale=1.0), node)
        return Err(out, error.exponent, error.unit * attrs.scale)

    def _leads_to_integers(self, node: Node) -> bool:
        """Tell whether a float gradient is about to enter the integer part: then it is quantised before expansion."""
        reader = self._r.only_reader(node.outputs[0])
        return reader is not None and has_trait(reader.op, "through_clamp") and bool(self._clamp_input(reader))

    def move(self, node: Node) -> Form | Uses | None:
        """Emit movement of an error; a slice of channels gets its slice of a per-channel unit."""
        error, uses = self._r.error(node.inputs[0]), self._r.gradients.get(node.inputs[0].name)
        if uses is not None:
            return uses
        if isinstance(node.attrs, ConcatAttrs):
            return self._join(node, node.attrs)
        if error is None:
            return None
        if error.layer is not None and self._is_bias_gradient(node):
            return bias_gradient(error)
        unit: Any = error.unit if error.plain else _cut_unit(error, node.attrs)
        if unit is None:
            error, unit = replace(self._r.rescaled(error, 1.0, node), layer=error.layer), 1.0
        out = self._r.emit(node.op, (error.value,), node.attrs, node)
        return replace(error, value=out, unit=unit)

    def pool(self, node: Node) -> Form | None:
        """Emit an error of the elements that won, or of a mean: moved, or added if windows overlap.

        Channels keep their units.
        """
        index = operands(node).get("index")
        if index is None:
            return self.data(node)
        attrs, error = attrs_of(node, PoolGradAttrs), self._r.error(operand(node, "dy"))
        places = self._r.forms.get(index.name)
        if error is None or not isinstance(places, Value):
            return None
        if not overlap(attrs.pool):
            return Err(self._r.emit(node.op, (error.value, places), attrs, node), error.exponent, error.unit)
        if sum_bound(attrs) > INT32_MAX:
            return None
        wide = QMaxPoolGradAttrs(attrs.pool, attrs.input_hw, POOL_PROBE)
        return self._r.emit_error("QMaxPoolGrad", (error.exponent,), (error.value, places), wide, node, error.unit)

    def _join(self, node: Node, attrs: ConcatAttrs) -> Form | None:
        """Emit the concatenation of channels that were cut out of one error: those of a channel slice."""
        errors = [error for value in node.inputs if (error := self._r.error(value)) is not None]
        if len(errors) < len(node.inputs) or attrs.axis != len(node.outputs[0].shape) - 1:
            return None
        if any(error.exponent != errors[0].exponent for error in errors):
            return None
        unit: Any = np.concatenate([np.broadcast_to(error.unit, error.value.shape[-1:]) for error in errors])
        if all(error.plain for error in errors) and np.ptp(unit) == 0:
            unit = errors[0].unit
        out = self._r.emit(node.op, [error.value for error in errors], attrs, node)
        return replace(errors[0], value=out, unit=unit)

    def _is_bias_gradient(self, node: Node) -> bool:
        """Tell whether a reshaped error is the bias gradient of a dense layer with one row, which needs no sum."""
        return isinstance(node.attrs, ReshapeAttrs) and self._only_updates(node.outputs[0])

    def _only_updates(self, gradient: Value) -> bool:
        """Tell whether a gradient is for a parameter: it goes to a step, a sum or squares of it, or is first added to
        others of the same parameter."""
        for reader in self._r.readers.get(gradient.name, []):
            more = has_trait(reader.op, "adds") and self._only_updates(reader.outputs[0])
            if not (more or steps_floats(reader.op) or has_trait(reader.op, "gradient_sum")):
                return False
        return True


def _cut_unit(error: Err, attrs: Attrs) -> Any:
    """Return the unit of a slice of an error, or None if channels are mixed."""
    if not isinstance(attrs, SliceAttrs):
        return None
    last = slice(attrs.starts[-1], attrs.starts[-1] + attrs.sizes[-1])
    return error.unit[last] if attrs.steps[-1] == 1 else None
