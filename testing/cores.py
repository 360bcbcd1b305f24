"""Lists of cores by what their target files say, for tests and benchmarks."""

from __future__ import annotations

from tinytrain_compile.target.loader import list_targets, load_target
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.tools import find_tools

MAIN = load_target("cortex-m7")
"""The core that most figures are of."""
BUILT = tuple(target for name in list_targets() if (target := load_target(name)).toolchain is not None)
"""Cores that a cross compiler builds for."""
RUN = tuple(target for target in BUILT if target.qemu is not None and target.toolchain is MAIN.toolchain)
"""Those that a QEMU machine runs, with the tools that `make setup` installs."""
RISCV = tuple(target for target in BUILT if target.qemu is not None and target.toolchain is not MAIN.toolchain)
"""Those whose tools `make setup RISCV=1` installs: tests/verify/test_riscv.py runs them."""
NAMES = tuple(target.name for target in RUN)
"""Their names: what a list of all cores is, wherever one is needed."""
VECTORS = tuple(target.name for target in RUN if target.features.mve_int)
SCALAR = tuple(target.name for target in RUN if not target.features.mve_int)


def missing_tools(target: Target = MAIN) -> str:
    """What is not installed of the tools that run a target's code in QEMU; "" if nothing is."""
    return find_tools(target).missing_for_qemu()
