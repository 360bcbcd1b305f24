"""Integer forms of low-rank copies, which read int8 activations. Before a gradient a copy becomes int8 again, or the
gradient is computed in the subspaces, in float32, and rounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tinytrain_compile.ir.activations import KeptActivation
from tinytrain_compile.ir.types import Array, Node, Quant, Value
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.conv import CONV_GRAD_WEIGHT, ConvAttrs
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.subspace import LARGEST, QModeAttrs, QModeInt8Attrs, rows_in_int8
from tinytrain_compile.ops.int8.update import QSumAttrs
from tinytrain_compile.ops.names import attrs_of, operand
from tinytrain_compile.ops.shape import ExpandAttrs, ReshapeAttrs
from tinytrain_compile.ops.subspace import SUBSPACE_GRAD_WEIGHT, ModeAttrs
from tinytrain_compile.quantize.forms import Act, Err, Form, Gradient, Uses
from tinytrain_compile.quantize.rescale import IN_STEPS
from tinytrain_compile.quantize.state import Rewriter

_POINT = ConvAttrs((1, 1))


@dataclass(frozen=True, eq=False)
class _Core:
    """An int8 copy: real = value * unit * the step of each axis in `steps` at its index. act: the activation copied."""

    value: Value
    act: Act
    unit: float
    steps: Mapping[int, Array]


def kept_in_integers(kept: Iterable[KeptActivation], floats: Iterable[Node]) -> tuple[KeptActivation, ...]:
    """Return the kept activations with the bytes of their inputs: int8, or float32 if the gradient is a node that stays
    float (a head's)."""
    whole = {node.origin or node.name for node in floats if has_trait(node.op, "weight_gradient")}
    return tuple(item if item.layer in whole else replace(item, exact_bytes=math.prod(item.shape)) for item in kept)


class Copies:
    """Rewriter of the nodes of a copy. If subspaces follow the data, it rewrites only the first and last nodes; those
    between are float32 in any case. Such copies count in steps of the activation, and subspaces have no unit. So there
    is no scale, and the expanded copy has the activation's format. If subspaces are fixed, every node becomes integer,
    provided that the steps of the core are known.

    If a gradient reads a core that is not expanded in all modes, errors go into subspaces in their own steps. So the
    gradient has the steps of an exact one's int32 sums.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self._r = rewriter
        self._errors: dict[str, Err] = {}
        """Error in whose steps a float32 value counts, by the value's name: errors in subspaces, and gradients of
        cores."""
        self._of: dict[str, tuple[Act, frozenset[int]]] = {}
        """Source activation of a value and the axes that are in subspaces, by name: of cores and partly expanded
        cores."""
        self._cores: dict[str, _Core] = {}

    def product(self, node: Node) -> Form | bool | None:
        """Emit a product along an axis that reads an int8 activation or an error, or that restores an activation."""
        x, attrs = operand(node, "x"), attrs_of(node, ModeAttrs)
        if x.name in self._cores:
            return self._along(node, attrs, self._cores[x.name])
        if (error := self._error_of(x)) is not None:
            return self._of_error(node, attrs, error)
        known = self._of.get(x.name)
        if known is None:
            act = self._r.act(x, node)
            return act and self._of_activation(node, attrs, act)
        act, axes = known
        axes = axes - {attrs.axis} if attrs.expand else axes | {attrs.axis}
        self._of[node.outputs[0].name] = act, axes
        if axes:
            return None
        inputs, back = self._as_floats(node, "x", "u"), QModeAttrs(attrs.axis, True, zero=act.quant.zero)
        return Act(self._r.emit("QModeExpand", inputs, back, node), act.quant)

    def _as_floats(self, node: Node, *names: str) -> list[Value]:
        return [self._r.as_float(operand(node, name), node) for name in names]

    def _of_activation(self, node: Node, attrs: ModeAttrs, act: Act) -> Form | bool:
        """Emit a product of an int8 activation; its results are float32, unless its subspace is fixed."""
        if attrs.steps:
            return self._along(node, attrs, _Core(act.value, act, act.quant.scale[0], {}))
        inputs = (act.value, *self._as_floats(node, "u"))
        if node.op == "ModeProduct":
            self._of[node.outputs[0].name] = act, frozenset((attrs.axis,))
        return self._r.emit(f"Q{node.op}", inputs, QModeAttrs(attrs.axis, zero=act.quant.zero), node)

    # ---- gradients in subspaces -------------------------------------------------------------------------------------

    def _error_of(self, value: Value) -> Err | None:
        """Return the error of a layer in whose steps a value is: in int8, or in subspaces in float32."""
        error = self._errors.get(value.name) or self._r.error(value)
        return None if error is None or error.layer is None else error

    def _of_error(self, node: Node, attrs: ModeAttrs, error: Err) -> Form:
        """Emit a product of an error, in its steps."""
        x, (u,) = operand(node, "x"), self._as_floats(node, "u")
        known, self._errors[node.outputs[0].name] = x.name in self._errors, error
        if known:
            return self._r.emit(node.op, (self._r.as_float(x, node), u), attrs, node)
        return self._r.emit("QModeProduct", (error.value, u), QModeAttrs(attrs.axis), node)

    def gradient(self, node: Node) -> Form | Uses | None:
        """Emit the gradient of a core; if the error is float32 (a head's), the core is too, in real numbers."""
        x, dy = operand(node, "x"), operand(node, "dy")
        copy, error, core = self._of.get(x.name), self._error_of(dy), self._r.forms.get(x.name)
        if copy is None or not isinstance(core, Value):
            return None
        if error is None:
            real = ExpandAttrs(x.shape, scale=copy[0].quant.scale[0])
            self._r.forms[x.name] = self._r.emit("Expand", (core,), real, node)
            return None
        form, attrs = self._r.forms[dy.name], node.attrs
        steps = self._r.emit("Dequantize", (form.value,), IN_STEPS, node) if isinstance(form, Err) else form
        assert isinstance(steps, Value)
        pair = (core, steps)
        if not isinstance(attrs, ConvAttrs):
            pair, attrs = tuple(self._r.as_image(value, node) for value in pair), _POINT
        return self._ended(node, self._r.emit(CONV_GRAD_WEIGHT.name, pair, attrs, node), error)

    def _ended(self, node: Node, value: Value, error: Err) -> Form | Uses:
        """Return a gradient in the steps of an error: the weight's, unless its channels are still in a subspace."""
        reader = self._r.only_reader(node.outputs[0])
        if reader is None or reader.op != SUBSPACE_GRAD_WEIGHT.name:
            return (Gradient(error, QSumAttrs("float"), (value,)),)
        self._r.planned[reader.name] = partial(self._of_channels, error)
        return value

    def _of_channels(self, error: Err, node: Node) -> Form | Uses:
        """Emit the gradient of the weight from that of a core with fewer channels."""
        return self._ended(node, self._r.emit(node.op, self._as_floats(node, "dz", "u"), node.attrs, node), error)

    # ---- fixed subspaces --------------------------------------------------------------------------------------------

    def _along(self, node: Node, attrs: ModeAttrs, x: _Core) -> Form | bool:
        """Emit a product with int8 numbers. x and the result share the steps of other axes, so no factor has them."""
        u = self._r.train.graph.constants[operand(node, "u").name].astype(np.float64)
        others = {axis: steps for axis, steps in x.steps.items() if axis != attrs.axis}
        quant, name = x.act.quant, node.outputs[0].name
        if not attrs.expand:
            steps = np.asarray(attrs.steps)
            out = self._product(node, attrs.axis, x, u, steps, Quant((1.0,), 0, -LARGEST, LARGEST))
            self._cores[name] = _Core(out, x.act, 1.0, {**others, attrs.axis: steps})
            return True
        wide = (u * x.steps[attrs.axis][:, None]).T
        target = Quant(attrs.steps, 0, -LARGEST, LARGEST) if attrs.steps else quant
        out = self._product(node, attrs.axis, x, wide, np.full(len(wide), target.scale[0]), target)
        if not attrs.steps:
            return Act(out, quant)
        self._cores[name] = _Core(out, x.act, target.scale[0], others)
        return True

    def _product(self, node: Node, axis: int, x: _Core, matrix: Array, steps: Array, to: Quant) -> Value:
        """Emit a product along an axis; along channels a 1x1 convolution, for which there are faster kernels."""
        numbers, scales = rows_in_int8(matrix)
        multiplier, shift, down = self._r.fixed_factors(f"{node.name}.factor", scales * x.unit / steps)
        zero = x.act.quant.zero if x.value == x.act.value else 0
        bounds, name = (zero, to.zero, to.low, to.high), f"{node.name}.matrix"
        if axis < len(x.value.shape) - 1:
            inputs = (x.value, self._r.table(name, numbers), multiplier, shift)
            return self._r.emit("QModeProductInt8", inputs, QModeInt8Attrs(axis, *bounds), node)
        dense = len(x.value.shape) == 2
        image = self._r.as_image(x.value, node) if dense else x.value
        weight = self._r.table(name, numbers[:, None, None, :])
        bias = self._r.table("no_bias", np.zeros(len(numbers), np.int32))
        attrs = QConvAttrs(replace(_POINT, bias=True), *bounds, down)
        out = self._r.emit("QConv", (image, weight, bias, multiplier, shift), attrs, node)
        if dense:
            out = self._r.emit("Reshape", (out,), ReshapeAttrs((x.value.shape[0], len(numbers))), node)
        return out
