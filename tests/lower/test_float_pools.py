"""Pools of float32 in one call: blocks of channels give the exact reference's bits, on the host and on the cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.ops.case import Case, make
from tests.e2e.marks import needs_qemu
from tests.lower.kernel_harness import build, run
from tests.lower.on_board import on_board
from tinytrain_compile.lower.kernels import InstructionSet, KernelContext
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops import run_node
from tinytrain_compile.ops.pool import PoolAttrs, PoolGradAttrs

CHANNELS = (1, 4, 7, 8, 20, 23, 33)
WINDOWS = (
    ((6, 8), PoolAttrs((2, 2), (2, 2), (0, 0, 0, 0), output_hw=(3, 4))),
    ((7, 7), PoolAttrs((3, 3), (2, 2), (1, 1, 1, 1), output_hw=(4, 4))),
    ((5, 6), PoolAttrs((3, 2), (1, 1), (1, 0, 1, 1), output_hw=(5, 6))),
    ((7, 5), PoolAttrs((1, 1), (3, 2), (0, 0, 0, 0), output_hw=(2, 2))),  # elements in no window
    ((6, 5), PoolAttrs((3, 3), (2, 2), (0, 0, 0, 0), output_hw=(3, 2))),  # the last row hangs over
)
SPECIAL = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan])
FUSED = ("-DTT_HAS_FMA=1",)


def _cases() -> list[Case]:
    """All four operators; zeros of both signs everywhere, other special numbers for the largest."""
    found: list[Case] = []
    for index, ((hw, attrs), channels) in enumerate((w, c) for w in WINDOWS for c in CHANNELS):
        rng = np.random.default_rng([17, index])
        image, out = (1 + index % 2, *hw, channels), (1 + index % 2, *attrs.output_hw, channels)
        x, dy = rng.standard_normal(image), np.where(rng.random(out) < 0.2, -0.0, rng.standard_normal(out))
        special = np.where(rng.random(image) < 0.4, rng.choice(SPECIAL, image), x)
        found += [make("MaxPool", (special,), attrs, images=(0,)), make("AveragePool", (x,), attrs, images=(0,))]
        winners = rng.integers(0, attrs.kernel[0] * attrs.kernel[1], out).astype(np.uint8)
        back = PoolGradAttrs(attrs, hw)
        found.append(make("MaxPoolGrad", (dy, winners), back, images=(0, 1)))
        found.append(make("AveragePoolGrad", (dy,), back, images=(0,)))
    return found


def test_they_are_the_exact_reference(tmp_path: Path) -> None:
    built = build(_cases(), tmp_path, fpu=True)
    assert sum("tt_windows_of(" in item.kernel.source for item in built) > 100
    for item in built:
        (wanted,) = run_node(item.node, item.case.float32(), exact=True)
        (got,) = run(item)
        np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32), f"{item.case}\n{item.kernel.source}")


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("target", "ending"), [("cortex-m4", ""), ("cortex-m7", "_fpv5"), ("cortex-m0plus", "")])
def test_cores_give_the_bytes_of_the_host(target: str, ending: str, tmp_path: Path) -> None:
    flags = FUSED if target != "cortex-m0plus" else ()

    def named(source: str) -> str:
        return source.replace("tt_max_pool(", f"tt_max_pool{ending}(")

    built = build(_cases(), tmp_path, fpu=True, flags=flags, change=named)
    built = [replace(item, kernel=replace(item.kernel, source=named(item.kernel.source))) for item in built]
    for item, equal in zip(built, on_board(built, target), strict=True):
        assert equal, f"{item.case}\n{item.kernel.source}"


def test_a_core_with_the_larger_of_two_as_an_instruction_uses_it() -> None:
    node = _cases()[0].node()
    names = {fpv5: lower_node(node, "k", KernelContext(InstructionSet(fpv5=fpv5))).source for fpv5 in (False, True)}
    assert "tt_max_pool_fpv5(" in names[True] and "tt_max_pool(" in names[False]
