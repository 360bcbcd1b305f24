"""The mean of trained weights over several states on the desk: equal to m_average.c, to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array

_ONE = 256
"""Fraction steps per unit of an int8 weight with its 8 fraction bits."""
_EXACT = 2.0**22
"""Magnitude below which rounding is to the nearest number, ties to even."""


@dataclass
class Average:
    """`m_average_t`: the mean of the first `window` states; from then on each new one counts 1 / window.

    train: of the build. numbers: by the name of a tensor of the state, flat, in float32; int8 weights count in
    1/256 step.
    """

    train: TrainGraph
    window: int
    count: int = 0
    numbers: dict[str, Array] = field(default_factory=dict[str, Array])

    def add(self, state: Mapping[str, Array]) -> None:
        """Add a state from `Instance.state` (`m_average_add`)."""
        share = np.float32(min(self.count + 1, self.window))
        for name in self.train.trained:
            number = _counted(state[name], self._fraction(name, state))
            if self.count:
                number = self.numbers[name] + (number - self.numbers[name]) / share
            self.numbers[name] = number
        self.count += 1

    def take(self, state: Mapping[str, Array]) -> None:
        """Write the mean into the arrays of a state, from `Instance.tensor`. ValueError without any state."""
        if not self.count:
            raise ValueError("the average is of no state")
        for name, number in self.numbers.items():
            _set(state[name], self._fraction(name, state), number)

    def _fraction(self, name: str, state: Mapping[str, Array]) -> Array | None:
        unit = self.train.trained[name].unit
        return state[unit.fraction] if unit is not None and unit.fraction else None


def _counted(held: Array, fraction: Array | None) -> Array:
    return _whole(held, fraction).astype(np.float32) if held.dtype == np.int8 else held.astype(np.float32)


def _whole(held: Array, fraction: Array | None) -> Array:
    return held.astype(np.int32) * _ONE + (0 if fraction is None else fraction.astype(np.int32))


def _set(held: Array, fraction: Array | None, number: Array) -> None:
    if held.dtype == np.float32:
        held[:] = number
        return
    value = number.astype(np.float64)
    nearest = np.where(np.abs(value) < _EXACT, np.rint(value), np.trunc(value)).astype(np.int64)
    if held.dtype == np.int32:
        held[:] = np.clip(nearest, -(2**31), 2**31 - 1)
        return
    moved = nearest != _whole(held, fraction)  # a file's -128 stays
    fine = np.clip(nearest, -127 * _ONE - 128, 127 * _ONE + 127)
    whole = np.clip((fine + 128) >> 8, -127, 127)
    held[moved] = whole[moved]
    if fraction is not None:
        fraction[moved] = (fine - whole * _ONE)[moved]
