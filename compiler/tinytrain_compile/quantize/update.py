"""Integer forms of updates: gradients go straight into the step of int8 weights and int32 biases, or into sums."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import IntegerUnit, TrainedPart, TrainGraph, Velocity
from tinytrain_compile.ir.types import NO_ATTRS, Array, Node, Phase, Value
from tinytrain_compile.ops.base import op_def, steps_floats
from tinytrain_compile.ops.int8.steps import new_exponent
from tinytrain_compile.ops.int8.update import GradientAddAttrs, Momentum, QBiasUpdateAttrs, QMomentumAttrs, QUpdateAttrs
from tinytrain_compile.ops.names import operand, result
from tinytrain_compile.ops.owned import IntegerStep
from tinytrain_compile.ops.update import optimizers_in_int8
from tinytrain_compile.quantize.forms import Form, Gradient, Role, Uses
from tinytrain_compile.quantize.forward import Forward
from tinytrain_compile.quantize.gradients import IntegerClipping, added_gradient, stored_gradient, sum_by_sample
from tinytrain_compile.quantize.rescale import emit_rescale
from tinytrain_compile.quantize.state import Rewriter
from tinytrain_compile.quantize.storage import WeightStore, fine_weights, store_note

SHARED_LIFT = 8
"""Fraction bits of the summed gradient of a bias that layers share: its terms are sums of few small numbers, and a
layer's unit does not convert one to an integer."""
SMALLEST_STEP = 0.5
"""Smallest step by a sign, in 256ths of a weight's unit: a smaller one is rounded to 0 (tt_moved_weight)."""


@dataclass(frozen=True)
class QuantOptions:
    """seed: of the rounding noise; weight_store: int8 with stochastic rounding, int8 with 8 fraction bits, or a
    mixture.

    rescale: channels whose trained weights reach the end of their range get another scale.
    """

    seed: int = 0
    weight_store: WeightStore = "sr8"
    rescale: bool = False


