"""Random cases of integer ops element by element, and of the borders between int8 and float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from testing.ops.case import Case, Rng, generator, listed, make
from testing.ops.case_quantised import (
    KINDS,
    MASKS,
    SMALLER,
    bounds,
    bytes_of,
    exponent,
    factor,
    factors,
    mask,
    mask_of,
    peak,
    zero_point,
)
from tinytrain_compile.ops.int8.error import MaskAttrs
from tinytrain_compile.ops.int8.pointwise import (
    ErrorAttrs,
    ErrorUnitAttrs,
    QAddAttrs,
    QRescaleAttrs,
    QuantAttrs,
    rescale_lift,
)

SHAPES: tuple[tuple[int, ...], ...] = (
    (1, 4, 5, 3),
    (7,),
    (2, 9),
    (1, 1, 1, 5),
    (1, 3, 3, 8),
    (3, 4, 5),
    (1, 1),
    (1, 17),
)


def _shape(rng: Rng, index: int) -> tuple[tuple[int, ...], int]:
    return listed(rng, SHAPES, index, 3), index % KINDS if index >= len(SHAPES) else 0


def _mask(rng: Rng, index: int) -> MaskAttrs:
    return mask(rng, MASKS[(index + index // len(SHAPES)) % 3])


@generator("QAdd", 3 * len(SHAPES))
def _qadd(rng: Rng, index: int) -> Case:
    return of_relu(qadd(rng, *_shape(rng, index)), index % 3 == 1)


def of_relu(case: Case, wanted: bool = True) -> Case:
    """What case_quantised.of_relu does to a convolution."""
    attrs: Any = case.attrs
    if not wanted:
        return case
    factors = {name: getattr(attrs, name) for name in ("factor", "a_factor", "b_factor") if hasattr(attrs, name)}
    smaller = {name: (multiplier, max(shift - SMALLER, -128)) for name, (multiplier, shift) in factors.items()}
    attrs = replace(attrs, low=attrs.y_zero, high=max(attrs.high, attrs.y_zero), above=True, **smaller)
    return replace(case, attrs=attrs)


def qadd(rng: Rng, shape: tuple[int, ...], kind: int) -> Case:
    zeros = (zero_point(rng, kind), zero_point(rng, kind), zero_point(rng, kind))
    attrs = QAddAttrs(*zeros, factor(rng, kind, 2.0**-12), factor(rng, kind, 2.0**-13), *bounds(rng))
    return make("QAdd", (bytes_of(rng, shape, kind), bytes_of(rng, shape, kind)), attrs)


RESCALES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1, 4, 5, 3), (1, 2)),
    ((1, 4, 5, 7), ()),
    ((1, 7, 7, 9), (1, 2)),
    ((2, 3, 4), (2,)),
    ((1, 1, 1, 6), (1, 2)),
    ((2, 5), (0, 1)),
    ((11,), ()),
    ((1, 3, 2, 4), (0, 2)),
)


@generator("QRescale", 2 * len(RESCALES))
def _qrescale(rng: Rng, index: int) -> Case:
    kind = 0 if index < len(RESCALES) else index % KINDS
    shape = listed(rng, [shape for shape, _ in RESCALES], index, 2)
    return of_relu(qrescale(rng, shape, RESCALES[index % len(RESCALES)][1], kind, index), index % 3 == 1)


def qrescale(rng: Rng, shape: tuple[int, ...], axes: tuple[int, ...], kind: int, index: int) -> Case:
    count = int(np.prod([shape[axis] for axis in axes], dtype=int))
    lift = (rescale_lift(count), 0, 3)[index % 3]
    to = factor(rng, kind, 0.9 / count * 2.0**-lift)
    attrs = QRescaleAttrs(axes, zero_point(rng, kind), zero_point(rng, kind), to, *bounds(rng), lift)
    return make("QRescale", (bytes_of(rng, shape, kind),), attrs)


def any_floats(rng: Rng, shape: tuple[int, ...], kind: int) -> np.ndarray:
    """Numbers of ordinary size; halves (ties); any bit patterns, NaN, infinities and denormals among them."""
    if kind == 0:
        return rng.standard_normal(shape)
    if kind == 1:
        return rng.integers(-600, 600, shape) / 2.0
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32).astype(np.float64)
    edges = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -3e38])
    return np.where(rng.random(shape) < 0.3, rng.choice(edges, shape), values)


@generator("Quantize", 3 * len(SHAPES))
def _quantise(rng: Rng, index: int) -> Case:
    shape, kind = _shape(rng, index)
    scale = (0.01, 1.0, 1e-20, 3e20)[kind]
    return make("Quantize", (any_floats(rng, shape, kind),), QuantAttrs(scale, zero_point(rng, kind), *bounds(rng)))


@generator("Dequantize", len(SHAPES))
def _dequantise(rng: Rng, index: int) -> Case:
    kind = index % KINDS
    attrs = QuantAttrs(float(np.float32(rng.uniform(0.001, 2))), zero_point(rng, kind))
    return make("Dequantize", (bytes_of(rng, SHAPES[index], kind),), attrs)


@generator("ErrorScale", 3 * len(SHAPES))
def _error_scale(rng: Rng, index: int) -> Case:
    return error_scale(rng, *_shape(rng, index), _mask(rng, index))


def error_scale(rng: Rng, shape: tuple[int, ...], kind: int, clamp: MaskAttrs) -> Case:
    exponents = (exponent(rng, kind), exponent(rng, kind))
    e = bytes_of(rng, shape, kind, -127)
    operands = (peak(rng, kind), *exponents, e, *factors(rng, shape[-1], kind, 0.5), *mask_of(rng, shape, clamp))
    return make("ErrorScale", operands, ErrorAttrs(0, clamp))


@generator("ErrorAdd", 3 * len(SHAPES))
def _error_add(rng: Rng, index: int) -> Case:
    return error_add(rng, *_shape(rng, index), _mask(rng, index))


def error_add(rng: Rng, shape: tuple[int, ...], kind: int, clamp: MaskAttrs) -> Case:
    exponents = (exponent(rng, kind), exponent(rng, kind), exponent(rng, kind))
    errors = (bytes_of(rng, shape, kind, -127), bytes_of(rng, shape, kind, -127))
    return make("ErrorAdd", (peak(rng, kind), *exponents, *errors, *mask_of(rng, shape, clamp)), ErrorAttrs(0, clamp))


@generator("QuantizeError", 3 * len(SHAPES))
def _quantise_error(rng: Rng, index: int) -> Case:
    shape, kind = _shape(rng, index)
    g = any_floats(rng, shape, kind) * (0.1 if kind == 0 else 1.0)
    attrs = ErrorUnitAttrs((1.0, 0.5, 3.7e-3, 1e20)[kind])
    seen = np.asarray(0 if rng.random() < 0.5 else 0x3F800000, np.int32)
    return make("QuantizeError", (seen, exponent(rng, kind), g), attrs, ())


@generator("DequantizeError", 2 * len(SHAPES))
def _dequantise_error(rng: Rng, index: int) -> Case:
    shape, kind = _shape(rng, index)
    p = exponent(rng, kind) if index % 3 else np.asarray([(-150, 140)[index % 2], 0], np.int32)
    return make("DequantizeError", (p, bytes_of(rng, shape, kind)), ErrorUnitAttrs(float(rng.uniform(0.01, 1))))


@generator("QClipMask", len(SHAPES))
def _clip_mask(rng: Rng, index: int) -> Case:
    return clip_mask(rng, listed(rng, SHAPES, index, 1))


def clip_mask(rng: Rng, shape: tuple[int, ...]) -> Case:
    clamp = mask(rng, "value")
    return make("QClipMask", mask_of(rng, shape, clamp), clamp)
