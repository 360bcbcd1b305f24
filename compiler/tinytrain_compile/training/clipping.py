"""Clipping by norm: a factor for the gradients of an update, made of the sum of their squares.

Where gradients are summed over a batch, all of them are there before the first one is used: their own norm scales
them. Elsewhere each goes straight into its update, and nothing waits for the others: the norm of the update before
scales this one, and the squares of this one are kept, 4 bytes for each parameter (docs/clipping.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import Node, Phase, Value
from tinytrain_compile.ops.clip import ClipAttrs, SquareTotalAttrs
from tinytrain_compile.ops.shape import ReshapeAttrs
from tinytrain_compile.training.options import TrainingOptions


def layers_of(forward: Iterable[Node]) -> Mapping[str, str]:
    """The layer that a parameter belongs to: the first node that reads it. By the names of all values that are read."""
    found: dict[str, str] = {}
    for node in forward:
        for value in node.inputs:
            found.setdefault(value.name, node.name)
    return found


def clip_notes(options: TrainingOptions) -> tuple[str, ...]:
    """What the report says of it."""
    if options.clip_norm is None:
        return ()
    whose = "of all that is trained" if options.clip_per == "model" else "of a layer"
    by = "its own norm" if options.sums else "the norm of the update before"
    return (f"--clip-norm {options.clip_norm:g}: a gradient {whose} is scaled down to that norm, by {by}",)


class Clipping:
    """Emits the factors of an optimizer's gradients; collects the state, the accumulators and the updates of that."""

    def __init__(
        self, builder: GraphBuilder, options: TrainingOptions, layers: Mapping[str, str], inverse_count: Value | None
    ) -> None:
        self._builder, self._options, self._layers, self._inverse_count = builder, options, layers, inverse_count
        self._phase: Phase = "apply" if options.sums else "step"
        self._kept: list[tuple[Value, Value, Value]] = []
        self.state: list[Value] = []
        self.accumulators: list[Value] = []
        self.updates: list[tuple[Value, Value]] = []

    def factors(self, gradients: Sequence[tuple[Value, Value]]) -> Mapping[str, Value]:
        """By parameter, the factor that clips its gradient; empty where nothing is clipped."""
        norm = self._options.clip_norm
        if norm is None:
            return {}
        squares = self._own_squares if self._options.sums else self._squares_before
        found: dict[str, Value] = {}
        for group, members in self._groups(gradients).items():
            factor = self._factor(group, norm, squares(group, members))
            found |= {parameter.name: factor for parameter, _ in members}
        return found

    def scales(self, factors: Mapping[str, Value]) -> Mapping[str, Value]:
        """By parameter, all that multiplies its gradient: the factor, and what divides a batch."""
        inverse = self._inverse_count
        if inverse is None:
            return factors
        distinct = {factor.name: factor for factor in factors.values()}
        scaled = {
            name: self._builder.emit("Mul", (factor, inverse), name=f"{name}.scale", phase="apply")
            for name, factor in distinct.items()
        }
        return {parameter: scaled[factor.name] for parameter, factor in factors.items()}

    def _groups(self, gradients: Sequence[tuple[Value, Value]]) -> Mapping[str, list[tuple[Value, Value]]]:
        """What is clipped together, by a name."""
        groups: dict[str, list[tuple[Value, Value]]] = {}
        for parameter, gradient in gradients:
            whole = self._options.clip_per == "model"
            name = "gradient" if whole else self._layers.get(parameter.name, parameter.name)
            groups.setdefault(name, []).append((parameter, gradient))
        return groups

    def _factor(self, group: str, norm: float, squares: Value) -> Value:
        more = () if self._inverse_count is None else (self._inverse_count,)
        attrs = ClipAttrs(norm, scaled=bool(more))
        return self._builder.emit("ClipFactor", (squares, *more), attrs, f"{group}.clip", group, self._phase)

    def _own_squares(self, group: str, members: Sequence[tuple[Value, Value]]) -> Value:
        """Of the sums that are applied, in a sum of their own."""
        total = Value(self._builder.unique(f"{group}.squares"), ())
        self.accumulators.append(total)
        latest = total
        for parameter, gradient in members:
            rows = self._rows(parameter, gradient)
            attrs = SquareTotalAttrs(fresh=latest == total)
            latest = self._builder.emit(
                "SquareTotal", (latest, rows), attrs, f"{parameter.name}.squares", parameter.origin, "apply"
            )
        self.updates.append((total, latest))
        return latest

    def _squares_before(self, group: str, members: Sequence[tuple[Value, Value]]) -> Value:
        """Of the update before."""
        kept = [self._state(parameter, gradient) for parameter, gradient in members]
        total = kept[0]
        for squares in kept[1:]:
            total = self._builder.emit("Add", (total, squares), name=f"{group}.squares", origin=group)
        return total

    def _state(self, parameter: Value, gradient: Value) -> Value:
        """The squares of a parameter's last gradient."""
        squares = self._builder.constant(f"{parameter.name}.gradient_squares", np.zeros((), np.float32))
        self._kept.append((squares, parameter, gradient))
        return squares

    def keep_squares(self) -> None:
        """Behind the updates: squares of this one's gradients take the place of those before."""
        for squares, parameter, gradient in self._kept:
            rows, attrs = self._rows(parameter, gradient), SquareTotalAttrs(fresh=True)
            name = f"{squares.name}.kept"
            after = self._builder.emit("SquareTotal", (squares, rows), attrs, name, parameter.origin)
            self.state.append(squares)
            self.updates.append((squares, after))

    def _rows(self, parameter: Value, gradient: Value) -> Value:
        if gradient.shape == ():  # a slope of PReLU, a factor of a residual: one row
            one = f"{parameter.name}.one_row"
            gradient = self._builder.emit("Reshape", (gradient,), ReshapeAttrs((1,)), one, phase=self._phase)
        return self._builder.emit("RowSquares", (gradient,), name=f"{parameter.name}.rows", phase=self._phase)
