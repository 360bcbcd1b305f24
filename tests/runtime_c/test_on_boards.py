"""The scalar helpers on Cortex-M7 and Cortex-M0+ under QEMU: same bits as the numpy twins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.runtime_c.test_scalar_math import FUNCTIONS, assert_same_bits, bit_patterns, mapped
from tinytrain_compile.files.resources import read_text
from tinytrain_compile.ir.stages import Interface, SourceBundle
from tinytrain_compile.ops import scalar_math
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import compile_project, link_project
from tinytrain_compile.verify.firmware import GUARD_BYTES
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.tools import find_tools

COUNT = 20_000
MAIN = """#define TT_HAS_FMA @FUSED@
#include "port.h"
#include "tt_runtime.h"
static volatile unsigned char arena[@SIZE@] PORT_ARENA_SECTION;
static float x[@COUNT@], y[@COUNT@];
int main(void)
{
    const int32_t input = port_open_input("input.bin"), output = port_open_output("output.bin");
    arena[0] = 0;
    if (port_read(input, x, sizeof x) != 0) {
        port_exit(3);
    }
@CALLS@
    port_close(output);
    return 0;
}
"""
CALL = """    for (size_t i = 0; i < @COUNT@; i++) {
        y[i] = tt_@NAME@f(x[i]);
    }
    (void)port_write(output, y, sizeof y);"""


def board_results(name: str, functions: Sequence[str], x: np.ndarray, folder: Path, fused: bool = False) -> np.ndarray:
    """What these helpers give for x on a core in QEMU, a row each; skips without QEMU."""
    tools = find_tools(load_target(name))
    if tools.missing_for_qemu():
        pytest.skip(tools.missing_for_qemu())
    calls = "\n".join(CALL.replace("@NAME@", function) for function in functions)
    text = MAIN.replace("@CALLS@", calls).replace("@SIZE@", str(2 * GUARD_BYTES)).replace("@COUNT@", str(x.size))
    text = text.replace("@FUSED@", str(int(fused)))
    files = {"main.c": text, **{name: read_text("runtime_c", name) for name in ("tt_config.h", "tt_runtime.h")}}
    bundle = SourceBundle(files, Interface("none", 1, 1, "float", 1, 0, 0, 8, False, ()))
    compiled = compile_project(bundle, load_target(name), "qemu", tools, folder, check_sources=("verify/startup.c",))
    built = link_project(compiled, load_target(name), tools)
    output = run_image(built, load_target(name), tools, x.tobytes(), timeout_s=120)
    return np.frombuffer(output, np.float32).reshape(len(functions), x.size)


@pytest.mark.qemu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["cortex-m7", "cortex-m0plus", "cortex-m55"])
def test_boards_equal_numpy_twins(name: str, tmp_path: Path) -> None:
    x = bit_patterns(COUNT // 2, seed=41)
    for function, got in zip(FUNCTIONS, board_results(name, FUNCTIONS, x, tmp_path), strict=True):
        assert_same_bits(got, getattr(scalar_math, function)(x), x)


@pytest.mark.qemu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["cortex-m4", "cortex-m55"])
def test_fused_helpers_give_the_bits_of_the_host(name: str, tmp_path: Path) -> None:
    x = bit_patterns(COUNT // 2, seed=43)
    for folder in ("host", "core"):
        (tmp_path / folder).mkdir()
    call = mapped(tmp_path / "host", fused=True)
    for function, got in zip(FUNCTIONS, board_results(name, FUNCTIONS, x, tmp_path / "core", fused=True), strict=True):
        assert_same_bits(got, call(function, x), x)
    ordinary = x[np.abs(x) < 9]
    assert (call("tanh", ordinary) != scalar_math.tanh(ordinary)).any(), "nothing was fused"
