"""Convolutions of small windows or of few output channels: what stays in registers (tt_few.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.boards import measure
from testing.kernels.sanitised import run_sanitised
from testing.ops.case import Case
from testing.ops.case_quantised import Geometry, of_range, qconv
from testing.ops.random_structure import random_cases
from tests.e2e.marks import needs_qemu
from tests.lower.test_levels import compile_kernels
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.window_form import FewWindows, few_windows
from tinytrain_compile.target.loader import load_target

ZEROS = (-128, -7, 90)
FAR = (2**31 - 1, -(2**31), 2**30 + 1)


def geometries() -> Iterator[Geometry]:
    """Windows of every size in the image, some in strips, copied or dilated; every number of channels, with rests of
    rows."""
    for channels in range(1, 13):
        yield (2, 3, 5, channels), 3 + channels % 2 * 6, ConvAttrs((1, 1))
    for channels in (6, 8, 10, 12):
        yield (2, 5, 8, channels), 2 * channels - 2, ConvAttrs((1, 1))
    yield (1, 1, 9, 3), 8, ConvAttrs((1, 3), pads=(0, 1, 0, 1))
    yield (1, 7, 7, 1), 8, ConvAttrs((3, 3), (2, 1), pads=(1, 1, 1, 1))
    yield (2, 6, 8, 1), 9, ConvAttrs((3, 3), (1, 2), pads=(1, 0, 1, 1))
    yield (1, 6, 7, 2), 9, ConvAttrs((2, 2), pads=(1, 1, 0, 0))
    yield (1, 6, 7, 3), 9, ConvAttrs((1, 1), (2, 2))
    yield (1, 1, 17, 3), 9, ConvAttrs((1, 3), dilations=(1, 2))
    yield (2, 7, 8, 1), 8, ConvAttrs((3, 3), pads=(2, 2, 2, 2), dilations=(2, 2))
    yield (1, 8, 9, 5), 3, ConvAttrs((3, 3), pads=(2, 3, 1, 3), dilations=(2, 3))
    yield (2, 5, 7, 4), 6, ConvAttrs((2, 3), (1, 2), pads=(0, 2, 3, 2), dilations=(3, 2))
    yield (1, 1, 35, 11), 3, ConvAttrs((1, 4), pads=(0, 3, 0, 3), dilations=(1, 2))
    for outputs in range(1, 8):
        yield (1, 4, 5, 1 + outputs % 4 * 2), outputs, ConvAttrs((3, 3), pads=(1, 1, 1, 1))
        yield (1, 6, 5, 2 + outputs % 2 * 5), outputs, ConvAttrs((5, 5), (1, 2), pads=(2, 2, 2, 2))
    yield (1, 3, 3, 75), 5, ConvAttrs((1, 1))


def small_layers() -> list[Case]:
    """Return small layers whose ends are in a helper; every third one again with biases so large that sums saturate."""
    rng, made = np.random.default_rng(7), list[Case]()
    for index, geometry in enumerate(geometries()):
        case = of_range(qconv(rng, geometry, 0), 2)
        case = replace(case, attrs=replace(case.attrs, y_zero=ZEROS[index % len(ZEROS)]))  # type: ignore[call-arg]
        made.append(case)
        if index % 3 == 0:
            *rest, bias, multiplier, shift = (array.copy() for array in case.arrays)
            bias[:: 1 + index % 2], shift[:] = FAR[index % len(FAR)], -24
            made.append(replace(case, arrays=(*rest, bias, multiplier, shift)))
    return made


def form_of(case: Case) -> FewWindows | None:
    node = case.node()
    return few_windows(node, op_def(node.op).scratch(node)) if case.attrs.conv.groups == 1 else None  # type: ignore[attr-defined]


def test_all_forms_occur() -> None:
    found = {(form.sums, form.held > 0, form.strip > 0) for case in small_layers() if (form := form_of(case))}
    windows = {(False, False, False), (False, False, True), (False, True, False), (False, True, True)}
    assert found == windows | {(True, False, False), (True, False, True)}


def test_random_convolutions_have_both() -> None:
    """So that `make bench NAME=fuzz` looks at them."""
    found = [form.sums for case in random_cases("QConv", 200) if (form := form_of(case))]
    assert min(found.count(True), found.count(False)) >= 3


def test_on_the_host(tmp_path: Path) -> None:
    run_sanitised(small_layers(), tmp_path)


@needs_qemu
def test_on_a_core() -> None:
    assert all(found.equal for found in measure(small_layers(), "cortex-m4"))


@needs_qemu
@pytest.mark.parametrize("level", ["-Og", "-O3 -fno-omit-frame-pointer"])
def test_registers_are_found(level: str, tmp_path: Path) -> None:
    compile_kernels([case.node() for case in small_layers()], load_target("cortex-m7"), [level], tmp_path)
