"""Integer ops between convolutions, and the borders between int8 and float regions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.ir.types import Array, Attrs, Node, TensorType, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops.base import ELEMENTWISE, operator, traits
from tinytrain_compile.ops.int8.conv import QConvAttrs
from tinytrain_compile.ops.int8.error import BACKWARD, NO_CLAMP, MaskAttrs, error_infer, expect_dtypes, finish_error
from tinytrain_compile.ops.int8.rows import rows_of_elements
from tinytrain_compile.ops.names import named
from tinytrain_compile.ops.overlap import element_by_element, packed_bits
from tinytrain_compile.ops.owned import ErrorState

ADD_BITS, SUM_BITS = 20, 8
"""Left shift of centred operands before they are rescaled, and the fraction bits that the sum keeps."""
LIFT = 16
"""Left shift of errors before exponents are aligned."""


@dataclass(frozen=True)
class QuantAttrs(Attrs):
    """real = (q - zero) * scale."""

    scale: float
    zero: int
    low: int = -128
    high: int = 127


@dataclass(frozen=True)
class QAddAttrs(Attrs):
    """Zero points, and each operand's factor to the output's scale times 2**(SUM_BITS - ADD_BITS).

    above: see QConvAttrs; it concerns the sum with SUM_BITS of fraction.
    """

    a_zero: int
    b_zero: int
    y_zero: int
    a_factor: tuple[int, int]
    b_factor: tuple[int, int]
    low: int = -128
    high: int = 127
    above: bool = False


@dataclass(frozen=True)
class QRescaleAttrs(Attrs):
    """axes: summed over (empty: none), kept as 1; factor from the (summed) input's scale to the output's, 2**-lift.

    lift: left shift of the centred sum before it is rescaled, so that the first rounding of requantisation is far below
    1. above: see QConvAttrs.
    """

    axes: tuple[int, ...]
    x_zero: int
    y_zero: int
    factor: tuple[int, int]
    low: int = -128
    high: int = 127
    lift: int = 0
    above: bool = False


@dataclass(frozen=True)
class ErrorAttrs(Attrs):
    """probe, mask: see QConvGradInputAttrs."""

    probe: int = 0
    mask: MaskAttrs = NO_CLAMP


@dataclass(frozen=True)
class ErrorUnitAttrs(Attrs):
    """unit: real value of an error of 1 with exponent 0."""

    unit: float = 1.0


def _shapes_agree(op: str, *values: Value) -> None:
    if any(v.shape != values[0].shape for v in values):
        raise ValueError(f"{op}: shapes {[v.shape for v in values]}")


# ---- activations ----------------------------------------------------------------------------------------------------


def _qadd_infer(inputs: tuple[Value, ...], _attrs: QAddAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QAdd", inputs, ("int8", "int8"))
    a, b = inputs
    _shapes_agree("QAdd", a, b)
    return (a.type,)


def _qadd(arrays: tuple[Array, ...], attrs: QAddAttrs) -> tuple[Array, ...]:
    a, b = arrays
    total = np.zeros(a.shape, np.int64)
    for x, zero, factor in ((a, attrs.a_zero, attrs.a_factor), (b, attrs.b_zero, attrs.b_factor)):
        total += fx.requantise((x.astype(np.int64) - zero) << ADD_BITS, *factor)
    y = fx.shift_right(total, SUM_BITS)
    y = fx.above(y, total) if attrs.above else y
    return (np.clip(y + attrs.y_zero, attrs.low, attrs.high).astype(np.int8),)


operator(
    "QAdd",
    "int8 sum of two tensors of different scales.",
    _qadd_infer,
    _qadd,
    BACKWARD,
    QAddAttrs,
    inputs=("a", "b"),
    reuses=("a", "b"),
    rows=rows_of_elements("a", "b"),
    traits=ELEMENTWISE,
)


def _rescale_infer(inputs: tuple[Value, ...], attrs: QRescaleAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QRescale", inputs, ("int8",))
    (x,) = inputs
    shape = tuple(1 if i in attrs.axes else d for i, d in enumerate(x.shape))
    return (TensorType(shape, "int8", x.layout),)


def _rescale_bound(inputs: tuple[Value, ...], attrs: QRescaleAttrs) -> int:
    (x,) = inputs
    return (255 * math.prod(x.shape[i] for i in attrs.axes)) << attrs.lift


def plainly_rounded(node: Node) -> Node:
    """Return the node with every sum rounded to the nearest: without `above`."""
    attrs = node.attrs
    if isinstance(attrs, QConvAttrs | QAddAttrs | QRescaleAttrs) and attrs.above:
        return replace(node, attrs=replace(attrs, above=False))
    return node


def rescale_lift(elements: int) -> int:
    """Return the most bits (at most ADD_BITS) by which a sum of centred int8 numbers may be shifted to the left."""
    return min(ADD_BITS, (fx.INT32_MAX // (255 * elements)).bit_length() - 1)


def _rescale(arrays: tuple[Array, ...], attrs: QRescaleAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    acc = (x.astype(np.int64) - attrs.x_zero).sum(axis=attrs.axes, keepdims=True)
    y = fx.requantise(acc << attrs.lift, *attrs.factor)
    y = fx.above(y, acc) if attrs.above else y
    return (np.clip(y + attrs.y_zero, attrs.low, attrs.high).astype(np.int8),)


operator(
    "QRescale",
    "int8 tensor on another scale, summed over axes first if there are any (means).",
    _rescale_infer,
    _rescale,
    BACKWARD,
    QRescaleAttrs,
    accumulator=_rescale_bound,
    inputs=("x",),
    reuses=("x",),
    rows=rows_of_elements("x"),
)


def round_even(x: Array) -> Array:
    """Round float32 to integers, ties to even, for |x| < 2**22, by adding and subtracting 1.5 * 2**23."""
    magic = np.float32(12582912.0)
    return (x + magic) - magic


def quantised(x: Array, scale: float, zero: int, low: int, high: int) -> Array:
    """Quantise real numbers to int64 within [low, high], as Quantize does: a float32 product, ties to even; NaN: 0."""
    scaled = x.astype(np.float32) * np.float32(1.0 / scale)
    limited = np.where(np.isnan(scaled), np.float32(0), np.clip(scaled, np.float32(-1024), np.float32(1024)))
    return np.clip(round_even(limited).astype(np.int64) + zero, low, high)


def _quantise(arrays: tuple[Array, ...], attrs: QuantAttrs) -> tuple[Array, ...]:
    (x,) = arrays
    return (quantised(x, attrs.scale, attrs.zero, attrs.low, attrs.high).astype(np.int8),)


def _dequantise(arrays: tuple[Array, ...], attrs: QuantAttrs) -> tuple[Array, ...]:
    (q,) = arrays
    return ((q.astype(np.int64) - attrs.zero).astype(np.float32) * np.float32(attrs.scale),)


def _quantise_infer(inputs: tuple[Value, ...], _attrs: QuantAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("Quantize", inputs, ("float32",))
    (x,) = inputs
    return (TensorType(x.shape, "int8", x.layout),)


def _dequantise_infer(inputs: tuple[Value, ...], _attrs: QuantAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("Dequantize", inputs, ("int8",))
    (q,) = inputs
    return (TensorType(q.shape, "float32", q.layout),)


operator(
    "Quantize",
    "float32 to int8: round(x / scale) + zero, clamped.",
    _quantise_infer,
    _quantise,
    BACKWARD,
    QuantAttrs,
    overlaps=element_by_element,
    inputs=("x",),
    outputs=("q",),
    traits=traits("elementwise", "border"),
)
operator(
    "Dequantize",
    "int8 to float32: (q - zero) scale.",
    _dequantise_infer,
    _dequantise,
    BACKWARD,
    QuantAttrs,
    overlaps=element_by_element,
    inputs=("q",),
    traits=traits("elementwise", "border"),
)


# ---- errors: never in place, since the first step after m_init computes every error twice (ErrorOperands) -----------


def _scale_infer(inputs: tuple[Value, ...], attrs: ErrorAttrs) -> tuple[TensorType, ...]:
    e, *factor = operands = named("ErrorScale", inputs, attrs).several("e", "multiplier", "shift")
    expect_dtypes("ErrorScale", operands, ("int8", "int32", "int8"))
    if any(v.shape != e.shape[-1:] for v in factor):
        raise ValueError("ErrorScale: multiplier and shift are one per channel")
    return error_infer("ErrorScale", e.type, inputs, attrs, attrs.mask)


def _scale(arrays: tuple[Array, ...], attrs: ErrorAttrs) -> tuple[Array, ...]:
    o = named("ErrorScale", arrays, attrs)
    exponent = o["shift"].astype(np.int64) + int(o["p_in"][0]) - int(o["p_out"][0]) - LIFT
    values = fx.requantise(o["e"].astype(np.int64) << LIFT, o["multiplier"], exponent)
    return finish_error(values, o["peak"], o.get("mask"), attrs.mask)


operator(
    "ErrorScale",
    "int8 error in another unit per channel, masked; operands (peak, p_out, p_in, e, multiplier, shift, [mask]).",
    _scale_infer,
    _scale,
    BACKWARD,
    ErrorAttrs,
    inputs=("peak", "p_out", "p_in", "e", "multiplier", "shift", "mask?"),
    outputs=("error", "peak"),
    present=lambda attrs: attrs.mask.operands,
    error=ErrorState(("p_in",)),
    rows=rows_of_elements("e"),
)


def _error_add_infer(inputs: tuple[Value, ...], attrs: ErrorAttrs) -> tuple[TensorType, ...]:
    a, b = named("ErrorAdd", inputs, attrs).several("a", "b")
    expect_dtypes("ErrorAdd", (a, b), ("int8", "int8"))
    _shapes_agree("ErrorAdd", a, b)
    return error_infer("ErrorAdd", a.type, inputs, attrs, attrs.mask)


def _error_add(arrays: tuple[Array, ...], attrs: ErrorAttrs) -> tuple[Array, ...]:
    o = named("ErrorAdd", arrays, attrs)
    total = np.zeros(o["a"].shape, np.int64)
    for e, p in ((o["a"], o["p_a"]), (o["b"], o["p_b"])):
        lifted = fx.shift(e.astype(np.int64) << LIFT, int(p[0]) - int(o["p_out"][0]) - LIFT + SUM_BITS)
        total += np.clip(lifted, -(1 << 29), 1 << 29)
    return finish_error(fx.shift_right(total, SUM_BITS), o["peak"], o.get("mask"), attrs.mask)


operator(
    "ErrorAdd",
    "Sum of two int8 errors of one unit; operands (peak, p_out, p_a, p_b, a, b, [mask]).",
    _error_add_infer,
    _error_add,
    BACKWARD,
    ErrorAttrs,
    inputs=("peak", "p_out", "p_a", "p_b", "a", "b", "mask?"),
    outputs=("error", "peak"),
    present=lambda attrs: attrs.mask.operands,
    error=ErrorState(("p_a", "p_b")),
    rows=rows_of_elements("a", "b"),
)


def exponent_factor(exponent: int) -> np.float32:
    """Return 2**exponent as float32, exponent clamped to the normal range."""
    return np.float32(2.0) ** np.float32(min(max(exponent, -126), 127))


def _quantise_error(arrays: tuple[Array, ...], attrs: ErrorUnitAttrs) -> tuple[Array, ...]:
    peak, p_out, g = arrays
    value = g.astype(np.float32) * np.float32(1.0 / attrs.unit)
    value = np.where(np.isnan(value), np.float32(0), value)
    bits = np.abs(value).view(np.uint32) if value.ndim else np.abs(value)[None].view(np.uint32)
    largest = np.asarray(max(int(peak), int(bits.max())), np.int32)
    scaled = value * exponent_factor(-int(p_out[0]))
    limit = np.float32(1024)
    limited = np.where(scaled > -limit, np.where(scaled < limit, scaled, limit), -limit)
    return np.clip(round_even(limited).astype(np.int64), -127, 127).astype(np.int8), largest


def _quantise_error_infer(inputs: tuple[Value, ...], _attrs: ErrorUnitAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QuantizeError", inputs, ("int32", "int32", "float32"))
    _, _, g = inputs
    return (TensorType(g.shape, "int8", g.layout), TensorType((), "int32"))


operator(
    "QuantizeError",
    "An error that leaves a float region: round(g / (unit 2**p)), +-127; operands (peak, p_out, g).",
    _quantise_error_infer,
    _quantise_error,
    BACKWARD,
    ErrorUnitAttrs,
    inputs=("peak", "p_out", "g"),
    outputs=("error", "peak"),
    error=ErrorState(float_peak=True),
    traits=traits("border"),
)


def _dequantise_error(arrays: tuple[Array, ...], attrs: ErrorUnitAttrs) -> tuple[Array, ...]:
    p, e = arrays
    return (e.astype(np.float32) * exponent_factor(int(p[0])) * np.float32(attrs.unit),)


def _dequantise_error_infer(inputs: tuple[Value, ...], _attrs: ErrorUnitAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("DequantizeError", inputs, ("int32", "int8"))
    _, e = inputs
    return (TensorType(e.shape, "float32", e.layout),)


operator(
    "DequantizeError",
    "An int8 error that enters a float region: e 2**p unit; operands (p, e).",
    _dequantise_error_infer,
    _dequantise_error,
    BACKWARD,
    ErrorUnitAttrs,
    overlaps=lambda node: element_by_element(node, "e"),
    inputs=("p", "e"),
    outputs=("g",),
    traits=traits("border"),
)


# ---- masks ----------------------------------------------------------------------------------------------------------


def _mask_infer(inputs: tuple[Value, ...], _attrs: MaskAttrs) -> tuple[TensorType, ...]:
    expect_dtypes("QClipMask", inputs, ("int8",))
    (y,) = inputs
    return (TensorType(y.shape, "bits", y.layout),)


operator(
    "QClipMask",
    "One bit per element: low < y < high, where a clamp to int8 was not active.",
    _mask_infer,
    lambda arrays, attrs: (np.packbits(attrs.passes(*arrays).ravel(), bitorder="little"),),
    BACKWARD,
    MaskAttrs,
    overlaps=packed_bits,
    rows=rows_of_elements("y"),
    inputs=("y",),
    outputs=("mask",),
)
