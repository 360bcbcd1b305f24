"""Clipping by norm: a factor for the gradients of an update, from the sum of their squares.

If gradients are summed over a batch, all of them exist before the first one is used: their own norm scales them.
Otherwise each goes straight into its update, without waiting for the others. Then the norm of the previous update
scales this one, and the squares of this one are kept, 4 bytes for each parameter (docs/clipping.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.ir.types import Node, Phase, Value
from tinytrain_compile.ops.clip import ClipAttrs, SquareTotalAttrs
from tinytrain_compile.ops.shape import ReshapeAttrs


class Clipping:
    """Emitter of the factors of an optimizer's gradients; it collects their state, accumulators and updates.

    norm: largest norm that is not clipped; per: of the model or of a layer. phase: of updates: "apply" if gradients are
    summed.
    """

    def __init__(
        self, builder: GraphBuilder, norm: float, per: Literal["model", "layer"], phase: Phase, inverse: Value | None
    ) -> None:
        self._builder, self._norm, self._per, self._inverse_count = builder, norm, per, inverse
        self._phase: Phase = phase
        self._kept: list[tuple[Value, Value, Value]] = []
        self.state: list[Value] = []
        self.accumulators: list[Value] = []
        self.updates: list[tuple[Value, Value]] = []

    @property
    def note(self) -> str:
        """Text about clipping in the report."""
        whose = "the gradient of all layers" if self._per == "model" else "each layer's gradient"
        when = "" if self._phase == "apply" else ", measured in the update before: the first one is not clipped"
        return f"--clip-norm {self._norm:g} scales down {whose} if its norm is larger{when}"

    def factors(self, gradients: Sequence[tuple[Value, Value]], forward: Iterable[Node]) -> Mapping[str, Value]:
        """Return the factor that clips the gradient, by parameter; a layer is the first node that reads a parameter."""
        squares = self._own_squares if self._phase == "apply" else self._squares_before
        layers: dict[str, str] = {}
        for node in forward if self._per == "layer" else ():
            for value in node.inputs:
                layers.setdefault(value.name, node.name)
        groups: dict[str, list[tuple[Value, Value]]] = {}
        for parameter, gradient in gradients:
            name = "gradient" if self._per == "model" else layers.get(parameter.name, parameter.name)
            groups.setdefault(name, []).append((parameter, gradient))
        found: dict[str, Value] = {}
        for group, members in groups.items():
            factor = self._factor(group, squares(group, members))
            found |= {parameter.name: factor for parameter, _ in members}
        return found

    def scales(self, factors: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return the whole factor of the gradient, by parameter: that of clipping, and the inverse divisor of a
        batch."""
        inverse = self._inverse_count
        if inverse is None:
            return factors
        distinct = {factor.name: factor for factor in factors.values()}
        scaled = {
            name: self._builder.emit("Mul", (factor, inverse), name=f"{name}.scale", phase="apply")
            for name, factor in distinct.items()
        }
        return {parameter: scaled[factor.name] for parameter, factor in factors.items()}

    def _factor(self, group: str, squares: Value) -> Value:
        more = () if self._inverse_count is None else (self._inverse_count,)
        attrs = ClipAttrs(self._norm, scaled=bool(more))
        return self._builder.emit("ClipFactor", (squares, *more), attrs, f"{group}.clip", group, self._phase)

    def _own_squares(self, group: str, members: Sequence[tuple[Value, Value]]) -> Value:
        """Emit the sum of the squares of the applied sums."""
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
        """Emit the sum of the squares of the previous update."""
        kept = [self._state(parameter, gradient) for parameter, gradient in members]
        total = kept[0]
        for squares in kept[1:]:
            total = self._builder.emit("Add", (total, squares), name=f"{group}.squares", origin=group)
        return total

    def _state(self, parameter: Value, gradient: Value) -> Value:
        """Return the squares of a parameter's last gradient, which are state."""
        squares = self._builder.constant(f"{parameter.name}.gradient_squares", np.zeros((), np.float32))
        self._kept.append((squares, parameter, gradient))
        return squares

    def keep_squares(self) -> None:
        """Replace the previous squares by those of this update's gradients, after the updates."""
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
