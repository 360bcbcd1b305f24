"""Cases of matrix products and convolutions with random shapes, strides, pads, dilations, groups and splits."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from testing.ops.case import Case, Generator, Rng, make, normal
from tinytrain_compile.ops import Split
from tinytrain_compile.ops.conv import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.linear import GemmAttrs, MatMulAttrs
from tinytrain_compile.ops.subspace import GroupAttrs, ModeAttrs


def _split(rng: Rng, out_channels: int, in_channels: int, grouped: bool) -> Split | None:
    """Mostly none; else some channels of one axis, and not all of them."""
    axis = "out" if grouped or rng.random() < 0.5 else "in"
    total = out_channels if axis == "out" else in_channels
    if rng.random() < 0.6 or total < 2:
        return None
    chosen = rng.permutation(total)[: int(rng.integers(1, total))]
    return Split(axis, tuple(sorted(int(channel) for channel in chosen)), total)


def _parts(w: np.ndarray, split: Split | None) -> tuple[np.ndarray, ...]:
    if split is None:
        return (w,)
    axis = 0 if split.axis == "out" else w.ndim - 1
    return np.take(w, split.channels, axis), np.take(w, split.rest, axis)


def _gemm(op: str) -> Generator:
    def case(rng: Rng, _index: int) -> Case:
        m, k, n = (int(size) for size in rng.integers(1, (6, 40, 20)))
        split, bias = _split(rng, n, k, False), bool(rng.random() < 0.5)
        w = _parts(normal(rng, (n, k)), split)
        if op == "Gemm":
            b = (normal(rng, (n,)),) if bias else ()
            return make(op, (normal(rng, (m, k)), *w, *b), GemmAttrs(bias, split))
        if op == "GemmGradInput":
            return make(op, (normal(rng, (m, n)), *w), GemmAttrs(False, split))
        return make(op, (normal(rng, (m, k)), normal(rng, (m, n))))

    return case


def _matmul(rng: Rng, index: int) -> Case:
    m, k, n = (int(size) for size in rng.integers(1, (9, 30, 9)))
    batch = tuple(int(size) for size in rng.integers(1, 4, index % 3))
    attrs = MatMulAttrs(bool(rng.random() < 0.5), bool(rng.random() < 0.5))
    a = normal(rng, (*batch, *((k, m) if attrs.transpose_a else (m, k))))
    b = normal(rng, (*batch, *((n, k) if attrs.transpose_b else (k, n))))
    return make("MatMul", (a, b), attrs)


def _attributes(rng: Rng) -> tuple[tuple[int, int, int, int], int, ConvAttrs]:
    """(shape of x, output channels, attributes) of a convolution whose window fits."""
    while True:
        height, width = (int(size) for size in rng.integers(1, 9, 2))
        groups = int(rng.choice((1, 1, 2, 3)))
        per_in, per_out = (int(size) for size in rng.integers(1, 6, 2))
        kernel = tuple(int(size) for size in rng.integers(1, 4, 2)) if rng.random() < 0.8 else (1, 1)
        pads = tuple(int(rng.integers(0, kernel[axis % 2])) for axis in range(4))
        strides, dilations = rng.integers(1, 4, 2), rng.integers(1, 3, 2)
        attrs = ConvAttrs(
            (kernel[0], kernel[1]),
            (int(strides[0]), int(strides[1])),
            (pads[0], pads[1], pads[2], pads[3]),
            (int(dilations[0]), int(dilations[1])),
            groups,
            bool(rng.random() < 0.5),
            _split(rng, groups * per_out, per_in, groups > 1),
        )
        try:
            attrs.output_hw(height, width)
        except ValueError:
            continue
        return (1, height, width, groups * per_in), groups * per_out, attrs


def _conv(op: str) -> Generator:
    def case(rng: Rng, _index: int) -> Case:
        shape, out, attrs = _attributes(rng)
        dy = normal(rng, (1, *attrs.output_hw(shape[1], shape[2]), out))
        w = _parts(normal(rng, (out, *attrs.kernel, shape[3] // attrs.groups)), attrs.split)
        if op == "Conv":
            b = (normal(rng, (out,)),) if attrs.bias else ()
            return make(op, (normal(rng, shape), *w, *b), attrs, images=(0,))
        plain = replace(attrs, bias=False)
        if op == "ConvGradInput":
            return make(op, (dy, *w), ConvGradInputAttrs(plain, (shape[1], shape[2])), images=(0,))
        return make(op, (normal(rng, shape), dy), replace(plain, split=None), images=(0, 1))

    return case


def _mode_product(rng: Rng, index: int) -> Case:
    shape = [int(size) for size in rng.integers(1, 9, 4 if index % 3 else 2)]
    axis, expand = int(rng.integers(0, len(shape))), index % 2 == 1
    rank = int(rng.integers(1, shape[axis] + 1))
    u = normal(rng, (rank, shape[axis]))
    shape[axis] = rank if expand else shape[axis]
    return make("ModeProduct", (normal(rng, (*shape,)), u), ModeAttrs(axis, expand))


def _subspace_weight(rng: Rng, index: int) -> Case:
    groups = int(rng.choice((1, 1, 2, 3)))
    per_in, per_out, rank = (int(size) for size in rng.integers(1, (7, 5, 5)))
    rank = min(rank, groups * per_in)
    taps = (int(rng.integers(1, 4)), int(rng.integers(1, 4))) if index % 2 else ()
    dz = normal(rng, (groups * per_out, *taps, rank))
    return make("SubspaceGradWeight", (dz, normal(rng, (rank, groups * per_in))), GroupAttrs(groups))


RANDOM_PRODUCTS: dict[str, Generator] = {
    "MatMul": _matmul,
    "ModeProduct": _mode_product,
    "SubspaceGradWeight": _subspace_weight,
    **{op: _gemm(op) for op in ("Gemm", "GemmGradInput", "GemmGradWeight")},
    **{op: _conv(op) for op in ("Conv", "ConvGradInput", "ConvGradWeight")},
}


def random_products(op: str, count: int) -> list[Case]:
    """`count` cases with random shapes; the same ones in every run."""
    seed = zlib.crc32(op.encode())
    return [RANDOM_PRODUCTS[op](np.random.default_rng([seed, 2, index]), index) for index in range(count)]
