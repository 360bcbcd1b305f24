"""Random cases of the integer ops that have kernels on vectors: whole vectors of channels, all else odd."""

from __future__ import annotations

import zlib

import numpy as np

from testing.ops import case_qpointwise as pointwise
from testing.ops import case_quantised as quantised
from testing.ops import case_qupdate as updates
from testing.ops.case import Case, Generator, Rng, make
from testing.ops.case_quantised import KINDS, MASKS, Geometry, mask
from tinytrain_compile.ops import Split
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.pool import PoolAttrs

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


def depthwise(rng: Rng, whole_inputs: bool, unit: int = 1) -> Geometry:
    """A depthwise convolution whose output (or input) rows are whole vectors; unit: divides its channels."""
    while True:
        height, width = int(rng.integers(1, 10)), int(rng.integers(1, 18))
        kernel, strides = (int(rng.integers(1, 8)), int(rng.integers(4, 9))), rng.integers(1, 4, 2)
        pads = [int(rng.integers(0, kernel[i % 2])) for i in range(4)]
        channels = unit * int(rng.integers(2, 12))
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
        phases = int(strides[1]) if height % strides[0] == width % strides[1] == 0 else 1  # of a data gradient
        if (width % (LANES * phases) if whole_inputs else row % LANES) == 0 and conv.kernel != (1, 1):
            return (1, height, width, channels), channels, conv


def dense(rng: Rng, whole_inputs: bool) -> Geometry:
    """A convolution over all channels, no product, whose output (or input) channels are whole vectors."""
    while True:
        count, height, width, other = (int(n) for n in rng.integers(1, (4, 9, 12, 9)))
        kernel, strides = (int(rng.integers(1, 6)), int(rng.integers(1, 6))), rng.integers(1, 4, 2)
        pads = [int(rng.integers(0, kernel[i % 2])) for i in range(4)]
        conv = ConvAttrs(kernel, (int(strides[0]), int(strides[1])), (pads[0], pads[1], pads[2], pads[3]))
        try:
            conv.output_hw(height, width)
        except ValueError:
            continue
        if conv.kernel != (1, 1) or conv.strides != (1, 1):
            lanes = LANES * int(rng.integers(1, 7))
            channels, out = (lanes, other) if whole_inputs else (other, lanes)
            return (count, height, width, channels), out, conv


def odd(rng: Rng, index: int, least: int = 1) -> Geometry:
    """A convolution of any number of channels, from `least` inputs and four outputs on.

    1x1, k x k with or without dilation, and (every fifth) depthwise on maps of any size.
    """
    while True:
        count, height, width, channels = (int(n) for n in rng.integers(1, (3, 12, 14, 30)))
        out, channels = int(rng.integers(LANES, 24)), max(channels, least)
        if index % 5 == 1 or index % 5 == 3:
            return (count, height, width + 1, channels + 1), out, ConvAttrs((1, 1))
        kernel, strides, apart = rng.integers(1, 6, 2), rng.integers(1, 4, 2), rng.integers(1, 4, 2)
        depthwise = index % 5 == 4
        pads = [int(rng.integers(0, kernel[i % 2] * apart[i % 2])) for i in range(4)]
        conv = ConvAttrs(
            (int(kernel[0]), int(kernel[1])),
            (int(strides[0]), int(strides[1])),
            (pads[0], pads[1], pads[2], pads[3]),
            (1, 1) if depthwise else (int(apart[0]), int(apart[1])),
            groups=channels if depthwise else 1,
        )
        try:
            conv.output_hw(height, width)
        except ValueError:
            continue
        if conv.kernel != (1, 1):
            return (count, height, width, channels), channels if depthwise else out, conv


def few(rng: Rng, index: int) -> Geometry:
    """A convolution to one to three channels, of rows of five pixels or more: 1x1, or 3x3 with or without dilation."""
    count, height, width, channels = (int(n) for n in rng.integers((1, 2, 5, 12), (3, 9, 14, 30)))
    out = 1 + index % 3
    if index % 2 == 0:
        return (count, height, LANES * width, channels), out, ConvAttrs((1, 1))
    apart = int(rng.integers(1, 3))
    return (count, height, width, channels), out, ConvAttrs((3, 3), pads=(apart,) * 4, dilations=(apart, apart))


def few_channels(rng: Rng, index: int) -> Geometry:
    """A convolution of few channels on rows of eight pixels or more.

    Every third has strides or dilation, some of these a single row.
    """
    while True:
        count, height, width, channels = (int(n) for n in rng.integers(1, (3, 9, 12, 8)))
        kernel = (int(rng.integers(1, 4)), int(rng.integers(2, 6)))
        pads = [int(rng.integers(0, kernel[i % 2])) for i in range(4)]
        if index % 12 == 2:  # fewer rows than the stride
            height, kernel, pads[0] = 1, (2, kernel[1]), 1
        strides, apart = ((1, 1), (1, 1)) if index % 3 < 2 else ((1, 2), (2, 1)) if index % 2 else ((2, 1), (1, 2))
        conv = ConvAttrs(kernel, strides, (pads[0], pads[1], pads[2], pads[3]), apart)
        try:
            conv.output_hw(height, width + 7)
        except ValueError:
            continue
        return (count, height, width + 7, channels), int(rng.integers(1, 24)), conv


