"""Random cases of element-wise arithmetic and activations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from testing.ops.case import Bits, Case, Rng, away, generator, listed, make, nonzero, normal, positive
from tinytrain_compile.ir.types import NO_ATTRS, Attrs
from tinytrain_compile.ops.activation import ClipAttrs, EluAttrs, GeluAttrs, HardSigmoidAttrs, LeakyReluAttrs

Data = Callable[[Rng, tuple[int, ...]], np.ndarray]

SHAPES: tuple[tuple[int, ...], ...] = ((1, 4, 5, 3), (7,), (2, 9), (3, 1, 4), (1, 3, 3, 8), ())

ELEMENTS: list[str] = []
"""Operators of one or two operands of the same shape."""
BROADCASTS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1, 4, 5, 3), (1, 4, 5, 3)),
    ((1, 4, 5, 3), (3,)),
    ((2, 6), (1, 6)),
    ((3, 1), (1, 4)),
    ((), (2, 3)),
    ((5,), (1,)),
    ((2, 1, 3), (4, 1)),
    ((1, 1, 1, 6), (1, 3, 2, 6)),
    ((2, 3, 4), (2, 3, 1)),
    ((), ()),
)


def _binary(op: str, second: Data) -> None:
    @generator(op, len(BROADCASTS))
    def _case(rng: Rng, index: int) -> Case:
        a, b = BROADCASTS[index]
        return make(op, (normal(rng, a), second(rng, b)))


_binary("Add", normal)
_binary("Sub", normal)
_binary("Mul", normal)
_binary("Div", nonzero)


def _unary(op: str, data: Callable[[Rng, tuple[int, ...], Attrs], np.ndarray], attrs: tuple[Attrs, ...]) -> None:
    """Cases of op(x) on all shapes, attributes in turn."""
    ELEMENTS.append(op)

    @generator(op, len(SHAPES))
    def _case(rng: Rng, index: int) -> Case:
        kind = attrs[index % len(attrs)]
        return make(op, (data(rng, listed(rng, SHAPES, index, 1), kind),), kind)


def _backward(op: str, data: Callable[[Rng, tuple[int, ...], Attrs], np.ndarray], attrs: tuple[Attrs, ...]) -> None:
    """Cases of op(dy, v), v being what the forward op keeps."""
    ELEMENTS.append(op)

    @generator(op, len(SHAPES))
    def _case(rng: Rng, index: int) -> Case:
        kind = attrs[index % len(attrs)]
        shape = listed(rng, SHAPES, index, 1)
        return make(op, (normal(rng, shape), data(rng, shape, kind)), kind)


def _wide(rng: Rng, shape: tuple[int, ...], _attrs: Attrs) -> np.ndarray:
    return normal(rng, shape) * 3.0


def _plain(rng: Rng, shape: tuple[int, ...], _attrs: Attrs) -> np.ndarray:
    return normal(rng, shape)


def _positive(rng: Rng, shape: tuple[int, ...], _attrs: Attrs) -> np.ndarray:
    return positive(rng, shape)


def _off_zero(rng: Rng, shape: tuple[int, ...], _attrs: Attrs) -> np.ndarray:
    return away(normal(rng, shape), 0.0)


def _off_three(rng: Rng, shape: tuple[int, ...], _attrs: Attrs) -> np.ndarray:
    return away(normal(rng, shape) * 3.0, -3.0, 3.0)


def _clip_input(rng: Rng, shape: tuple[int, ...], attrs: Attrs) -> np.ndarray:
    assert isinstance(attrs, ClipAttrs)
    return away(normal(rng, shape) * 3.0, *(b for b in (attrs.low, attrs.high) if math.isfinite(b)))


def _clip_output(rng: Rng, shape: tuple[int, ...], attrs: Attrs) -> np.ndarray:
    assert isinstance(attrs, ClipAttrs)
    return np.clip(_clip_input(rng, shape, attrs), attrs.low, attrs.high)


def _hard_sigmoid_input(rng: Rng, shape: tuple[int, ...], attrs: Attrs) -> np.ndarray:
    assert isinstance(attrs, HardSigmoidAttrs)
    return away(normal(rng, shape) * 3.0, -attrs.beta / attrs.alpha, (1.0 - attrs.beta) / attrs.alpha)


def _unit(rng: Rng, shape: tuple[int, ...], _attrs: Attrs) -> np.ndarray:
    return np.clip(rng.uniform(-0.3, 1.3, shape), 0.0, 1.0)


def _inside_one(rng: Rng, shape: tuple[int, ...], _attrs: Attrs) -> np.ndarray:
    return np.asarray(rng.uniform(-0.99, 0.99, shape))


def _elu_output(rng: Rng, shape: tuple[int, ...], attrs: Attrs) -> np.ndarray:
    assert isinstance(attrs, EluAttrs)
    return away(np.maximum(normal(rng, shape) * 2.0, -0.99 * attrs.scale * attrs.alpha), 0.0)


PLAIN = (NO_ATTRS,)
CLIPS = (ClipAttrs(0.0, math.inf), ClipAttrs(0.0, 6.0), ClipAttrs(-1.0, 1.5), ClipAttrs(-math.inf, 0.5), ClipAttrs())
LEAKS = (LeakyReluAttrs(), LeakyReluAttrs(0.3), LeakyReluAttrs(-0.2), LeakyReluAttrs(0.0), LeakyReluAttrs(1.5))
HARD = (HardSigmoidAttrs(), HardSigmoidAttrs(1.0 / 6.0, 0.5), HardSigmoidAttrs(0.5, 0.4))
ELUS = (EluAttrs(), EluAttrs(1.67, 1.05), EluAttrs(0.5, rate=2.0), EluAttrs(0.0), EluAttrs(2.0, 3.0, 0.25))
GELUS = (GeluAttrs(), GeluAttrs(True))

_unary("Neg", _plain, PLAIN)
_unary("Sqrt", _positive, PLAIN)
_unary("Norm", _positive, PLAIN)
_unary("Exp", _plain, PLAIN)
_unary("Log", _positive, PLAIN)
_unary("Erf", _plain, PLAIN)
_unary("Sigmoid", _wide, PLAIN)
_unary("Tanh", _plain, PLAIN)
_unary("Silu", _wide, PLAIN)
_unary("Abs", _off_zero, PLAIN)
_unary("Sign", _wide, PLAIN)
_unary("Sin", _wide, PLAIN)
_unary("Cos", _wide, PLAIN)
_unary("Softplus", _wide, PLAIN)
_unary("Mish", _wide, PLAIN)
_unary("Softsign", _off_zero, PLAIN)
_unary("Elu", _off_zero, ELUS)
_unary("HardSwish", _off_three, PLAIN)
_unary("HardSigmoid", _hard_sigmoid_input, HARD)
_unary("Clip", _clip_input, CLIPS)
_unary("ClipMask", _clip_output, CLIPS)
_unary("LeakyRelu", _off_zero, LEAKS)
_unary("Gelu", _wide, GELUS)

_backward("SqrtGrad", _positive, PLAIN)
_backward("NormGrad", _positive, PLAIN)
_backward("ErfGrad", _plain, PLAIN)
_backward("ClipGrad", _clip_output, CLIPS)
_backward("LeakyReluGrad", _off_zero, LEAKS)
_backward("SigmoidGrad", _unit, PLAIN)
_backward("TanhGrad", _inside_one, PLAIN)
_backward("SiluGrad", _wide, PLAIN)
_backward("AbsGrad", _off_zero, PLAIN)
_backward("SoftplusGrad", _wide, PLAIN)
_backward("MishGrad", _wide, PLAIN)
_backward("SoftsignGrad", _inside_one, PLAIN)
_backward("EluGrad", _elu_output, ELUS)
_backward("HardSwishGrad", _off_three, PLAIN)
_backward("HardSigmoidGrad", _unit, HARD)
_backward("GeluGrad", _wide, GELUS)


@generator("MaskedGrad", len(SHAPES))
def _masked(rng: Rng, index: int) -> Case:
    shape = SHAPES[index]
    mask = np.packbits(rng.random(shape).ravel() < 0.5, bitorder="little")
    return make("MaskedGrad", (normal(rng, shape), Bits(shape, mask)))


SLOPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1, 4, 5, 3), (3,)),
    ((2, 5), (1,)),
    ((1, 3, 2, 4), (1, 1, 1, 4)),
    ((2, 3, 4), (3, 1)),
    ((2, 3), (2, 3)),
    ((1, 2, 3, 3), ()),
)


@generator("PRelu", len(SLOPES))
def _prelu(rng: Rng, index: int) -> Case:
    x, slope = SLOPES[index]
    return make("PRelu", (away(normal(rng, x), 0.0), normal(rng, slope)))


@generator("PReluGrad", len(SLOPES))
def _prelu_grad(rng: Rng, index: int) -> Case:
    x, slope = SLOPES[index]
    return make("PReluGrad", (normal(rng, x), away(normal(rng, x), 0.0), normal(rng, slope)))
