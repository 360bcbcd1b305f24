"""The history of int8 updates: momentum, and the norm of the update before, by updates of one gradient."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.driver.derivative.integer_step import MEAN_ROUNDING, IntegerStep, Pass
from tinytrain_compile.driver.derivative.rates import Shown
from tinytrain_compile.errors import CompileError
from tinytrain_compile.training import TrainingOptions

TOLERANCE = 0.1
"""Largest relative error of the ratio of two updates of integers: a velocity has 8 bits."""
LIFTS = (3, 0, -3)
"""Bits by which the rate of compared updates is above one at which few weights reach the end of their range."""
LEAST = 0.3
"""Ratios below this one are compared as closely as this one."""
ROUNDED = 0.05
"""Share of rounding, squared, beyond which an update is not compared."""


def check_later(step: IntegerStep, found: Pass, first: Mapping[str, Shown], how: TrainingOptions) -> tuple[str, ...]:
    """Check that updates by one gradient follow one another as the optimizer says; E0607. Returns what rounding hides.

    With g the gradient, f the factor that the norm of g asks for (without sums it scales the updates after), and m the
    momentum: the second update is (m + f) g.
    """
    late = how.clip_norm is not None and not how.sums
    momentum = step.train.momentum
    if momentum is None and not late:
        return ()
    factor = 1.0
    if late and how.clip_norm is not None:
        factor = min(1.0, how.clip_norm / (np.sqrt(sum(one.square for one in first.values())) or 1e-300))
    ratios = _ratios(step, found)
    layers = late and how.clip_per == "layer"
    for part in step.parts:
        ratio = ratios.get(part.name)
        if ratio is None:
            continue
        history = 0.0 if momentum is None or step.unit(part) is None else momentum
        own = factor if not layers else min(1.0, max(ratio - history, 0.0))
        if not abs(ratio - own - history) <= TOLERANCE * max(own + history, LEAST):
            what = f"a second update by the same gradient is {ratio:.3g} times the first, expected {own + history:.3g}"
            raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")
    return tuple(part.origin for part in step.parts if part.name not in ratios and first[part.name].square)


def _ratios(step: IntegerStep, found: Pass) -> dict[str, float]:
    """How much of a first update is in the second, by part: at the highest rate at which rounding does not hide it."""
    ratios: dict[str, float] = {}
    for lift in LIFTS:
        one, two = step.later(found, lift)
        for part in step.parts:
            ratio = _ratio(one[part.name], two[part.name])
            if ratio is not None:
                ratios.setdefault(part.name, ratio)
        if len(ratios) == len(step.parts):
            break
    return ratios


def _ratio(old: Shown, new: Shown) -> float | None:
    """Return how much of the first update is in the second; None if rounding is too much of either."""
    known = old.known & new.known
    before, now = (np.where(known, shown.gradient, 0) for shown in (old, new))
    square = float((before**2).sum())
    rounded = sum(float((np.where(known, _rounding(shown), 0) ** 2).sum()) for shown in (old, new))
    if not square or rounded > ROUNDED * square:
        return None
    return float((now * before).sum()) / square


def _rounding(shown: Shown) -> NDArray[np.float64]:
    """Return what rounding adds to each number that moves: a whole step if it moves by no more than that."""
    step = shown.noise / MEAN_ROUNDING
    size = np.abs(shown.gradient)
    return np.where(size < 1.5 * step, step, shown.noise) * (size > 0)
