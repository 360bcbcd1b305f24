"""Random cases of integer updates: biases, sums, weights from sums, exponents, noise, rescaled channels."""

from __future__ import annotations

import numpy as np

from testing.ops.case import Case, Rng, generator, listed, make
from testing.ops.case_quantised import KINDS, bytes_of, momentum_factors, noise, peak, steps, velocity_exponent, words
from tinytrain_compile.ir.types import NO_ATTRS
from tinytrain_compile.ops.base import form_name
from tinytrain_compile.ops.fixed_point import INT32_MAX, INT32_MIN, split_factors
from tinytrain_compile.ops.int8.exponents import ExponentAttrs
from tinytrain_compile.ops.int8.rescale import ChannelRescaleAttrs
from tinytrain_compile.ops.int8.update import (
    GradientAddAttrs,
    QBiasUpdateAttrs,
    QMomentumAttrs,
    QSumAttrs,
    QUpdateAttrs,
)

ERRORS: tuple[tuple[int, ...], ...] = ((1, 4, 5, 3), (1, 1, 1, 6), (1, 3, 3, 7), (4, 5), (1, 9), (1, 12, 11, 1))
WEIGHTS: tuple[tuple[int, ...], ...] = ((4, 3, 3, 2), (5, 1, 1, 7), (1, 1, 1, 1), (9, 3, 3, 1))


@generator("QBiasUpdate", 2 * len(ERRORS))
def _bias_update(rng: Rng, index: int) -> Case:
    return bias_update(rng, listed(rng, ERRORS, index, 2), index % KINDS)


def bias_update(rng: Rng, shape: tuple[int, ...], kind: int) -> Case:
    g, channels = bytes_of(rng, shape, kind, -127), shape[-1]
    return make(
        "QBiasUpdate", (words(rng, (channels,), kind, 3000), g, *steps(rng, channels, kind)), QBiasUpdateAttrs()
    )


@generator("QBiasSum", 2 * len(ERRORS))
def _bias_sum(rng: Rng, index: int) -> Case:
    return bias_sum(rng, listed(rng, ERRORS, index, 2), index % KINDS)


def bias_sum(rng: Rng, shape: tuple[int, ...], kind: int) -> Case:
    return make("QSum", (words(rng, shape[-1:], kind, 3000), bytes_of(rng, shape, kind, -127)), QSumAttrs("errors"))


