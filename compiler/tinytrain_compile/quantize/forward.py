"""Integer forms of forward nodes. A node that requantises waits for the Clip after it, which has its scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.types import NO_ATTRS, Array, Node, Quant, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import Split, has_trait
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.pointwise import ADD_BITS, SUM_BITS, QAddAttrs, QRescaleAttrs, rescale_lift
from tinytrain_compile.ops.linear import WEIGHT, GemmAttrs, join_split
from tinytrain_compile.ops.names import attrs_of, operand, operands
from tinytrain_compile.ops.pool import PoolAttrs, always_full
from tinytrain_compile.ops.shape import ConcatAttrs, EmbedAttrs, ExpandAttrs, ReduceAttrs, ReshapeAttrs
from tinytrain_compile.quantize.forms import Act, Deferred, Form, IntegerLayer, ends_of, narrowed
from tinytrain_compile.quantize.rescale import Rescaling
from tinytrain_compile.quantize.state import Rewriter

_SHARED_BITS, _SHARED_ROOM = 8, 2.0**29
"""Most fraction bits of a shared bias relative to the unit of a layer; and its largest initial magnitude, which
training may make four times as large within int32."""


@dataclass(frozen=True)
class Clamped:
    """The clamp at the end of a node's sums. above: a gradient goes back through it, and it begins at zero like a ReLU:
    then positive sums are stored above zero, since its mask is derived from the stored values."""

    quant: Quant
    above: bool = False

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Zero point, lowest and highest integer."""
        return self.quant.zero, self.quant.low, self.quant.high


