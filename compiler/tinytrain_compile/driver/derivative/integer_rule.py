"""The history of int8 updates: momentum, and the norm of the update before, by updates of one gradient."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.driver.derivative.clipping import Clipped, Norms
from tinytrain_compile.driver.derivative.integer_step import MEAN_ROUNDING, IntegerStep, Pass
from tinytrain_compile.driver.derivative.rates import Shown
from tinytrain_compile.errors import CompileError

TOLERANCE = 0.1
"""Largest relative error of the ratio of two updates of integers: a velocity has 8 bits."""
DEVIATIONS = 3.0
"""Standard deviations of what rounding makes of a ratio that are no fault: one in 370 tensors is further off."""
HIDDEN = 3.0
"""Error of a norm for each share of the numbers that show no gradient at any rate that was tried."""
LEAST = 0.3
"""Ratios below this one are compared as closely as this one."""
SATURATES = 2.0**-12
"""Factor of --clip-norm below which a velocity is not compared. It is divided by that factor and added in steps of the
unclipped gradient, in int32: one of 2**19 steps saturates (campaign, seed 64, case 277: a factor of 1e-5)."""
ROUNDED = 0.05
"""Share of rounding, squared, beyond which an update is not compared."""


def check_later(step: IntegerStep, found: Pass, factors: Norms, unsure: float = 0.0) -> tuple[str, ...]:
    """Check that two updates by one gradient follow one another as the optimizer says; E0607.

    With g the gradient, f the factor that clips the second update over that which clips the first, and m the momentum:
    the second update is (m + f) g. factors: f by part; unsure: the relative error that f may have. Returns the tensors
    that were not compared, since rounding or int32 hides the second update.
    """
    velocity = step.train.velocity
    one, two = step.later(found)
    hidden: list[str] = []
    for part in step.parts:
        found_ratio = _ratio(one[part.name], two[part.name])
        if found_ratio is None:
            hidden += [part.origin] if one[part.name].gradient.any() else []
            continue
        ratio, chance = found_ratio
        history = 0.0 if velocity is None or step.unit(part) is None else velocity.kept
        factor = factors.get(part.name, 1.0)
        if history and factor < SATURATES:
            hidden.append(part.origin)
            continue
        wanted = factor + history
        if not abs(ratio - wanted) <= TOLERANCE * max(wanted, LEAST) + unsure * factor + chance:
            what = f"a second update by the same gradient is {ratio:.3g} times the first, expected {wanted:.3g}"
            raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")
    return tuple(hidden)


def check_clipped(step: IntegerStep, found: Pass, unclipped: Mapping[str, Shown], clipped: Clipped) -> tuple[str, ...]:
    """Check two updates with --clip-norm: the gradients without it, times what their norms scale them by; E0607.

    step, found: as it clips. unclipped: the gradients that the same step shows if it does not. Returns the tensors that
    `check_later` did not compare.
    """
    shown = step.gradients(found, step.parts)
    norms = {name: float(np.sqrt(one.square)) for name, one in unclipped.items()}
    first, second = clipped.factors(norms, norms)
    unsure = HIDDEN * max((float(1 - one.known.mean()) for one in unclipped.values()), default=0.0)
    for part in step.parts:
        ratio, chance = _ratio(unclipped[part.name], shown[part.name]) or (None, 0.0)
        wanted = first[part.name]
        if ratio is not None and not abs(ratio - wanted) <= TOLERANCE * max(wanted, LEAST) + unsure * wanted + chance:
            what = f"a norm scales its update by {ratio:.3g}, expected {wanted:.3g}"
            raise CompileError("E0607", f"tensor {part.origin}", what, "please report this; see --explain E0607")
    return check_later(step, found, {name: second[name] / (first[name] or 1.0) for name in first}, unsure)


def _ratio(old: Shown, new: Shown) -> tuple[float, float] | None:
    """Return how much of the first update is in the second, and how far off rounding may make that (few numbers).

    None if rounding is too much of either.
    """
    known = old.known & new.known
    before, now = (np.where(known, shown.gradient, 0) for shown in (old, new))
    square = float((before**2).sum())
    rounded = sum(float((np.where(known, _rounding(shown), 0) ** 2).sum()) for shown in (old, new))
    if not square or rounded > ROUNDED * square:
        return None
    ratio = float((now * before).sum()) / square
    spread = [float((np.where(known, shown.noise * before, 0) ** 2).sum()) for shown in (old, new)]
    return ratio, DEVIATIONS * float(np.sqrt(ratio**2 * spread[0] + spread[1])) / square


def _rounding(shown: Shown) -> NDArray[np.float64]:
    """Return what rounding adds to each number that moves: a whole step if it moves by no more than that."""
    step = shown.noise / MEAN_ROUNDING
    size = np.abs(shown.gradient)
    return np.where(size < 1.5 * step, step, shown.noise) * (size > 0)
