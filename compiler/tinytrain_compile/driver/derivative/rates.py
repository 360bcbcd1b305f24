"""Which rates show the gradient of an int8 update: rounding hides small moves, ends of a range cut large ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.types import Array

FIRST, STRIDE, RUNS = 4, 5, 7
"""Rates of integers are powers of two: exponent of the first, distance of the next, how many at the most."""
LEAST, MOST = -40, 60
"""Exponents of rates: the update knows any float32."""
FEW, MANY = 0.02, 0.5
"""Shares of a tensor's numbers that reach the end of their range: so few that the rate was low enough, and so many that
a higher one tells no more."""
CLEAR = 1e-3
"""Share of the energy of rounding at which a higher rate tells no more either."""
SURE, SLIGHT = 8.0, 0.02
"""How far the numbers that a rate tells are above their rounding, squared; a share of all that does not matter."""


@dataclass(frozen=True, eq=False)
class Shown:
    """The gradient of a part that updates show. known: where they tell it; noise: what rounding adds, in the mean.

    own: where the file's numbers have a part in the parameter's.
    """

    gradient: NDArray[np.float64]
    known: NDArray[np.bool_]
    noise: NDArray[np.float64]
    own: NDArray[np.bool_]

    @property
    def square(self) -> float:
        """Return the squared norm of what is known."""
        return float((self.gradient**2)[self.known].sum())

    def clear(self) -> bool:
        """Tell whether rounding adds little to what moves."""
        signal = self.square
        return 0 < signal >= float((self.noise**2)[self.known].sum()) / CLEAR


class RateSearch:
    """Looks for rates that show all numbers of one part. base: the largest rate at which few are lost."""

    def __init__(self, exponent: int) -> None:
        self.exponent = self.base = exponent
        self._shown: dict[int, Shown] = {}
        self._low = self._high = False

    def add(self, shown: Shown) -> None:
        """Take what an update at the rate `exponent` shows."""
        lost = 1 - float(shown.known[shown.own].mean()) if shown.own.any() else 0.0
        self._shown[self.exponent] = shown
        if lost <= FEW:
            self._low, self.base = True, max(self.base, self.exponent) if self._low else self.exponent
        self._high |= lost >= MANY or self.joined().clear()

    def goes_on(self) -> bool:
        """Choose the next rate, unless those that were tried tell enough."""
        if self._low and self._high:
            return False
        self.exponent = max(self._shown) + STRIDE if self._low else min(self._shown) - STRIDE
        return LEAST <= self.exponent <= MOST

    def joined(self) -> Shown:
        """Return every number by the largest rate that tells it; none by a rate at which it is mostly rounding."""
        first = next(iter(self._shown.values()))
        gradient, noise = np.zeros_like(first.gradient), np.zeros_like(first.gradient)
        known, told = np.zeros_like(first.known), np.zeros_like(first.known)
        parts: list[tuple[Array, float, float]] = []
        for exponent in sorted(self._shown, reverse=True):
            one = self._shown[exponent]
            new = one.known & ~told
            told |= new
            gradient, noise = np.where(new, one.gradient, gradient), np.where(new, one.noise, noise)
            parts.append((new, float((one.gradient[new] ** 2).sum()), float((one.noise[new] ** 2).sum())))
        sure = sum(signal for _, signal, rounding in parts if rounding * SURE <= signal)
        for new, signal, rounding in parts:
            if rounding * SURE <= signal or rounding <= SLIGHT * sure or not sure:
                known |= new
        return Shown(gradient, known, noise, first.own)
