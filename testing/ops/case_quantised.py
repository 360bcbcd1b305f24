"""Random cases of the integer ops: ordinary data and extremes (saturation, both ends of factors and of shifts)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from testing.ops.case import Bits, Case, Generator, Rng, generator, make
from testing.ops.case_linear import CONVS, weight_parts
from tinytrain_compile.ops import Split
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.fixed_point import INT32_MAX, INT32_MIN, split_factor, split_factors
from tinytrain_compile.ops.int8.conv import QConvAttrs, QConvGradInputAttrs
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.update import Momentum, QSumAttrs, QUpdateAttrs

Geometry = tuple[tuple[int, ...], int, ConvAttrs]

GEOMETRIES: tuple[Geometry, ...] = (
    *((shape, out, attrs) for shape, out, attrs in CONVS),
    ((1, 1, 1, 7), 5, ConvAttrs((1, 1))),
    ((1, 1, 1, 3), 4, ConvAttrs((3, 3), pads=(1, 1, 1, 1))),
    ((1, 5, 7, 3), 5, ConvAttrs((3, 3), (2, 2), (0, 0, 1, 1))),
    ((1, 7, 5, 9), 9, ConvAttrs((5, 5), (2, 2), (2, 2, 2, 2), groups=9)),
    ((1, 4, 4, 6), 3, ConvAttrs((3, 3), pads=(1, 1, 1, 1), groups=3)),
    ((1, 9, 9, 13), 11, ConvAttrs((1, 1))),
    ((1, 5, 6, 2), 4, ConvAttrs((3, 3), pads=(1, 1, 1, 1), groups=2)),
)
KINDS = 4
"""Of data: 0 ordinary, 1 wild, 2 and 3 all at one end with factors and exponents at theirs."""
REPEATS = 2


def bytes_of(rng: Rng, shape: tuple[int, ...], kind: int, low: int = -128) -> np.ndarray:
    """int8 data: random, or all at one end."""
    if kind >= 2:
        return np.full(shape, low if kind == 2 else 127, np.int8)
    return rng.integers(low, 128, shape).astype(np.int8)


def words(rng: Rng, shape: tuple[int, ...], kind: int, usual: int) -> np.ndarray:
    """int32 data: of a usual magnitude, or any."""
    if kind == 0:
        return rng.integers(-usual, usual + 1, shape).astype(np.int32)
    if kind == 1:
        return rng.integers(INT32_MIN, INT32_MAX + 1, shape).astype(np.int32)
    return np.full(shape, INT32_MIN if kind == 2 else INT32_MAX, np.int32)


def factors(rng: Rng, channels: int, kind: int, usual: float) -> tuple[np.ndarray, np.ndarray]:
    """(multiplier, shift) per channel: around a usual factor, or anything down to a shift of -31 and up to +10."""
    if kind == 0:
        return split_factors(usual * rng.uniform(0.3, 3.0, channels))
    multipliers = rng.choice([0, 1 << 30, (1 << 30) + 1, 0x5A82799A, INT32_MAX - 1, INT32_MAX], channels)
    shifts = rng.integers(-31, 11, channels) if kind == 1 else rng.choice([-31, -8, 0, 10], channels)
    return multipliers.astype(np.int32), shifts.astype(np.int8)


def factor(rng: Rng, kind: int, usual: float) -> tuple[int, int]:
    multiplier, shift = factors(rng, 1, kind, usual)
    return int(multiplier[0]), int(shift[0])


def exponent(rng: Rng, kind: int, usual: int = -7) -> np.ndarray:
    """State of an error's exponent."""
    value = usual + int(rng.integers(-2, 3)) if kind == 0 else int(rng.integers(-100, 101))
    return np.asarray([value, int(rng.integers(0, 8))], np.int32)


def peak(rng: Rng, kind: int) -> np.ndarray:
    return np.asarray((0, 5, 300, INT32_MAX)[kind] if rng.random() < 0.5 else 0, np.int32)


def zero_point(rng: Rng, kind: int) -> int:
    return int(rng.integers(-128, 128)) if kind < 2 else (127, -128)[kind - 2]


def bounds(rng: Rng) -> tuple[int, int]:
    """Limits of an output."""
    return [(-128, 127), (-128, 100), (-3, 127), (5, 60)][int(rng.integers(0, 4))]


