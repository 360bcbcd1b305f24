"""Kernels compile at every level of optimisation: a user's build chooses its own, and debugs without any."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testing.kernels.runs import INCLUDED
from testing.ops.case import Case
from testing.ops.cases import cases_of
from tests.e2e.marks import needs_qemu
from tests.lower.test_boards import CONVOLUTIONS, fuzz_cases
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.lower.kernels import kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.target.loader import load_target

FLOAT = ("Gemm", "GemmGradInput", "Conv", "ConvGradInput", "ConvGradWeight", "Clip")


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Of integer kernels, and of float32 ones."""
    return [*fuzz_cases(2, ops=(*CONVOLUTIONS, "QAdd", "ErrorAdd", "QClipMask")), *(cases_of(op, 1)[0] for op in FLOAT)]


@needs_qemu
@pytest.mark.parametrize("target", ["cortex-m7", "cortex-m55"])
def test_kernels_compile_at_every_level(target: str, cases: list[Case], tmp_path: Path) -> None:
    core = load_target(target)
    context = kernel_context(core.features, True)
    kernels = [lower_node(case.node(), f"k{index}", context) for index, case in enumerate(cases)]
    text = "".join(f'#include "{name}"\n' for name in INCLUDED)
    (tmp_path / "k.c").write_text(text + "".join(f"{k.declaration}\n{k.source}" for k in kernels))
    for level in ("-O0", "-Og", "-Os"):
        flags = [*core.gcc_flags, level, "-std=c11", "-Werror", f"-I{data_dir('runtime_c')}"]
        found = subprocess.run(
            ["arm-none-eabi-gcc", *flags, "-c", "k.c", "-o", "k.o"], cwd=tmp_path, capture_output=True, text=True
        )
        assert found.returncode == 0, f"{level}: {found.stderr[:2000]}"
