"""Integer forms of updates: gradients go straight into the step of int8 weights and int32 biases, or into sums."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import NO_ATTRS, Node, Phase, Value
from tinytrain_compile.ops.qconv import QConvUpdateAttrs
from tinytrain_compile.ops.qmomentum import new_exponent
from tinytrain_compile.ops.qupdate import ExponentAttrs, QWeightApplyAttrs
from tinytrain_compile.ops.update import SgdAttrs
from tinytrain_compile.quantize.backward import Backward, BiasGradient, WeightGradient
from tinytrain_compile.quantize.by_sample import sum_by_sample
from tinytrain_compile.quantize.forms import Role
from tinytrain_compile.quantize.forward import Forward
from tinytrain_compile.quantize.rescale import emit_rescale
from tinytrain_compile.quantize.state import Rewriter
from tinytrain_compile.quantize.store import WeightStore, fine_weights, store_note

UPDATES = ("SgdUpdate", "MomentumUpdate", "AdamUpdate")


@dataclass(frozen=True)
class QuantOptions:
    """seed: of the rounding noise; weight_store: int8 with stochastic rounding, int8 and 8 fraction bits, or a mixture.

    rescale: channels whose trained weights reach the end of their range get another scale.
    """

    seed: int = 0
    weight_store: WeightStore = "sr8"
    rescale: bool = False


class Updates:
    """Rewrites update nodes of integer parameters; holds the noise, the rate and the running sums."""

    def __init__(
        self, train: TrainGraph, options: QuantOptions, rewriter: Rewriter, forward: Forward, backward: Backward
    ) -> None:
        self._r, self._forward, self._backward = rewriter, forward, backward
        self._store: WeightStore = options.weight_store
        self._identity = repr((train.identity, "int8", options.weight_store, options.rescale))
        self._trained = train.graph.state
        self._settling: Phase = "apply" if train.batch > 1 else "step"
        self._phase: Phase = "step" if train.in_place else self._settling
        self._noise = rewriter.builder.constant("noise", np.asarray(options.seed * 2 + 12345, np.uint32).view(np.int32))
        self.momentum = _momentum_of(train)
        self.rate = Value(rewriter.builder.unique("rate"), (2 if self.momentum is None else 6,), "int32")
        rewriter.accumulators.append(self.rate)
        self._salt = 0
        self._sums: dict[str, WeightGradient | BiasGradient] = {}
        self._sum_values: dict[str, Value] = {}
        self._velocities: list[tuple[Value, Value, Value]] = []
        """(exponent, peak, the value that holds the gathered peak) of every velocity."""
        self._fractions: dict[str, Value] = {}
        self.replaced: set[str] = set()
        """Names of float optimizer state that integer state took."""

    def rewrite(self, node: Node) -> bool:
        """Emit the integer form of an update node, if its parameter is an integer."""
        if node.op == "Accumulate":
            return self._accumulate(node)
        if node.op == "Clear":
            return self._clear(node)
        if node.op not in UPDATES:
            return False
        position = 1 if node.op == "SgdUpdate" else len(node.outputs)
        gradient = self._backward.gradients.get(node.inputs[position].name)
        summed = self._sums.get(node.inputs[position].name)
        if gradient is None and summed is None:
            return False
        _check_rule(node)
        parameter = self._forward.integer_parameters[node.inputs[0].name]
        if summed is not None:
            self._apply(node, parameter, summed, node.inputs[position].name)
        else:
            assert gradient is not None
            self._fused(node, parameter, gradient)
        return True

    def finish(self) -> None:
        """Exponents follow their peaks once per batch; the noise goes on with every update."""
        self._r.finish(self._settling)
        self._rescale()
        for exponent, peak, gathered in self._velocities:
            name, inputs = f"{exponent.name}.update", (exponent, gathered)
            after, cleared = self._r.builder.emit_all("ExponentUpdate", inputs, ExponentAttrs(), name, "", self._phase)
            self._own(exponent, after)
            self._r.updates.append((peak, cleared))
        if self._salt:
            after = self._r.builder.emit("NoiseTick", (self._noise,), NO_ATTRS, "noise.tick", "", self._phase)
            self._r.state.append(self._noise)
            self._r.updates.append((self._noise, after))

    # ---- one update -------------------------------------------------------------------------------------------------

    def _scale(self, node: Node, gradient: WeightGradient | BiasGradient) -> tuple[Value, ...]:
        """Step size per channel: SGD on the real parameter, in its integer unit (notes/int8-training.md, 1.1)."""
        layer = gradient.layer
        unit = layer.scale if isinstance(gradient, WeightGradient) else layer.accumulator_scale
        split = layer.conv.split
        if isinstance(gradient, WeightGradient) and split is not None and split.axis == "out":
            unit = unit[list(split.channels)]
        role: Role = "weight" if isinstance(gradient, WeightGradient) else "bias"
        multiplier, shift, _ = self._r.factors(node.name, 1.0 / unit**2, layer.tables, role)
        return (multiplier, shift, self.rate, gradient.error.exponent)

    def _fused(self, node: Node, parameter: Value, gradient: WeightGradient | BiasGradient) -> None:
        scale = self._scale(node, gradient)
        if isinstance(gradient, BiasGradient):
            if self.momentum is None:
                inputs = (parameter, gradient.error.value, *scale)
                self._own(parameter, self._r.emit("QBiasUpdate", inputs, NO_ATTRS, node, self._phase)[0])
                return
            (sums,) = self._r.emit("QBiasGradient", (gradient.error.value,), NO_ATTRS, node)
            self._apply_bias(node, parameter, self._with_momentum(node, parameter, sums, scale), scale)
            return
        attrs = QConvUpdateAttrs(gradient.conv, gradient.x.quant.zero)
        inputs = (parameter, gradient.x.value, gradient.error.value, *scale)
        self._move(node, "QConvUpdate" if self.momentum is None else "QConvMomentum", inputs, attrs)

    def _apply(self, node: Node, parameter: Value, gradient: WeightGradient | BiasGradient, name: str) -> None:
        """The update from a running sum; `name`: of its float form."""
        scale = self._scale(node, gradient)
        if self.momentum is not None:
            self._sum_values[name] = self._with_momentum(node, parameter, self._sum_values[name], scale)
        if isinstance(gradient, BiasGradient):
            self._apply_bias(node, parameter, self._sum_values[name], scale)
        else:
            inputs = (parameter, self._sum_values[name], *scale)
            self._move(node, "QWeightApply", inputs, QWeightApplyAttrs())

    def _apply_bias(self, node: Node, parameter: Value, summed: Value, scale: tuple[Value, ...]) -> None:
        inputs = (parameter, summed, *scale)
        self._own(parameter, self._r.emit("QBiasApply", inputs, NO_ATTRS, node, self._phase)[0])

    def _move(
        self, node: Node, op: str, inputs: tuple[Value, ...], attrs: QConvUpdateAttrs | QWeightApplyAttrs
    ) -> None:
        """The step of a weight, in the form that its store needs."""
        parameter, owned = inputs[0], [inputs[0]]
        exponents: dict[str, Value] = {}
        if op == "QConvMomentum":
            velocity, peak, exponent = self._velocity(node, parameter)
            inputs = (*inputs, velocity, peak, exponent, self._noise, self._next_salt(parameter))
            owned += [velocity, peak]
            exponents[peak.name] = exponent
        if parameter in self._fine():
            owned.append(self._zeros(parameter, self._r.builder.unique(f"{parameter.name}.fraction")))
            self._fractions[parameter.name] = owned[-1]
            results = self._r.emit(f"{op}Fine", (*inputs, owned[-1]), attrs, node, self._phase)
        else:
            noise = () if op == "QConvMomentum" else (self._noise,)
            results = self._r.emit(op, (*inputs, *noise, self._next_salt(parameter)), attrs, node, self._phase)
        for value, after in zip(owned, results, strict=True):
            if value.name in exponents:
                self._velocities.append((exponents[value.name], value, after))
            else:
                self._own(value, after)

    def _weights(self) -> Sequence[Value]:
        """The trained int8 weights; known once the forward pass is rewritten, and so before every update."""
        known = self._forward.integer_parameters
        return [known[v.name] for v in self._trained if v.name in known and known[v.name].dtype == "int8"]

    def _fine(self) -> tuple[Value, ...]:
        return fine_weights(self._weights(), self._store)

    def identity(self) -> str:
        """The float graph's, and how integers are kept."""
        return hashlib.sha256(self._identity.encode()).hexdigest()

    def notes(self) -> Sequence[str]:
        """What the report says."""
        return (store_note(self._weights(), self._fine()),) if self._store == "mixed" else ()

    # ---- momentum ---------------------------------------------------------------------------------------------------

    def _velocity(self, node: Node, parameter: Value) -> tuple[Value, Value, Value]:
        """(velocity, peak, exponent) in place of a float velocity."""
        name = node.inputs[1].name
        self.replaced.add(name)
        exponent = self._r.builder.constant(f"{name}.exponent", new_exponent())
        peak = Value(self._r.builder.unique(f"{name}.peak"), (), "int32")
        self._r.accumulators.append(peak)
        return self._zeros(parameter, name), peak, exponent

    def _with_momentum(self, node: Node, parameter: Value, summed: Value, scale: tuple[Value, ...]) -> Value:
        """A gradient sum to which its momentum was added."""
        velocity, peak, exponent = self._velocity(node, parameter)
        noise = (self._noise, self._next_salt(parameter))
        inputs = (summed, velocity, peak, *scale[1:], exponent, *noise)
        total, after, gathered = self._r.emit("QMomentum", inputs, NO_ATTRS, node, self._phase)
        self._own(velocity, after)
        self._velocities.append((exponent, peak, gathered))
        return total

    def _zeros(self, parameter: Value, name: str) -> Value:
        """An int8 state tensor like a parameter, 0 at first."""
        self._r.builder.constants[name] = np.zeros(parameter.shape, np.int8)
        return replace(parameter, name=name, dtype="int8")

    def _next_salt(self, parameter: Value) -> Value:
        """Where in the noise sequence this weight starts."""
        salt = self._r.table("salt", np.asarray(self._salt, np.int32))
        self._salt += parameter.elements
        return salt

    def _rescale(self) -> None:
        """After every update: its channels that are full get another scale."""
        for layer in self._forward.layers.values():
            if layer.tables is not None and layer.tables.complete:
                fraction = self._fractions.get(layer.parts[0].name)
                emit_rescale(self._r, layer.tables, layer.parts[0], layer.bias, fraction, self._phase)

    def _own(self, parameter: Value, after: Value) -> None:
        self._r.state.append(parameter)
        self._r.updates.append((parameter, after))

    # ---- sums over a batch ------------------------------------------------------------------------------------------

    def _accumulate(self, node: Node) -> bool:
        gradient = self._backward.gradients.get(node.inputs[1].name)
        if gradient is None:
            return sum_by_sample(self._r, node)
        total = replace(node.inputs[0], dtype="int32")
        if isinstance(gradient, WeightGradient) and len(total.shape) == 2:
            total = replace(total, shape=(total.shape[0], 1, 1, total.shape[1]))
        self._r.accumulators.append(total)
        if isinstance(gradient, BiasGradient):
            (summed,) = self._r.emit("QBiasSum", (total, gradient.error.value), NO_ATTRS, node)
        else:
            attrs = QConvUpdateAttrs(gradient.conv, gradient.x.quant.zero)
            (summed,) = self._r.emit("QConvSum", (total, gradient.x.value, gradient.error.value), attrs, node)
        name = node.outputs[0].name
        self._sums[name], self._sum_values[name] = gradient, summed
        self._r.forms[total.name] = total
        return True

    def _clear(self, node: Node) -> bool:
        summed = self._sum_values.get(node.inputs[0].name)
        if summed is None:
            return False
        (after,) = self._r.emit("Clear", (summed,), NO_ATTRS, node, self._phase)
        total = next(v for v in self._r.accumulators if v.name == self._total_of(node))
        self._r.updates.append((total, after))
        return True

    def _total_of(self, node: Node) -> str:
        return self._r.producers[node.inputs[0].name].inputs[0].name


def _momentum_of(train: TrainGraph) -> float | None:
    """The momentum of updates that have one."""
    attrs = [node.attrs for node in train.graph.nodes if node.op == "MomentumUpdate"]
    return next((a.momentum for a in attrs if isinstance(a, SgdAttrs)), None)


def _check_rule(node: Node) -> None:
    """E0101 for an optimizer that integers have no form of."""
    if node.op == "AdamUpdate":
        what = "int8, which a quantised model gets by itself, trains with SGD, with or without momentum"
        raise CompileError("E0101", "--optimizer", what, "use sgd or momentum, or --quant fp32")
    if isinstance(node.attrs, SgdAttrs) and node.attrs.weight_decay:
        raise CompileError(
            "E0101",
            "--weight-decay",
            "int8 weights (and a quantised model's are that by themselves) take no decay",
            "leave --weight-decay out, or use --quant fp32",
        )