def mask(rng: Rng, kind: str) -> MaskAttrs:
    """A mask of a kind, for a clamp to some bounds, or one with an end beyond int8."""
    return MaskAttrs(kind, *(bounds(rng), (-128, 128), (-129, 100))[int(rng.integers(0, 3))]) if kind else MaskAttrs()


def mask_of(rng: Rng, shape: tuple[int, ...], attrs: MaskAttrs) -> tuple[Any, ...]:
    """The mask operand of an error op: the int8 output of a clamp that is often at its limits, or bits."""
    if attrs.kind == "value":
        return (np.clip(rng.integers(-200, 200, shape), max(attrs.low, -128), min(attrs.high, 127)).astype(np.int8),)
    if attrs.kind == "bits":
        return (Bits(shape, np.packbits(rng.random(shape).ravel() < 0.6, bitorder="little")),)
    return ()


MASKS = ("", "value", "bits")


# ---- convolutions ---------------------------------------------------------------------------------------------------


def _output(geometry: Geometry) -> tuple[int, ...]:
    shape, out, attrs = geometry
    return (shape[0], *attrs.output_hw(shape[1], shape[2]), out)


def _weight_shape(geometry: Geometry) -> tuple[int, ...]:
    shape, out, attrs = geometry
    return (out, *attrs.kernel, shape[3] // attrs.groups)


def qconv(rng: Rng, geometry: Geometry, kind: int, once: bool = False) -> Case:
    shape, out, conv = geometry
    taps = int(np.prod(_weight_shape(geometry)[1:]))
    low, high = bounds(rng)
    multiplier, shift = factors(rng, out, kind, 1 / (60 * taps**0.5))
    if rng.random() < 0.5:
        shift = np.minimum(shift, np.int8(-1))
    down = bool(((shift < 0) & (multiplier != 0)).all())
    zeros = zero_point(rng, kind), zero_point(rng, kind)
    attrs = QConvAttrs(replace(conv, bias=True), *zeros, low, high, down, once=once)
    w = weight_parts(bytes_of(rng, _weight_shape(geometry), kind), conv.split, 3)
    bias = words(rng, (out,), kind, 2000)
    return make("QConv", (bytes_of(rng, shape, kind), *w, bias, multiplier, shift), attrs, images=(0,))


def of_relu(case: Case, wanted: bool = True) -> Case:
    """The same with a ReLU that a gradient goes back through: positive sums stay above zero, and many round to it."""
    attrs: Any = case.attrs
    if not wanted:
        return case
    *rest, shift = case.arrays
    least = -31 if attrs.shifts_down else -128
    attrs = replace(attrs, low=attrs.y_zero, high=max(attrs.high, attrs.y_zero), above=True)
    return replace(case, attrs=attrs, arrays=(*rest, np.maximum(shift, least + SMALLER) - np.int8(SMALLER)))


def of_range(case: Case, which: int) -> Case:
    """The same as it is (0), with a ReLU (1), or with all of int8 as its range and sums that only shift down (2), which
    no multiplier of 0 does."""
    if which != 2:
        return of_relu(case, which == 1)
    *rest, multiplier, shift = case.arrays
    attrs: Any = replace(case.attrs, low=-128, high=127, shifts_down=True)  # type: ignore[call-arg]
    multiplier = np.where(multiplier == 0, np.int32(1 << 30), multiplier)
    return replace(case, attrs=attrs, arrays=(*rest, multiplier, np.clip(shift, -31, -1)))


SMALLER = 5
"""Bits by which outputs of a ReLU are smaller than those of other cases."""


def qconv_grad_input(rng: Rng, geometry: Geometry, kind: int, clamp: MaskAttrs) -> Case:
    shape, out, conv = geometry
    taps = int(np.prod(conv.kernel)) * out // conv.groups
    attrs = QConvGradInputAttrs(replace(conv, bias=False), (shape[1], shape[2]), int(rng.integers(-9, 9)), clamp)
    w = weight_parts(bytes_of(rng, _weight_shape(geometry), kind), conv.split, 3)
    scale = factors(rng, shape[3], kind, 1 / (60 * taps**0.5))
    g = bytes_of(rng, _output(geometry), kind, -127)
    exponents = (exponent(rng, kind), exponent(rng, kind))
    operands = (peak(rng, kind), *exponents, g, *scale, *w, *mask_of(rng, shape, clamp))
    return make("QConvGradInput", operands, attrs, images=(3,))


def steps(rng: Rng, channels: int, kind: int) -> tuple[np.ndarray, ...]:
    """(multiplier, shift, rate, p)"""
    rate = np.asarray(factor(rng, min(kind, 1), 0.01), np.int32)
    return (*factors(rng, channels, kind, 1.0), rate, exponent(rng, kind))


def noise(rng: Rng) -> tuple[np.ndarray, ...]:
    """(noise, salt)"""
    return tuple(np.asarray(rng.integers(INT32_MIN, INT32_MAX + 1), np.int32) for _ in range(2))


def _update_attrs(rng: Rng, geometry: Geometry, kind: int, fine: bool = False, momentum: Momentum = "") -> QUpdateAttrs:
    conv = replace(geometry[2], bias=False, split=None)
    zero, limit = zero_point(rng, kind), (127, 64)[int(rng.integers(0, 2))]
    return QUpdateAttrs("product", fine, momentum, conv=conv, x_zero=zero, limit=limit)


def qconv_update(rng: Rng, geometry: Geometry, kind: int) -> Case:
    w = bytes_of(rng, _weight_shape(geometry), kind)
    data = (bytes_of(rng, geometry[0], kind), bytes_of(rng, _output(geometry), kind, -127))
    operands = (w, *data, *steps(rng, geometry[1], kind), *noise(rng))
    return make("QUpdate", operands, _update_attrs(rng, geometry, kind), images=(1, 2))


def qconv_update_fine(rng: Rng, geometry: Geometry, kind: int) -> Case:
    w, fraction = (bytes_of(rng, _weight_shape(geometry), kind) for _ in range(2))
    data = (bytes_of(rng, geometry[0], kind), bytes_of(rng, _output(geometry), kind, -127))
    operands = (w, *data, *steps(rng, geometry[1], kind), fraction)
    return make("QUpdate", operands, _update_attrs(rng, geometry, kind, fine=True), images=(1, 2))


def momentum_factors(
    rng: Rng, kind: int, scale: tuple[np.ndarray, ...], signed: bool = False
) -> tuple[np.ndarray, ...]:
    """steps() with a rate that holds momentum N and 1 / N too, and what is ahead of a sign."""
    multiplier, shift, rate, p = scale
    factors = [0.9 * (1 + kind), 1 / (1 + kind), *([9.0 * (1 + kind)] if signed else [])]
    more = np.asarray([split_factor(factor) for factor in factors], np.int32).ravel()
    return multiplier, shift, np.concatenate([rate, more]).astype(np.int32), p


def velocity_exponent(rng: Rng, kind: int, unit: int) -> np.ndarray:
    """{next, quiet, stored}: around what a gradient needs, or anything."""
    usual = unit + rng.integers(7, 12, 2)
    stored, after = usual if kind == 0 else rng.integers(-100, 101, 2)
    return np.asarray([after, rng.integers(0, 8), stored], np.int32)


def qconv_momentum(rng: Rng, geometry: Geometry, kind: int, fine: bool, momentum: Momentum = "sum") -> Case:
    w, velocity = (bytes_of(rng, _weight_shape(geometry), kind, -127) for _ in range(2))
    data = (bytes_of(rng, geometry[0], kind), bytes_of(rng, _output(geometry), kind, -127))
    scale = momentum_factors(rng, kind, steps(rng, geometry[1], kind), momentum == "sign")
    state = (velocity, peak(rng, kind), velocity_exponent(rng, kind, int(scale[3][0])), *noise(rng))
    last = bytes_of(rng, _weight_shape(geometry), kind) if fine else noise(rng)[0]
    attrs = _update_attrs(rng, geometry, kind, fine, momentum)
    return make("QUpdate", (w, *data, *scale, *state, last), attrs, images=(1, 2))


def qconv_sum(rng: Rng, geometry: Geometry, kind: int) -> Case:
    total = words(rng, _weight_shape(geometry), kind, 10000)
    data = (bytes_of(rng, geometry[0], kind), bytes_of(rng, _output(geometry), kind, -127))
    attrs = _update_attrs(rng, geometry, kind)
    return make("QSum", (total, *data), QSumAttrs("product", conv=attrs.conv, x_zero=attrs.x_zero), images=(1, 2))


def _spread(index: int) -> tuple[Geometry, int]:
    """Every geometry with ordinary data, and again with data of the other kinds in turn."""
    round_, place = divmod(index, len(GEOMETRIES))
    return GEOMETRIES[place], 0 if round_ == 0 else 1 + place % (KINDS - 1)


def rounds_once(geometry: Geometry, index: int) -> bool:
    """Tell whether a case is a dense layer: a product of one pixel, and the second case of every other product."""
    shape, _, conv = geometry
    product = conv.kernel == conv.strides == (1, 1) and conv.groups == 1
    return product and (shape[1:3] == (1, 1) or index >= len(GEOMETRIES))


@generator("QConv", REPEATS * len(GEOMETRIES))
def _qconv(rng: Rng, index: int) -> Case:
    geometry, kind = _spread(index)
    return of_relu(qconv(rng, geometry, kind, rounds_once(geometry, index)), index % 3 == 1)


@generator("QConvGradInput", REPEATS * len(GEOMETRIES))
def _qconv_grad_input(rng: Rng, index: int) -> Case:
    return qconv_grad_input(rng, *_spread(index), mask(rng, MASKS[index % 3]))


@generator("QConvUpdate", REPEATS * len(GEOMETRIES))
def _qconv_update(rng: Rng, index: int) -> Case:
    return qconv_update(rng, *_spread(index))


@generator("QConvUpdateFine", REPEATS * len(GEOMETRIES))
def _qconv_update_fine(rng: Rng, index: int) -> Case:
    return qconv_update_fine(rng, *_spread(index))


@generator("QConvMomentum", REPEATS * len(GEOMETRIES))
def _qconv_momentum(rng: Rng, index: int) -> Case:
    return qconv_momentum(rng, *_spread(index), fine=False)


@generator("QConvMomentumFine", REPEATS * len(GEOMETRIES))
def _qconv_momentum_fine(rng: Rng, index: int) -> Case:
    return qconv_momentum(rng, *_spread(index), fine=True)


@generator("QConvSignMomentum", REPEATS * len(GEOMETRIES))
def _qconv_sign_momentum(rng: Rng, index: int) -> Case:
    return qconv_momentum(rng, *_spread(index), fine=False, momentum="sign")


@generator("QConvSignMomentumFine", REPEATS * len(GEOMETRIES))
def _qconv_sign_momentum_fine(rng: Rng, index: int) -> Case:
    return qconv_momentum(rng, *_spread(index), fine=True, momentum="sign")


@generator("QConvSum", REPEATS * len(GEOMETRIES))
def _qconv_sum(rng: Rng, index: int) -> Case:
    return qconv_sum(rng, *_spread(index))


# ---- random geometries ----------------------------------------------------------------------------------------------


def _split(rng: Rng, out: int, channels: int, groups: int) -> Split | None:
    axis = "out" if groups > 1 or rng.random() < 0.5 else "in"
    total = out if axis == "out" else channels
    chosen = tuple(int(i) for i in np.flatnonzero(rng.random(total) < 0.5))
    if rng.random() < 0.6 or not 0 < len(chosen) < total:
        return None
    return Split(axis, chosen, total)


def geometry(rng: Rng, splits: bool) -> Geometry:
    """A random convolution: dense, depthwise or grouped, few or many channels, odd sizes, strides, dilations, pads."""

    def pair(usual: float, low: int, high: int) -> tuple[int, int]:
        return (1, 1) if rng.random() < usual else (int(rng.integers(low, high)), int(rng.integers(low, high)))

    while True:
        height, width = (int(n) for n in rng.integers(1, 10, 2))
        groups = int(rng.choice([1, 1, 1, 3, 5]))
        channels = int(rng.integers(1, 14) * rng.choice([1, 4])) if groups == 1 else groups * int(rng.choice([1, 1, 2]))
        out = int(rng.integers(1, 14)) if groups == 1 else groups * int(rng.choice([1, 1, 2]))
        kernel, strides, dilations = pair(0.3, 1, 8), pair(0.4, 1, 4), pair(0.6, 1, 3)
        pads = tuple(int(rng.integers(0, (kernel[i % 2] - 1) * dilations[i % 2] + 1)) for i in range(4))
        split = _split(rng, out, channels, groups) if splits else None
        conv = ConvAttrs(kernel, strides, (pads[0], pads[1], pads[2], pads[3]), dilations, groups, split=split)
        try:
            conv.output_hw(height, width)
        except ValueError:
            continue
        return (1, height, width, channels), out, conv


def first_layer(rng: Rng) -> Geometry:
    """Of one or three channels, pairs of pixels and of channels out; every second window is a column."""
    kernel = (int(rng.integers(3, 6)), int(rng.integers(2, 5)) if rng.random() < 0.5 else 1)
    stride, columns, channels = int(rng.integers(1, 3)), 2 * int(rng.integers(1, 5)), int(rng.choice([1, 3]))
    before = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2)
    behind = (kernel[0] - 1 - before[0], stride * columns + kernel[1] - stride - before[1])
    height, width = int(rng.integers(3, 10)), max(1, behind[1] - int(rng.integers(0, kernel[1])))
    conv = ConvAttrs(kernel, (int(rng.integers(1, 3)), stride), (*before, behind[0], behind[1] - width))
    return (1, height, width, channels), 2 * int(rng.integers(1, 5)), conv


