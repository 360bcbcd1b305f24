"""The arithmetic in which formulas of elements are written once, and two ways to read them in numpy.

A formula is a function of an arithmetic `m` and of elements: operators and comparisons of Python, its numbers as
constants, and the functions of `m`. It is read three times: by REFERENCE, in the dtype of its operands; by EXACT, to
the bit as the generated C computes it; and as expressions of TE (lower/kernels/float32/elementwise.py). So the meaning
of an operator, its twin and its kernel cannot drift apart.

C and numpy differ in two points, which formulas spell out: -x is `0 - x` (0 - 0 is not -0), and a product with a
constant of the attributes that may be 0 is `scaled`, a sum with one is `shifted`: TVM folds these away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops import exact, scalar_math

Function = Callable[[Any], Any]
Function2 = Callable[[Any, Any], Any]
Function3 = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Arithmetic:
    """Functions of elements.

    where: (condition, yes, no), both computed; both: of two conditions; equal: a condition. clamp: (x, low, high);
    infinite bounds have no effect. scaled, shifted: by a constant. All others as in numpy.
    """

    where: Function3
    both: Function2
    equal: Function2
    clamp: Function3
    scaled: Function2
    shifted: Function2
    abs: Function
    exp: Function
    log: Function
    log1p: Function
    sqrt: Function
    tanh: Function
    erf: Function
    sin: Function
    cos: Function
    sigmoid: Function
    power: Function2

    def inside(self, y: Any, low: float, high: float) -> Any:
        """Tell which elements are strictly between bounds. None: neither bound is finite, so nothing is compared."""
        above = y > low if math.isfinite(low) else None
        below = y < high if math.isfinite(high) else None
        if above is None or below is None:
            return below if above is None else above
        return self.both(above, below)

    def sign(self, x: Any) -> Any:
        """Return 1 above 0, -1 below 0, else 0 (also of NaN)."""
        return self.where(x > 0, 1.0, self.where(x < 0, -1.0, 0.0))


@dataclass(frozen=True)
class ArrayArithmetic(Arithmetic):
    """Functions of arrays too. sum: (x, axes), element by element if it repeats the C; max: (x, axis). Axes stay as
    1."""

    sum: Function2
    max: Function2


Formula = (
    Callable[[Arithmetic, Any], Any]
    | Callable[[Arithmetic, Any, Any], Any]
    | Callable[[Arithmetic, Any, Any, Any], Any]
)
"""(arithmetic, elements of the operands ..., attributes if the operator has some) -> element of the result."""


def _where(condition: Any, yes: Any, no: Any) -> Any:
    if type(yes) is float and type(no) is float:  # numpy would make float64 of these; its own float64 is a float, too
        yes = np.float32(yes)
    return np.where(condition, yes, no)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    """Return the logistic function without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


REFERENCE = ArrayArithmetic(
    where=_where,
    both=np.logical_and,
    equal=np.equal,
    clamp=lambda x, low, high: np.minimum(np.maximum(x, low), high),
    scaled=lambda x, factor: x * factor,
    shifted=lambda x, addend: x + addend,
    abs=np.abs,
    exp=np.exp,
    log=np.log,
    log1p=np.log1p,
    sqrt=np.sqrt,
    tanh=np.tanh,
    erf=lambda x: _erf(x).astype(x.dtype).reshape(x.shape),
    sin=np.sin,
    cos=np.cos,
    sigmoid=_sigmoid,
    power=np.power,
    sum=lambda x, axes: np.sum(x, axis=axes, keepdims=True),
    max=lambda x, axis: np.max(x, axis=axis, keepdims=True),
)
EXACT = ArrayArithmetic(
    where=_where,
    both=np.logical_and,
    equal=np.equal,
    clamp=exact.clamp,
    scaled=exact.scaled,
    shifted=exact.shifted,
    abs=np.abs,
    exp=scalar_math.exp,
    log=scalar_math.log,
    log1p=scalar_math.log1p,
    sqrt=scalar_math.sqrt,
    tanh=scalar_math.tanh,
    erf=scalar_math.erf,
    sin=scalar_math.sin,
    cos=scalar_math.cos,
    sigmoid=scalar_math.sigmoid,
    power=scalar_math.power,
    sum=exact.sum_over,
    max=exact.max_over,
)

Steps = Generator[tuple[str, Any], Any, None]
"""Results by name, in the order in which they are computed; the value sent back is the result as stored."""


def run_steps(steps: Steps, store: Callable[[str, Any], Any]) -> None:
    """Compute the results of a formula that has several; store(name, value) keeps one and returns the stored value."""
    stored = None
    while True:
        try:
            name, value = steps.send(stored)
        except StopIteration:
            return
        stored = store(name, value)


def order_of(steps: Steps) -> list[str]:
    """Return the names of a formula's results, in the order computed."""
    order: list[str] = []

    def note(name: str, value: Any) -> Any:
        order.append(name)
        return value

    run_steps(steps, note)
    return order