@generator("QSumAdd", 3 * len(WEIGHTS))
def _sum_add(rng: Rng, index: int) -> Case:
    """Of biases, of weights, and of weights by rows of taps."""
    way, kind = index % 3, (index + index // len(WEIGHTS)) % KINDS
    shape = listed(rng, WEIGHTS, index, 3)
    shape = shape[:1] if way == 0 else shape
    sums = words(rng, shape, kind, 20000), words(rng, shape, (kind + 1) % KINDS, 20000)
    return make("QSum", sums, QSumAttrs("rows", by_rows=way == 2))


@generator("QBiasApply", 8)
def _bias_apply(rng: Rng, index: int) -> Case:
    channels, kind = (1, 5, 8)[index % 3], index % KINDS
    sums = words(rng, (channels,), (kind + index // KINDS) % KINDS, 3000)
    operands = (words(rng, (channels,), kind, 3000), sums, *steps(rng, channels, kind))
    return make("QBiasUpdate", operands, QBiasUpdateAttrs(summed=True))


@generator("QWeightApply", 2 * len(WEIGHTS))
def _weight_apply(rng: Rng, index: int) -> Case:
    kind = (index + index // len(WEIGHTS)) % KINDS
    return weight_apply(rng, listed(rng, WEIGHTS, index, 2), kind, (127, 64)[index % 2], index >= len(WEIGHTS))


def weight_apply(rng: Rng, shape: tuple[int, ...], kind: int, limit: int, by_rows: bool = False) -> Case:
    operands = (bytes_of(rng, shape, kind), words(rng, shape, kind, 20000), *steps(rng, shape[0], kind), *noise(rng))
    return make("QUpdate", operands, QUpdateAttrs("sum", by_rows=by_rows, limit=limit))


@generator("QWeightApplyFine", 2 * len(WEIGHTS))
def _weight_apply_fine(rng: Rng, index: int) -> Case:
    shape, kind = listed(rng, WEIGHTS, index, 2), (index + index // len(WEIGHTS)) % KINDS
    w, fraction = bytes_of(rng, shape, kind), bytes_of(rng, shape, kind)
    operands = (w, words(rng, shape, kind, 20000), *steps(rng, shape[0], kind), fraction)
    attrs = QUpdateAttrs("sum", fine=True, by_rows=index >= len(WEIGHTS), limit=(127, 64)[index % 2])
    return make("QUpdate", operands, attrs)


def _floats(rng: Rng, shape: tuple[int, ...], kind: int) -> np.ndarray:
    """Gradients as float32: whole numbers, halves, what is between, and what no int32 holds."""
    rest = rng.choice([0.0, 0.5, -0.5, 0.25, -0.375, 3e9, -3e9], shape)
    return (words(rng, shape, kind, 20000) + rest).astype(np.float32).astype(np.float64)


@generator("QRoundGradient", 2 * len(WEIGHTS))
def _round_gradient(rng: Rng, index: int) -> Case:
    return make(
        "QSum", (_floats(rng, listed(rng, WEIGHTS, index, 2), index % KINDS),), QSumAttrs("float", running=False)
    )


@generator("QRoundedSum", 2 * len(WEIGHTS))
def _rounded_sum(rng: Rng, index: int) -> Case:
    shape, kind = listed(rng, WEIGHTS, index, 2), (index + index // len(WEIGHTS)) % KINDS
    return make("QSum", (words(rng, shape, kind, 20000), _floats(rng, shape, kind)), QSumAttrs("float"), ())


@generator("QRoundedUpdate", 2 * len(WEIGHTS))
def _rounded_update(rng: Rng, index: int) -> Case:
    shape, kind = listed(rng, WEIGHTS, index, 2), (index + index // len(WEIGHTS)) % KINDS
    operands = (bytes_of(rng, shape, kind), _floats(rng, shape, kind), *steps(rng, shape[0], kind), *noise(rng))
    return make("QUpdate", operands, QUpdateAttrs("float", limit=(127, 64)[index % 2]))


@generator("QRoundedUpdateFine", 2 * len(WEIGHTS))
def _rounded_update_fine(rng: Rng, index: int) -> Case:
    shape, kind = listed(rng, WEIGHTS, index, 2), (index + index // len(WEIGHTS)) % KINDS
    w, fraction = bytes_of(rng, shape, kind), bytes_of(rng, shape, kind)
    operands = (w, _floats(rng, shape, kind), *steps(rng, shape[0], kind), fraction)
    return make("QUpdate", operands, QUpdateAttrs("float", fine=True, limit=(127, 64)[index % 2]))


@generator("QMomentum", 4 * len(WEIGHTS))
def _momentum(rng: Rng, index: int) -> Case:
    return _with_velocity(rng, index, QMomentumAttrs())


@generator("QSignMomentum", 4 * len(WEIGHTS))
def _sign_momentum(rng: Rng, index: int) -> Case:
    return _with_velocity(rng, index, QMomentumAttrs(signed=True))


def _with_velocity(rng: Rng, index: int, attrs: QMomentumAttrs) -> Case:
    shape, kind = listed(rng, (*WEIGHTS, (7,), (1,)), index, 3), (index + index // KINDS) % KINDS
    _, shift, rate, p = momentum_factors(rng, kind, steps(rng, shape[0], kind), attrs.signed)
    state = (bytes_of(rng, shape, kind, -127), peak(rng, kind))
    rest = (shift, rate, p, velocity_exponent(rng, kind, int(p[0])), *noise(rng))
    return make("QMomentum", (words(rng, shape, kind, 20000), *state, *rest), attrs)


@generator("QBiasGradient", 2 * len(ERRORS))
def _bias_gradient(rng: Rng, index: int) -> Case:
    g = bytes_of(rng, listed(rng, ERRORS, index, 2), index % KINDS, -127)
    return make("QSum", (g,), QSumAttrs("errors", running=False))


@generator("QSharedBias", 8)
def _shared_bias(rng: Rng, index: int) -> Case:
    channels, kind = (1, 5, 8)[index % 3], index % KINDS
    bias = words(rng, (channels,), kind, 30000)
    return make("QSharedBias", (bias, *_ratios(rng, channels)))


SHARED: tuple[tuple[int, ...], ...] = ((4, 3, 3, 2), (5, 1, 1, 7), (1, 1, 1, 1), (7,), (1,))


@generator("QGradientAdd", 4 * len(SHARED))
def _gradient_add(rng: Rng, index: int) -> Case:
    shape, kind = SHARED[index % len(SHARED)], index % KINDS
    sums = (words(rng, shape, kind, 20000), words(rng, shape, (kind + index // KINDS) % KINDS, 20000))
    p = tuple(np.asarray([int(rng.integers(-20, 21)), 0][:length], np.int32) for length in ((1, 2), (2, 2))[index % 2])
    attrs = ((0, 0), (8, 0), (8, 8))[index % 3]
    return make("QGradientAdd", (*sums, *p, *_ratios(rng, shape[0]), *_ratios(rng, shape[0])), GradientAddAttrs(*attrs))


def _ratios(rng: Rng, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors per channel, 1 among them."""
    return split_factors(np.where(rng.random(channels) < 0.3, 1.0, 2.0 ** rng.uniform(-12, 3, channels)))


PEAKS = (0, 1, 2, 31, 62, 63, 64, 126, 127, 1000, 63 << 20, (63 << 25) - 1, (63 << 25) + 1, INT32_MAX)
FLOAT_PEAKS = (0.0, 1e-45, 1e-30, 0.49, 62.9, 63.0, 63.0001, 64.0, 3e38, float("inf"))


@generator("ExponentUpdate", 2 * len(PEAKS) + len(FLOAT_PEAKS))
def _exponent_update(rng: Rng, index: int) -> Case:
    if index >= len(PEAKS) + len(FLOAT_PEAKS):
        kept = np.asarray(
            [int(rng.integers(-100, 101)), (7, -1, 0, 6)[index % 4], int(rng.integers(-100, 101))], np.int32
        )
        return make("ExponentUpdate", (kept, np.asarray(PEAKS[index % len(PEAKS)], np.int32)), ExponentAttrs())
    state = np.asarray([int(rng.integers(-100, 101)) if index % 2 else -7, (7, 0, 6)[index % 3]], np.int32)
    if index < len(PEAKS):
        return make("ExponentUpdate", (state, np.asarray(PEAKS[index], np.int32)), ExponentAttrs())
    bits = np.asarray(FLOAT_PEAKS[index - len(PEAKS)], np.float32).view(np.int32)
    return make("ExponentUpdate", (state, bits), ExponentAttrs(True))


@generator("NoiseTick", 4)
def _noise_tick(rng: Rng, index: int) -> Case:
    state = (0, INT32_MIN, INT32_MAX, int(rng.integers(INT32_MIN, INT32_MAX)))[index]
    return make("NoiseTick", (np.asarray(state, np.int32),), NO_ATTRS)


def channel_rescale(rng: Rng, index: int, bias: bool, fine: bool) -> Case:
    """Rows with and without a weight at the limit; shifts with and without room; slices of channels in any place."""
    shape, kind = WEIGHTS[index % len(WEIGHTS)], index // len(WEIGHTS)
    attrs = ChannelRescaleAttrs(bias, fine, sliced=index % 2 == 1, limit=(127, 64)[kind % 2])
    rows, channels = shape[0], shape[0] + 3 * attrs.sliced
    most = rng.choice([attrs.limit - 1, attrs.limit, 127], (rows, 1, 1, 1))
    w = np.clip(rng.integers(-160, 160, shape), -most, most).astype(np.int8)

    def shifts(count: int) -> np.ndarray:
        return (rng.integers(-20, 20, count) if kind < 2 else rng.integers(-103, 103, count)).astype(np.int8)

    operands = [w, shifts(channels), shifts(channels), shifts(rows)]
    operands += [words(rng, (channels,), kind, 3000), shifts(channels)] if bias else []
    operands += [bytes_of(rng, shape, 0)] if fine else []
    operands += [np.sort(rng.permutation(channels)[:rows]).astype(np.int32)] if attrs.sliced else []
    return make("ChannelRescale", tuple(operands), attrs)


for _bias in (False, True):
    for _fine in (False, True):
        generator(form_name("ChannelRescale", ChannelRescaleAttrs(_bias, _fine)), 4 * len(WEIGHTS))(
            lambda rng, index, bias=_bias, fine=_fine: channel_rescale(rng, index, bias, fine)
        )
