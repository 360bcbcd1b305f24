"""Integer forms of backward nodes: errors are int8, a layer's weight gradient goes straight into the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import NO_ATTRS, Attrs, Node, Value
from tinytrain_compile.ops.base import has_trait, ops_with, steps_floats
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.fixed_point import INT32_MAX
from tinytrain_compile.ops.int8.conv import QConvGradInputAttrs
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.pointwise import ErrorAttrs
from tinytrain_compile.ops.int8.pool import QMaxPoolGradAttrs, sum_bound
from tinytrain_compile.ops.names import operand
from tinytrain_compile.ops.pool import PoolGradAttrs, always_full, overlap
from tinytrain_compile.ops.shape import ConcatAttrs, ExpandAttrs, ReshapeAttrs, SliceAttrs
from tinytrain_compile.quantize.forms import NO_MASK, Act, Deferred, Err, Mask, ShiftTables
from tinytrain_compile.quantize.forward import Forward, IntegerLayer, pool_as_conv
from tinytrain_compile.quantize.gradients import BiasGradient, ProductGradient, Uses
from tinytrain_compile.quantize.state import Rewriter

ADD_PROBE = -12
"""Exponent above the larger operand's with which the sum of two errors cannot overflow 2**29."""
POOL_PROBE = -12
"""The same for the sum of the errors of windows that overlap."""


