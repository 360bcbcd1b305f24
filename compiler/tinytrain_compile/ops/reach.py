"""What the taps of a convolution, or of its data gradient, read: along one axis, and how much a kernel copies of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reach:
    """One axis. Output position p of phase q reads, with its t-th tap, place p stride + (q + ahead) / phases + t step.

    That is tap (q + ahead) % phases + t phases of the kernel, if it has so many. extent: elements along the axis of
    what is read, of which one lies at every holes-th place. Phases: the output as interleaved images, each with taps
    of its own. All methods take numbers, or expressions of TVM.
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
        """Of the phase that has most."""
        return -(-self.kernel // self.phases)

    def lead(self, phase: Any) -> Any:
        """Where the first tap of position 0 reads."""
        return phase + self.ahead if self.phases == 1 else (phase + self.ahead) // self.phases

    def tap(self, phase: Any, turn: Any) -> Any:
        """The tap of the kernel; there is none from `kernel` on."""
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
        """With which of its taps a position reads a place of its window; there is none outside of 0 .. taps - 1."""
        return (place + self.ends[0] - self.lead(phase)) * self.step

    def _shared(self, tile: int) -> bool:
        """Whether a tile's places are copied as they lie, and not tap by tap (wide dilations)."""
        return self.phases > 1 or self._span(tile) <= tile * self.kernel

    def _span(self, tile: int) -> int:
        low, high = self.ends
        return (tile - 1) * self.stride + high - low + 1

    def copied(self, tile: int) -> int:
        """Places that are copied for a tile of positions."""
        return self._span(tile) if self._shared(tile) else tile * self.kernel

    def place(self, tile: int, position: Any, phase: Any, turn: Any) -> Any:
        """Which of the copied places a position of the tile reads with a tap."""
        if self._shared(tile):
            return position * self.stride + self.lead(phase) + turn * self.step - self.ends[0]
        return position * self.kernel + turn

    def source(self, tile: int, start: Any, copied: Any) -> Any:
        """Where a copied place of the tile that begins at position `start` comes from."""
        if self._shared(tile):
            return start * self.stride + copied + self.ends[0]
        return (start + copied // self.kernel) * self.stride + self.ahead + copied % self.kernel * self.step

    def within(self, tile: int, positions: int) -> tuple[bool, bool]:
        """Whether no place that is copied for so many positions lies before the image; and none behind it."""
        low, high = self.ends
        last = (-(-positions // tile) * tile - 1) * self.stride + high
        return low >= 0, last < self.extent * self.holes


@dataclass(frozen=True)
class Patch:
    """What is copied for a tile of a row of output pixels: rows and columns, from `channels` channels each.

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
        """How many, for tiles of at most so many pixels."""
        return self.rows.copied(1) * self.columns.copied(min(tile, self.width)) * self.channels