class Forward:
    """Rewriter of forward nodes; `layers` maps the float name of a layer's output to its integer layer."""

    def __init__(self, rewriter: Rewriter, rescaling: Rescaling, floats: frozenset[str] = frozenset()) -> None:
        self._r = rewriter
        self._rescaling = rescaling
        self._floats = floats
        """Names of parameters that stay float32."""
        self.units: dict[str, Array] = {}
        """Real value of 1 in each integer parameter, for each element of its first axis."""
        self.layers: dict[str, IntegerLayer] = {}
        self.integer_parameters: dict[str, Value] = {}
        self._trained = {parameter.name for parameter, _ in rewriter.train.graph.updates}
        self.clamped: dict[str, str] = {}
        """Float name of a clamp's output -> float name of its input."""

    # ---- requantising nodes -------------------------------------------------------------------------------------

    def wait(self, node: Node) -> Form | None:
        """Defer a node whose only reader is a clamp with an annotation, if it can run in integers."""
        return Deferred(node) if self._is_clamped(node) and self._ready(node) else None

    def _is_clamped(self, node: Node) -> bool:
        """Tell whether a clamp with an annotation is the only reader."""
        out = node.outputs[0]
        readers = [reader for reader in self._r.readers.get(out.name, []) if not has_trait(reader.op, "marks")]
        alone = len(readers) == 1 and out not in self._r.train.graph.outputs
        return alone and has_trait(readers[0].op, "clamps") and readers[0].outputs[0].quant is not None

    def _ready(self, node: Node) -> bool:
        if has_trait(node.op, "matrix") and not self._takes_integers(node):
            return False
        data = node.inputs if has_trait(node.op, "adds") else (operand(node, "x"),)
        if len({value.shape for value in data}) > 1:
            return False
        if isinstance(node.attrs, PoolAttrs) and not always_full(node.attrs, _hw(operand(node, "x"))):
            return False
        return all(self._r.act(v, node) is not None for v in data)

    def _takes_integers(self, node: Node) -> bool:
        """Tell whether a layer's parameters are constants that may become integers."""
        _, *parameters = node.inputs
        names = {value.name for value in parameters}
        integers = names <= self._r.constants.keys() - self._floats
        return has_trait(node.op, "layer") and operand(node, "w").quant is not None and integers

    def clip(self, node: Node) -> Form | None:
        """Emit the deferred node before an annotated clamp, or integers already stored, in the clamp's format."""
        form, out = self._r.forms.get(node.inputs[0].name), node.outputs[0]
        if not isinstance(form, Act | Deferred) or out.quant is None:
            return None
        clip = attrs_of(node, ClipAttrs)
        quant = narrowed(out.quant, clip)
        masks = any(has_trait(reader.op, "read_output") for reader in self._r.readers.get(out.name, []))
        clamp = Clamped(quant, masks and quant.low == quant.zero)
        if isinstance(form, Act):
            attrs = replace(rescale_attrs(form.quant, quant), above=clamp.above)
            value = self._r.emit("QRescale", (form.value,), attrs, node)
        else:
            value = self._requantised(form.node, clamp)
        self.clamped[out.name] = node.inputs[0].name
        return Act(value, quant, ends_of(out.quant, clip))

    def _requantised(self, node: Node, clamp: Clamped) -> Value:
        if isinstance(node.attrs, ConvAttrs):
            return self._layer(node, node.attrs, clamp, self._act(node, "x"))
        if isinstance(node.attrs, GemmAttrs):
            return self._dense(node, node.attrs, clamp)
        if has_trait(node.op, "adds"):
            return self._add(node, clamp)
        if isinstance(node.attrs, ConcatAttrs):
            acts = [form for value in node.inputs if (form := self._r.act(value, node)) is not None]
            parts = [self._on_scale(act, clamp.quant, node) for act in acts]
            return self._r.emit(node.op, parts, node.attrs, node)
        return self._mean(node, clamp)

    def _act(self, node: Node, name: str) -> Act:
        form = self._r.act(operand(node, name), node)
        assert form is not None
        return form

    def _layer(self, node: Node, conv: ConvAttrs, clamp: Clamped, x: Act, once: bool = False) -> Value:
        layer = self._integers(node, conv, x)
        self.layers[node.outputs[0].name] = layer
        factors = layer.accumulator_scale / clamp.quant.scale[0]
        if layer.tables is None:
            multiplier, shift, down = self._r.fixed_factors(node.name, factors)
        else:
            multiplier, shift, _ = self._r.factors(node.name, factors, layer.tables)
            down = False  # shifts grow
        attrs = QConvAttrs(replace(conv, bias=True), x.quant.zero, *clamp.bounds, down, clamp.above, once)
        return self._r.emit("QConv", (x.value, *layer.parts, layer.bias, multiplier, shift), attrs, node)

    def _dense(self, node: Node, attrs: GemmAttrs, clamp: Clamped) -> Value:
        """Rewrite a dense layer as a 1x1 convolution over its rows."""
        x = self._act(node, "x")
        image = self._r.as_image(x.value, node)
        conv = ConvAttrs((1, 1), bias=attrs.bias, split=attrs.split)
        y = self._layer(node, conv, clamp, Act(image, x.quant), once=True)
        return self._r.emit("Reshape", (y,), ReshapeAttrs(node.outputs[0].shape), node)

    def _integers(self, node: Node, conv: ConvAttrs, x: Act) -> IntegerLayer:
        """Return int8 weight parts and int32 bias of a layer, as constants or state."""
        o = operands(node)
        floats, weight, own_bias = o.several(*WEIGHT), o["w"], o.get("bias")
        scale = _weight_scale(floats, conv.split)
        tables = self._rescaling.tables(weight, own_bias, conv.split)
        if tables is not None:
            scale = self._rescaling.with_room(scale, weight, conv.split)
        parts: list[Value] = []
        for part, value in enumerate(floats):
            if value.name not in self.integer_parameters:
                own = _part_scale(scale, conv.split, part)
                self.integer_parameters[value.name] = self._weight(value, own)
            parts.append(self.integer_parameters[value.name])
        bias, unit = self._bias(node, own_bias, scale * x.quant.scale[0])
        return IntegerLayer((*parts, *o.several("place?")), bias, scale, x, conv, node, tables, unit)

    def _weight(self, value: Value, scale: Array) -> Value:
        data = self._r.constants[value.name].astype(np.float64)
        self.units[value.name] = scale
        q = np.rint(data / scale.reshape(-1, *(1,) * (data.ndim - 1)))
        integers = np.clip(q, -128, 127).astype(np.int8)  # a file's own weights may have -128
        if integers.ndim == 2:
            integers = integers.reshape(integers.shape[0], 1, 1, integers.shape[1])
        return self._stored(value, integers)

    def _bias(self, node: Node, value: Value | None, scale: Array) -> tuple[Value, Array]:
        """Return the bias in units of the layer's accumulator, and the unit of the parameter."""
        if value is None:
            return self._r.table(f"{node.name}.no_bias", np.zeros(scale.shape, np.int32)), scale
        shared = sum(has_trait(reader.op, "layer") for reader in self._r.readers[value.name]) > 1
        data = self._r.constants[value.name].astype(np.float64)
        if shared and value.name not in self._trained:
            return self._r.table(f"{node.name}.bias", fx.saturate(np.rint(data / scale)).astype(np.int32)), scale
        if value.name not in self.integer_parameters:
            unit = _finer(scale, data) if shared else scale
            self.units[value.name] = unit
            integers = fx.saturate(np.rint(data / unit)).astype(np.int32)
            self.integer_parameters[value.name] = self._stored(value, integers)
        stored, unit = self.integer_parameters[value.name], self.units[value.name]
        if not shared:
            return stored, unit
        multiplier, shift, _ = self._r.factors(f"{node.name}.bias", unit / scale)
        return self._r.emit("QSharedBias", (stored, multiplier, shift), NO_ATTRS, node), unit

    def _stored(self, value: Value, integers: Array) -> Value:
        """Return the integer constant that replaces a float parameter and keeps its name."""
        self._r.builder.constants[value.name] = integers
        dtype = "int8" if integers.dtype == np.int8 else "int32"
        return Value(value.name, tuple(integers.shape), dtype, "", value.origin)

    def _add(self, node: Node, clamp: Clamped) -> Value:
        a, b = self._act(node, "a"), self._act(node, "b")
        scale, (zero, low, high) = clamp.quant.scale[0], clamp.bounds
        to = [fx.split_factor(x.quant.scale[0] / scale * 2.0 ** (SUM_BITS - ADD_BITS)) for x in (a, b)]
        attrs = QAddAttrs(a.quant.zero, b.quant.zero, zero, to[0], to[1], low, high, clamp.above)
        return self._r.emit("QAdd", (a.value, b.value), attrs, node)

    def _mean(self, node: Node, clamp: Clamped) -> Value:
        x = self._act(node, "x")
        if isinstance(node.attrs, ReduceAttrs):
            attrs = rescale_attrs(x.quant, clamp.quant, node.attrs.scale, x.value.shape, node.attrs.axes)
            return self._r.emit("QRescale", (x.value,), replace(attrs, above=clamp.above), node)
        pool = attrs_of(node, PoolAttrs)
        conv, ones = pool_as_conv(self._r, pool, x.value.shape[3])
        factor = np.full(x.value.shape[3], x.quant.scale[0] / (pool.kernel[0] * pool.kernel[1]) / clamp.quant.scale[0])
        multiplier, shift, down = self._r.fixed_factors(node.name, factor)
        bias = self._r.table("no_bias", np.zeros(x.value.shape[3], np.int32))
        attrs = QConvAttrs(conv, x.quant.zero, *clamp.bounds, down, clamp.above)
        return self._r.emit("QConv", (x.value, ones, bias, multiplier, shift), attrs, node)

    # ---- nodes that keep the scale ------------------------------------------------------------------------------

    def mark(self, node: Node) -> Form | None:
        """Emit a clamp's mask, or an index in a window, from the integers."""
        act = self._r.int8(node.inputs[0])
        if act is None:
            return None
        of_clamp = isinstance(node.attrs, ClipAttrs)
        op, attrs = ("QClipMask", act.mask("bits")) if of_clamp else (node.op, node.attrs)
        return self._r.emit(op, (act.value,), attrs, node)

    def move(self, node: Node) -> Form | None:
        """Emit movement in the operand's format. A Concat waits for a clamp that is its only reader."""
        acts, attrs = [act for value in node.inputs if (act := self._r.int8(value)) is not None], node.attrs
        if len(acts) != len(node.inputs) or not acts:
            return None
        if isinstance(attrs, ConcatAttrs) and self._is_clamped(node):
            return Deferred(node)
        quant = node.outputs[0].quant or acts[0].quant
        if not isinstance(attrs, ConcatAttrs) and quant.scale != acts[0].quant.scale:
            quant = acts[0].quant
        if isinstance(attrs, EmbedAttrs):
            if attrs.value != 0.0:
                return None
            attrs = replace(attrs, value=float(quant.zero))
        values = [self._on_scale(act, replace(quant, low=-128, high=127), node) for act in acts]
        return Act(self._r.emit(node.op, values, attrs, node), quant)

    def repeat(self, node: Node) -> Form | None:
        """Emit copies of the integers, if they are not multiplied."""
        return self.move(node) if attrs_of(node, ExpandAttrs).scale == 1.0 else None

    def _on_scale(self, act: Act, quant: Quant, node: Node) -> Value:
        """Return an activation in another format, clamped to its bounds."""
        held = quant.low <= act.quant.low and act.quant.high <= quant.high
        if held and (act.quant.scale, act.quant.zero) == (quant.scale, quant.zero):
            return act.value
        return self._r.emit("QRescale", (act.value,), rescale_attrs(act.quant, quant), node)


