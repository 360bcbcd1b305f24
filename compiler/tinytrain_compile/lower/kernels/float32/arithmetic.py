"""The arithmetic of formulas (ops/arithmetic.py) as expressions of TE: the third way to read them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tinytrain_compile.lower.kernels.base import call, f32, select
from tinytrain_compile.ops.arithmetic import Arithmetic


def clamp(x: Expr, low: float, high: float) -> Expr:
    """Keep x between bounds; comparisons are written so that NaN passes through."""
    if math.isfinite(low):
        x = select(x < f32(low), f32(low), x)
    if math.isfinite(high):
        x = select(x > f32(high), f32(high), x)
    return x


def _element(value: Any) -> Expr:
    """Return an element, or a number of a formula as one."""
    return f32(value) if isinstance(value, int | float) else value


def _where(condition: Expr, yes: Any, no: Any) -> Expr:
    return select(condition, _element(yes), _element(no))


def _magnitude(x: Expr) -> Expr:
    """Return |x|; NaN stays, -0 becomes 0."""
    return select(x > f32(0), x, f32(0) - x)


TE = Arithmetic(
    where=_where,
    both=tirx.And,
    equal=lambda left, right: tirx.EQ(_element(left), _element(right)),
    clamp=clamp,
    scaled=lambda x, factor: x * f32(factor),
    shifted=lambda x, addend: x + f32(addend),
    abs=_magnitude,
    exp=partial(call, "tt_expf"),
    log=partial(call, "tt_logf"),
    log1p=partial(call, "tt_log1pf"),
    sqrt=partial(call, "tt_sqrtf"),
    tanh=partial(call, "tt_tanhf"),
    erf=partial(call, "tt_erff"),
    sin=partial(call, "tt_sinf"),
    cos=partial(call, "tt_cosf"),
    sigmoid=partial(call, "tt_sigmoidf"),
    power=partial(call, "tt_powf"),
)
