"""Random cases of mse and bce in integers: ordinary targets, halves of a unit, and any float32 there is."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, make
from testing.ops.case_qpointwise import SHAPES, any_floats
from testing.ops.case_quantised import bytes_of, exponent, peak, zero_point
from tinytrain_compile.ops.fixed_point import split_factor
from tinytrain_compile.ops.int8 import targets as int8_targets
from tinytrain_compile.ops.int8.targets import SIGMOID_BITS, TargetErrorAttrs, TargetLossAttrs

SCALES = (0.05, 0.3, 1.7, 0.004)
COUNT = 4 * len(SHAPES)


def _pair(rng: Rng, index: int, classes: bool) -> tuple[np.ndarray, np.ndarray, int, int, float]:
    """(outputs, targets, zero point, kind of data, scale)"""
    shape, kind = SHAPES[index % len(SHAPES)], index // len(SHAPES) % 4
    scale, zero = SCALES[(index + kind) % len(SCALES)], zero_point(rng, kind)
    targets = any_floats(rng, shape, kind)
    if kind < 2:
        targets = rng.integers(0, 2, shape).astype(np.float64) if classes else targets * scale * 20
    return bytes_of(rng, shape, kind), targets, zero, kind, scale


def _mse(zero: int, scale: float, count: int) -> tuple[int, int, tuple[int, int], int]:
    bits = int8_targets.difference_bits(count)
    return zero, bits, split_factor(2.0**bits / scale), (1 << (bits + int8_targets.REACH_BITS)) - 1


def _bce(zero: int) -> tuple[int, int, tuple[int, int], int]:
    return zero, SIGMOID_BITS, split_factor(2.0**SIGMOID_BITS), 2**31 - 1


@generator("QMeanSquaredError", COUNT)
def _squares(rng: Rng, index: int) -> Case:
    outputs, targets, zero, _kind, scale = _pair(rng, index, False)
    known = _mse(zero, scale, outputs.size)
    total = split_factor(scale**2 * 4.0 ** -known[1] / outputs.size)
    return make("QMeanSquaredError", (outputs, targets), TargetLossAttrs(*known, total), ())


@generator("QMeanSquaredErrorGrad", COUNT)
def _square_errors(rng: Rng, index: int) -> Case:
    outputs, targets, zero, kind, scale = _pair(rng, index, False)
    known = _mse(zero, scale, outputs.size)
    attrs = TargetErrorAttrs(*known, int8_targets.probe(known[1]))
    return make("QMeanSquaredErrorGrad", (peak(rng, kind), exponent(rng, kind), outputs, targets), attrs, ())


@generator("QSigmoidCrossEntropy", COUNT)
def _entropies(rng: Rng, index: int) -> Case:
    logits, targets, zero, _kind, scale = _pair(rng, index, True)
    total, distance = split_factor(2.0**-20 / logits.size), split_factor(scale * 2.0 ** (20 - 22))
    attrs = TargetLossAttrs(*_bce(zero), total, distance, 20)
    return make("QSigmoidCrossEntropy", (logits, targets, int8_targets.sigmoids(scale)), attrs, ())


@generator("QSigmoidCrossEntropyGrad", COUNT)
def _entropy_errors(rng: Rng, index: int) -> Case:
    logits, targets, zero, kind, scale = _pair(rng, index, True)
    attrs = TargetErrorAttrs(*_bce(zero), probe=int8_targets.probe(SIGMOID_BITS))
    operands = (peak(rng, kind), exponent(rng, kind), logits, targets, int8_targets.sigmoids(scale))
    return make("QSigmoidCrossEntropyGrad", operands, attrs, ())