def wide_layer(rng: Rng) -> Geometry:
    """A layer with a small odd map and many channels. Its weights are widened a few channels at a time."""
    size, channels, out = 2 * int(rng.integers(2, 5)) + 1, int(rng.integers(24, 64)), 2 * int(rng.integers(8, 23)) + 1
    stride = int(rng.choice([1, 1, 2]))
    return (1, size, size, channels), out, ConvAttrs((3, 3), (stride, stride), (1, 1, 1, 1))


def spread_layer(rng: Rng, strides: int = 1) -> Geometry:
    """Depthwise, of four channels or more, most of them dilated; strides: the largest."""
    high, wide = (int(n) for n in rng.integers(7, 22, 2))
    rows, columns = (int(n) for n in rng.choice([1, 3, 3, 5], 2))
    down, right = (int(n) for n in rng.integers(1, 4, 2))
    above, left = rows // 2 * down, columns // 2 * right
    step, channels = int(rng.integers(1, strides + 1)), int(rng.integers(4, 10))
    conv = ConvAttrs((rows, columns), (step, step), (above, left, above, left), (down, right), channels)
    return (1, high, wide, channels), channels, conv


FIRST_LAYER, OTHER_LAYERS = 3, 7
"""One in so many random convolutions is one; of so many, one is wide and one spread."""


