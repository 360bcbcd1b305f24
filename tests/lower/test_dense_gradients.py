"""Gradients of dense k x k convolutions of integers: which form they take, and that it gives the reference's bytes."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from testing.cores import missing_tools
from testing.kernels.boards import measure
from testing.kernels.sanitised import run_sanitised
from testing.ops import case_quantised as quantised
from testing.ops.case import Case
from tinytrain_compile.lower.kernels import SIZE, kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv_form import backward_dense, weight_tiles
from tinytrain_compile.ops.int8.error import NO_CLAMP
from tinytrain_compile.target.loader import load_target

SAME = (1, 1, 1, 1)
Geometry = quantised.Geometry
EVEN: Geometry = ((1, 6, 6, 4), 6, ConvAttrs((3, 3), pads=SAME))
STRIDED: Geometry = ((1, 8, 8, 4), 6, ConvAttrs((3, 3), (2, 2), SAME))
ODD: Geometry = ((1, 5, 5, 3), 5, ConvAttrs((3, 3), pads=SAME))
GEOMETRIES: tuple[Geometry, ...] = (
    ((2, 6, 6, 4), 6, ConvAttrs((3, 3), pads=SAME)),  # sums over two images
    ((1, 4, 4, 60), 64, ConvAttrs((3, 3), pads=SAME)),  # windows in turn
    ((2, 9, 8, 4), 2, ConvAttrs((5, 3), (3, 2), (2, 0, 1, 1))),
    ((1, 8, 7, 6), 3, ConvAttrs((3, 2), (2, 1), (1, 0, 0, 1), (2, 1))),
    ((1, 8, 8, 8), 8, ConvAttrs((1, 1))),  # as many turns as channels: one register must not hold both
)
INCOMPLETE: tuple[Geometry, ...] = (
    ODD,  # tiles cross from a tap to the next
    ((1, 3, 13, 9), 11, ConvAttrs((4, 4), (2, 2), (1, 4, 2, 5), (1, 3))),  # a strip of two taps, an unused column each
    ((1, 12, 12, 7), 6, ConvAttrs((3, 3), pads=(2, 2, 2, 2), dilations=(2, 2))),
    ((1, 8, 8, 5), 1, ConvAttrs((3, 3), pads=SAME)),
    ((1, 4, 4, 7), 9, ConvAttrs((1, 1))),
    ((1, 5, 3, 7), 1, ConvAttrs((1, 1))),
)
"""Odd numbers of channels: tiles with unused sums."""


def weights(geometry: Geometry) -> Case:
    return quantised.qconv_update(np.random.default_rng(5), geometry, 0)


def data(geometry: Geometry) -> Case:
    return quantised.qconv_grad_input(np.random.default_rng(5), geometry, 0, NO_CLAMP)


@pytest.mark.parametrize(
    ("geometry", "target", "of_weights", "of_data"),
    [
        (EVEN, "cortex-m7", True, True),
        (EVEN, "cortex-m3", True, True),
        (EVEN, "cortex-m0plus", True, True),
        (STRIDED, "cortex-m7", True, True),
        (STRIDED, "cortex-m3", True, False),
        (STRIDED, "cortex-m0plus", True, False),
        (ODD, "cortex-m7", True, True),
        (ODD, "cortex-m0plus", False, False),
    ],
)
def test_which_gradients_are_over_widened_operands(
    geometry: Geometry, target: str, of_weights: bool, of_data: bool
) -> None:
    context = kernel_context(load_target(target).features, False)
    found = [" tt_dot" in lower_node(make(geometry).node(), "k", context).source for make in (weights, data)]
    assert found == [of_weights, of_data]


def test_small_code_of_few_registers_keeps_operands_where_they_lie() -> None:
    context = kernel_context(load_target("cortex-m0plus").features, False, SIZE)
    assert not any(" tt_dot" in lower_node(make(EVEN).node(), "k", context).source for make in (weights, data))


def test_no_gradient_takes_much_scratch_where_little_is_alive() -> None:
    layers = [
        ((1, size, size, c), c, ConvAttrs((3, 3), pads=SAME)) for size, c in ((4, 16), (8, 16), (16, 8), (32, 16))
    ]
    for geometry in layers:
        alive = geometry[0][1] * geometry[0][2] * geometry[0][3] + geometry[0][1] * geometry[0][2] * geometry[1]
        rows, maps = backward_dense(data(geometry).node()), weight_tiles(weights(geometry).node())
        assert rows is not None and rows.scratch_bytes <= max(2 * 3072, alive)
        assert maps is not None and maps.scratch_bytes <= max(2048, 2 * alive)


def incomplete() -> list[Case]:
    """Return updates by kernels with incomplete tiles, of all kinds: some move more than the weight."""
    rng, kinds = np.random.default_rng(5), (quantised.qconv_update_fine, quantised.qconv_sum, quantised.qconv_update)
    cases = [make(rng, geometry, 0) for geometry, make in zip(INCOMPLETE, cycle(kinds), strict=False)]
    return [*cases, quantised.qconv_momentum(rng, ODD, 0, False)]


def test_an_incomplete_tile_moves_every_weight_once(tmp_path: Path) -> None:
    run_sanitised(incomplete(), tmp_path)


@pytest.mark.qemu
@pytest.mark.skipif(bool(missing_tools()), reason="needs QEMU")
def test_incomplete_tiles_on_a_board() -> None:
    assert all(found.equal for found in measure(incomplete(), "cortex-m7"))


@pytest.mark.qemu
@pytest.mark.skipif(bool(missing_tools()), reason="needs QEMU")
@pytest.mark.parametrize("target", ["cortex-m7", "cortex-m0plus"])
def test_batches_and_many_channels_on_boards(target: str) -> None:
    cases = [make(geometry) for geometry in GEOMETRIES for make in (weights, data)]
    assert [found.equal for found in measure(cases, target)] == [True] * len(cases)
