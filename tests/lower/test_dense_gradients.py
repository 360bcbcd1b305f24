"""Gradients of dense k x k convolutions of integers: which form they take, and that it gives the reference's bytes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from testing.cores import missing_tools
from testing.kernels.boards import measure
from testing.ops import case_quantised as quantised
from testing.ops.case import Case
from testing.ops.random_structure import random_cases
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
WHOLE: Geometry = ((1, 6, 6, 4), 8, ConvAttrs((3, 3), pads=SAME))
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


@pytest.mark.qemu
@pytest.mark.skipif(bool(missing_tools()), reason="needs QEMU")
@pytest.mark.parametrize("target", ["cortex-m7", "cortex-m0plus"])
def test_batches_and_many_channels_on_boards(target: str) -> None:
    cases = [make(geometry) for geometry in GEOMETRIES for make in (weights, data)]
    assert [found.equal for found in measure(cases, target)] == [True] * len(cases)
