"""What a convolution is: attributes, which kernels are meant for it, and what these read at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir.types import Attrs
from tinytrain_compile.ops.base import Split
from tinytrain_compile.ops.reach import Patch, Reach

TILE_WIDTH = 4
"""Output pixels (of a phase), neighbours in a row, whose taps' pixels are copied at a time, at most."""


@dataclass(frozen=True)
class ConvAttrs(Attrs):
    """kernel, strides, dilations: (height, width); pads: (top, left, bottom, right); split: a weight in two parts."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = False
    split: Split | None = None

    def output_hw(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output for an input of this height and width."""
        sizes: list[int] = []
        for axis, size in enumerate((height, width)):
            reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
            padded = size + self.pads[axis] + self.pads[axis + 2]
            if padded < reach:
                raise ValueError(f"a window of {reach} does not fit an input of {padded}")
            sizes.append((padded - reach) // self.strides[axis] + 1)
        return sizes[0], sizes[1]


@dataclass(frozen=True)
class ConvGradInputAttrs(Attrs):
    """conv: the convolution whose data gradient this is (bias ignored); input_hw: its input's height and width."""

    conv: ConvAttrs
    input_hw: tuple[int, int]


def gathers(conv: ConvAttrs) -> bool:
    """Whether the kernel gathers receptive fields: dense convolutions wider than 1x1, or with padding."""
    return conv.groups == 1 and (conv.kernel != (1, 1) or any(conv.pads))


def is_product(conv: ConvAttrs) -> bool:
    """Whether it is a matrix product of pixels and weights: 1x1, one group, no stride."""
    return conv.groups == 1 and not gathers(conv) and conv.strides == (1, 1)


def forward_patch(conv: ConvAttrs, image: tuple[int, ...]) -> Patch:
    """What a k x k kernel copies of an image (n, height, width, channels)."""
    rows, columns = (
        Reach(conv.kernel[i], conv.strides[i], -conv.pads[i], conv.dilations[i], image[1 + i]) for i in (0, 1)
    )
    return Patch(rows, columns, conv.output_hw(image[1], image[2]), image[3])


def backward_phases(conv: ConvAttrs, image_hw: tuple[int, int]) -> tuple[int, int]:
    """The images that a data gradient is cut into: as many as strides are, where these divide it and taps are dense."""
    rows, columns = (
        stride if 1 in (conv.dilations[i], conv.kernel[i]) and image_hw[i] % stride == 0 else 1
        for i, stride in enumerate(conv.strides)
    )
    return rows, columns


def gathers_error(conv: ConvAttrs, image_hw: tuple[int, int]) -> bool:
    """Whether the kernel of a data gradient copies what its taps read: also where zeros lie between errors."""
    return gathers(conv) or (conv.groups == 1 and backward_phases(conv, image_hw) != conv.strides)


def backward_patch(conv: ConvAttrs, image_hw: tuple[int, int], dy: tuple[int, ...]) -> Patch:
    """What the kernel of a data gradient copies of dy (n, height, width, channels)."""
    phases = backward_phases(conv, image_hw)
    rows, columns = (
        Reach(conv.kernel[i], 1, conv.pads[i], -conv.dilations[i], dy[1 + i], phases[i], conv.strides[i] // phases[i])
        for i in (0, 1)
    )
    return Patch(rows, columns, image_hw, dy[3])
