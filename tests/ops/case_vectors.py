"""Random cases of the integer convolutions that have kernels on vectors: whole vectors of channels, all else odd."""

from __future__ import annotations

import zlib

import numpy as np

from tests.ops import case_quantised as quantised
from tests.ops.case import Case, Generator, Rng
from tests.ops.case_quantised import KINDS, MASKS, Geometry, mask
from tinytrain_compile.ops import Split
from tinytrain_compile.ops.conv import ConvAttrs

LANES = 4


def _split(rng: Rng, out: int, channels: int) -> Split | None:
    axis, total = [("out", out), ("in", channels)][int(rng.integers(0, 2))]
    chosen = tuple(int(i) for i in np.flatnonzero(rng.random(total) < 0.5))
    return Split(axis, chosen, total) if rng.random() < 0.4 and 0 < len(chosen) < total else None


def product(rng: Rng, whole_inputs: bool, splits: bool) -> Geometry:
    """A 1x1 convolution whose output (or input) channels are whole vectors."""
    height, width = (int(n) for n in rng.integers(1, 8, 2))
    lanes, other = LANES * int(rng.integers(1, 10)), int(rng.integers(1, 50))
    channels, out = (lanes, other) if whole_inputs else (other, lanes)
    split = _split(rng, out, channels) if splits else None
    return (1, height, width, channels), out, ConvAttrs((1, 1), split=split)


def depthwise(rng: Rng, whole_inputs: bool) -> Geometry:
    """A depthwise convolution whose output (or input) rows are whole vectors, or at times odd."""
    while True:
        height, width = int(rng.integers(1, 10)), int(rng.integers(1, 18))
        kernel, strides = (int(rng.integers(1, 8)), int(rng.integers(4, 9))), rng.integers(1, 4, 2)
        pads = [int(rng.integers(0, kernel[i % 2])) for i in range(4)]
        channels = int(rng.integers(2, 12))
        split = _split(rng, channels, 1)
        split = split if split is not None and split.axis == "out" else None
        conv = ConvAttrs(
            kernel,
            (int(strides[0]), int(strides[1])),
            (pads[0], pads[1], pads[2], pads[3]),
            groups=channels,
            split=split,
        )
        try:
            row = conv.output_hw(height, width)[1]
        except ValueError:
            continue
        if (width if whole_inputs else row) % LANES == 0 and conv.kernel != (1, 1):
            return (1, height, width, channels), channels, conv


def convolution(rng: Rng, whole_inputs: bool) -> Geometry:
    """Either."""
    return product(rng, whole_inputs, True) if rng.random() < 0.5 else depthwise(rng, whole_inputs)


VECTORS: dict[str, Generator] = {
    "QConv": lambda rng, index: quantised.qconv(rng, convolution(rng, False), index % KINDS),
    "QConvGradInput": lambda rng, index: quantised.qconv_grad_input(
        rng, convolution(rng, True), index % KINDS, mask(rng, MASKS[index % 3])
    ),
    "QConvUpdate": lambda rng, index: quantised.qconv_update(rng, product(rng, True, False), index % KINDS),
    "QConvSum": lambda rng, index: quantised.qconv_sum(rng, product(rng, True, False), index % KINDS),
}


def vector_cases(op: str, count: int, first: int = 0) -> list[Case]:
    """Cases `first` to `first + count` of an op; a number is always the same case."""
    numbers = range(first, first + count)
    return [VECTORS[op](np.random.default_rng([11, zlib.crc32(op.encode()), n]), n) for n in numbers]