def _finer(scale: Array, data: Array) -> Array:
    """Return the unit of a shared bias: up to 2**8 finer than that of the first layer, while there is room to train."""
    largest = np.maximum(np.abs(data) / scale, 1.0)
    bits = np.clip(np.floor(np.log2(_SHARED_ROOM / largest)), 0, _SHARED_BITS)
    return scale / 2.0**bits


def rescale_attrs(
    x: Quant, y: Quant, factor: float = 1.0, shape: tuple[int, ...] = (), axes: tuple[int, ...] = ()
) -> QRescaleAttrs:
    """Convert from one format to another, or to that of `factor` times the sum over axes."""
    lift = rescale_lift(math.prod(shape[axis] for axis in axes))
    scaled = fx.split_factor(math.ldexp(x.scale[0] * factor / y.scale[0], -lift))
    return QRescaleAttrs(axes, x.zero, y.zero, scaled, y.low, y.high, lift)


def _hw(image: Value) -> tuple[int, int]:
    return image.shape[1], image.shape[2]


def pool_as_conv(rewriter: Rewriter, pool: PoolAttrs, channels: int) -> tuple[ConvAttrs, Value]:
    """Return an `always_full` average pool as a depthwise convolution with ones."""
    conv = ConvAttrs(pool.kernel, pool.strides, pool.pads, pool.dilations, channels, bias=True)
    return conv, rewriter.table("ones", np.ones((channels, *pool.kernel, 1), np.int8))


def _weight_scale(parts: tuple[Value, ...], split: Split | None) -> Array:
    """Return the scale per output channel of the whole weight."""
    scales: list[Array] = []
    for value in parts:
        assert value.quant is not None
        scales.append(np.broadcast_to(np.asarray(value.quant.scale, np.float64), (value.shape[0],)))
    if split is None or split.axis == "in":
        return scales[0]
    return join_split(tuple(scales), split, 0, 0)


def _part_scale(scale: Array, split: Split | None, part: int) -> Array:
    if split is None or split.axis == "in":
        return scale
    return scale[list(split.channels if part == 0 else split.rest)]
