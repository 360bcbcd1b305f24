"""How far one tensor of the model file and its counterpart in the imported graph lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tinytrain_compile.driver.file_check.imported_values import Held
from tinytrain_compile.ir.types import Array

TOLERANCE = 1e-4
"""float32: |a - b| <= TOLERANCE max(1, max |b|)."""
MASKED = 1e30
"""Numbers from here on mask scores, as infinity does: which of them it is makes no difference."""
STEPS = 1.0
"""Quantised tensors: steps of the format that the two may lie apart."""
_SLACK = 1e-3
"""Of a step, for the float32 arithmetic around it."""


@dataclass(frozen=True)
class Format:
    """How the file stores a tensor: real = (q - zero) scale, q of this numpy type within [low, high]."""

    scale: float
    zero: int
    low: int
    high: int
    dtype: str

    def integers(self, real: Array) -> Array:
        """Quantise real numbers as QuantizeLinear does."""
        q = np.rint(real.astype(np.float64) / self.scale) + self.zero
        return np.clip(q, self.low, self.high)

    def real(self, integer: float) -> float:
        """Return the real number of an integer, as DequantizeLinear does."""
        return (integer - self.zero) * self.scale


@dataclass(frozen=True)
class Distance:
    """Largest |a - b|, in real numbers or in steps; elements that are equal as integers; `wrong`: what is too far."""

    largest: float
    equal: int = 0
    wrong: str = ""


def in_numbers(ours: Held, theirs: Array) -> Distance:
    """Compare two tensors of real numbers: by TOLERANCE, or one step if ours is stored in integers."""
    if ours.array.shape != theirs.shape:
        return _shapes(ours.array, theirs)
    a, b = ours.array.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    error = _errors(a, b)
    finite = np.abs(b[np.abs(b) < MASKED])
    allowed = max(TOLERANCE * max(1.0, float(finite.max(initial=0.0))), ours.step * (STEPS + _SLACK))
    worst = int(np.argmax(error)) if error.size else 0
    if not error.size or error[worst] <= allowed:
        return Distance(float(error.max(initial=0.0)))
    what = f"{_numbers(b[worst], a[worst])}, at {_place(worst, theirs)}"
    return Distance(error[worst], wrong=f"{what} (|err| {error[worst]:.2g}, allowed {allowed:.2g})")


def in_steps(ours: Held, theirs: Array, form: Format) -> Distance:
    """Compare real numbers with the file's integers."""
    if ours.array.shape != theirs.shape:
        return _shapes(ours.array, theirs)
    real, b = ours.array.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    steps = np.abs(real / form.scale + form.zero - b)
    worst = int(np.argmax(steps)) if steps.size else 0
    if steps.size and not steps[worst] <= STEPS + _SLACK:
        what = f"{_numbers(form.real(b[worst]), real[worst])}, at {_place(worst, theirs)}"
        return Distance(steps[worst], wrong=f"{what} ({steps[worst]:.3g} steps of {form.scale:.3g}, allowed {STEPS:g})")
    equal = int(np.count_nonzero(form.integers(real) == b))
    return Distance(float(np.rint(steps.max(initial=0.0))), equal)


def _numbers(theirs: float, ours: float) -> str:
    return f"{theirs:.7g} in the file, {ours:.7g} as imported"


def _place(index: int, array: Array) -> str:
    where: Sequence[int] = [int(i) for i in np.unravel_index(index, array.shape)]
    return f"{list(where)} of {list(array.shape)}"


def _shapes(ours: Array, theirs: Array) -> Distance:
    return Distance(np.inf, wrong=f"its shape is {list(theirs.shape)} in the file, {list(ours.shape)} as imported")


def _errors(a: Array, b: Array) -> Array:
    """Return |a - b|; 0 for two of one sign that are MASKED and for two NaN, infinite if only one is NaN."""
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)
    out_of_reach = (np.abs(a) >= MASKED) & (np.abs(b) >= MASKED) & (np.sign(a) == np.sign(b))
    error[(a == b) | (np.isnan(a) & np.isnan(b)) | out_of_reach] = 0.0
    error[np.isnan(error)] = np.inf
    return error
