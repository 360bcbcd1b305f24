"""Depthwise maps that are copied channel by channel: of any size and dilated (tt_depthwise.h, tt_spread.h,
tt_mve_taps.h)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.boards import measure
from testing.kernels.sanitised import SCALAR, VECTORS, run_sanitised
from testing.ops.case import Case
from testing.ops.case_quantised import KINDS, MASKS, Geometry, mask, of_range, qconv, qconv_grad_input
from tests.e2e.marks import needs_qemu
from tests.lower.test_levels import compile_kernels
from tinytrain_compile.lower.kernels import InstructionSet, KernelContext
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.map_form import paired_maps
from tinytrain_compile.ops.int8.spread_form import spread_maps
from tinytrain_compile.target.loader import load_target

BOARDS = ("cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")


def depthwise(
    size: tuple[int, int],
    kernel: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
    images: int,
) -> Case:
    """A layer of three channels whose sums shift down and are clamped to int8 only."""
    conv = ConvAttrs(kernel, (1, 1), pads, dilations=dilations, groups=3)
    case = qconv(np.random.default_rng(3), ((images, *size, 3), 3, conv), 0)
    attrs = replace(case.attrs, low=-128, high=127, shifts_down=True)  # type: ignore[call-arg]
    return replace(case, attrs=attrs, arrays=(*case.arrays[:-1], np.clip(case.arrays[-1], -31, -1)))


def paired() -> list[Case]:
    """3x3: even and odd maps, wide and high ones, in strips, without a border or with an uneven one, dilated evenly or
    not, also in small maps."""
    sizes = ((8, 8), (7, 9), (25, 6), (6, 25), (13, 100))
    plain = [depthwise(size, (3, 3), (1, 1), pads, 1) for size in sizes for pads in ((1, 1, 1, 1), (0, 1, 1, 0))]
    dilated = [
        depthwise(size, (3, 3), steps, pads, 2)
        for size in ((16, 16), (13, 14), (17, 23))
        for steps, pads in (
            ((2, 2), (2, 2, 2, 2)),
            ((2, 2), (1, 3, 3, 1)),
            ((1, 3), (1, 3, 1, 3)),
            ((3, 1), (0, 0, 0, 0)),
        )
    ]
    return [*plain, *dilated, depthwise((7, 7), (3, 3), (2, 2), (2, 2, 2, 2), 2)]


SPREAD: tuple[Geometry, ...] = (
    ((2, 13, 11, 3), 3, ConvAttrs((5, 5), pads=(2, 3, 2, 3), dilations=(2, 3), groups=3)),
    ((2, 13, 11, 3), 3, ConvAttrs((2, 4), pads=(2, 3, 2, 3), dilations=(2, 3), groups=3)),
    ((1, 13, 11, 3), 3, ConvAttrs((1, 3), pads=(0, 3, 0, 3), dilations=(1, 3), groups=3)),
    ((1, 14, 14, 3), 3, ConvAttrs((7, 7), pads=(6, 6, 6, 6), dilations=(2, 2), groups=3)),
    ((1, 9, 7, 3), 3, ConvAttrs((5, 5), pads=(8, 8, 8, 8), dilations=(4, 4), groups=3)),
    ((1, 41, 29, 3), 3, ConvAttrs((5, 5), pads=(8, 8, 8, 8), dilations=(4, 4), groups=3)),
    ((2, 6, 5, 3), 3, ConvAttrs((3, 2), pads=(7, 3, 7, 4), dilations=(7, 7), groups=3)),
    ((1, 1, 90, 3), 3, ConvAttrs((1, 11), pads=(0, 10, 0, 10), dilations=(1, 2), groups=3)),
)
"""Tiles of two columns and of one, also turned, also half ones at the end; maps with places of their own or in turn;
taps that never meet the image; a row whose maps are faster than lines."""
LINES: tuple[Geometry, ...] = (
    ((2, 1, 50, 3), 3, ConvAttrs((1, 5), pads=(0, 8, 0, 8), dilations=(1, 4), groups=3)),
    ((1, 1, 19, 3), 3, ConvAttrs((1, 4), pads=(0, 5, 0, 7), dilations=(1, 3), groups=3)),
    ((2, 22, 1, 3), 3, ConvAttrs((3, 1), pads=(2, 0, 2, 0), dilations=(2, 1), groups=3)),
    ((1, 1, 23, 3), 3, ConvAttrs((1, 10), pads=(0, 13, 0, 14), dilations=(1, 3), groups=3)),
)
"""One, two or three outputs beside fours; a column."""


def dilated(geometries: Sequence[Geometry]) -> list[Case]:
    """Layers of all kinds of data and ends."""
    rng = np.random.default_rng(5)
    return [
        of_range(qconv(rng, geometry, kind), (index + kind) % 3)
        for index, geometry in enumerate(geometries)
        for kind in range(KINDS)
    ]


GATHERED: tuple[Geometry, ...] = (
    ((2, 9, 7, 3), 3, ConvAttrs((3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), groups=3)),
    ((1, 13, 11, 3), 3, ConvAttrs((5, 5), pads=(2, 3, 2, 3), dilations=(2, 3), groups=3)),
    ((1, 15, 9, 3), 3, ConvAttrs((3, 3), dilations=(2, 2), groups=3)),
    ((1, 14, 14, 3), 3, ConvAttrs((2, 2), pads=(1, 1, 2, 2), dilations=(3, 3), groups=3)),
    ((1, 1, 51, 3), 3, ConvAttrs((1, 9), pads=(0, 12, 0, 12), dilations=(1, 3), groups=3)),
    ((1, 1, 3, 3), 3, ConvAttrs((1, 3), pads=(0, 2, 0, 2), dilations=(1, 2), groups=3)),
    ((1, 9, 9, 3), 3, ConvAttrs((3, 3), pads=(0, 0, 1, 0), dilations=(4, 4), groups=3)),
    ((1, 11, 9, 2), 2, ConvAttrs((6, 6), pads=(7, 5, 8, 5), dilations=(3, 2), groups=2)),
    ((1, 12, 10, 3), 3, ConvAttrs((7, 7), pads=(6, 6, 6, 6), dilations=(2, 2), groups=3)),
)
"""Windows in one list with the image's elements, or in one of their own; overlapping strips, without and with border
rows; a row, also of less than four outputs; two outputs; three and four vectors of taps."""


ERRORS: tuple[Geometry, ...] = (
    ((2, 9, 7, 8), 8, ConvAttrs((3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), groups=8)),
    ((1, 14, 11, 8), 8, ConvAttrs((2, 5), pads=(1, 3, 2, 2), dilations=(3, 3), groups=8)),
    ((1, 1, 51, 8), 8, ConvAttrs((1, 9), pads=(0, 12, 0, 12), dilations=(1, 3), groups=8)),
    ((1, 12, 10, 8), 8, ConvAttrs((7, 7), pads=(6, 6, 6, 6), dilations=(2, 2), groups=8)),
)
"""Layers whose data gradients gather: from one list, from two, from a row, with four vectors of taps."""


def dilated_errors(geometries: Sequence[Geometry]) -> list[Case]:
    """Data gradients of all kinds of data and masks."""
    rng = np.random.default_rng(6)
    return [
        qconv_grad_input(rng, geometry, kind, mask(rng, MASKS[(index + kind) % 3]))
        for index, geometry in enumerate(geometries)
        for kind in range(KINDS)
    ]


def test_pairs_of_rows_are_those_of_the_reference(tmp_path: Path) -> None:
    """Not if a map's border is one column off."""
    cases = paired()
    assert all("tt_depthwise_pairs(" in lower_node(case.node(), "k", SCALAR).source for case in cases)
    run_sanitised(cases, tmp_path)
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(cases, tmp_path, lambda text: re.sub(r"(tt_axis_of\(\d+, \d+, \d+, \d+, )1,", r"\g<1>0,", text))


