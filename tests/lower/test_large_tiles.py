"""Tiles of 4x4 sums: cores with many registers and no products in pairs have these, with the reference's bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testing.kernels.sanitised import LARGE_TILES, SCALAR, run_sanitised
from testing.ops.case_tiles import TILED, tiled_cases
from tinytrain_compile.lower.kernels import InstructionSet, KernelContext
from tinytrain_compile.lower.lower import lower_node

FEW_REGISTERS = KernelContext(InstructionSet(dsp=False))
HELPERS = ("tt_dot_4x4(", "tt_windows_error4(")


@pytest.mark.parametrize("op", ["QConv", "QConvGradInput", "QConvUpdate"])
def test_cores_with_many_registers_have_large_tiles(op: str) -> None:
    def count(context: KernelContext) -> int:
        sources = [lower_node(case.node(), "k", context).source for case in tiled_cases(op, 3)]
        return sum(any(helper in source for helper in HELPERS) for source in sources)

    assert count(LARGE_TILES) > count(SCALAR) == count(FEW_REGISTERS) == 0


def test_tiles_stay_inside_their_operands(tmp_path: Path) -> None:
    run_sanitised([case for op in TILED for case in tiled_cases(op, 10)], tmp_path, context=LARGE_TILES)


def test_a_row_too_few_is_seen(tmp_path: Path) -> None:
    """Plant: the first row of the image is taken for border, and left out."""
    cases = tiled_cases("QConvSum", 6)

    def later(text: str) -> str:
        return re.sub(r"(row\w*,\s+)(\d+)(,\s+\d+,\s+\d+,\s+1,)", lambda m: f"{m[1]}{int(m[2]) + 1}{m[3]}", text)

    with pytest.raises(AssertionError, match="differs"):
        run_sanitised(cases, tmp_path, later, LARGE_TILES)
