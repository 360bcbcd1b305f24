"""Integer forms of low-rank copies: they read int8 activations. In front of a gradient they are int8 again, or it is
computed in the subspaces, in float32, and rounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.activations import KeptActivation
from tinytrain_compile.ir.types import Array, Node, Quant, Value
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.conv import CONV_GRAD_WEIGHT, ConvAttrs
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.subspace import LARGEST, QModeAttrs, QModeInt8Attrs, rows_in_int8
from tinytrain_compile.ops.linear import GEMM_GRAD_WEIGHT
from tinytrain_compile.ops.names import operand
from tinytrain_compile.ops.shape import ExpandAttrs, ReshapeAttrs
from tinytrain_compile.ops.subspace import SUBSPACE_GRAD_WEIGHT, ModeAttrs
from tinytrain_compile.quantize.backward import Backward
from tinytrain_compile.quantize.forms import Act, Err
from tinytrain_compile.quantize.forward import IntegerLayer
from tinytrain_compile.quantize.gradients import FloatGradient
from tinytrain_compile.quantize.rescale import IN_STEPS
from tinytrain_compile.quantize.state import Rewriter

_GRADIENTS = (CONV_GRAD_WEIGHT.name, GEMM_GRAD_WEIGHT.name)
_POINT = ConvAttrs((1, 1))


@dataclass(frozen=True, eq=False)
class _Core:
    """An int8 copy: real = value * unit * the step of each axis in `steps` at its index. act: what it is a copy of."""

    value: Value
    act: Act
    unit: float
    steps: Mapping[int, Array]


def kept_in_integers(kept: Iterable[KeptActivation], floats: Iterable[Node]) -> tuple[KeptActivation, ...]:
    """Return what is kept, with the bytes of the inputs as they are here: int8, but float32 where the gradient is one
    of the nodes that stay float (a head's)."""
    whole = {node.origin or node.name for node in floats if node.op in _GRADIENTS}
    return tuple(item if item.layer in whole else replace(item, exact_bytes=math.prod(item.shape)) for item in kept)


class Copies:
    """Rewrites the nodes of a copy. Of subspaces that follow the first and the last ones alone: those between them are
    float32 in any case. These copies count in steps of the activation, subspaces have no unit: so no scale appears, and
    the format of what comes back is the activation's. Of fixed subspaces every node becomes integer, where the steps of
    what is kept are known.

    Where a gradient reads a core that is not expanded in all modes, errors go into subspaces in their own steps, and so
    the gradient is in those of an exact one's int32 sums.
    """

    def __init__(self, rewriter: Rewriter, backward: Backward) -> None:
        self._r, self._backward = rewriter, backward
        self._errors: dict[str, tuple[Err, IntegerLayer]] = {}
        """What a float32 value counts in steps of, by its name: errors in subspaces, and gradients of cores."""
        self._of: dict[str, tuple[Act, frozenset[int]]] = {}
        """What a value is made of, by its name, and the axes that are in subspaces: of cores, and of those that are
        expanded again in part."""
        self._cores: dict[str, _Core] = {}

    def rewrite(self, node: Node) -> bool:
        """Emit the integer form of a node that reads an int8 activation or gives it back, and of gradients of cores."""
        if node.op in _GRADIENTS:
            return self._gradient(node)
        if node.op == SUBSPACE_GRAD_WEIGHT.name:
            return self._of_channels(node)
        if not has_trait(node.op, "subspace"):
            return False
        x, attrs = operand(node, "x"), node.attrs
        assert isinstance(attrs, ModeAttrs)
        if x.name in self._cores:
            self._along(node, attrs, self._cores[x.name])
            return True
        if self._into_subspace(node, x):
            return True
        known = self._of.get(x.name)
        if known is None:
            act = self._r.act(x, node)
            return act is not None and self._first(node, attrs, act)
        act, axes = known
        axes = axes - {attrs.axis} if attrs.expand else axes | {attrs.axis}
        self._of[node.outputs[0].name] = act, axes
        return not axes and self._back(node, attrs, act)

    def _first(self, node: Node, attrs: ModeAttrs, act: Act) -> bool:
        if not attrs.steps:
            return self._into(node, attrs, act)
        self._along(node, attrs, _Core(act.value, act, act.quant.scale[0], {}))
        return True

    def _into(self, node: Node, attrs: ModeAttrs, act: Act) -> bool:
        """Emit a product of an int8 activation; its results are float32."""
        u = self._r.as_float(operand(node, "u"), node)
        inputs, integer = (act.value, u), QModeAttrs(attrs.axis, zero=act.quant.zero)
        (out,) = self._r.emit(f"Q{node.op}", inputs, integer, node)
        self._r.forms[node.outputs[0].name] = out
        if node.op == "ModeProduct":
            self._of[node.outputs[0].name] = act, frozenset((attrs.axis,))
        return True

    def _back(self, node: Node, attrs: ModeAttrs, act: Act) -> bool:
        """Emit the last product on the way back: rounded to the activation's format."""
        inputs = tuple(self._r.as_float(operand(node, name), node) for name in ("x", "u"))
        (out,) = self._r.emit("QModeExpand", inputs, QModeAttrs(attrs.axis, True, zero=act.quant.zero), node)
        self._r.forms[node.outputs[0].name] = Act(out, act.quant)
        return True

    # ---- gradients in subspaces -------------------------------------------------------------------------------------

    def _into_subspace(self, node: Node, x: Value) -> bool:
        """Emit a product of an error, in its steps."""
        known = self._errors.get(x.name) or self._backward.error_of(x)
        if known is None:
            return False
        u, attrs, out = self._r.as_float(operand(node, "u"), node), node.attrs, node.outputs[0]
        assert isinstance(attrs, ModeAttrs)
        if x.name in self._errors:
            (value,) = self._r.emit(node.op, (self._r.as_float(x, node), u), attrs, node)
        else:
            (value,) = self._r.emit("QModeProduct", (known[0].value, u), QModeAttrs(attrs.axis), node)
        self._r.forms[out.name], self._errors[out.name] = value, known
        return True

    def _gradient(self, node: Node) -> bool:
        """Emit the gradient of a core; where the error is float32 as well (a head's), so is the core: real numbers."""
        x, dy = operand(node, "x"), operand(node, "dy")
        copy, known = self._of.get(x.name), self._errors.get(dy.name) or self._backward.error_of(dy)
        core = self._r.forms.get(x.name)
        if copy is None or not isinstance(core, Value):
            return False
        if known is None:
            real = ExpandAttrs(x.shape, scale=copy[0].quant.scale[0])
            (self._r.forms[x.name],) = self._r.emit("Expand", (core,), real, node)
            return False
        error = self._r.forms[dy.name]
        if isinstance(error, Err):
            (error,) = self._r.emit("Dequantize", (error.value,), IN_STEPS, node)
        assert isinstance(error, Value)
        attrs = node.attrs
        if node.op == GEMM_GRAD_WEIGHT.name:
            core, error, attrs = self._backward.as_image(core, node), self._backward.as_image(error, node), _POINT
        (value,) = self._r.emit(CONV_GRAD_WEIGHT.name, (core, error), attrs, node)
        self._end(node, value, known)
        return True

    def _of_channels(self, node: Node) -> bool:
        """Emit the gradient of the weight from that of a core with fewer channels."""
        dz = operand(node, "dz")
        known = self._errors.get(dz.name)
        if known is None:
            return False
        inputs = tuple(self._r.as_float(operand(node, name), node) for name in ("dz", "u"))
        (value,) = self._r.emit(node.op, inputs, node.attrs, node)
        self._end(node, value, known)
        return True

    def _end(self, node: Node, value: Value, known: tuple[Err, IntegerLayer]) -> None:
        """Keep a gradient in the steps of an error: of the weight, unless its channels are still in a subspace."""
        out = node.outputs[0]
        reader = self._r.only_reader(out)
        if reader is not None and reader.op == SUBSPACE_GRAD_WEIGHT.name:
            self._r.forms[out.name], self._errors[out.name] = value, known
        else:
            self._backward.gradients[out.name] = (FloatGradient(*known, value),)

    # ---- fixed subspaces --------------------------------------------------------------------------------------------

    def _along(self, node: Node, attrs: ModeAttrs, x: _Core) -> None:
        """Emit a product with int8 numbers. Steps of other axes are those of x and of the result, so in no factor."""
        u = self._r.train.graph.constants[operand(node, "u").name].astype(np.float64)
        others = {axis: steps for axis, steps in x.steps.items() if axis != attrs.axis}
        quant, name = x.act.quant, node.outputs[0].name
        if not attrs.expand:
            steps = np.asarray(attrs.steps)
            out = self._product(node, attrs.axis, x, u, steps, Quant((1.0,), 0, -LARGEST, LARGEST))
            self._cores[name] = _Core(out, x.act, 1.0, {**others, attrs.axis: steps})
            return
        wide = (u * x.steps[attrs.axis][:, None]).T
        target = Quant(attrs.steps, 0, -LARGEST, LARGEST) if attrs.steps else quant
        out = self._product(node, attrs.axis, x, wide, np.full(len(wide), target.scale[0]), target)
        if attrs.steps:
            self._cores[name] = _Core(out, x.act, target.scale[0], others)
        else:
            self._r.forms[name] = Act(out, quant)

    def _product(self, node: Node, axis: int, x: _Core, matrix: Array, steps: Array, to: Quant) -> Value:
        """Emit, along channels, a 1x1 convolution, for which there are faster kernels."""
        numbers, scales = rows_in_int8(matrix)
        multiplier, shift, down = self._r.fixed_factors(f"{node.name}.factor", scales * x.unit / steps)
        zero = x.act.quant.zero if x.value == x.act.value else 0
        bounds, name = (zero, to.zero, to.low, to.high), f"{node.name}.matrix"
        if axis < len(x.value.shape) - 1:
            inputs = (x.value, self._r.table(name, numbers), multiplier, shift)
            return self._r.emit("QModeProductInt8", inputs, QModeInt8Attrs(axis, *bounds), node)[0]
        dense = len(x.value.shape) == 2
        image = self._backward.as_image(x.value, node) if dense else x.value
        weight = self._r.table(name, numbers[:, None, None, :])
        bias = self._r.table("no_bias", np.zeros(len(numbers), np.int32))
        attrs = QConvAttrs(replace(_POINT, bias=True), *bounds, down)
        (out,) = self._r.emit("QConv", (image, weight, bias, multiplier, shift), attrs, node)
        if dense:
            (out,) = self._r.emit("Reshape", (out,), ReshapeAttrs((x.value.shape[0], len(numbers))), node)
        return out
