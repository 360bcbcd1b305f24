"""Gradients of dense k x k convolutions of integers: which form they take, and that it gives the reference's bytes."""

from __future__ import annotations

import re
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from testing.cores import missing_tools
from testing.kernels.boards import measure
from testing.kernels.sanitised import run_sanitised
from testing.ops import case_quantised as quantised
from testing.ops.case import Case
from testing.ops.random_structure import random_cases
from tinytrain_compile.lower.kernels import SIZE, kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv_form import backward_dense, weight_tiles
from tinytrain_compile.ops.int8.error import NO_CLAMP
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify import build

SAME = (1, 1, 1, 1)
Geometry = quantised.Geometry
EVEN: Geometry = ((1, 6, 6, 4), 6, ConvAttrs((3, 3), pads=SAME))
STRIDED: Geometry = ((1, 8, 8, 4), 6, ConvAttrs((3, 3), (2, 2), SAME))
ODD: Geometry = ((1, 5, 5, 3), 5, ConvAttrs((3, 3), pads=SAME))
WHOLE: Geometry = ((1, 8, 8, 4), 8, ConvAttrs((3, 3), pads=SAME))
ODD_STRIDED: Geometry = ((1, 9, 9, 5), 7, ConvAttrs((3, 3), (2, 2), SAME))
GEOMETRIES: tuple[Geometry, ...] = (
    ((2, 6, 6, 4), 6, ConvAttrs((3, 3), pads=SAME)),  # sums over two images
    ((1, 4, 4, 60), 64, ConvAttrs((3, 3), pads=SAME)),  # windows in turn
    ((2, 9, 8, 4), 2, ConvAttrs((5, 3), (3, 2), (2, 0, 1, 1))),
    ((1, 8, 7, 6), 3, ConvAttrs((3, 2), (2, 1), (1, 0, 0, 1), (2, 1))),
    ((2, 5, 7, 5), 7, ConvAttrs((3, 3), pads=SAME)),  # pairs of windows, the last pixel and channel alone
    ((1, 7, 5, 9), 12, ConvAttrs((3, 3), pads=(2, 0, 0, 1))),
    ((1, 9, 6, 6), 9, ConvAttrs((3, 3), dilations=(2, 1), pads=(1, 1, 2, 1))),
    ((1, 5, 5, 7), 5, ConvAttrs((1, 1))),
    ((1, 1, 9, 5), 3, ConvAttrs((1, 5), pads=(0, 2, 0, 2))),
    ((1, 9, 9, 5), 7, ConvAttrs((3, 3), (2, 2), SAME)),  # a block that ends with a column of weights
    ((1, 8, 8, 8), 8, ConvAttrs((1, 1))),  # as many turns as channels: one register must not hold both
)
INCOMPLETE: tuple[Geometry, ...] = (
    ((1, 12, 12, 3), 5, ConvAttrs((3, 3), pads=SAME)),  # tiles cross from a tap to the next
    ((1, 3, 13, 9), 11, ConvAttrs((4, 4), (2, 2), (1, 4, 2, 5), (1, 3))),  # a strip of two taps, an unused column each
    ((1, 12, 12, 7), 6, ConvAttrs((3, 3), pads=(2, 2, 2, 2), dilations=(2, 2))),
    ((1, 20, 20, 5), 1, ConvAttrs((3, 3), pads=SAME)),
    ((1, 4, 4, 7), 9, ConvAttrs((1, 1))),
    ((1, 5, 3, 7), 1, ConvAttrs((1, 1))),
)
"""Odd numbers of channels: tiles with unused sums."""


def weights(geometry: Geometry) -> Case:
    return quantised.qconv_update(np.random.default_rng(5), geometry, 0)


def data(geometry: Geometry) -> Case:
    return quantised.qconv_grad_input(np.random.default_rng(5), geometry, 0, NO_CLAMP)


HELPERS = ("tt_dot", "tt_pairs_error", "tt_windows_error")


def helper_of(case: Case, target: str) -> str:
    """The helper that computes a gradient's products; empty if loops do."""
    source = lower_node(case.node(), "k", kernel_context(load_target(target).features, False)).source
    return next((name for name in HELPERS if f" {name}" in source), "")


@pytest.mark.parametrize(
    ("geometry", "target", "of_weights", "of_data"),
    [
        (EVEN, "cortex-m7", "tt_dot", "tt_dot"),
        (EVEN, "cortex-m3", "tt_dot", "tt_dot"),
        (EVEN, "cortex-m0plus", "tt_dot", "tt_dot"),
        (WHOLE, "cortex-m7", "tt_dot", "tt_pairs_error"),
        (WHOLE, "cortex-m3", "tt_dot", "tt_dot"),
        (STRIDED, "cortex-m7", "tt_dot", "tt_dot"),
        (STRIDED, "cortex-m3", "tt_dot", ""),
        (STRIDED, "cortex-m0plus", "tt_dot", ""),
        (ODD, "cortex-m7", "", "tt_pairs_error"),
        (ODD, "cortex-m0plus", "", ""),
        (ODD_STRIDED, "cortex-m7", "", "tt_windows_error"),
    ],
)
def test_which_gradients_are_over_widened_operands(
    geometry: Geometry, target: str, of_weights: str, of_data: str
) -> None:
    assert [helper_of(make(geometry), target) for make in (weights, data)] == [of_weights, of_data]


def test_random_data_gradients_have_all_forms() -> None:
    """So that `make bench NAME=fuzz` looks at them. Their weights may be in flash."""
    context = kernel_context(load_target("cortex-m7").features, False)
    sources = [lower_node(case.node(), "k", context).source for case in random_cases("QConvGradInput", 60)]
    assert all(sum(f" {name}" in source for source in sources) >= 3 for name in HELPERS)
    assert all(re.search(r"const int8_t \*restrict w\b", source) for source in sources)


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


@pytest.mark.qemu
@pytest.mark.skipif(bool(missing_tools()), reason="needs QEMU")
def test_sums_on_vectors_at_a_level_that_leaves_out_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """GCC 12 at -O1 takes the number behind the last one from an instruction that it leaves out (tt_mve_count.h)."""
    flags = tuple("-O1" if flag == "-O2" else flag for flag in build.COMPILE_FLAGS)
    assert "-O1" in flags
    monkeypatch.setattr(build, "COMPILE_FLAGS", flags)
    rng = np.random.default_rng(3)
    geometries = (
        ((1, 8, 4, 13), 5, ConvAttrs((2, 2), pads=(1, 1, 1, 0))),
        ((2, 8, 8, 19), 7, ConvAttrs((2, 2), pads=(1, 0, 1, 1))),
        ((2, 5, 8, 7), 8, ConvAttrs((3, 2), pads=(1, 0, 0, 1))),
    )
    cases = [quantised.qconv_sum(rng, geometry, 0) for geometry in geometries]
    assert all(found.equal for found in measure(cases, "cortex-m55"))