def _check(cases: Sequence[Case], helper: str, folder: Path, pattern: str, wrong: str, context: KernelContext) -> None:
    """Cases are computed by the helper, have the bytes of the reference, and have not once their text is wrong."""
    assert all(f"{helper}(" in lower_node(case.node(), "k", context).source for case in cases)
    run_sanitised(cases, folder, context=context)
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(cases[:1], folder, lambda text: re.sub(pattern, wrong, text), context)


@pytest.mark.parametrize("dsp", [True, False])
def test_spread_windows_are_those_of_the_reference(dsp: bool, tmp_path: Path) -> None:
    """Not if taps of a column are read two apart."""
    context, pattern = KernelContext(InstructionSet(dsp=dsp)), r"(tt_window_of\(\d+, \d+, )-?\d+"
    _check(dilated(SPREAD), "tt_depthwise_spread", tmp_path, pattern, r"\g<1>2", context)
    _check(dilated_errors(SPREAD), "tt_depthwise_spread_error", tmp_path, pattern, r"\g<1>-2", context)


def test_lines_are_those_of_the_reference(tmp_path: Path) -> None:
    """Not if the border is one element off."""
    context, pattern = KernelContext(InstructionSet()), r"(tt_axis_of\(\d+, \d+, \d+, \d+, )8"
    _check(dilated(LINES), "tt_depthwise_line", tmp_path, pattern, r"\g<1>7", context)
    _check(dilated_errors(LINES), "tt_depthwise_line_error", tmp_path, pattern, r"\g<1>7", context)


