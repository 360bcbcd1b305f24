"""The helpers of mse and bce in integers, as in fixed_point_helpers.py."""

from __future__ import annotations

import numpy as np

from tests.runtime_c.fixed_point_helpers import FLOAT, MULTIPLIER, WORD, Helper, Words, between, real
from tinytrain_compile.ops.fixed_point import INT32_MAX
from tinytrain_compile.ops.int8 import targets as int8_targets
from tinytrain_compile.ops.int8 import weighted_loss as int8_weighted_loss
from tinytrain_compile.ops.int8.targets import SIGMOID_BITS, TargetAttrs, TargetLossAttrs

SHIFT = between(-60, 60, -60, 0, 1, 20, 60)


def _fixed(values: Words, m: Words, shift: Words) -> tuple[Words]:
    return (int8_targets.fixed(real(values), m, shift),)


def _difference(value: int, target: int, m: int, shift: int, limit: int) -> tuple[int]:
    attrs = TargetAttrs(0, 0, (m, shift), limit)
    return (int(int8_targets.differences(np.asarray(value), real(np.asarray(target)), attrs)),)


def _sigmoid_loss(distance: int, target: int, m: int, shift: int, loss_bits: int) -> tuple[int]:
    """One term: the loss of a single logit, whose float32 is taken apart again by a factor of 1."""
    table = np.full(256, (1 << SIGMOID_BITS) - abs(distance) * 500_000, np.int32)
    whole = ((1 << 30), 1)
    attrs = TargetLossAttrs(0, SIGMOID_BITS, ((1 << 30), 29), INT32_MAX, whole, (m, shift), loss_bits)
    return (int(int8_targets.bce_terms(np.asarray([distance]), real(np.asarray([target])), table, attrs)[0]),)


TARGET_HELPERS = (
    Helper("fixed", "y0 = tt_fixed(tt_from_bits((uint32_t)a0), a1, a2);", (FLOAT, MULTIPLIER, SHIFT), _fixed),
    Helper(
        "difference",
        "y0 = tt_difference(a0, tt_from_bits((uint32_t)a1), a2, a3, a4);",
        (WORD, FLOAT, MULTIPLIER, SHIFT, between(0, 2**31 - 1, 2**31 - 1)),
        _difference,
        scalar=True,
    ),
    Helper(
        "sigmoid_loss",
        "const int32_t d = a0 < 0 ? -a0 : a0; "
        "y0 = tt_sigmoid_loss(a0, (1 << 28) - d * 500000, tt_from_bits((uint32_t)a1), a2, a3, a4);",
        (between(-255, 255, -255, 0, 255), FLOAT, MULTIPLIER, between(-24, 0), between(12, 24)),
        _sigmoid_loss,
        scalar=True,
    ),
    Helper(
        "quotient_float",
        "y0 = (int32_t)tt_bits(tt_quotient_float(tt_product(a0, a1 >> 1), a2, a3, a4));",
        (WORD, WORD, between(1, 1 << 30, 1, 3, 1 << 30), MULTIPLIER, between(-60, 40, -60, 0, 40)),
        lambda a, b, d, m, e: (
            int(np.float32(int8_weighted_loss.quotient_float(a * (b >> 1), d, m, e)).view(np.int32)),
        ),
        scalar=True,
    ),
    Helper(
        "wide_float",
        "y0 = (int32_t)tt_bits(tt_wide_float((int64_t)a0 * a1, a2, a3)); y1 = (int32_t)(tt_square(a0) >> 32); "
        "y2 = (int32_t)(tt_square(a0) & 0x7fffffff);",
        (WORD, WORD, MULTIPLIER, between(-60, 40, -60, -31, 0, 40)),
        lambda a, b, m, e: (
            int(np.float32(int8_targets.wide_float(a * b, m, e)).view(np.int32)),
            (a * a) >> 32,
            (a * a) & 0x7FFFFFFF,
        ),
        3,
        scalar=True,
    ),
)
