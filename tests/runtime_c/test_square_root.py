"""tt_sqrtf: numpy's bits everywhere, every NaN 0x7fc00000; the FPU's instruction with any flags of the user."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tests.runtime_c.test_on_boards import board_results
from tests.runtime_c.test_scalar_math import PATTERNS, bit_patterns, library, run
from tinytrain_compile.target.loader import load_target

__all__ = ["library", "run"]  # fixtures

SIGNED_NANS = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFF800001, 0xFFFFFFFF], np.uint32)
DENORMALS = np.array([1, 2, 3, 0x400000, 0x7FFFFF, 0x800000, 0x800001, 0x80000001, 0x807FFFFF], np.uint32)
ON_BOARD = 40_000
FPU = ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")
PLAIN = ("-O0", "-O1", "-O2", "-O3", "-Os", "-O2 -fmath-errno -ftree-vectorize", "-O2 -mfloat-abi=softfp", "-Og -flto")
"""Flags of a user, none of which says that roots set no errno."""
PROGRAM = """#include "tt_runtime.h"
float root(float x);
float root(float x)
{
    return tt_sqrtf(x);
}
"""


def arguments(count: int) -> np.ndarray:
    """Random bits, the edges of all helpers, NaNs of either sign, denormals, neighbours of squares, negatives."""
    squares = np.arange(1, 2049, dtype=np.float32) ** 2
    near = np.concatenate([np.nextafter(squares, np.float32(0)), squares, np.nextafter(squares, np.float32(np.inf))])
    special = np.concatenate([SIGNED_NANS, DENORMALS]).view(np.float32)
    return np.concatenate([bit_patterns(count, seed=43), special, near])


def expected_bits(x: np.ndarray) -> np.ndarray:
    """Of numpy's root, which IEEE 754 demands to be rounded correctly, with one NaN."""
    with np.errstate(invalid="ignore"):
        y = np.sqrt(x)
    return np.where(np.isnan(y), np.uint32(0x7FC00000), y.view(np.uint32))


def assert_roots(x: np.ndarray, y: np.ndarray) -> None:
    bad = np.flatnonzero(y.view(np.uint32) != expected_bits(x))
    assert bad.size == 0, f"{bad.size} differ, first: {x.view(np.uint32)[bad[0]]:#x} {y.view(np.uint32)[bad[0]]:#x}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_host_gives_the_bits_of_numpy(run: Callable[[str, np.ndarray], np.ndarray]) -> None:
    x = arguments(PATTERNS)
    assert np.isnan(x).sum() > 1000 and (x < 0).sum() > 1000
    assert_roots(x, run("sqrt", x))


@pytest.mark.qemu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["cortex-m0plus", *FPU])
def test_a_board_gives_the_bits_of_numpy(name: str, tmp_path: Path) -> None:
    x = arguments(ON_BOARD)
    assert_roots(x, board_results(name, ("sqrt",), x, tmp_path)[0])


def assembly(name: str, flags: str, folder: Path) -> str:
    """What GCC makes of a root for a core: only with the flags of the core and these."""
    (folder / "root.c").write_text(PROGRAM, encoding="utf-8")
    core = load_target(name).gcc_flags
    command = ["arm-none-eabi-gcc", *core, *flags.split(), "-fno-lto", "-S", "-I", str(ROOT / "runtime_c"), "root.c"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "root.s").read_text(encoding="utf-8")


@needs_qemu
@pytest.mark.parametrize("flags", PLAIN)
def test_an_fpu_s_instruction_and_no_library_by_any_flags(flags: str, tmp_path: Path) -> None:
    for name in FPU:
        text = assembly(name, flags, tmp_path)
        assert text.count("vsqrt.f32") == 1, name
        assert not re.search(r"\bsqrtf?\b|__sqrt|errno", text), name


@needs_qemu
@pytest.mark.parametrize("flags", ["-O0", "-O2"])
def test_without_an_fpu_there_are_integers_and_no_library(flags: str, tmp_path: Path) -> None:
    for name in ("cortex-m0plus", "cortex-m3"):
        text = assembly(name, flags, tmp_path)
        assert "vsqrt" not in text
        assert not re.search(r"\bsqrtf?\b|__sqrt|errno", text), name


@needs_qemu
def test_an_fpu_that_must_not_be_used_is_not_used(tmp_path: Path) -> None:
    assert "vsqrt" not in assembly("cortex-m4", "-O2 -mfloat-abi=soft", tmp_path)
