"""The history of int8 updates: momentum, and the norm of the update before, by updates of one gradient."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tinytrain_compile.driver.derivative.integer_step import IntegerStep, Pass, Shown
from tinytrain_compile.driver.derivative.judged import Part
from tinytrain_compile.errors import CompileError
from tinytrain_compile.training import TrainingOptions

TOLERANCE = 0.15
"""Largest error of a ratio of two updates of integers: a velocity has 8 bits."""
LEAST = 0.3
"""Ratios below this one are compared as closely as this one."""
ROUNDED = 0.05
"""Share of rounding, squared, beyond which an update is not compared."""


def check_later(step: IntegerStep, found: Pass, first: Mapping[str, Shown], how: TrainingOptions) -> None:
    """Check that updates by one gradient follow one another as the optimizer says; E0607.

    With g the gradient, f the factor that the norm of g asks for (without sums it scales the updates after), and m the
    momentum: every update is m times the one before plus f g.
    """
    late = how.clip_norm is not None and not how.sums
    momentum = step.train.momentum
    if momentum is None and not late:
        return
    factor = 1.0
    if late and how.clip_norm is not None:
        factor = min(1.0, how.clip_norm / (np.sqrt(sum(one.square for one in first.values())) or 1e-300))
    one, two = step.later(found)
    for part in step.parts:
        old, new = one[part.name], two[part.name]
        own = _own(factor, how, old, new)
        if momentum is None or step.unit(part) is None:
            _compare(part, old, new, own, 0.0)
        else:
            _compare(part, old, new, momentum, own if late else 1.0)


def _own(factor: float, how: TrainingOptions, first: Shown, second: Shown) -> float:
    """The factor of a tensor: of one layer's norm it is what the tensor shows, if that is no more than 1."""
    if how.clip_norm is None or how.clip_per == "model":
        return factor
    return min(1.0, float((first.gradient * second.gradient).sum()) / (first.square or 1e-300))


def _compare(part: Part, old: Shown, new: Shown, expected: float, fresh: float) -> None:
    """Compare an update, less `fresh` times the gradient in it, with the one before."""
    known = old.known & new.known
    before, now = (np.where(known, shown.gradient, 0) for shown in (old, new))
    square = float((before**2).sum())
    rounded = float(sum((np.where(known, shown.noise, 0) ** 2).sum() for shown in (old, new)))
    if not square or rounded > ROUNDED * square:
        return
    ratio = float((now * before).sum()) / square - fresh
    if not abs(ratio - expected) <= TOLERANCE * max(expected, LEAST):
        what = f"an update by the same gradient is {ratio:.3g} times the one before, expected {expected:.3g}"
        raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")