class Backward:
    """Rewrites backward nodes; gradients of integer parameters are kept as operands until their update comes."""

    def __init__(self, rewriter: Rewriter, forward: Forward) -> None:
        self._r = rewriter
        self._f = forward
        self.gradients: dict[str, Uses] = {}
        self._layer_of: dict[str, IntegerLayer] = {}
        """Float name of a gradient at a layer's output -> the layer."""
        self._rules: dict[str, Callable[[Node], bool]] = {
            "ClipGrad": self._through_clamp,
            "MaskedGrad": self._through_clamp,
            "ConvGradWeight": self._weight,
            "GemmGradWeight": self._weight,
            "Reduce": self._bias,
            "Add": self._sum,
            "Expand": self._expand,
            "TakeChannels": self._take,
            "ScoreChannels": self._score,
            "MaxPoolGrad": self._max_pool,
            "AveragePoolGrad": self._data,
            **dict.fromkeys(ops_with("data_gradient"), self._data),
            **dict.fromkeys(ops_with("moves_data"), self._move),
        }

    def rewrite(self, node: Node) -> bool:
        """Emit the integer form of a backward node, if it has one here."""
        rule = self._rules.get(node.op)
        return rule is not None and rule(node)

    def _error(self, value: Value) -> Err | Deferred | None:
        form = self._r.forms.get(value.name)
        return form if isinstance(form, Err | Deferred) else None

    # ---- clamps -------------------------------------------------------------------------------------------------

    def _through_clamp(self, node: Node) -> bool:
        """Emit the gradient before a clamp: masked, and in the unit that the node before the clamp wants."""
        dy, mask_source = operand(node, "dy"), _passed(node)
        mask = self._mask(node, mask_source)
        if mask is None:
            return False
        layer = self._f.layers.get(self._clamp_input(node))
        unit: Any = 1.0 if layer is None else 1.0 / layer.accumulator_scale
        tables = None if layer is None else layer.tables
        form = self._r.forms.get(dy.name, dy)
        if isinstance(form, Deferred):
            error = self._data_error(form.node, unit, mask, tables)
        else:
            known = form if isinstance(form, Err) else self._r.plain_error(dy, node)
            error = self._r.rescaled(known, unit, node, mask, tables)
        self._r.forms[node.outputs[0].name] = error
        if layer is not None:
            self._layer_of[node.outputs[0].name] = layer
        return True

    def _mask(self, node: Node, source: Value) -> Mask | None:
        form = self._r.forms.get(source.name)
        if node.op == "ClipGrad":
            return Mask(form.mask("value"), (form.value,)) if isinstance(form, Act) else None
        return Mask(MaskAttrs("bits"), (form,)) if isinstance(form, Value) and form.dtype == "bits" else None

    def _clamp_input(self, node: Node) -> str:
        """Return float name of the value whose clamp this node differentiates."""
        if node.op == "MaskedGrad":
            source = operand(self._r.producers[operand(node, "mask").name], "y")
        else:
            source = operand(node, "y")
        return self._f.clamped.get(source.name, "")

    # ---- layers -------------------------------------------------------------------------------------------------

    def _weight(self, node: Node) -> bool:
        x, dy = node.inputs
        known, act = self.error_of(dy), self._r.forms.get(x.name)
        if known is None or not isinstance(act, Act):
            return False
        error, layer = known
        if node.op == "GemmGradWeight":
            act = replace(act, value=self.as_image(act.value, node))
            error = replace(error, value=self.as_image(error.value, node))
            conv = ConvAttrs((1, 1))
        else:
            assert isinstance(node.attrs, ConvAttrs)
            conv = node.attrs
        self.gradients[node.outputs[0].name] = (ProductGradient(error, layer, act, conv),)
        return True

    def error_of(self, value: Value) -> tuple[Err, IntegerLayer] | None:
        """Return a gradient at a layer's output as its int8 error, and the layer; None if it has no such form."""
        error, layer = self._error(value), self._layer_of.get(value.name)
        return (error, layer) if isinstance(error, Err) and layer is not None else None

    def as_image(self, value: Value, node: Node) -> Value:
        """Return the rows of a matrix as the pixels of an image."""
        rows, columns = value.shape
        return self._r.emit("Reshape", (value,), ReshapeAttrs((1, rows, 1, columns)), node)[0]

    def _bias(self, node: Node) -> bool:
        known = self.error_of(node.inputs[0])
        if known is not None:
            self.gradients[node.outputs[0].name] = (BiasGradient(*known),)
        return known is not None

    def _data(self, node: Node) -> bool:
        """Emit a data gradient: in the unit that its only reader wants, or plain if there are several."""
        if isinstance(node.attrs, PoolGradAttrs):
            full = always_full(node.attrs.pool, node.attrs.input_hw)
            if not full or not isinstance(self._error(node.inputs[0]), Err):
                return False
        elif node.inputs[0].name not in self._layer_of:
            return False
        reader = self._r.only_reader(node.outputs[0])
        if reader is not None and self._takes_deferred(reader) and node.op != "GemmGradInput":
            self._r.forms[node.outputs[0].name] = Deferred(node)
        else:
            self._r.forms[node.outputs[0].name] = self._data_error(node, 1.0, NO_MASK)
        return True

    def _takes_deferred(self, reader: Node) -> bool:
        """Tell whether the gradient goes through a clamp that runs in integers, whose mask and unit it can then take
        in."""
        return has_trait(reader.op, "through_clamp") and self._mask(reader, _passed(reader)) is not None

    def _data_error(self, node: Node, unit: Any, mask: Mask, owner: ShiftTables | None = None) -> Err:
        error = self._error(node.inputs[0])
        assert isinstance(error, Err)
        if isinstance(node.attrs, PoolGradAttrs):
            return self._pool_error(node, node.attrs, error, unit, mask, owner)
        layer = self._layer_of[node.inputs[0].name]
        value, out = error.value, node.outputs[0]
        hw = (layer.x.value.shape[1], layer.x.value.shape[2])
        if node.op == "GemmGradInput":
            value = self.as_image(value, node)
        ratio = np.broadcast_to(1.0 / (layer.x.quant.scale[0] * np.asarray(unit)), (layer.x.value.shape[3],))
        result = self._conv_error(
            node, replace(layer.conv, bias=False), hw, replace(error, value=value), layer.parts, ratio, mask, owner
        )
        result = replace(result, unit=unit)
        if node.op == "GemmGradInput":
            (flat,) = self._r.emit("Reshape", (result.value,), ReshapeAttrs(out.shape), node)
            result = replace(result, value=flat)
        return result

    def _conv_error(
        self,
        node: Node,
        conv: ConvAttrs,
        hw: tuple[int, int],
        error: Err,
        parts: tuple[Value, ...],
        ratio: Any,
        mask: Mask,
        owner: ShiftTables | None,
    ) -> Err:
        multiplier, shift, largest = self._r.factors(node.name, ratio, owner, "error")
        attrs = QConvGradInputAttrs(conv, hw, largest, mask.attrs)
        inputs = (error.value, multiplier, shift, *parts, *mask.operand)
        return self._r.emit_error("QConvGradInput", (error.exponent,), inputs, attrs, node, 1.0)

    def _pool_error(
        self, node: Node, attrs: PoolGradAttrs, error: Err, unit: Any, mask: Mask, owner: ShiftTables | None
    ) -> Err:
        channels = node.outputs[0].shape[3]
        conv, ones = pool_as_conv(self._r, attrs.pool, channels)
        taps = attrs.pool.kernel[0] * attrs.pool.kernel[1]
        ratio = np.broadcast_to(np.asarray(error.unit) / taps / np.asarray(unit), (channels,))
        result = self._conv_error(node, replace(conv, bias=False), attrs.input_hw, error, (ones,), ratio, mask, owner)
        return replace(result, unit=unit)

    # ---- chosen channels ----------------------------------------------------------------------------------------

    def _take(self, node: Node) -> bool:
        """Emit some channels of a layer's error, which stay in that layer's unit."""
        x, place = node.inputs
        form, layer, out = self._error(x), self._layer_of.get(x.name), node.outputs[0]
        if not isinstance(form, Err) or layer is None:
            return False
        (some,) = self._r.emit("TakeChannels", (form.value, place), node.attrs, node)
        self._r.forms[out.name], self._layer_of[out.name] = replace(form, value=some), layer
        return True

    def _score(self, node: Node) -> bool:
        """Emit squares of integers, by what 1 is worth in each channel beside the channel where that is most."""
        form, out = self._error(node.inputs[0]), node.outputs[0]
        if not isinstance(form, Err):
            return False
        unit = np.broadcast_to(np.asarray(form.unit, np.float64), out.shape)
        table = self._r.table(f"{node.name}.unit", np.square(unit / unit.max()).astype(np.float32))
        inputs = (form.value, form.exponent, table)
        (self._r.forms[out.name],) = self._r.emit("QScoreChannels", inputs, NO_ATTRS, node)
        return True

    # ---- between layers -----------------------------------------------------------------------------------------

    def _sum(self, node: Node) -> bool:
        """Emit the sum of two gradients of one value, if at least one is an int8 error; of a parameter, its uses."""
        first, second = (self.gradients.get(value.name) for value in node.inputs)
        if first is not None and second is not None:
            self.gradients[node.outputs[0].name] = first + second  # type: ignore[operator]
            return True
        if not any(isinstance(self._error(v), Err | Deferred) for v in node.inputs):
            return False
        a, b = (self._r.plain_error(v, node) for v in node.inputs)
        if a.unit != b.unit:
            b = self._r.rescaled(b, a.unit, node)
        attrs = ErrorAttrs(ADD_PROBE)
        error = self._r.emit_error("ErrorAdd", (a.exponent, b.exponent), (a.value, b.value), attrs, node, a.unit)
        self._r.forms[node.outputs[0].name] = error
        return True

    def _expand(self, node: Node) -> bool:
        """Emit the gradient of a mean: the same error everywhere, the factor goes into its unit."""
        attrs = node.attrs
        assert isinstance(attrs, ExpandAttrs)
        if not isinstance(self._r.forms.get(node.inputs[0].name), Err) and not self._leads_to_integers(node):
            return False
        error = self._r.plain_error(node.inputs[0], node)
        (out,) = self._r.emit("Expand", (error.value,), replace(attrs, scale=1.0), node)
        self._r.forms[node.outputs[0].name] = Err(out, error.exponent, error.unit * attrs.scale)
        return True

    def _leads_to_integers(self, node: Node) -> bool:
        """Tell whether a float gradient is about to enter the integer part: better quantised before it is spread
        out."""
        reader = self._r.only_reader(node.outputs[0])
        return reader is not None and has_trait(reader.op, "through_clamp") and bool(self._clamp_input(reader))

    def _move(self, node: Node) -> bool:
        """Emit movement of an error; channel cuts take their part of a per-channel unit."""
        form = self._r.forms.get(node.inputs[0].name)
        kept = self.gradients.get(node.inputs[0].name)
        if kept is not None:
            self.gradients[node.outputs[0].name] = kept
            return True
        if isinstance(node.attrs, ConcatAttrs):
            return self._join(node, node.attrs)
        if not isinstance(form, Err):
            return False
        layer = self._layer_of.get(node.inputs[0].name)
        if layer is not None and self._is_bias_gradient(node):
            self.gradients[node.outputs[0].name] = (BiasGradient(form, layer),)
            return True
        unit: Any = form.unit
        if not form.plain:
            unit = _cut_unit(form, node.attrs)
            if unit is None:
                form = self._r.rescaled(form, 1.0, node)
                unit = 1.0
        (out,) = self._r.emit(node.op, (form.value,), node.attrs, node)
        self._r.forms[node.outputs[0].name] = Err(out, form.exponent, unit)
        if node.inputs[0].name in self._layer_of:
            self._layer_of[node.outputs[0].name] = self._layer_of[node.inputs[0].name]
        return True

    def _max_pool(self, node: Node) -> bool:
        """Emit an error of the elements that won: moved, or added where windows overlap. Channels keep their units."""
        attrs, error = node.attrs, self._r.forms.get(operand(node, "dy").name)
        index = self._r.forms.get(operand(node, "index").name)
        assert isinstance(attrs, PoolGradAttrs)
        if not isinstance(error, Err) or not isinstance(index, Value):
            return False
        if not overlap(attrs.pool):
            (out,) = self._r.emit("MaxPoolGrad", (error.value, index), attrs, node)
            self._r.forms[node.outputs[0].name] = replace(error, value=out)
            return True
        if sum_bound(attrs) > INT32_MAX:
            return False
        wide = QMaxPoolGradAttrs(attrs.pool, attrs.input_hw, POOL_PROBE)
        inputs = (error.value, index)
        moved = self._r.emit_error("QMaxPoolGrad", (error.exponent,), inputs, wide, node, error.unit)
        self._r.forms[node.outputs[0].name] = moved
        return True

    def _join(self, node: Node, attrs: ConcatAttrs) -> bool:
        """Emit channels of one error that were cut out of it, side by side again: those of a channel slice."""
        forms = [self._r.forms.get(v.name) for v in node.inputs]
        errors = [form for form in forms if isinstance(form, Err)]
        if len(errors) < len(forms) or attrs.axis != len(node.outputs[0].shape) - 1:
            return False
        if any(error.exponent != errors[0].exponent for error in errors):
            return False
        unit: Any = np.concatenate([np.broadcast_to(error.unit, error.value.shape[-1:]) for error in errors])
        if all(error.plain for error in errors) and np.ptp(unit) == 0:
            unit = errors[0].unit
        (out,) = self._r.emit("Concat", [error.value for error in errors], attrs, node)
        self._r.forms[node.outputs[0].name] = Err(out, errors[0].exponent, unit)
        if node.inputs[0].name in self._layer_of:
            self._layer_of[node.outputs[0].name] = self._layer_of[node.inputs[0].name]
        return True

    def _is_bias_gradient(self, node: Node) -> bool:
        """Tell whether a reshaped error is the bias gradient of a dense layer with one row, where nothing is summed."""
        return node.op == "Reshape" and self._only_updates(node.outputs[0])

    def _only_updates(self, gradient: Value) -> bool:
        """Tell whether a gradient goes to an update, or is first added to others of the same parameter."""
        readers = self._r.readers.get(gradient.name, [])
        return all(_reads_gradients(r) or (r.op == "Add" and self._only_updates(r.outputs[0])) for r in readers)


def _reads_gradients(node: Node) -> bool:
    """Tell whether a node takes the gradient of a parameter: to step it, to sum it up, or for the gradient's
    squares."""
    return steps_floats(node.op) or has_trait(node.op, "gradient_sum")


def _passed(node: Node) -> Value:
    """Return what tells a ClipGrad or a MaskedGrad where its clamp was active."""
    return operand(node, "mask" if node.op == "MaskedGrad" else "y")


def _cut_unit(error: Err, attrs: Attrs) -> Any:
    """Return the unit of a slice of an error, or None where channels are mixed."""
    if not isinstance(attrs, SliceAttrs):
        return None
    last = slice(attrs.starts[-1], attrs.starts[-1] + attrs.sizes[-1])
    return error.unit[last] if attrs.steps[-1] == 1 else None
