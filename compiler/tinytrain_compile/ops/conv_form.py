"""Facts about a convolution: attributes, kernels that suit it, elements that their taps read and copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinytrain_compile.ir.types import Attrs
from tinytrain_compile.ops.base import Split

TILE_WIDTH = 4
"""Most output pixels (of a phase, neighbours in a row) whose taps' pixels are copied at a time."""


@dataclass(frozen=True)
class Reach:
    """One axis of a window. Output position p of phase q reads, with tap t, place p stride + (q + ahead) / phases + t
    step.

    That is tap (q + ahead) % phases + t phases of the kernel, if it exists. extent: elements along the axis of what is
    read, one at every holes-th place. Phases: the output as interleaved images, each with its own taps. All methods
    take numbers, or expressions of TVM.
    """

    kernel: int
    stride: int
    ahead: int
    step: int
    extent: int
    phases: int = 1
    holes: int = 1

    @property
    def taps(self) -> int:
        """Taps of the phase that has most."""
        return -(-self.kernel // self.phases)

    def lead(self, phase: Any) -> Any:
        """Return the place that the first tap of position 0 reads."""
        return phase + self.ahead if self.phases == 1 else (phase + self.ahead) // self.phases

    def tap(self, phase: Any, turn: Any) -> Any:
        """Return the tap of the kernel; there is none from `kernel` on."""
        return turn if self.phases == 1 else (phase + self.ahead) % self.phases + turn * self.phases

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest place that position 0 reads, over all phases."""
        taps = [(q, t) for q in range(self.phases) for t in range(self.taps) if self.tap(q, t) < self.kernel]
        places = [self.lead(q) + t * self.step for q, t in taps]
        return min(places), max(places)

    @property
    def window(self) -> int:
        """Places from the lowest to the highest that a position reads, over all phases."""
        low, high = self.ends
        return high - low + 1

    def turn(self, phase: Any, place: Any) -> Any:
        """Return the tap with which a position reads a place of its window; there is none outside of 0 .. taps - 1."""
        return (place + self.ends[0] - self.lead(phase)) * self.step

    def _shared(self, tile: int) -> bool:
        """Tell whether a tile's places are copied in one run, not tap by tap (wide dilations)."""
        return self.phases > 1 or self._span(tile) <= tile * self.kernel

    def _span(self, tile: int) -> int:
        low, high = self.ends
        return (tile - 1) * self.stride + high - low + 1

    def copied(self, tile: int) -> int:
        """Count the places that are copied for a tile of positions."""
        return self._span(tile) if self._shared(tile) else tile * self.kernel

    def place(self, tile: int, position: Any, phase: Any, turn: Any) -> Any:
        """Return which of the copied places a position of the tile reads with a tap."""
        if self._shared(tile):
            return position * self.stride + self.lead(phase) + turn * self.step - self.ends[0]
        return position * self.kernel + turn

    def source(self, tile: int, start: Any, copied: Any) -> Any:
        """Return the source of a copied place of the tile that begins at position `start`."""
        if self._shared(tile):
            return start * self.stride + copied + self.ends[0]
        return (start + copied // self.kernel) * self.stride + self.ahead + copied % self.kernel * self.step

    def within(self, tile: int, positions: int) -> tuple[bool, bool]:
        """Tell whether all places copied for these positions are at or after the image's start; and before its end."""
        low, high = self.ends
        last = (-(-positions // tile) * tile - 1) * self.stride + high
        return low >= 0, last < self.extent * self.holes


@dataclass(frozen=True)
class Patch:
    """Copy made for a tile of a row of output pixels: rows and columns of `channels` channels.

    shape: the output (height, width).
    """

    rows: Reach
    columns: Reach
    shape: tuple[int, int]
    channels: int

    @property
    def width(self) -> int:
        """Output columns of a phase."""
        return self.shape[1] // self.columns.phases

    def elements(self, tile: int) -> int:
        """Count elements, for tiles of at most `tile` pixels."""
        return self.rows.copied(1) * self.columns.copied(min(tile, self.width)) * self.channels


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
        """Return the height and width of the output for an input of this height and width."""
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
    """Tell whether the kernel gathers receptive fields: dense convolutions wider than 1x1, or with padding."""
    return conv.groups == 1 and (conv.kernel != (1, 1) or any(conv.pads))


def is_product(conv: ConvAttrs) -> bool:
    """Tell whether it is a matrix product of pixels and weights: 1x1, one group, no stride."""
    return conv.groups == 1 and not gathers(conv) and conv.strides == (1, 1)


def forward_patch(conv: ConvAttrs, image: tuple[int, ...]) -> Patch:
    """Return the copy that a k x k kernel makes of an image (n, height, width, channels)."""
    rows, columns = (
        Reach(conv.kernel[i], conv.strides[i], -conv.pads[i], conv.dilations[i], image[1 + i]) for i in (0, 1)
    )
    return Patch(rows, columns, conv.output_hw(image[1], image[2]), image[3])


def backward_phases(conv: ConvAttrs, image_hw: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of images of a data gradient: the strides, if these divide it and taps are dense."""
    rows, columns = (
        stride if 1 in (conv.dilations[i], conv.kernel[i]) and image_hw[i] % stride == 0 else 1
        for i, stride in enumerate(conv.strides)
    )
    return rows, columns


def gathers_error(conv: ConvAttrs, image_hw: tuple[int, int]) -> bool:
    """Tell whether the kernel of a data gradient copies what its taps read: also if there are zeros between errors."""
    return gathers(conv) or (conv.groups == 1 and backward_phases(conv, image_hw) != conv.strides)


def backward_patch(conv: ConvAttrs, image_hw: tuple[int, int], dy: tuple[int, ...]) -> Patch:
    """Return the copy that the kernel of a data gradient makes of dy (n, height, width, channels)."""
    phases = backward_phases(conv, image_hw)
    rows, columns = (
        Reach(conv.kernel[i], 1, conv.pads[i], -conv.dilations[i], dy[1 + i], phases[i], conv.strides[i] // phases[i])
        for i in (0, 1)
    )
    return Patch(rows, columns, image_hw, dy[3])
