"""Dense convolutions of few channels whose windows are runs of a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from testing.kernels.sanitised import run_sanitised
from testing.ops.case import Case
from testing.ops.case_quantised import of_range, qconv
from testing.ops.random_structure import random_cases
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.conv_form import forward_lines


def blocks_of(case: Case) -> int:
    """Blocks of products of a window; 0 where it is no run of a line."""
    lines = forward_lines(case.node()) if case.attrs.conv.groups == 1 else None  # type: ignore[attr-defined]
    return 0 if lines is None else lines.blocks


def test_random_convolutions_have_lines_of_one_block_and_of_more() -> None:
    """So that `make bench NAME=fuzz` looks at them: first layers have them, and hardly any other."""
    found = [blocks_of(case) for case in random_cases("QConv", 200)]
    assert 1 in found and sum(blocks > 1 for blocks in found) >= 4


def test_windows_of_one_block(tmp_path: Path) -> None:
    """TVM drops loops of one turn, so helpers of one block have a pattern of their own."""
    rng, cases = np.random.default_rng(3), list[Case]()
    for kernel, strides, pads in (
        ((3, 1), (1, 2), (1, 0, 1, 0)),
        ((4, 1), (2, 2), (1, 0, 2, 0)),
        ((3, 1), (2, 1), (0, 0, 0, 0)),
    ):
        conv = ConvAttrs(kernel, strides, pads)
        case = of_range(qconv(rng, ((1, 9, 8, 1), 6, conv), 0), 2)
        cases.append(replace(case, attrs=replace(case.attrs, x_zero=3)))  # type: ignore[call-arg]
    assert {blocks_of(case) for case in cases} == {1}
    run_sanitised(cases, tmp_path)
