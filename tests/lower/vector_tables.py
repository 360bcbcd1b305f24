"""Finds vectors that GCC loads from tables of constants in the code of kernels for the Cortex-M55."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.firmware import COMPILE_FLAGS

HEADERS = ("tt_mve.h", "tt_mve_float.h", "tt_qloss.h")


def vectors_from_tables(kernels: Iterable[Kernel], folder: Path) -> list[str]:
    """The lines of assembly that load half a vector from a table (no kernel has a double)."""
    source = "".join(f'#include "{header}"\n' for header in HEADERS)
    source += "".join(f"{kernel.declaration}\n{kernel.source}" for kernel in kernels)
    (folder / "kernels.c").write_text(source)
    flags = [*load_target("cortex-m55").gcc_flags, *COMPILE_FLAGS, f"-I{data_dir('runtime_c')}"]
    subprocess.run(["arm-none-eabi-gcc", *flags, "-S", "kernels.c"], cwd=folder, check=True)
    return re.findall(r"vldr\.64\s+d\d+, \.L.*", (folder / "kernels.s").read_text())
