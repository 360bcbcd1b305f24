"""Numpy twins of the scalar helpers in runtime_c/tt_runtime.h.

On float32 arrays every function repeats the C code operation by operation, so results are equal to the bit (any NaN
equals any NaN); constants and branches must be changed in both files together. On float64 arrays (gradient checks)
the functions are the mathematical ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ops.fixed_point import GOLDEN

FloatArray = NDArray[Any]
_Function = Callable[[FloatArray], FloatArray]
_F32 = np.float32
_LN2_HIGH, _LN2_LOW = _F32(0.693359375), _F32(-2.12194442e-4)
_EXP = np.array((0.49999997, 0.166665211, 0.0416690856, 0.0083697075, 0.00137568859), _F32)
_TANH = np.array((-0.3333328, 0.1333142, -0.0537378, 0.020632561, -0.005697401), _F32)
_TANH_PARTS = np.array(
    (
        (0.6874732, 0.5963563, 0.6443591, -0.3842676, 0.0144578535, 0.11946291, -0.078812785),
        (0.8123744, 0.670898, 0.5498958, -0.36892408, 0.064246744, 0.079935044, -0.06987973),
        (0.9374493, 0.7340481, 0.4611733, -0.33852354, 0.094833486, 0.043363262, -0.06648473),
        (1.1253259, 0.8094135, 0.3448498, -0.27912748, 0.110979125, 0.0035762377, -0.032017283),
        (1.3747424, 0.8797685, 0.2260074, -0.19883503, 0.09959322, -0.021125754, -0.009519096),
        (1.625279, 0.9253863, 0.14366017, -0.13294147, 0.075138375, -0.02513554, 0.0012715291),
        (1.8746567, 0.9540144, 0.089856476, -0.085724436, 0.051832568, -0.020859152, 0.0044895695),
        (2.2495773, 0.97800773, 0.043500863, -0.042543307, 0.027109047, -0.012387519, 0.00397293),
        (2.749523, 0.991852, 0.016229663, -0.016096732, 0.010554689, -0.005147216, 0.001932286),
        (3.2493773, 0.9969939, 0.006003156, -0.0059848228, 0.003966594, -0.0019780663, 0.0007614989),
        (3.7507064, 0.998896, 0.002206777, -0.0022042233, 0.0014661916, -0.0007373453, 0.00029271314),
        (4.5, 0.9997532, 0.00049352046, -0.0004926109, 0.00032854697, -0.00017254586, 6.790717e-05),
        (5.5, 0.9999666, 6.680499e-05, -6.669535e-05, 4.4501558e-05, -2.3397764e-05, 9.225234e-06),
        (6.5, 0.99999547, 9.041334e-06, -9.026742e-06, 6.023319e-06, -3.1673903e-06, 1.2491414e-06),
        (7.5, 0.9999994, 1.2236163e-06, -1.221646e-06, 8.151802e-07, -4.2867518e-07, 1.6906466e-07),
        (8.51, 0.99999994, 1.6231952e-07, -1.6203637e-07, 1.0813213e-07, -5.6980213e-08, 2.24598e-08),
    ),
    _F32,
)
"""A number in the middle of each quarter of an octave from 0.625 to 9.02, and coefficients around it."""
_SIGN, _MAGNITUDE = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)


def _twin(exact: _Function) -> Callable[[_Function], _Function]:
    """Dispatch on the dtype: float32 runs the decorated twin, float64 the exact function."""

    def decorate(single: _Function) -> _Function:
        def function(x: FloatArray) -> FloatArray:
            values = np.asarray(x)
            with np.errstate(all="ignore"):
                if values.dtype == np.float64:
                    return np.asarray(exact(values))
                # At least 1-D inside: numpy turns 0-d results into scalars, whose integer overflow warns.
                return single(np.atleast_1d(values.astype(_F32))).reshape(values.shape)

        function.__doc__ = single.__doc__
        function.__name__ = single.__name__
        return function

    return decorate


def power(a: FloatArray, b: FloatArray) -> FloatArray:
    """Repeat tt_powf: a to the power of b, as exp(b log |a|): the error is about |b log a| units in the last place."""
    a, b = (np.asarray(values, _F32) for values in np.broadcast_arrays(a, b))
    with np.errstate(all="ignore"):
        size = np.abs(a)
        y = exp(b * log(size))
        y = np.where(size == 0, np.where(b > 0, _F32(0), _F32(np.inf)), y)
        large = ~(np.abs(b) < _F32(8388608))
        whole = np.where(large, 0, b).astype(np.int32)
        sign = np.where(whole & 1, -y, y)
        y = np.where(a < 0, np.where(large | (whole.astype(_F32) == b), sign, _F32(np.nan)), y)
        return np.where(b == 0, _F32(1), y).astype(_F32)


def random_bits(seed: int, sample: int, count: int) -> NDArray[np.int64]:
    """Repeat tt_random for the first `count` elements of a sample: 24 bits of a hash, nonnegative."""
    odd, mask = np.uint64(GOLDEN), np.uint64(0xFFFFFFFF)
    base = _mixed(np.asarray([(seed + sample * int(odd)) & int(mask)], np.uint64))
    return (_mixed(base ^ (np.arange(count, dtype=np.uint64) * odd & mask)) >> np.uint64(8)).astype(np.int64)


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Repeat tt_mix: every bit of a 32 bit word changes about half of the result's."""
    mask = np.uint64(0xFFFFFFFF)
    word = word ^ (word >> np.uint64(16))
    word = word * np.uint64(0x85EBCA6B) & mask
    word = word ^ (word >> np.uint64(13))
    word = word * np.uint64(0xC2B2AE35) & mask
    return word ^ (word >> np.uint64(16))