def narrow(rng: Rng, index: int) -> Geometry:
    """A convolution on columns of four pixels or more, each of one to six; two of three with dilation."""
    while True:
        height, width, channels = (int(n) for n in rng.integers((4, 1, 1), (14, 7, 9)))
        kernel, apart = ((3, 3), (5, 5), (3, 2))[index % 3], 1 + index % 3
        pads = [int(rng.integers(0, kernel[i % 2] * apart)) for i in range(4)]
        conv = ConvAttrs(kernel, (1, 1), (pads[0], pads[1], pads[2], pads[3]), (apart, apart))
        try:
            conv.output_hw(height, width)
        except ValueError:
            continue
        return (1, height, width, channels), int(rng.integers(1, 12)), conv


def few_taps(rng: Rng, index: int) -> Geometry:
    """A depthwise convolution of two or three taps, in a row or a column; every fourth has two outputs of a channel."""
    while True:
        count, height, width, channels = (int(n) for n in rng.integers((1, 1, 1, 2), (3, 8, 20, 14)))
        down, right, *apart = (int(n) for n in rng.integers(1, (3, 3, 4, 4)))
        taps, axis = int(rng.integers(2, 4)), index % 2
        pads = [int(rng.integers(0, 1 + (taps - 1) * apart[axis])) if i % 2 == axis else 0 for i in range(4)]
        conv = ConvAttrs(
            (1, taps) if axis else (taps, 1),
            (1, 1) if index % 3 else (down, right),
            (pads[0], pads[1], pads[2], pads[3]),
            (apart[0], apart[1]),
            groups=channels,
        )
        try:
            conv.output_hw(height, width)
        except ValueError:
            continue
        return (count, height, width, channels), channels * (2 if index % 4 == 3 else 1), conv


def small(rng: Rng, index: int) -> Geometry:
    """A convolution of many channels on maps of a few pixels, in steps of one."""
    while True:
        height, width = (int(n) for n in rng.integers((1, 3), (8, 9)))
        kernel = ((3, 3), (1, 3), (2, 2), (3, 3), (3, 5))[index % 5]
        apart = 1 + index % 7 // 6
        pads = [int(rng.integers(0, (kernel[i % 2] - 1) * apart + 1)) for i in range(4)]
        conv = ConvAttrs(kernel, (1, 1), (pads[0], pads[1], pads[2], pads[3]), (apart, apart))
        try:
            conv.output_hw(height, width)
        except ValueError:
            continue
        channels = int(rng.integers(4, 30)) if index % 2 else 8 * int(rng.integers(1, 7))
        return (1, height, width, channels), int(rng.integers(2, 20)), conv


def small_update(rng: Rng, index: int) -> Case:
    """Return an update of the weight of such a layer: rounded by noise, with momentum, or with fractions."""
    geometry, kind = small(rng, index), index % KINDS
    if index % 4 == 1:
        return quantised.qconv_momentum(rng, geometry, kind, index % 3 == 0)
    return (quantised.qconv_update, quantised.qconv_update_fine, quantised.qconv_update)[index % 3](rng, geometry, kind)


def convolution(rng: Rng, index: int, whole_inputs: bool) -> Geometry:
    """1x1, depthwise or dense."""
    if index % 3 == 2:
        return dense(rng, whole_inputs)
    return product(rng, whole_inputs, True) if index % 3 == 1 else depthwise(rng, whole_inputs)


def weight(rng: Rng, index: int) -> Geometry:
    """The same for weight gradients: whole vectors of input channels, or of depthwise ones."""
    if index % 3 == 0:
        return dense(rng, True)
    return product(rng, True, False) if index % 3 == 1 else depthwise(rng, True, LANES)


def elements(rng: Rng, unit: int = LANES) -> tuple[int, ...]:
    """A tensor whose last axis is whole vectors."""
    return (*(int(n) for n in rng.integers(1, 5, int(rng.integers(1, 4)))), unit * int(rng.integers(1, 12)))


def classifier(rng: Rng) -> Geometry:
    """One pixel, outputs that are no whole vectors."""
    outputs = LANES * int(rng.integers(0, 4)) + int(rng.integers(1, LANES))
    return (1, 1, 1, LANES * int(rng.integers(1, 30))), outputs, ConvAttrs((1, 1))