class Updates:
    """Rewriter of update nodes of integer parameters; it holds the noise, the rate and the running sums."""

    def __init__(self, train: TrainGraph, options: QuantOptions, rewriter: Rewriter, forward: Forward) -> None:
        self._r, self._forward = rewriter, forward
        self._store: WeightStore = options.weight_store
        self._rescales = options.rescale
        self._identity = repr((train.identity, "int8", options.weight_store, options.rescale))
        self._trained = train.graph.state
        self._settling: Phase = "apply" if train.batch > 1 else "step"
        self._phase: Phase = "step" if train.in_place else self._settling
        self._noise = rewriter.builder.constant("noise", np.asarray(options.seed * 2 + 12345, np.uint32).view(np.int32))
        self.velocity = _velocity_of(train)
        numbers = 2 if self.velocity is None else self.velocity.rate_numbers
        self.rate = Value(rewriter.builder.unique("rate"), (numbers,), "int32")
        rewriter.accumulators.append(self.rate)
        self.clipping = IntegerClipping(train, rewriter, self._phase)
        self._salt = 0
        self._wholes: dict[str, tuple[Value, tuple[Value, ...]]] = {}
        """Gradients in one tensor, and their scales, by the names of their float forms."""
        self._squared: dict[str, tuple[Value, tuple[Value, ...]]] = {}
        """Squares of gradients that their updates do not store, and their scales, by the same names."""
        self._sums: dict[str, tuple[Uses, list[Value], list[Value]]] = {}
        """Running sums of gradients, by the names of their float forms: the parameter's uses and, for each use, the sum
        after a step's additions and the accumulator that holds it."""
        self._velocities: list[tuple[Value, Value, Value]] = []
        """(exponent, peak, the value that holds the gathered peak) of every velocity."""
        self._fractions: dict[str, Value] = {}
        self._first_rate = float(train.graph.constants[train.learning_rate.name]) / (
            train.batch if train.in_place else 1
        )
        self._sign_steps: list[Array] = []
        """Step by signs of each weight's channels, in 256ths of a unit."""
        self.replaced: set[str] = set()
        """Names of float optimizer state that integer state replaced."""

    def rewrite(self, node: Node) -> bool:
        """Emit the integer form of an update node, if its parameter is an integer."""
        if not steps_floats(node.op):
            return False
        name, w = operand(node, "g").name, operand(node, "w").name
        uses, summed = self._r.gradients.get(name), self._sums.get(name)
        if (uses is None and summed is None) or w not in self._forward.integer_parameters:
            return False
        _check_rule(node)
        wrong = {"--clip-norm": self.clipping.clips, "--rescale on": self._rescales}
        for flag in (flag for flag, given in wrong.items() if given and self._signed):
            what = "int8 has no form of it for an optimizer that follows the signs of gradients"
            raise CompileError("E0113", flag, what, f"leave {flag} out")
        parameter = self._forward.integer_parameters[w]
        if summed is not None:
            self._apply(node, parameter, *summed[:2])
        elif uses is not None:
            self._fused(node, parameter, uses)
        return True

    def finish(self) -> None:
        """Let exponents follow their peaks once per batch, and the noise advance with every update."""
        self._r.finish(self._settling)
        self._rescale()
        for exponent, peak, gathered in self._velocities:
            self._r.state.append(exponent)
            self._r.follow(exponent, peak, gathered, self._phase)
        if self._salt:
            after = self._r.builder.emit("NoiseTick", (self._noise,), NO_ATTRS, "noise.tick", "", self._phase)
            self._own(self._noise, after)

    @property
    def _signed(self) -> bool:
        return self.velocity is not None and self.velocity.signed

    # ---- one update -------------------------------------------------------------------------------------------------

    def _scale(self, node: Node, uses: Uses, exponent: Value) -> tuple[Value, ...]:
        """Return (multiplier, shift, rate, exponent) of a step, in integer units of the parameter (docs/int8.md).

        The gradient of one use is in the unit of its accumulator, the sum of several in that of the parameter: a step
        along it is divided by both units, a step by signs only by the parameter's.
        """
        layer, split = uses[0].layer, uses[0].layer.conv.split
        unit, of_gradient = layer.bias_unit, layer.accumulator_scale if len(uses) == 1 else layer.bias_unit
        role: Role = "bias" if uses[0].of_bias else "weight"
        if role == "weight":
            unit = of_gradient = layer.scale
        square = unit if self._signed else unit * of_gradient
        if role == "weight" and split is not None and split.axis == "out":
            square = square[list(split.channels)]
        if self._signed and role == "weight":
            self._sign_steps.append(256 * self._first_rate / np.atleast_1d(square))
        multiplier, shift, _ = self._r.factors(node.name, 1.0 / square, layer.tables, role)
        return (multiplier, shift, self.rate, exponent)

    def _fused(self, node: Node, parameter: Value, uses: Uses) -> None:
        gradient, how = uses[0], uses[0].sum
        plain = self.velocity is None and not self.clipping.clips
        if len(uses) > 1 or (how.of != "product" and not plain):
            self._apply(node, parameter, uses, [stored_gradient(self._r, node, parameter, use) for use in uses])
            return
        scale = self._scale(node, uses, gradient.error.exponent)
        inputs = (parameter, *gradient.operands, *self._clipped(node, scale))
        if gradient.of_bias:
            self._own(parameter, self._r.emit("QBiasUpdate", inputs, QBiasUpdateAttrs(), node, self._phase))
            return
        attrs = QUpdateAttrs("float")
        if how.of == "product":
            momentum: Momentum = "" if self.velocity is None else "sign" if self._signed else "sum"
            attrs = QUpdateAttrs("product", False, momentum, self.clipping.clips, how.conv, how.x_zero)
        rows = self._move(node, inputs, attrs)
        if rows is not None:
            self._squared[operand(node, "g").name] = rows, scale

    def summed_together(self, node: Node, uses: Uses, sums: Sequence[Value]) -> tuple[Value, Value]:
        """Return (sum, exponent) of the gradients of all uses: in the parameter's unit, at the largest of their
        exponents."""
        total, exponent, lifted = sums[0], uses[0].error.exponent, 0
        lift = SHARED_LIFT if uses[0].of_bias else 0
        for index, (use, value) in enumerate(zip(uses[1:], sums[1:], strict=True)):
            before = self._ratio(node, uses[0], total) if index == 0 else self._ratio(node, None, total)
            factors = (*before, *self._ratio(node, use, value))
            inputs = (total, value, exponent, use.error.exponent, *factors)
            attrs = GradientAddAttrs(lift, lifted)
            total, exponent = self._r.emit_all("QGradientAdd", inputs, attrs, node, self._phase)
            lifted = lift
        return total, exponent

    def _ratio(self, node: Node, use: Gradient | None, value: Value) -> tuple[Value, Value]:
        """Return factors that bring a gradient into the parameter's unit; 1 for a weight, and for a sum (None)."""
        ratio = np.ones(value.shape[0])
        if use is not None and use.of_bias:
            ratio = use.layer.bias_unit / use.layer.accumulator_scale
        return self._r.factors(f"{node.name}.ratio", ratio)[:2]

    def _whole(self, node: Node, uses: Uses, sums: list[Value]) -> tuple[Value, tuple[Value, ...]]:
        """Return the gradient that a node reads as one tensor, and its scale; sums: one for each use."""
        name = operand(node, "g").name
        if name not in self._wholes:
            total, exponent = sums[0], uses[0].error.exponent
            if len(uses) > 1:
                total, exponent = self.summed_together(node, uses, sums)
            self._wholes[name] = total, self._scale(node, uses, exponent)
        return self._wholes[name]

    def _clipped(self, node: Node, scale: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return the scale with its rate replaced by that of the clipped gradient."""
        multiplier, shift, rate, exponent = scale
        return (multiplier, shift, self.clipping.rate(node, rate), exponent)

    def row_squares(self, node: Node) -> bool:
        """Emit the squares of an integer gradient, unless its update has added them up."""
        name = operand(node, "g").name
        if name in self._squared:
            self.clipping.keep(node, *self._squared[name])
            return True
        if name in self._sums:
            self._whole(node, *self._sums[name][:2])
        if name not in self._wholes:
            return False
        total, scale = self._wholes[name]
        self.clipping.keep(node, self._r.emit("QRowSquares", (total,), NO_ATTRS, node, self._phase), scale)
        return True

    def _apply(self, node: Node, parameter: Value, uses: Uses, sums: list[Value]) -> None:
        """Emit the update from sums, one for each use; a single sum keeps its momentum and is cleared later."""
        total, scale = self._whole(node, uses, sums)
        scale = self._clipped(node, scale)
        if self.velocity is not None:
            total = self._with_momentum(node, parameter, total, scale)
            if self._signed:
                *rest, exponent = scale
                scale = (*rest, self._r.table("of_signs", np.zeros(exponent.shape, np.int32)))
        if len(uses) == 1:
            sums[0] = total
        inputs = (parameter, total, *scale)
        if uses[0].of_bias:
            self._own(parameter, self._r.emit("QBiasUpdate", inputs, QBiasUpdateAttrs(True), node, self._phase))
        else:
            self._move(node, inputs, QUpdateAttrs("sum"))

    def _move(self, node: Node, inputs: tuple[Value, ...], attrs: QUpdateAttrs) -> Value | None:
        """Emit the step of a weight for its store; return the squares of its gradient, if the step adds them up."""
        parameter, owned = inputs[0], [inputs[0]]
        exponents: dict[str, Value] = {}
        if attrs.momentum:
            velocity, peak, exponent = self._velocity(node, parameter)
            inputs = (*inputs, velocity, peak, exponent, self._noise, self._next_salt(parameter))
            owned += [velocity, peak]
            exponents[peak.name] = exponent
        rows = (self.clipping.empty_rows(node, parameter),) if attrs.squares else ()
        if parameter in self._fine():
            attrs = replace(attrs, fine=True)
            owned.append(self._zeros(parameter, self._r.builder.unique(f"{parameter.name}.fraction")))
            self._fractions[parameter.name] = owned[-1]
            inputs = (*inputs, owned[-1])
        else:
            inputs = (*inputs, *(() if attrs.momentum else (self._noise,)), self._next_salt(parameter))
        results = self._r.emit_all("QUpdate", (*inputs, *rows), attrs, node, self._phase)
        for value, after in zip(owned, results, strict=False):
            if value.name in exponents:
                self._velocities.append((exponents[value.name], value, after))
            else:
                self._own(value, after)
        return results[-1] if attrs.squares else None

    def _weights(self) -> Sequence[Value]:
        """Return the trained int8 weights; they are known once the forward pass is rewritten, before every update."""
        known = self._forward.integer_parameters
        return [known[v.name] for v in self._trained if v.name in known and known[v.name].dtype == "int8"]

    def _fine(self) -> tuple[Value, ...]:
        return fine_weights(self._weights(), self._store)

    def trained(self) -> dict[str, TrainedPart]:
        """Return the parameters of the float graph in the form that this graph holds."""
        found = dict(self._r.train.trained)
        for name in found.keys() & self._forward.integer_parameters.keys():
            fraction = self._fractions[name].name if name in self._fractions else ""
            found[name] = replace(found[name], unit=IntegerUnit(self._forward.units[name], fraction))
        for layer in self._forward.layers.values():
            if layer.tables is None or not layer.tables.complete or layer.tables.forward is None:
                continue
            shift, whole = layer.tables.forward.name, tuple(range(layer.tables.forward.elements))
            for name, channels in ((layer.parts[0].name, layer.tables.channels or whole), (layer.bias.name, whole)):
                part = found.get(name)
                if part is not None and part.unit is not None:
                    found[name] = replace(part, unit=replace(part.unit, shift=shift, channels=channels))
        return found

    def identity(self) -> str:
        """Return a hash of the float graph's identity and of the storage of integers."""
        return hashlib.sha256(self._identity.encode()).hexdigest()

    def notes(self) -> Sequence[str]:
        """Return the report's notes on stores, and on steps by signs, which a coarse unit may lose."""
        stores = (store_note(self._weights(), self._fine()),) if self._store == "mixed" else ()
        return (*stores, self._sign_note()) if self._signed and self._sign_steps else stores

    def _sign_note(self) -> str:
        """Return a note on the distance that weights move at the first learning rate, in 256ths of their unit."""
        steps = np.concatenate(self._sign_steps)
        lost = int((steps < SMALLEST_STEP).sum())  # halves are rounded up
        still = f"; {lost} of {steps.size} output channels do not move" if lost else ""
        low, high = (f"{float(f'{size:.2g}'):g}" for size in (steps.min(), steps.max()))
        moves = f"{low} to {high} 256ths of their unit"
        return f"int8 weights move by signs, at the first learning rate by {moves} a step, rounded to whole ones{still}"

    # ---- momentum ---------------------------------------------------------------------------------------------------

    def _velocity(self, node: Node, parameter: Value) -> tuple[Value, Value, Value]:
        """Return (velocity, peak, exponent) in place of a float velocity."""
        name = operand(node, _integer_step(node).state).name
        self.replaced.add(name)
        exponent = self._r.builder.constant(f"{name}.exponent", new_exponent())
        peak = Value(self._r.builder.unique(f"{name}.peak"), (), "int32")
        self._r.accumulators.append(peak)
        return self._zeros(parameter, name), peak, exponent

    def _with_momentum(self, node: Node, parameter: Value, summed: Value, scale: tuple[Value, ...]) -> Value:
        """Return a gradient sum with its momentum added."""
        velocity, peak, exponent = self._velocity(node, parameter)
        noise = (self._noise, self._next_salt(parameter))
        inputs = (summed, velocity, peak, *scale[1:], exponent, *noise)
        total, after, gathered = self._r.emit_all("QMomentum", inputs, QMomentumAttrs(self._signed), node, self._phase)
        self._own(velocity, after)
        self._velocities.append((exponent, peak, gathered))
        return total

    def _zeros(self, parameter: Value, name: str) -> Value:
        """Return an int8 state tensor like a parameter, 0 at first."""
        self._r.builder.constants[name] = np.zeros(parameter.shape, np.int8)
        return replace(parameter, name=name, dtype="int8")

    def _next_salt(self, parameter: Value) -> Value:
        """Return this weight's start in the noise sequence."""
        salt = self._r.table("salt", np.asarray(self._salt, np.int32))
        self._salt += parameter.elements
        return salt

    def _rescale(self) -> None:
        """Give another scale to every update's channels whose weights reach the end of their range."""
        for layer in self._forward.layers.values():
            if layer.tables is not None and layer.tables.complete:
                fraction = self._fractions.get(layer.parts[0].name)
                emit_rescale(self._r, layer.tables, layer.parts[0], layer.bias, fraction, self._phase)

    def _own(self, parameter: Value, after: Value) -> None:
        self._r.state.append(parameter)
        self._r.updates.append((parameter, after))

    # ---- sums over a batch ------------------------------------------------------------------------------------------

    def accumulate(self, node: Node) -> Form | bool | None:
        """Emit the running sums of a gradient, one for each use of the parameter."""
        uses = self._r.gradients.get(operand(node, "g").name)
        if uses is None:
            return sum_by_sample(self._r, node)
        total = replace(operand(node, "acc"), dtype="int32")
        if not uses[0].of_bias and len(total.shape) == 2:
            total = replace(total, shape=(total.shape[0], 1, 1, total.shape[1]))
        self._r.forms[total.name] = total
        totals = [total, *(replace(total, name=self._r.builder.unique(total.name)) for _ in uses[1:])]
        self._r.accumulators += totals
        sums = [added_gradient(self._r, node, *pair) for pair in zip(uses, totals, strict=True)]
        self._sums[result(node, "acc").name] = uses, sums, totals
        return True

    def clear(self, node: Node) -> bool:
        """Emit the nodes that set the running sums of an integer gradient to 0."""
        _, sums, totals = self._sums.get(operand(node, "acc").name, ((), [], []))
        for summed, total in zip(sums, totals, strict=True):
            self._r.updates.append((total, self._r.emit(node.op, (summed,), NO_ATTRS, node, self._phase)))
        return bool(sums)


def _velocity_of(train: TrainGraph) -> Velocity | None:
    """Return how the updates of this graph use a velocity; None if they do not, or have no integer form."""
    for node in train.graph.nodes:
        owned = op_def(node.op).owned
        if owned is not None and isinstance(owned.int8, IntegerStep):
            return owned.int8.velocity(node.attrs)
    return None


def _integer_step(node: Node) -> IntegerStep:
    owned = op_def(node.op).owned
    assert owned is not None and isinstance(owned.int8, IntegerStep)
    return owned.int8


def _check_rule(node: Node) -> None:
    """Raise E0113 for an optimizer, or a setting of one, that has no integer form."""
    owned = op_def(node.op).owned
    if owned is None or not isinstance(owned.int8, IntegerStep):
        able = optimizers_in_int8()
        what = f"int8 weights (--quant int8, or a quantised model) train with {able} only"
        raise CompileError("E0113", "--optimizer", what, f"use {able}, or --quant fp32")
    for flag, what in owned.int8.refused(node.attrs):
        raise CompileError("E0113", flag, what, f"leave {flag} out, or use --quant fp32")