def _bits(x: FloatArray) -> NDArray[np.uint32]:
    return x.view(np.uint32)


def _from_bits(bits: NDArray[np.uint32]) -> FloatArray:
    return bits.view(_F32)


def _polynomial(x: FloatArray, *coefficients: float) -> FloatArray:
    """Evaluate by Horner's rule, lowest coefficient first: c0 + x (c1 + x (...)), separate multiply and add."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = _F32(coefficient) + x * result
    return result


_ROUNDER = _F32(12582912)
"""1.5 2^23 leaves no room for a fraction, so adding it rounds."""


def _exp2i(n: NDArray[np.int32]) -> FloatArray:
    return _from_bits((n + 127).astype(np.uint32) << np.uint32(23))


@_twin(np.exp)
def exp(x: FloatArray) -> FloatArray:
    """Repeat tt_expf: e to the power x, error below 1.0 ulp."""
    inside = np.where((x <= _F32(88.72284)) & (x >= _F32(-103.98)), x, _F32(0))
    rounded = inside * _F32(1.44269502) + _ROUNDER
    k = rounded - _ROUNDER
    r = (k * -_LN2_HIGH + inside) + k * -_LN2_LOW
    z = r * r
    far = z * _EXP[4] + (r * _EXP[3] + _EXP[2])
    y = _F32(1) + (z * (z * far + (r * _EXP[1] + _EXP[0])) + r)
    n = k.astype(np.int32)
    half = np.trunc(n / 2).astype(np.int32)
    y = (y * _exp2i(half)) * _exp2i(n - half)
    y = np.where(x < _F32(-103.98), _F32(0), y)
    return np.where(x > _F32(88.72284), _F32(np.inf), np.where(np.isnan(x), x, y))


@_twin(np.log)
def log(x: FloatArray) -> FloatArray:
    """Repeat tt_logf: natural logarithm, error below 1.0 ulp."""
    denormal = _bits(x) < np.uint32(0x00800000)
    bits = np.where(denormal, _bits(x * _F32(33554432)), _bits(x))
    bits = bits + np.uint32(0x3F800000 - 0x3F3504F3)
    exponent = np.where(denormal, np.int32(-25), np.int32(0))
    k = (exponent + (bits >> np.uint32(23)).astype(np.int32) - np.int32(127)).astype(_F32)
    f = _from_bits((bits & np.uint32(0x007FFFFF)) + np.uint32(0x3F3504F3)) - _F32(1)
    s = f / (_F32(2) + f)
    z = s * s
    rest = z * _polynomial(z, 0.66666776, 0.39977574, 0.29870936)
    square = _F32(0.5) * (f * f)
    y = k * _LN2_HIGH - ((square - (s * (square + rest) + k * _LN2_LOW)) - f)
    y = np.where(x < 0, _F32(np.nan), np.where(x == 0, _F32(-np.inf), y))
    return np.where(np.isnan(x) | (x == _F32(np.inf)), x, y)


@_twin(np.log1p)
def log1p(x: FloatArray) -> FloatArray:
    """Repeat tt_log1pf: log(1 + x), error below 1.5 ulp."""
    u = _F32(1) + x
    d = u - _F32(1)
    y: FloatArray = log(u)
    y = np.where((u == 0) | ~np.isfinite(x), y, y + (x - d) / u)
    return np.where(d == 0, x, y)


@_twin(np.sqrt)
def sqrt(x: FloatArray) -> FloatArray:
    """Repeat tt_sqrtf: correctly rounded, as np.sqrt is on every platform (IEEE 754 demands it)."""
    return np.sqrt(x)


@_twin(np.tanh)
def tanh(x: FloatArray) -> FloatArray:
    """Repeat tt_tanhf: error below 1.5 ulp."""
    sign = _bits(x) & _SIGN
    a = _from_bits(_bits(x) & _MAGNITUDE)
    z = a * a
    far = (z * z) * _TANH[4] + (z * _TANH[3] + _TANH[2])
    small = a * (z * ((z * z) * far + (z * _TANH[1] + _TANH[0])) + _F32(1))
    part = _TANH_PARTS[np.clip((_bits(a) >> np.uint32(21)).astype(np.intp) - 505, 0, 15)]
    t, middle = a - part[..., 0], part[..., 6]
    for place in range(5, 0, -1):
        middle = t * middle + part[..., place]
    y = np.where(a < _F32(0.625), small, np.where(a < _F32(9.02), middle, np.where(np.isnan(a), a, _F32(1))))
    return _from_bits(_bits(y) | sign)


@_twin(lambda x: np.vectorize(math.erf, otypes=[np.float64])(x))
def erf(x: FloatArray) -> FloatArray:
    """Repeat tt_erff: error function, error below 1.5 ulp."""
    sign = _bits(x) & _SIGN
    a = _from_bits(_bits(x) & _MAGNITUDE)
    near = _polynomial(
        a * a, 0.12837917, -0.37612635, 0.112836964, -0.026859451, 0.0052011623, -0.00081441854, 8.3763836e-05
    )
    far = _polynomial(
        a, -0.00019428242, -1.1276814, -0.6371725, -0.103940114, 0.022231027, -0.0030442483, 0.00019604235
    )
    small, middle = a + a * near, _F32(1) - exp(far)
    y = np.where(a < _F32(0.92), small, np.where(a < _F32(3.925), middle, np.where(np.isnan(a), a, _F32(1))))
    return _from_bits(_bits(y) | sign)


def _exact_sigmoid(x: FloatArray) -> FloatArray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1 + e)


@_twin(_exact_sigmoid)
def sigmoid(x: FloatArray) -> FloatArray:
    """Repeat tt_sigmoidf: 1 / (1 + exp(-x)), error below 2.5 ulp."""
    e = exp(_from_bits(_bits(x) | _SIGN))
    return np.where(_bits(x) >= _SIGN, e, _F32(1)) / (_F32(1) + e)


_TWO_OVER_PI = np.array(
    (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB), np.uint64
)


def _quadrant(a: FloatArray) -> tuple[NDArray[np.uint32], FloatArray]:
    """Repeat tt_quadrant: quarters of a turn, and the rest in [-pi/4, pi/4], of finite a >= 0."""
    u64 = np.uint64
    small = a < _F32(0.7853982)
    bits = _bits(np.where(small, _F32(1), a))
    m = ((bits & np.uint32(0x007FFFFF)) | np.uint32(0x00800000)).astype(u64)
    start = (bits >> np.uint32(23)) - np.uint32(120)
    word, shift = (start // 32).astype(np.intp), (start % 32).astype(u64)
    both = [(_TWO_OVER_PI[word + i] << u64(32)) | _TWO_OVER_PI[word + i + 1] for i in range(3)]
    part = [(pair >> (u64(32) - shift)) & u64(0xFFFFFFFF) for pair in both]
    turns = ((m * part[0]) << u64(32)) + (m * part[1] + ((m * part[2]) >> u64(32)))
    quadrant = (turns + u64(1 << 61)) >> u64(62)
    rest = turns - (quadrant << u64(62))
    below = (rest >> u64(63)) != 0
    size = np.where(below, u64(0) - rest, rest).astype(_F32) * _F32(3.4061217e-19)
    r = np.where(small, a, np.where(below, -size, size))
    return np.where(small, u64(0), quadrant).astype(np.uint32), r


def _sine_of(q: NDArray[np.uint32], r: FloatArray) -> FloatArray:
    """Repeat tt_sine_of: the sine of r plus q quarters of a turn."""
    z = r * r
    odd = r + (r * z) * _polynomial(z, -0.16666655, 0.008332161, -0.00019515296)
    even = (_F32(1) - _F32(0.5) * z) + (z * z) * _polynomial(z, 0.041666646, -0.0013887316, 2.4433157e-05)
    y = np.where((q & 1) == 0, odd, even)
    return np.where((q & 2) == 0, y, -y)


@_twin(np.sin)
def sin(x: FloatArray) -> FloatArray:
    """Repeat tt_sinf: sine, error below 3.0 ulp."""
    sign, finite = _bits(x) & _SIGN, np.isfinite(x)
    y = _sine_of(*_quadrant(np.where(finite, np.abs(x), _F32(0))))
    return np.where(finite, _from_bits(_bits(y) ^ sign), _F32(np.nan))


@_twin(np.cos)
def cos(x: FloatArray) -> FloatArray:
    """Repeat tt_cosf: cosine, error below 3.0 ulp."""
    finite = np.isfinite(x)
    q, r = _quadrant(np.where(finite, np.abs(x), _F32(0)))
    return np.where(finite, _sine_of(q + np.uint32(1), r), _F32(np.nan))
