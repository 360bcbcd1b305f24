"""Kernels compile with flags that are not ours: a user's build has its own, and assembly leaves few registers.

-O2 vectorises what our flags (-fno-tree-vectorize) do not, and then a streamed 3x3 depthwise layer did not compile.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
from pathlib import Path

import pytest

from testing.cores import NAMES
from testing.kernels.by_row_blocks import by_row_blocks
from testing.kernels.layers import LAYERS, STREAMED
from testing.kernels.runs import INCLUDED, PREFIX
from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tinytrain_compile.lower.kernels import kernel_context
from tinytrain_compile.lower.kernels.row_blocks import NoRowsError
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.target.loader import load_target

SHORT = (("cortex-m33", "-O2"),)
FLAGS = ("-O2", "-O3", "-O1", "-Og", "-O0", "-Os", "-O3 -funroll-loops", "-O2 -fstack-protector-strong")
VECTORS_OFF = "-Og -DTT_HAS_MVE=0"
"""What tt_config.h asks for where constants are not known to be constants."""
LONG = [
    (core, flags)
    for core in NAMES
    for flags in FLAGS
    if (core, flags) not in SHORT and (core, flags) != ("cortex-m55", "-Og")
]
LONG.append(("cortex-m55", VECTORS_OFF))


@functools.cache
def kernels_of(name: str) -> str:
    """C of all layers of the ledger for a target, as whole maps and by rows."""
    context, text = kernel_context(load_target(name).features, True), [f'#include "{name}"\n' for name in INCLUDED]
    for number, layer in enumerate((*LAYERS, *STREAMED)):
        node = layer.case().node()
        made = [lower_node(node, f"{PREFIX}_{number}", context)]
        read = len(node.inputs) - len(
            alias_of(node)
        )  # frozen weights are constants: a kernel may not ask to write them
        assert made[0].declaration.count("const ") >= read, (name, layer.name, made[0].declaration)
        with contextlib.suppress(NoRowsError):
            made.append(by_row_blocks(node, f"{PREFIX}_{number}_rows", context, step=1)[0])
        text += [f"{kernel.declaration}\n{kernel.source}\n" for kernel in made]
    return "".join(text)


def check(name: str, flags: str, folder: Path) -> None:
    (folder / "kernels.c").write_text(kernels_of(name), encoding="utf-8")
    command = ["arm-none-eabi-gcc", *load_target(name).gcc_flags, "-std=c11", *flags.split(), "-I", ROOT / "runtime_c"]
    done = subprocess.run([*command, "-c", "kernels.c"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]


@needs_qemu
@pytest.mark.parametrize(("name", "flags"), SHORT)
def test_kernels_compile_without_our_flags(name: str, flags: str, tmp_path: Path) -> None:
    check(name, flags, tmp_path)


@needs_qemu
@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags"), LONG)
def test_kernels_compile_with_many_flags(name: str, flags: str, tmp_path: Path) -> None:
    check(name, flags, tmp_path)