def pool(rng: Rng) -> Case:
    """int8, windows that may lie beyond the image on every side."""
    height, width, channels = (int(n) for n in rng.integers(1, (9, 9, 40)))
    kernel, strides = (int(n) for n in rng.integers(1, 5, 2)), (int(n) for n in rng.integers(1, 4, 2))
    (rows, columns), (down, right) = kernel, strides
    pads = tuple(int(rng.integers(0, (rows, columns)[side % 2])) for side in range(4))
    sizes = zip((height, width), pads[:2], pads[2:], (rows, columns), (down, right), strict=True)
    out = [(size + before + behind - taps) // step + 1 for size, before, behind, taps, step in sizes]
    if min(out) < 1:
        return pool(rng)
    attrs = PoolAttrs((rows, columns), (down, right), pads, output_hw=(out[0], out[1]))  # type: ignore[arg-type]
    x = rng.integers(-128, 128, (int(rng.integers(1, 3)), height, width, channels)).astype(np.int8)
    return make("MaxPool", (x,), attrs, images=(0,))


def rescale(rng: Rng, index: int) -> Case:
    """Element by element, and (every third) the mean of each channel."""
    shape = elements(rng)
    axes = tuple(range(len(shape) - 1)) if index % 3 == 2 else ()
    return pointwise.qrescale(rng, shape, axes, index % KINDS, index)


VECTORS: dict[str, Generator] = {
    "QConv": lambda rng, index: quantised.of_relu(
        quantised.qconv(rng, classifier(rng) if index % 9 == 4 else convolution(rng, index, False), index % KINDS),
        index // 3 % 2 == 1,
    ),
    "QConv odd": lambda rng, index: quantised.of_relu(
        quantised.qconv(rng, odd(rng, index), index % KINDS, index % 5 == 3), index // 5 % 2 == 1
    ),
    "QConv few": lambda rng, index: quantised.of_relu(
        quantised.qconv(rng, few(rng, index), index % KINDS, index % 5 == 3), index // 5 % 2 == 1
    ),
    "MaxPool": lambda rng, _index: pool(rng),
    "QConvGradInput": lambda rng, index: quantised.qconv_grad_input(
        rng, convolution(rng, index, True), index % KINDS, mask(rng, MASKS[index // 3 % 3])
    ),
    "QConvGradInput odd": lambda rng, index: quantised.qconv_grad_input(
        rng, odd(rng, index, LANES), index % KINDS, mask(rng, MASKS[index // 5 % 3])
    ),
    "QConvGradInput few": lambda rng, index: quantised.qconv_grad_input(
        rng, few_channels(rng, index), index % KINDS, mask(rng, MASKS[index // 2 % 3])
    ),
    "QConvGradInput narrow": lambda rng, index: quantised.qconv_grad_input(
        rng, narrow(rng, index), index % KINDS, mask(rng, MASKS[index // 2 % 3])
    ),
    "QConvUpdate": lambda rng, index: quantised.qconv_update(rng, weight(rng, index), index % KINDS),
    "QConvUpdate odd": lambda rng, index: quantised.qconv_update(rng, odd(rng, index, LANES), index % KINDS),
    "QConvUpdate few": lambda rng, index: quantised.qconv_update(rng, few_taps(rng, index), index % KINDS),
    "QConvUpdate small": small_update,
    "QConvUpdateFine odd": lambda rng, index: quantised.qconv_update_fine(rng, odd(rng, index, LANES), index % KINDS),
    "QConvSum": lambda rng, index: quantised.qconv_sum(rng, weight(rng, index), index % KINDS),
    "QAdd": lambda rng, index: pointwise.of_relu(pointwise.qadd(rng, elements(rng), index % KINDS), index % 3 == 1),
    "QRescale": rescale,
    "QClipMask": lambda rng, _index: pointwise.clip_mask(rng, elements(rng, 8)),
    "ErrorScale": lambda rng, index: pointwise.error_scale(
        rng, elements(rng), index % KINDS, mask(rng, MASKS[index % 3])
    ),
    "ErrorAdd": lambda rng, index: pointwise.error_add(rng, elements(rng), index % KINDS, mask(rng, MASKS[index % 3])),
    "QBiasUpdate": lambda rng, index: updates.bias_update(rng, elements(rng), index % KINDS),
    "QBiasSum": lambda rng, index: updates.bias_sum(rng, elements(rng), index % KINDS),
    "QWeightApply": lambda rng, index: updates.weight_apply(rng, elements(rng), index % KINDS, (127, 64)[index % 2]),
}


def vector_cases(op: str, count: int, first: int = 0) -> list[Case]:
    """Cases `first` to `first + count` of an op; a number is always the same case."""
    numbers = range(first, first + count)
    return [VECTORS[op](np.random.default_rng([11, zlib.crc32(op.encode()), n]), n) for n in numbers]
