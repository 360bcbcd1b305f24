"""Kernels compile at every level of optimisation: a user's build chooses its own, and debugs without any."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.runs import INCLUDED
from testing.ops import case_quantised as quantised
from testing.ops.case import Case
from testing.ops.cases import cases_of
from tests.e2e.marks import needs_qemu
from tests.lower.test_boards import CONVOLUTIONS, fuzz_cases
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels import kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.target.model import Target

FLOAT = ("Gemm", "GemmGradInput", "Conv", "ConvGradInput", "ConvGradWeight", "Clip")


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Of integer kernels, and of float32 ones."""
    return [*fuzz_cases(2, ops=(*CONVOLUTIONS, "QAdd", "ErrorAdd", "QClipMask")), *(cases_of(op, 1)[0] for op in FLOAT)]


def compile_kernels(nodes: Sequence[Node], core: Target, levels: Sequence[str], folder: Path) -> None:
    """Compile the kernels of nodes at some levels of optimisation, in a folder."""
    context = kernel_context(core.features, True)
    kernels = [lower_node(node, f"k{index}", context) for index, node in enumerate(nodes)]
    text = "".join(f'#include "{name}"\n' for name in INCLUDED)
    (folder / "k.c").write_text(text + "".join(f"{k.declaration}\n{k.source}" for k in kernels))
    for level in levels:
        flags = [*core.gcc_flags, *level.split(), "-std=c11", "-Werror", f"-I{data_dir('runtime_c')}"]
        found = subprocess.run(
            ["arm-none-eabi-gcc", *flags, "-c", "k.c", "-o", "k.o"], cwd=folder, capture_output=True, text=True
        )
        assert found.returncode == 0, f"{level}: {found.stderr[:2000]}"


@needs_qemu
@pytest.mark.parametrize("target", ["cortex-m7", "cortex-m55"])
def test_kernels_compile_at_every_level(target: str, cases: list[Case], tmp_path: Path) -> None:
    compile_kernels([case.node() for case in cases], load_target(target), ("-O0", "-Og", "-Os"), tmp_path)


FEW_REGISTERS: tuple[quantised.Geometry, ...] = (
    ((2, 15, 2, 15), 32, ConvAttrs((1, 2))),
    ((1, 10, 14, 4), 4, ConvAttrs((5, 4), pads=(6, 1, 6, 1), dilations=(3, 1), groups=4)),
    ((1, 3, 10, 13), 4, ConvAttrs((3, 5), pads=(1, 0, 3, 2), dilations=(3, 1))),
)
"""Layers for whose vector kernels GCC 12 found too few registers, or no instruction for a constant mask of lanes."""


@needs_qemu
@pytest.mark.parametrize("level", ["-O3", "-O2 -fno-omit-frame-pointer"])
def test_vector_kernels_find_registers(level: str, tmp_path: Path) -> None:
    rng, (data, channels, moving) = np.random.default_rng(1), FEW_REGISTERS
    cases = [
        quantised.qconv_grad_input(rng, data, 0, NO_CLAMP),
        quantised.qconv_update(rng, channels, 0),
        quantised.qconv_momentum(rng, moving, 0, fine=False),
    ]
    compile_kernels([case.node() for case in cases], load_target("cortex-m55"), [level], tmp_path)
