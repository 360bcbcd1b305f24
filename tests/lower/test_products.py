"""1x1 layers of integers: the shape decides which operand lies widened in scratch, and the bytes are the reference's.

Few pixels read the weights as they lie; of an odd number of pixels the last tile is split off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from testing.cores import NAMES
from testing.kernels.boards import measure
from testing.kernels.by_row_blocks import by_row_blocks
from testing.kernels.sanitised import SCALAR, VECTORS, run_sanitised
from testing.ops import case_quantised as quantised
from testing.ops.case import Case
from tests.e2e.marks import needs_qemu
from tinytrain_compile.lower.kernels import SIZE, KernelContext, kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.lower.streams.functions import lower_rows
from tinytrain_compile.ops.base import row_form, scratch_bytes
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv_form import error_row_product, forward_product, forward_row_product
from tinytrain_compile.ops.int8.error import NO_CLAMP
from tinytrain_compile.ops.int8.tiles import PackedTiles
from tinytrain_compile.ops.rows import RowForm
from tinytrain_compile.target.loader import load_target

Map = tuple[int, int]
CORES = NAMES
STRIPS = (((9, 11), 128, 100), ((1, 149), 128, 100))
"""Odd numbers of pixels, and strips: of pixels, of weights."""
RANDOM = 40


def forward(pixels: Map, inputs: int, outputs: int, seed: int = 5) -> Case:
    return quantised.qconv(np.random.default_rng(seed), ((1, *pixels, inputs), outputs, ConvAttrs((1, 1))), 0)


def data(pixels: Map, inputs: int, outputs: int, seed: int = 5) -> Case:
    geometry = ((1, *pixels, inputs), outputs, ConvAttrs((1, 1)))
    return quantised.qconv_grad_input(np.random.default_rng(seed), geometry, 0, NO_CLAMP)


def weights(pixels: Map, inputs: int, outputs: int, seed: int = 5) -> Case:
    geometry = ((1, *pixels, inputs), outputs, ConvAttrs((1, 1)))
    return quantised.qconv_update(np.random.default_rng(seed), geometry, 0)


def some(rng: np.random.Generator) -> tuple[Map, int, int]:
    """Few pixels in half of the cases, and in both: odd ones, sums of no whole terms, one channel."""
    few = rng.random() < 0.5
    pixels = (1, int(rng.integers(1, 6))) if few else (int(rng.integers(1, 8)), int(rng.integers(1, 8)))
    return pixels, int(rng.choice([4, 8, 12, 20, 36, 40, 64, 7, 30])), int(rng.choice([1, 2, 3, 4, 6, 10, 13, 16, 24]))


def random_cases(count: int, seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    makers = (forward, forward, data, weights)
    return [makers[index % 4](*some(rng), seed=index) for index in range(count)]


def odd(case: Callable[..., Case]) -> list[Case]:
    return [case(*shape) for shape in STRIPS]


@pytest.mark.parametrize(
    ("pixels", "inputs", "outputs", "tile"),
    [
        ((1, 1), 1024, 64, (1, 4)),
        ((1, 1), 160, 10, (1, 1)),
        ((1, 2), 64, 64, (2, 2)),
        ((1, 3), 64, 64, (4, 1)),
        ((2, 2), 160, 96, (4, 1)),
        ((2, 2), 160, 13, (4, 1)),
        ((2, 1), 160, 13, (1, 1)),
    ],
)
def test_weights_that_meet_few_pixels_are_read_as_they_lie(
    pixels: Map, inputs: int, outputs: int, tile: tuple[int, int]
) -> None:
    node = forward(pixels, inputs, outputs).node()
    rows = -(-pixels[0] * pixels[1] // tile[0]) * tile[0]
    assert forward_product(node) == PackedTiles(tile, 0, rows, inputs, True)
    assert scratch_bytes(node) == 2 * rows * inputs  # the pixels, as int16
    source = lower_node(node, "k", SCALAR).source
    assert ("tt_dot_direct" in source or "tt_dense8" in source) and "right" not in source, "tt_dense8 reads so too"


@pytest.mark.parametrize(
    ("pixels", "inputs", "outputs"), [((1, 5), 64, 64), ((4, 4), 64, 64), ((1, 1), 30, 64), ((1, 1), 4, 64)]
)
def test_other_weights_are_widened(pixels: Map, inputs: int, outputs: int) -> None:
    """Many pixels; sums that are no whole terms, or one."""
    node = forward(pixels, inputs, outputs).node()
    assert not forward_product(node).direct
    assert "tt_dot_direct" not in lower_node(node, "k", SCALAR).source


def test_a_weight_in_two_parts_is_widened() -> None:
    geometries = (quantised.geometry(np.random.default_rng(seed), splits=True) for seed in range(400))
    split = next(g for g in geometries if g[2].split and g[2].kernel == g[2].strides == (1, 1) and g[2].groups == 1)
    node = quantised.qconv(np.random.default_rng(5), ((1, 1, 1, split[0][3]), split[1], split[2]), 0).node()
    assert not forward_product(node).direct


@pytest.mark.parametrize("context", [SCALAR, VECTORS, KernelContext(style=SIZE)], ids=["scalar", "vectors", "small"])
def test_random_products_stay_inside_their_operands(context: KernelContext, tmp_path: Path) -> None:
    cases = [*random_cases(RANDOM, 11), *odd(forward), *odd(data)]
    run_sanitised(cases, tmp_path, context=context)


def form_of(case: Case) -> RowForm:
    form = row_form(case.node())
    assert form is not None
    return form


@pytest.mark.parametrize(
    ("pixels", "inputs", "outputs", "kept", "scratch"),
    [
        ((8, 8), 60, 40, 5280, 5520),  # a pixel for each row of the weights, and what ends their sums
        ((8, 8), 240, 40, 160, 4800),  # too many: a row of pixels is widened, and two of the weights
        ((4, 4), 12, 17, 408, 456),  # few weights
        ((8, 8), 40, 240, 960, 960),  # a row of pixels is widened, and two of the weights
        ((4, 4), 576, 160, 640, 4608),  # a row of pixels is
        ((5, 5), 64, 96, 384, 640),
    ],
)
def test_what_stays_of_the_weights_from_row_to_row(
    pixels: Map, inputs: int, outputs: int, kept: int, scratch: int
) -> None:
    case = forward(pixels, inputs, outputs)
    assert (form_of(case).kept_bytes, form_of(case).scratch_bytes) == (kept, scratch)
    stays = forward_row_product(case.node())[1]
    assert stays == (kept >= 2 * inputs * outputs)
    for target in CORES:
        kernel = lower_rows(case.node(), "k", kernel_context(load_target(target).features, False))
        assert kernel.scratch_bytes <= scratch
        if target != "cortex-m55":  # vectors keep sums of weights
            assert (kernel.prepare is not None) == stays


@pytest.mark.parametrize(
    ("pixels", "inputs", "outputs", "kept", "scratch"),
    [
        ((8, 8), 40, 48, 4160, 4352),  # weights, and what ends their sums; two pixels
        ((8, 8), 120, 24, 0, 480),  # too many: a row of pixels is widened, and two of the weights
        ((5, 5), 120, 24, 0, 432),  # an odd one, and four of the weights
    ],
)
def test_what_stays_of_the_weights_from_row_to_row_of_an_error(
    pixels: Map, inputs: int, outputs: int, kept: int, scratch: int
) -> None:
    case = data(pixels, inputs, outputs)
    assert (form_of(case).kept_bytes, form_of(case).scratch_bytes) == (kept, scratch)
    for target in CORES:
        kernel = lower_rows(case.node(), "k", kernel_context(load_target(target).features, False))
        assert kernel.scratch_bytes <= scratch
        assert (kernel.prepare is not None) == (kept > 0)


@pytest.mark.parametrize("context", [SCALAR, VECTORS], ids=["scalar", "vectors"])
def test_rows_of_many_channels_give_the_bytes_of_the_map(context: KernelContext, tmp_path: Path) -> None:
    cases = [forward((h, w), k, n) for h, w, k, n in ((3, 4, 48, 64), (5, 5, 40, 30), (3, 6, 36, 72), (2, 8, 30, 100))]
    assert not any(forward_row_product(case.node())[1] for case in cases)
    errors = [data((h, w), k, n) for h, w, k, n in ((3, 4, 64, 48), (5, 5, 100, 30), (3, 6, 72, 36), (2, 8, 90, 31))]
    assert not any(error_row_product(case.node())[1] for case in errors)
    cases += errors
    for step in (1, 2):
        folder = tmp_path / str(step)
        folder.mkdir()
        run_sanitised(cases, folder, context=context, make=partial(by_row_blocks, step=step))


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", CORES)
def test_random_products_on_boards(target: str) -> None:
    cases = [*random_cases(RANDOM, 12), *odd(forward)[:1]]
    assert [found.equal for found in measure(cases, target)] == [True] * len(cases)
    rows = [forward((4, 4), 48, 64), forward((3, 5), 40, 36), forward((2, 8), 36, 72)]
    rows += [data((4, 4), 64, 48), data((3, 5), 72, 40), data((2, 8), 100, 30)]
    assert [found.equal for found in measure(rows, target, make=partial(by_row_blocks, step=1))] == [True] * len(rows)


@needs_qemu
@pytest.mark.qemu
def test_a_last_pixel_costs_no_second_pass() -> None:
    """Instructions per pixel on the Cortex-M7: of an odd number at most a tenth above those of an even one."""
    even, uneven = measure([forward((24, 5), 64, 64), forward((25, 5), 64, 64)], "cortex-m7")
    assert uneven.instructions / 125 < 1.1 * even.instructions / 120
