"""Random cases of the integer ops that have tiles of four by four: whole tiles in most of them, all else odd."""

from __future__ import annotations

import zlib

import numpy as np

from testing.ops import case_quantised as quantised
from testing.ops.case import Case, Generator, Rng
from testing.ops.case_quantised import KINDS, MASKS, Geometry, mask
from tinytrain_compile.ops.conv import ConvAttrs

SIDE = 4
LONG: dict[int, Geometry] = {
    3: ((1, 3, 4, 60), 4, ConvAttrs((3, 3), pads=(1, 1, 1, 1))),
    7: ((1, 2, 4, 200), 4, ConvAttrs((2, 3), pads=(1, 1, 0, 1))),
    11: ((1, 1, 4, 600), 8, ConvAttrs((1, 1))),
}
"""More products in a sum than float32 adds exactly (TT_EXACT_TERMS), and already in those of a row of taps; 1x1."""


def tiled(rng: Rng, index: int) -> Geometry:
    """A dense convolution; of its width and its channels, one in ten is no whole tiles."""
    if index in LONG:
        return LONG[index]

    def some(most: int) -> int:
        return SIDE * int(rng.integers(1, most)) if rng.random() < 0.9 else int(rng.integers(2, SIDE * most))

    def pair(most: int, usual: float) -> tuple[int, int]:
        first, second = (int(n) for n in rng.integers(1, most, 2))
        return (1, 1) if rng.random() < usual else (first, second)

    while True:
        kernel, strides, dilations = pair(5, 0.2), pair(3, 0.6), pair(3, 0.8)
        pads = tuple(int(rng.integers(0, (kernel[i % 2] - 1) * dilations[i % 2] + 1)) for i in range(4))
        shape = (int(rng.choice([1, 1, 2])), int(rng.integers(1, 9)), some(4), some(5))
        conv = ConvAttrs(kernel, strides, (pads[0], pads[1], pads[2], pads[3]), dilations)
        try:
            conv.output_hw(shape[1], shape[2])
        except ValueError:
            continue
        return shape, some(5), conv


TILED: dict[str, Generator] = {
    "QConv": lambda rng, index: quantised.of_range(
        quantised.qconv(rng, tiled(rng, index), index % KINDS), index % 5 % 3
    ),
    "QConvGradInput": lambda rng, index: quantised.qconv_grad_input(
        rng, tiled(rng, index), index % KINDS, mask(rng, MASKS[index % 3])
    ),
    "QConvUpdate": lambda rng, index: quantised.qconv_update(rng, tiled(rng, index), index % KINDS),
    "QConvUpdateFine": lambda rng, index: quantised.qconv_update_fine(rng, tiled(rng, index), index % KINDS),
    "QConvMomentum": lambda rng, index: quantised.qconv_momentum(rng, tiled(rng, index), index % KINDS, fine=False),
    "QConvSum": lambda rng, index: quantised.qconv_sum(rng, tiled(rng, index), index % KINDS),
}


def tiled_cases(op: str, count: int, first: int = 0) -> list[Case]:
    """Cases `first` to `first + count` of an op; a number is always the same case."""
    numbers = range(first, first + count)
    return [TILED[op](np.random.default_rng([13, zlib.crc32(op.encode()), n]), n) for n in numbers]