def test_cases_have_all_ways_to_cut_a_layer() -> None:
    """Tiles of both forms, turned or not; maps with places of their own and without."""
    cuts = [spread_maps(case.node(), 3072) for case in dilated(SPREAD)]
    assert {(cut.tile, cut.window[2] == 1) for cut in cuts if cut} == {
        ((2, 2), False),
        ((2, 2), True),
        ((4, 1), True),
        ((4, 1), False),
    }
    assert {cut.own for cut in cuts if cut} == {True, False}


def test_gathered_windows_are_those_of_the_reference(tmp_path: Path) -> None:
    """Not if rows of taps that are two apart are taken for neighbours."""
    cases = dilated(GATHERED)
    assert all("tt_depthwise8_gathered(" in lower_node(case.node(), "k", VECTORS).source for case in cases)
    run_sanitised(cases, tmp_path, context=VECTORS)
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(cases[:1], tmp_path, lambda text: text.replace("2, 2, tt_copied", "1, 2, tt_copied"), VECTORS)


def test_gathered_errors_are_those_of_the_reference(tmp_path: Path) -> None:
    """Not if rows of taps that are two apart are taken for neighbours."""
    cases = dilated_errors(ERRORS)
    assert all("tt_depthwise8_gathered_error(" in lower_node(case.node(), "k", VECTORS).source for case in cases)
    run_sanitised(cases, tmp_path, context=VECTORS)
    with pytest.raises(AssertionError, match=r"Sanitizer|differs"):
        run_sanitised(cases[:1], tmp_path, lambda text: text.replace("2, 2, tt_copied", "1, 2, tt_copied"), VECTORS)


def test_bands_stay_if_dilation_costs_them_little() -> None:
    """Their loads are of neighbours."""
    conv = ConvAttrs((3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), groups=4)
    case = qconv(np.random.default_rng(3), ((1, 33, 33, 4), 4, conv), 0)
    assert "tt_depthwise8(" in lower_node(case.node(), "k", VECTORS).source


def test_a_narrow_map_lies_on_its_side() -> None:
    """So its long axis has the rows of tiles."""
    form = paired_maps(depthwise((25, 5), (3, 3), (1, 1), (1, 1, 1, 1), 1).node(), 1 << 20)
    assert form is not None
    assert form.turned


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", BOARDS)
def test_copied_maps_on_a_board(target: str) -> None:
    some = slice(None, None, KINDS - 1)  # of every geometry one kind or two
    cases = [*paired(), *dilated((*SPREAD, *LINES))[some], *dilated_errors((*SPREAD, *LINES))[some]]
    cases += [*dilated(GATHERED), *dilated_errors(ERRORS)] if target == "cortex-m55" else []
    assert all(found.equal for found in measure(cases, target))


@needs_qemu
@pytest.mark.parametrize("level", ["-Og", "-Os -fno-omit-frame-pointer"])
def test_constants_and_registers_are_found(level: str, tmp_path: Path) -> None:
    some = slice(None, None, KINDS)
    cases = [*paired()[::2], *dilated((*SPREAD, *LINES))[some], *dilated_errors((*SPREAD, *LINES))[some]]
    compile_kernels([case.node() for case in cases], load_target("cortex-m7"), [level], tmp_path)
