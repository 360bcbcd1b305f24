"""Sums that kernels leave out: rows of taps in an image's border, and tiles of errors that no clamp let pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testing.kernels.boards import measure
from testing.ops import case_quantised as quantised
from testing.ops.case import Case
from tests.e2e.marks import needs_qemu
from tinytrain_compile.lower.kernels import KernelContext
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.error import MaskAttrs

GEOMETRIES = (
    ((1, 4, 4, 48), 96, ConvAttrs((1, 1))),
    ((1, 4, 4, 16), 16, ConvAttrs((5, 5), pads=(2, 2, 2, 2), groups=16)),
    ((1, 8, 8, 16), 16, ConvAttrs((3, 3), pads=(1, 1, 1, 1), groups=16)),
)
MASK = MaskAttrs("bits", -128, 127)


def masked(geometry: tuple[tuple[int, ...], int, ConvAttrs], share: float) -> Case:
    """A data gradient of which this share is kept."""
    rng = np.random.default_rng(0)
    case = quantised.qconv_grad_input(rng, geometry, 0, MASK)  # type: ignore[arg-type]
    kept = np.packbits(rng.random(geometry[0]).ravel() < share, bitorder="little")
    assert kept.shape == case.arrays[-1].shape
    return replace(case, arrays=(*case.arrays[:-1], kept))


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m7"])
def test_sums_of_errors_that_are_not_kept_are_left_out(target: str) -> None:
    shares = (0.0, 0.3, 1.0)
    found = measure([masked(geometry, share) for geometry in GEOMETRIES for share in shares], target)
    assert all(kernel.equal for kernel in found)
    for none, some, every in zip(found[::3], found[1::3], found[2::3], strict=True):
        assert none.instructions < 0.7 * every.instructions
        assert none.instructions < some.instructions < every.instructions


@pytest.mark.parametrize(("size", "rows"), [(4, "2 - row_1"), (8, "2 - row_1")])
def test_rows_of_taps_in_the_border_are_left_out(size: int, rows: str) -> None:
    geometry = ((1, size, size, 16), 16, ConvAttrs((5, 5), pads=(2, 2, 2, 2), groups=16))
    case = quantised.qconv(np.random.default_rng(0), geometry, 0)  # type: ignore[arg-type]
    text = lower_node(case.node(), "k", KernelContext()).source
    first = f"tap_row_1 = ({rows} > 0 ? {rows} : 0)"
    last = f"tap_row_1 < ({size + 2} - row_1 < 5 ? {size + 2} - row_1 : 5)"
    assert first in text and last in text
