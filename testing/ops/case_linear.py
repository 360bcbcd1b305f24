"""Random cases of matrix products and convolutions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from testing.ops.case import Case, Rng, generator, make, normal
from tinytrain_compile.ops import Split
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.linear import GemmAttrs, MatMulAttrs


def weight_parts(w: np.ndarray, split: Split | None, in_axis: int) -> tuple[np.ndarray, ...]:
    """A weight whole, or in its two parts."""
    if split is None:
        return (w,)
    axis = 0 if split.axis == "out" else in_axis
    return np.take(w, split.channels, axis), np.take(w, split.rest, axis)


def _trained(parts: tuple[np.ndarray, ...], bias: bool) -> tuple[int, ...]:
    """Indices that a gradient may be asked for: data, the updated part of the weight, bias; never the rest in flash."""
    return (0, 1, 1 + len(parts)) if bias else (0, 1)


GEMMS = (
    (1, 7, 5, True, None),
    (4, 6, 3, False, None),
    (1, 9, 13, True, Split("out", (0, 1, 2, 3), 13)),
    (3, 8, 6, True, Split("in", (1, 2, 5), 8)),
    (2, 5, 9, False, Split("out", (0, 3, 8), 9)),
    (1, 17, 4, False, Split("in", tuple(range(8)), 17)),
    (5, 1, 1, True, None),
)
"""(M, K, N, bias, split)."""


@generator("Gemm", len(GEMMS))
def _gemm(rng: Rng, index: int) -> Case:
    m, k, n, bias, split = GEMMS[index]
    parts = weight_parts(normal(rng, (n, k)), split, 1)
    operands = (normal(rng, (m, k)), *parts, *([normal(rng, (n,))] if bias else []))
    return make("Gemm", operands, GemmAttrs(bias, split), _trained(parts, bias))


@generator("GemmGradInput", len(GEMMS))
def _gemm_grad_input(rng: Rng, index: int) -> Case:
    m, k, n, _, split = GEMMS[index]
    return make(
        "GemmGradInput", (normal(rng, (m, n)), *weight_parts(normal(rng, (n, k)), split, 1)), GemmAttrs(False, split)
    )


@generator("GemmGradWeight", len(GEMMS))
def _gemm_grad_weight(rng: Rng, index: int) -> Case:
    m, k, n, _, _ = GEMMS[index]
    return make("GemmGradWeight", (normal(rng, (m, k)), normal(rng, (m, n))))


MATMULS = (((), 3, 4, 5), ((2,), 4, 3, 2), ((2, 3), 2, 5, 3), ((), 1, 6, 1), ((1, 2), 7, 8, 9))


@generator("MatMul", 4 * len(MATMULS))
def _matmul(rng: Rng, index: int) -> Case:
    batch, m, k, n = MATMULS[index // 4]
    attrs = MatMulAttrs(bool(index & 1), bool(index & 2))
    a = normal(rng, (*batch, *((k, m) if attrs.transpose_a else (m, k))))
    b = normal(rng, (*batch, *((n, k) if attrs.transpose_b else (k, n))))
    return make("MatMul", (a, b), attrs)


CONVS = (
    ((1, 5, 6, 3), 4, ConvAttrs((3, 3), pads=(1, 1, 1, 1), bias=True)),
    ((1, 4, 5, 6), 8, ConvAttrs((1, 1), bias=True)),
    ((1, 7, 6, 2), 5, ConvAttrs((3, 2), (2, 2), (1, 0, 0, 1))),
    ((1, 7, 7, 3), 4, ConvAttrs((3, 3), (1, 2), (2, 2, 2, 2), (2, 2))),
    ((1, 5, 5, 4), 6, ConvAttrs((3, 3), pads=(1, 1, 1, 1), groups=2, bias=True)),
    ((1, 6, 5, 5), 5, ConvAttrs((3, 3), pads=(1, 1, 1, 1), groups=5, bias=True)),
    ((1, 8, 7, 3), 6, ConvAttrs((5, 3), (2, 2), (2, 1, 2, 1), groups=3)),
    ((1, 1, 11, 4), 5, ConvAttrs((1, 4), (1, 2), (0, 1, 0, 2), bias=True)),
    ((1, 4, 4, 5), 9, ConvAttrs((3, 3), pads=(1, 1, 1, 1), bias=True, split=Split("out", (0, 1, 2, 7), 9))),
    ((1, 4, 5, 8), 3, ConvAttrs((3, 3), pads=(1, 0, 1, 0), split=Split("in", (0, 1, 2), 8))),
    ((1, 5, 4, 7), 6, ConvAttrs((1, 1), bias=True, split=Split("in", (1, 4, 5), 7))),
    ((1, 3, 4, 7), 10, ConvAttrs((1, 1), split=Split("out", tuple(range(5)), 10))),
    ((1, 5, 5, 6), 6, ConvAttrs((3, 3), (2, 2), (1, 1, 1, 1), groups=6, bias=True, split=Split("out", (0, 1, 4), 6))),
    ((1, 4, 4, 4), 8, ConvAttrs((3, 3), pads=(1, 1, 1, 1), groups=2, split=Split("out", (0, 1, 5), 8))),
    ((1, 6, 6, 5), 7, ConvAttrs((1, 1), (2, 2), bias=True)),
    ((1, 5, 5, 3), 4, ConvAttrs((3, 3), (3, 3))),
    ((2, 4, 5, 3), 4, ConvAttrs((3, 3), pads=(1, 1, 1, 1), bias=True)),
    ((1, 9, 7, 1), 10, ConvAttrs((5, 4), (2, 2), (2, 1, 2, 1), bias=True)),
    ((2, 6, 5, 1), 3, ConvAttrs((3, 3), pads=(1, 1, 1, 1))),
)
"""(shape of x, output channels, attributes)."""


def _weight(rng: Rng, index: int) -> tuple[tuple[int, ...], np.ndarray, ConvAttrs]:
    shape, out, attrs = CONVS[index]
    return shape, normal(rng, (out, *attrs.kernel, shape[3] // attrs.groups)), attrs


def _output_shape(index: int) -> tuple[int, ...]:
    shape, out, attrs = CONVS[index]
    return (shape[0], *attrs.output_hw(shape[1], shape[2]), out)


@generator("Conv", len(CONVS))
def _conv(rng: Rng, index: int) -> Case:
    shape, w, attrs = _weight(rng, index)
    parts = weight_parts(w, attrs.split, 3)
    operands = (normal(rng, shape), *parts, *([normal(rng, w.shape[:1])] if attrs.bias else []))
    return make("Conv", operands, attrs, _trained(parts, attrs.bias), images=(0,))


@generator("ConvGradInput", len(CONVS))
def _conv_grad_input(rng: Rng, index: int) -> Case:
    shape, w, attrs = _weight(rng, index)
    parts = weight_parts(w, attrs.split, 3)
    kind = ConvGradInputAttrs(replace(attrs, bias=False), (shape[1], shape[2]))
    return make("ConvGradInput", (normal(rng, _output_shape(index)), *parts), kind, (0, 1), images=(0,))


@generator("ConvGradWeight", len(CONVS))
def _conv_grad_weight(rng: Rng, index: int) -> Case:
    shape, _, attrs = _weight(rng, index)
    operands = (normal(rng, shape), normal(rng, _output_shape(index)))
    return make("ConvGradWeight", operands, replace(attrs, bias=False, split=None), images=(0, 1))
