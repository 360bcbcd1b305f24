"""What kernels copy along an axis is what the definitions of a convolution and of its data gradient read."""

from __future__ import annotations

import itertools

import pytest

from tinytrain_compile.ops.conv import ConvAttrs, backward_patch, forward_patch, gathers_error
from tinytrain_compile.ops.conv_form import Reach

TILES = (1, 2, 4)


def _axes() -> list[tuple[int, int, int, int, int]]:
    """(extent, kernel, stride, pad, dilation) whose window fits."""
    every = itertools.product((5, 8, 9), (1, 2, 3), (1, 2, 3), (0, 1, 2), (1, 2, 4))
    return [axis for axis in every if axis[3] < axis[1] and (axis[1] - 1) * axis[4] < axis[0] + 2 * axis[3]]


def _conv(kernel: int, stride: int, pad: int, dilation: int) -> ConvAttrs:
    return ConvAttrs((kernel, kernel), (stride, stride), (pad,) * 4, (dilation, dilation))


def _read(reach: Reach, tile: int, positions: int) -> dict[int, set[tuple[int, int]]]:
    """Output place -> (element read, tap of the kernel), by way of the copied places; checks these."""
    found: dict[int, set[tuple[int, int]]] = {}
    before, behind = reach.within(tile, positions)
    for start, p, q in itertools.product(range(0, positions, tile), range(tile), range(reach.phases)):
        if start + p >= positions:
            continue
        reads = found.setdefault((start + p) * reach.phases + q, set())
        for turn in range(reach.taps):
            tap = reach.tap(q, turn)
            if tap >= reach.kernel:
                continue
            copied = reach.place(tile, p, q, turn)
            assert 0 <= copied < reach.copied(tile)
            place = reach.source(tile, start, copied)
            assert not (before and place < 0) and not (behind and place >= reach.extent * reach.holes)
            if 0 <= place < reach.extent * reach.holes and place % reach.holes == 0:
                reads.add((place // reach.holes, tap))
    return found


@pytest.mark.parametrize("tile", TILES)
def test_forward_taps_read_their_pixels(tile: int) -> None:
    for extent, kernel, stride, pad, dilation in _axes():
        conv = _conv(kernel, stride, pad, dilation)
        patch = forward_patch(conv, (1, extent, extent, 1))
        taps = {y: {(y * stride + r * dilation - pad, r) for r in range(kernel)} for y in range(patch.shape[0])}
        wanted = {y: {(i, r) for i, r in reads if 0 <= i < extent} for y, reads in taps.items()}
        assert _read(patch.columns, tile, patch.width) == wanted, conv


@pytest.mark.parametrize("tile", TILES)
def test_backward_taps_read_the_errors_of_the_pixels_that_they_fed(tile: int) -> None:
    phases: set[int] = set()
    for extent, kernel, stride, pad, dilation in _axes():
        conv = _conv(kernel, stride, pad, dilation)
        (out, _) = conv.output_hw(extent, extent)
        patch = backward_patch(conv, (extent, extent), (1, out, out, 1))
        wanted: dict[int, set[tuple[int, int]]] = {x: set() for x in range(extent)}
        for y, r in itertools.product(range(out), range(kernel)):
            fed = y * stride + r * dilation - pad
            if fed in wanted:
                wanted[fed].add((y, r))
        assert _read(patch.columns, tile, patch.width) == wanted, (conv, extent)
        assert patch.columns.holes == 1 or gathers_error(conv, (extent, extent))
        phases.add(patch.columns.phases)
    assert phases == {1, 2, 3}


def test_neighbours_share_what_they_read_unless_taps_lie_far_apart() -> None:
    assert Reach(3, 1, -1, 1, 9).copied(4) == 6
    assert Reach(3, 1, -1, 6, 30).copied(4) == 4 * 3
    assert Reach(3, 1, 1, -1, 4, phases=2).copied(4) == 5
