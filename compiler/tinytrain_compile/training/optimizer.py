"""Appends the optimizer: update nodes that overwrite their parameter, or accumulation and a later apply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tinytrain_compile.ir.builder import GraphBuilder
from tinytrain_compile.ir.loss_terms import MEAN_OF_SAMPLES, LossTerms
from tinytrain_compile.ir.types import Phase, Value
from tinytrain_compile.ops.update import AdamAttrs, AdaptiveAttrs, SetAttrs, SgdAttrs
from tinytrain_compile.training.clipping import Clipping
from tinytrain_compile.training.options import EPSILONS, TrainingOptions


@dataclass
class Optimizer:
    """Collects state, accumulators and updates while it emits nodes."""

    builder: GraphBuilder
    options: TrainingOptions
    terms: LossTerms = MEAN_OF_SAMPLES
    state: list[Value] = field(default_factory=list[Value])
    accumulators: list[Value] = field(default_factory=list[Value])
    updates: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    inverse_count: Value | None = None
    weight_sum: Value | None = None
    clip: Mapping[str, Value] = field(default_factory=dict[str, Value])

    def __post_init__(self) -> None:
        self.learning_rate = self._state("learning_rate", np.asarray(self.options.learning_rate, np.float32))
        self._sums = self.options.sums
        self._phase: Phase = "apply" if self._sums else "step"
        self._rate = self.learning_rate
        if self.options.in_place and self.terms.divisor != "one":
            share = self.builder.constant("batch_share", np.float32(1.0) / np.asarray(self.options.batch, np.float32))
            self._rate = self.builder.emit("Mul", (self.learning_rate, share), name="rate_share")
        if self._sums and self.terms.weights is not None:
            self.weight_sum = Value(self.builder.unique("weight_sum"), ())
            self.accumulators.append(self.weight_sum)
        if self._sums and self.terms.divisor != "one":
            self.inverse_count = Value(self.builder.unique("inverse_count"), ())
            self.accumulators.append(self.inverse_count)
        self._scales: Mapping[str, Value] = {}
        self._totals: dict[str, Value] = {}
        self._power: Value | None = None
        self._gain: Value | None = None

    def _state(self, name: str, data: np.ndarray) -> Value:
        value = self.builder.constant(name, data)
        self.state.append(value)
        return value

    def keep(self, scalar: Value, counted: tuple[Value, Value]) -> None:
        """State that is no parameter's: a scalar that the generated code sets, a count and its new content."""
        self.accumulators.append(scalar)
        self.follow([counted])

    def follow(self, changes: Iterable[tuple[Value, Value]]) -> None:
        """State that is no parameter's, and its new content."""
        for state, after in changes:
            self.state.append(state)
            self.updates.append((state, after))

    def update(self, gradients: Sequence[tuple[Value, Value]], layers: Mapping[str, str]) -> None:
        """Emit the updates of parameters by their gradients; layers: the layer of each parameter, by names."""
        summed = [(parameter, self._summed(parameter, gradient)) for parameter, gradient in gradients]
        clipping = Clipping(self.builder, self.options, layers, self.inverse_count)
        self.clip = clipping.factors(summed)
        self._scales = clipping.scales(self.clip)
        for parameter, gradient in summed:
            self.state.append(parameter)
            self._apply(parameter, gradient)
            if self._sums:
                self._clear(parameter, gradient)
        clipping.keep_squares()
        self.state += clipping.state
        self.accumulators += clipping.accumulators
        self.updates += clipping.updates

    def _summed(self, parameter: Value, gradient: Value) -> Value:
        """The gradient of an update: that of the step, or its sum over the samples of a batch."""
        if not self._sums:
            return gradient
        total = Value(self.builder.unique(f"{parameter.name}.gradient_sum"), parameter.shape)
        self.accumulators.append(total)
        self._totals[parameter.name] = total
        return self.builder.emit(
            "Accumulate", (total, gradient), name=f"{parameter.name}.accumulate", origin=parameter.origin
        )

    def _clear(self, parameter: Value, summed: Value) -> None:
        name = f"{parameter.name}.clear"
        cleared = self.builder.emit("Clear", (summed,), name=name, origin=parameter.origin, phase="apply")
        self.updates.append((self._totals[parameter.name], cleared))

    def _apply(self, parameter: Value, gradient: Value) -> None:
        o, kind, decay = self.options, self.options.optimizer, self.options.weight_decay
        if kind == "sgd":
            self._emit("SgdUpdate", (parameter,), gradient, SgdAttrs(decay, 0.0, self._is_scaled(parameter)))
        elif kind == "momentum":
            gain = () if o.dampening == 0 else (self._momentum_gain(),)
            attrs = SgdAttrs(decay, o.momentum, self._is_scaled(parameter), o.nesterov, bool(gain))
            self._emit("MomentumUpdate", (parameter, self._zeros(parameter, "velocity")), gradient, attrs, gain)
        elif kind in ("adagrad", "rmsprop"):
            self._adaptive(parameter, gradient)
        else:
            attrs = AdamAttrs(
                *o.betas,
                self._epsilon(),
                decay,
                decoupled=kind == "adamw",
                scaled=self._is_scaled(parameter),
                raw=o.raw_epsilon,
                after=o.decay_after,
                late=o.late,
            )
            moments = (self._zeros(parameter, "moment1"), self._zeros(parameter, "moment2"))
            self._emit("AdamUpdate", (parameter, *moments), gradient, attrs, (self._adam_power(attrs),))

    def _adaptive(self, parameter: Value, gradient: Value) -> None:
        o = self.options
        moving = o.optimizer == "rmsprop" and o.momentum != 0
        attrs = AdaptiveAttrs(
            self._epsilon(), o.weight_decay, self._is_scaled(parameter), o.alpha, o.momentum if moving else 0.0
        )
        owned = (parameter, self._zeros(parameter, "squares"))
        if o.optimizer == "rmsprop" and o.centered:
            kept = (*owned, self._zeros(parameter, "mean"), self._zeros(parameter, "velocity"))
            self._emit("RmsPropCenteredUpdate", kept, gradient, attrs)
        elif moving:
            self._emit("RmsPropMomentumUpdate", (*owned, self._zeros(parameter, "velocity")), gradient, attrs)
        else:
            self._emit("AdagradUpdate" if o.optimizer == "adagrad" else "RmsPropUpdate", owned, gradient, attrs)

    def _epsilon(self) -> float:
        given = self.options.epsilon
        return EPSILONS[self.options.optimizer] if given is None else given

    def _is_scaled(self, parameter: Value) -> bool:
        return self._scale_of(parameter) is not None

    def _scale_of(self, parameter: Value) -> Value | None:
        """What multiplies its gradient."""
        return self._scales.get(parameter.name, self.inverse_count)

    def _zeros(self, parameter: Value, kind: str) -> Value:
        first = self.options.initial.get((parameter.name, kind))
        data = np.zeros(parameter.shape, np.float32) if first is None else first
        return self._state(f"{parameter.name}.{kind}", data)

    def _momentum_gain(self) -> Value:
        """The share of gradients that enters the velocity: all of the first one, then the rest of the dampening."""
        if self._gain is None:
            share = 1.0 - self.options.dampening
            first = share if self.options.steps_before else 1.0
            self._gain = self._state("momentum_gain", np.asarray(first, np.float32))
            after = self.builder.emit("SetState", (self._gain,), SetAttrs(share), name="gain_set", phase=self._phase)
            self.updates.append((self._gain, after))
        return self._gain

    def _adam_power(self, attrs: AdamAttrs) -> Value:
        if self._power is None:
            first = [1.0 - beta**self.options.steps_before for beta in self.options.betas]
            power = self._state("adam_power", np.asarray(first, np.float32))
            rates = AdamAttrs(attrs.beta1, attrs.beta2)
            after = self.builder.emit("AdamTick", (power,), rates, name="adam_tick", phase=self._phase)
            self.updates.append((power, after))
            self._power = power if attrs.late else after
        return self._power

    def _emit(
        self,
        op: str,
        owned: tuple[Value, ...],
        gradient: Value,
        attrs: SgdAttrs | AdamAttrs | AdaptiveAttrs,
        extra: tuple[Value, ...] = (),
    ) -> None:
        scale = self._scale_of(owned[0])
        operands = (*owned, gradient, self._rate, *extra, *(() if scale is None else (scale,)))
        name, origin = f"{owned[0].name}.update", owned[0].origin
        results = self.builder.emit_all(op, operands, attrs, name, origin, self._phase)
        self.updates += list(zip(owned, results, strict=True))
