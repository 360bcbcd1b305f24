"""The user's choices about training, and the optimizer: updates of parameters, or sums and a later apply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.loss_terms import MEAN_OF_SAMPLES, LossTerms
from tinytrain_compile.ir.types import Array, Node, Phase, Value
from tinytrain_compile.ops.update import OPTIMIZERS, Settings, SharedState

Accumulate = Literal["exact", "inplace"]
ClipPer = Literal["model", "layer"]
LOSSES = ("cross-entropy", "mse", "bce")


@dataclass(frozen=True)
class TrainingOptions(Settings):
    """loss None: the default for the model's output; batch: samples per update (1: the update is part of the step).

    accumulate: "exact" sums gradients over the batch; "inplace" updates with every sample, at learning rate / batch.
    micro_batch: samples of one step, a divisor of the batch; 1 unless gradients are summed.
    dropout: the seed of its masks; None leaves every Dropout out.
    seed: of the first subspaces of low-rank activations.
    clip_norm: the largest norm of a gradient; None: no limit. clip_per: of all trained tensors together, or of each
    layer's.
    integer: whether the graph is rewritten to int8, so that low-rank copies may be made int8 again. fpu: whether the
    core has one; if not, they always are.
    initial: first values of the optimizer's state by parameter and kind, if not 0.
    """

    loss: str | None = None
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    batch: int = 1
    accumulate: Accumulate = "exact"
    micro_batch: int = 1
    dropout: int | None = None
    seed: int = 0
    clip_norm: float | None = None
    clip_per: ClipPer = "model"
    integer: bool = False
    fpu: bool = True
    initial: Mapping[tuple[str, str], Array] = field(default_factory=dict[tuple[str, str], Array])

    @property
    def meaning(self) -> tuple[object, ...]:
        """Settings of the optimizer that give its saved state a meaning."""
        return (self.optimizer, *OPTIMIZERS[self.optimizer].meaning_of(self))

    @property
    def in_place(self) -> bool:
        """True if every sample of a batch is a separate update."""
        return self.accumulate == "inplace" and self.batch > 1

    @property
    def sums(self) -> bool:
        """True if gradients are summed over the samples of a batch."""
        return self.batch > 1 and not self.in_place


@dataclass
class Optimizer:
    """Emitter of the updates' nodes; it collects state, accumulators and updates."""

    builder: GraphBuilder
    options: TrainingOptions
    terms: LossTerms = MEAN_OF_SAMPLES
    state: list[Value] = field(default_factory=list[Value])
    accumulators: list[Value] = field(default_factory=list[Value])
    updates: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    inverse_count: Value | None = None
    weight_sum: Value | None = None
    clip: Mapping[str, Value] = field(default_factory=dict[str, Value])
    notes: tuple[str, ...] = ()

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
        """Keep state that is not a parameter's: a scalar that the generated code sets, a count and its new content."""
        self.accumulators.append(scalar)
        self.follow([counted])

    def follow(self, changes: Iterable[tuple[Value, Value]]) -> None:
        """Keep state that is not a parameter's, with its new content."""
        for state, after in changes:
            self.state.append(state)
            self.updates.append((state, after))

    def update(self, gradients: Sequence[tuple[Value, Value]], forward: Iterable[Node]) -> None:
        """Emit the updates of parameters by their gradients, clipped by layers of the forward pass if requested."""
        summed = [(parameter, self._summed(parameter, gradient)) for parameter, gradient in gradients]
        o = self.options
        if o.clip_norm is None:
            self._update_all(summed)
            return
        from tinytrain_compile.training.clipping import Clipping  # off in most builds

        clipping = Clipping(self.builder, o.clip_norm, o.clip_per, self._phase, self.inverse_count)
        self.clip = clipping.factors(summed, forward)
        self._scales = clipping.scales(self.clip)
        self._update_all(summed)
        clipping.keep_squares()
        self.state += clipping.state
        self.accumulators += clipping.accumulators
        self.updates += clipping.updates
        self.notes += (clipping.note,)

    def _update_all(self, summed: Sequence[tuple[Value, Value]]) -> None:
        for parameter, gradient in summed:
            self.state.append(parameter)
            self._apply(parameter, gradient)
            if self._sums:
                self._clear(parameter, gradient)

    def _summed(self, parameter: Value, gradient: Value) -> Value:
        """Return the gradient of an update: that of the step, or its sum over the samples of a batch."""
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
        """Return the state that the updates of all parameters read, None if there is none; emit its tick once."""
        if self._shared is None and shared is not None:
            before, (op, attrs, name) = self._state(shared.name, shared.first), shared.tick
            after = self.builder.emit(op, (before,), attrs, name=name, phase=self._phase)
            self.updates.append((before, after))
            self._shared = before if shared.old else after
        return self._shared