def random_qconv(rng: Rng, index: int) -> Case:
    """Any convolution, or one like a network's first, whose windows may be runs of a line."""
    if index % FIRST_LAYER == 0:
        return of_range(qconv(rng, first_layer(rng), index // FIRST_LAYER % KINDS), 2)
    if index % OTHER_LAYERS in (0, 1):
        shape = wide_layer(rng) if index % OTHER_LAYERS else spread_layer(rng)
        return of_range(qconv(rng, shape, index // OTHER_LAYERS % KINDS), 2)
    return of_range(qconv(rng, geometry(rng, True), index % KINDS), index % 5 % 3)


def random_qconv_grad_input(rng: Rng, index: int) -> Case:
    """A data gradient of any convolution, or of a depthwise one with dilations or strides."""
    shape = spread_layer(rng, 3) if index % OTHER_LAYERS == 1 else geometry(rng, True)
    return qconv_grad_input(rng, shape, index % KINDS, mask(rng, MASKS[index % 3]))


RANDOM_QUANTISED: dict[str, Generator] = {
    "QConv": random_qconv,
    "QConvGradInput": random_qconv_grad_input,
    "QConvUpdate": lambda rng, index: qconv_update(rng, geometry(rng, False), index % KINDS),
    "QConvUpdateFine": lambda rng, index: qconv_update_fine(rng, geometry(rng, False), index % KINDS),
    "QConvMomentum": lambda rng, index: qconv_momentum(rng, geometry(rng, False), index % KINDS, False),
    "QConvMomentumFine": lambda rng, index: qconv_momentum(rng, geometry(rng, False), index % KINDS, True),
    "QConvSum": lambda rng, index: qconv_sum(rng, geometry(rng, False), index % KINDS),
}
