"""Distances by which an output may begin below a dying input, from the order in which kernels read and write.

A kernel works in turns: it reads what a turn needs, then writes that turn's part of the output, both in rising order of
addresses. An input byte is safe while everything written so far is below the lowest byte still to be read.
`tests/lower/test_overlaps.py` checks these distances: it runs each kernel at its distance, and one alignment unit below
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import Overlap
from tinytrain_compile.ops.names import operand, position, result

ITEM_BYTES = {"float32": 4, "int32": 4, "int8": 1}


def smallest_distance(written: npt.NDArray[np.int64], read: npt.NDArray[np.int64]) -> int:
    """Return the least distance of an output below its input. written: per turn, the end of its output; read: the
    lowest byte of the input that it reads.

    The last turn's output covers nothing that is still needed.
    """
    if len(written) < 2:
        return 0
    later = np.minimum.accumulate(read[::-1])[::-1]
    return max(0, int((written[:-1] - later[1:]).max()))


def element_by_element(node: Node, name: str = "") -> tuple[Overlap, ...]:
    """Return the overlap that a loop over elements of two sizes allows: it stores each element after loading its
    operand's.

    name: of the operand, if there are several.
    """
    (output,), index = node.outputs, position(node, name) if name else 0
    source = node.inputs[index]
    count = np.arange(output.elements, dtype=np.int64)
    distance = smallest_distance((count + 1) * ITEM_BYTES[output.dtype], count * ITEM_BYTES[source.dtype])
    return (Overlap(0, index, distance),)


def packed_bits(node: Node) -> tuple[Overlap, ...]:
    """Return the overlap that packing bits allows: eight elements are loaded before their byte is stored."""
    size = ITEM_BYTES[operand(node, "y").dtype]
    count = np.arange(result(node, "mask").size_bytes, dtype=np.int64)
    return (Overlap(0, 0, smallest_distance(count + 1, 8 * size * count)),)


def first_rows(rows: int, strip: int, stride: int, pad: int) -> npt.NDArray[np.int64]:
    """Return the lowest input row of every strip of `strip` output rows."""
    return np.maximum(np.arange(0, rows, strip, dtype=np.int64) * stride - pad, 0)


def row_strips(node: Node, strip: int, stride: int, pad: int, step: int = 1) -> tuple[Overlap, ...]:
    """Return the overlap that a few output rows per turn allow, if their input rows are copied first.

    step: channels, if the kernel goes through the strips channel by channel: then others are still to be read, and stay
    intact only at multiples of a pixel.
    """
    count, rows, width, channels = result(node, "y").shape
    _, image_rows, image_width, image_channels = operand(node, "x").shape
    if count > 1 and step > 1:
        return ()
    ends = np.arange(strip, rows + 1, strip, dtype=np.int64) * width * channels
    starts = first_rows(rows, strip, stride, pad) * image_width * image_channels
    images = np.arange(count, dtype=np.int64)[:, None]
    written = (images * rows * width * channels + ends).ravel()
    read = (images * image_rows * image_width * image_channels + starts).ravel()
    distance = smallest_distance(written, read)
    return (Overlap(0, 0, -(-distance // step) * step, step),)


def pixel_strips(node: Node, strip: int) -> tuple[Overlap, ...]:
    """Return the overlap that a few pixels per turn allow, if all their channels are copied first: 1x1 convolutions."""
    pixels = math.prod(operand(node, "x").shape[:3])
    turns = np.arange(pixels // strip, dtype=np.int64)
    written = (turns + 1) * strip * result(node, "y").shape[3]
    return (Overlap(0, 0, smallest_distance(written, turns * strip * operand(node, "x").shape[3])),)


def windows(node: Node, strides: tuple[int, int], pads: tuple[int, ...]) -> tuple[Overlap, ...]:
    """Return the overlap that a few channels of a pixel per turn allow, each read in its window: pooling. Fewer
    channels per turn are never safer."""
    count, rows, width, channels = result(node, "y").shape
    _, image_rows, image_width, _ = operand(node, "x").shape
    size = ITEM_BYTES[operand(node, "x").dtype]
    low_row, low_column = first_rows(rows, 1, strides[0], pads[0]), first_rows(width, 1, strides[1], pads[1])
    images = np.arange(count, dtype=np.int64)[:, None, None] * image_rows
    read = (((images + low_row[:, None]) * image_width + low_column) * channels).ravel()
    pixels = np.arange(len(read), dtype=np.int64)
    written = np.concatenate([pixels * channels + 1, (pixels + 1) * channels])
    starts = np.concatenate([read, read + 1])
    order = np.argsort(np.concatenate([2 * pixels, 2 * pixels + 1]), kind="stable")
    return (Overlap(0, 0, size * smallest_distance(written[order], starts[order])),)


def within_concat(node: Node, axis: int) -> tuple[Overlap, ...]:
    """Return the overlaps of a Concat, element by element in the output's order: every input must begin so high that
    its last element is not below its destination."""
    shape = result(node, "y").shape
    rows, width = math.prod(shape[:axis]), math.prod(shape[axis:])
    found: list[Overlap] = []
    start = 0
    for index, value in enumerate(node.inputs):
        own = math.prod(value.shape[axis:])
        distance = (rows - 1) * (width - own) + start
        found.append(Overlap(0, index, distance * ITEM_BYTES[value.dtype]))
        start += own
    return tuple(found)


def embedded(node: Node, starts: Sequence[int], steps: Sequence[int]) -> tuple[Overlap, ...]:
    """Return how far the last element moves up. The output's order is the input's too if no axis runs backwards."""
    x, shape = operand(node, "x"), result(node, "y").shape
    if min(steps, default=1) < 1:
        return ()
    place = 0
    for start, step, size, extent in zip(starts, steps, x.shape, shape, strict=True):
        place = place * extent + start + (size - 1) * step
    return (Overlap(0, 0, (place + 1 - x.elements) * ITEM_BYTES[x.dtype]),)


def never_upwards(steps: Sequence[int]) -> tuple[Overlap, ...]:
    """Return that a slice moves no element to a higher place, unless an axis runs backwards."""
    return (Overlap(0, 0, 0),) if min(steps, default=1) > 0 else ()
