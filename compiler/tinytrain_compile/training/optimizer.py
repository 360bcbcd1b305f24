"""Appends the optimizer: update nodes that overwrite their parameter, or accumulation and a later apply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.loss_terms import MEAN_OF_SAMPLES, LossTerms
from tinytrain_compile.ir.types import Phase, Value
from tinytrain_compile.ops.update import OPTIMIZERS, SharedState
from tinytrain_compile.training.clipping import Clipping
from tinytrain_compile.training.options import TrainingOptions


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
        self._shared: Value | None = None

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
        o, scale = self.options, self._scales.get(parameter.name, self.inverse_count)
        own = OPTIMIZERS[o.optimizer]
        rule = own.rule(o, own, scale is not None)
        leading = rule.shared is not None and rule.shared.leads
        shared = self._shared_state(rule.shared) if leading else None
        owned = (parameter, *(self._zeros(parameter, kind) for kind in rule.kept))
        extra = (shared if leading else self._shared_state(rule.shared), scale)
        operands = (*owned, gradient, self._rate, *(value for value in extra if value is not None))
        name, origin = f"{parameter.name}.update", parameter.origin
        results = self.builder.emit_all(rule.op.name, operands, rule.attrs, name, origin, self._phase)
        self.updates += list(zip(owned, results, strict=True))

    def _zeros(self, parameter: Value, kind: str) -> Value:
        first = self.options.initial.get((parameter.name, kind))
        data = np.zeros(parameter.shape, np.float32) if first is None else first
        return self._state(f"{parameter.name}.{kind}", data)

    def _shared_state(self, shared: SharedState | None) -> Value | None:
        """Return what the updates of all parameters read; its tick is emitted once. None: there is no such state."""
        if self._shared is None and shared is not None:
            before, (op, attrs, name) = self._state(shared.name, shared.first), shared.tick
            after = self.builder.emit(op, (before,), attrs, name=name, phase=self._phase)
            self.updates.append((before, after))
            self._shared = before if shared.old else after
        return self._shared
