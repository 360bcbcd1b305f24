"""Random cases of the integer cross entropy: groups in every place of a shape, certain and impossible labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from testing.ops.case import Case, Rng, generator, make
from testing.ops.case_quantised import bytes_of, exponent, peak
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.fixed_point import split_factor
from tinytrain_compile.ops.int8 import loss as int8_loss
from tinytrain_compile.ops.int8 import weighted_loss as int8_weighted_loss
from tinytrain_compile.ops.int8.weighted_loss import LabelWeightAttrs

SHAPES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1, 10), 1),
    ((1, 2), 1),
    ((1, 1000), 1),
    ((3, 5), 1),
    ((1, 4, 3, 6), 3),
    ((2, 7, 3), 1),
    ((9, 2), 0),
)
SCALES = (0.05, 0.3, 1.7, 0.004)
COUNT = 3 * len(SHAPES)


def _logits(rng: Rng, index: int) -> tuple[np.ndarray, int, float, int]:
    """(logits, axis, scale, table bits): ordinary, with one large one per tensor, or all equal."""
    (shape, axis), kind = SHAPES[index % len(SHAPES)], index // len(SHAPES) % 3
    logits = bytes_of(rng, shape, 0) if kind < 2 else np.full(shape, -128, np.int8)
    if kind == 1:
        logits.ravel()[int(rng.integers(0, logits.size))] = 127
    scale = SCALES[index % len(SCALES)]
    return logits, axis, scale, int8_loss.table_bits(shape[axis])


def _labelled(rng: Rng, index: int) -> tuple[tuple[Any, ...], int, float, int, int | None]:
    """((logits, labels, largest, sum, table), axis, scale, bits, ignored label); some labels are no class."""
    logits, axis, scale, bits = _logits(rng, index)
    table = int8_loss.exponentials(scale, bits)
    sums = OPS["QSoftmaxSum"].reference((logits, table), int8_loss.SoftmaxSumAttrs(axis, bits))
    classes = logits.shape[axis]
    low, high = [(0, classes), (-1, classes + 1)][index % 2]
    labels = rng.integers(low, high, sums[0].shape).astype(np.int32)
    return (logits, labels, *sums, table), axis, scale, bits, (None, None, 1)[index % 3]


@generator("QSoftmaxSum", COUNT)
def _softmax_sum(rng: Rng, index: int) -> Case:
    logits, axis, scale, bits = _logits(rng, index)
    return make("QSoftmaxSum", (logits, int8_loss.exponentials(scale, bits)), int8_loss.SoftmaxSumAttrs(axis, bits))


@generator("QSoftmaxLoss", COUNT)
def _softmax_loss(rng: Rng, index: int) -> Case:
    operands, axis, scale, bits, ignored = _labelled(rng, index)
    logits, labels = operands[:2]
    loss_bits = int8_loss.loss_fraction_bits(scale, logits.shape[axis], labels.size)
    distance = split_factor(scale * 2.0 ** (loss_bits - int8_loss.DISTANCE_BITS))
    share = split_factor(2.0**-loss_bits / labels.size)
    attrs = int8_loss.QLossAttrs(axis, "mean", ignored, bits, loss_bits, distance, share)
    return make("QSoftmaxLoss", operands[:4], attrs)


@generator("QLabelWeight", COUNT)
def _label_weight(rng: Rng, index: int) -> Case:
    operands, axis, _scale, _bits, ignored = _labelled(rng, index)
    return make("QLabelWeight", *_weights_of(rng, index, operands, axis, ignored))


def _weights_of(
    rng: Rng, index: int, operands: tuple[Any, ...], axis: int, ignored: int | None
) -> tuple[tuple[Any, Any], LabelWeightAttrs]:
    """((labels, class weights), attributes): a mean of some weights, of none that counts, or a sum."""
    labels, kind = operands[1], index % 4
    weights = rng.uniform(0, 3, operands[0].shape[axis]) * (rng.random(operands[0].shape[axis]) < 0.8)
    weights = int8_weighted_loss.class_weights(np.maximum(weights, 1e-3), labels.size) * (kind != 3)
    divisor = 1 << int8_weighted_loss.weight_bits(labels.size) if kind == 2 else 0
    return (labels, weights.astype(np.int32)), LabelWeightAttrs(ignored, divisor)


def _weighted(rng: Rng, index: int, operands: tuple[Any, ...], axis: int, ignored: int | None) -> tuple[Any, ...]:
    """(weight of each label, divisor)"""
    arrays, attrs = _weights_of(rng, index, operands, axis, ignored)
    return OPS["QLabelWeight"].reference(arrays, attrs)


@generator("QWeightedSoftmaxLoss", COUNT)
def _weighted_loss(rng: Rng, index: int) -> Case:
    operands, axis, scale, bits, ignored = _labelled(rng, index)
    logits, labels = operands[:2]
    loss_bits = int8_loss.loss_fraction_bits(scale, logits.shape[axis], labels.size)
    distance, share = split_factor(scale * 2.0 ** (loss_bits - int8_loss.DISTANCE_BITS)), split_factor(2.0**-loss_bits)
    attrs = int8_loss.QLossAttrs(axis, "mean", ignored, bits, loss_bits, distance, share)
    return make("QWeightedSoftmaxLoss", (*operands[:4], *_weighted(rng, index, operands, axis, ignored)), attrs)


@generator("QWeightedSoftmaxError", COUNT)
def _weighted_error(rng: Rng, index: int) -> Case:
    operands, axis, _scale, bits, ignored = _labelled(rng, index)
    attrs = int8_loss.QLossErrorAttrs(axis, "mean", ignored, bits, int8_weighted_loss.weight_probe(bits))
    kind, weights = index // len(SHAPES) % 3, _weighted(rng, index, operands, axis, ignored)
    return make("QWeightedSoftmaxError", (peak(rng, kind), exponent(rng, kind), *operands, *weights), attrs)


@generator("QSoftmaxError", COUNT)
def _softmax_error(rng: Rng, index: int) -> Case:
    operands, axis, _scale, bits, ignored = _labelled(rng, index)
    attrs = int8_loss.QLossErrorAttrs(axis, "mean", ignored, bits, int8_loss.probe(bits))
    kind = index // len(SHAPES) % 3
    return make("QSoftmaxError", (peak(rng, kind), exponent(rng, kind), *operands), attrs)
