"""Helpers in assembly find their registers inside functions that need many, at every level of optimisation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.marks import needs_qemu
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.firmware import COMPILE_FLAGS

TAPS = "const tt_taps3 taps = tt_taps3_of(&w[i], 3, bias[i], multiplier[i], shift[i]); "
CALLS = {
    "2x2": "tt_dot_2x2(&acc_0, &acc_1, &acc_2, &acc_3, &scratch[0], &wide[i * n3], n1)",
    "direct 2x2": "tt_dot_direct_2x2(&acc_0, &acc_1, &acc_2, &acc_3, &scratch[0], &w[i * n3], n1 * 4, n1)",
    "direct 1x4": "tt_dot_direct_1x4(&acc_0, &acc_1, &acc_2, &acc_3, &scratch[0], &w[i * n3], n1 * 4, n1)",
    "direct 4x1": "tt_dot_direct_4x1(&acc_0, &acc_1, &acc_2, &acc_3, &scratch[0], &w[i * n3], n1 * 4, n1)",
    "columns": "tt_dot_columns_1x4(&acc_0, &acc_1, &acc_2, &acc_3, &scratch[0], &w[i * 4], n3, n1)",
    "direct": "acc_1 = tt_dot_direct(acc_0, &scratch[0], &w[i * n3], n1)",
    "widen two": "tt_widen_two(&scratch[i * 8], &w[i * n3], n1 * 4, n0, n1)",
    "gather two": "tt_gather_two(&scratch[i * 8], &w[i * n3], n1 * 4, n0, n1)",
    "tiles": "tt_product_tiles(&y[i], &bias[i], &scratch[0], &wide[i * n3], n1, 7, 16, 3)",
    "depthwise": TAPS + "tt_depthwise_lines(&y[i], &wide[i], &taps, true, n1, 18, 18, 16, 1024, -128)",
    "depthwise, far": TAPS + "tt_depthwise_lines(&y[i], &wide[i], &taps, true, n1, 18, 18, 16, 8192, 3)",
    "depthwise, one": TAPS + "tt_depthwise_lines(&y[i], &wide[i], &taps, false, n1, 18, 18, 16, 1024, -9)",
    "depthwise, apart": TAPS + "tt_depthwise_lines(&y[i], &wide[i], &taps, true, n1, 18, 54, 16, 1024, 3)",
    "depthwise, far and apart": TAPS + "tt_depthwise_lines(&y[i], &wide[i], &taps, true, n1, 18, 54, 16, 8192, -128)",
    "depthwise, one apart": TAPS + "tt_depthwise_lines(&y[i], &wide[i], &taps, false, n1, 18, 54, 16, 1024, -9)",
    "row": "tt_depthwise_rows3(&y[i], x, w, bias, multiplier, shift, numbers, n1, 64, 64, 1, 16, 1, -128, 3)",
    "row, stride 2": "tt_depthwise_rows3(&y[i], x, w, bias, multiplier, shift, numbers, n1, 32, 64, 1, 16, 2, 5, -128)",
    "row, cut": "tt_depthwise_rows3(&y[i], x, w, bias, multiplier, shift, numbers, n1, 32, 63, 1, 16, 2, 5, 3)",
    "row, later": "tt_depthwise_rows3(&y[i], x, w, bias, multiplier, shift, numbers, n1, 32, 64, 0, 16, 2, 5, -3)",
    "long tiles": "tt_product_tiles(&y[i], &bias[i], &scratch[0], &wide[i * n3], n1, 12, 16, -3)",
    "row of tiles": "tt_product_row(&y[i], &bias[i], &scratch[0], &wide[i * n3], n1, 12, 16, -128)",
    "windows": "tt_dot_windows(&acc_0, &acc_1, &acc_2, &acc_3, &scratch[i], &wide[i * n3], 3, 8, 16, 8, 24)",
}
BEGINNINGS = {"zero": "0", "given": "bias[i]"}
"""What sums begin with: constants leave the compiler to think of registers that hold the same number."""

END = "#define END(acc, i) tt_requantise8_kept(acc, bias[i], tt_factor(multiplier[i]), -shift[i], n2, 0, 9)\n"
KERNEL = """
void kernel_{name}(const int8_t *x, const int8_t *restrict w, const int16_t *restrict wide,
    const int32_t *restrict bias, const int32_t *restrict multiplier, const int8_t *restrict shift, int8_t *y,
    int16_t *restrict scratch, const int32_t *restrict numbers)
{{
    const int32_t n0 = numbers[0], n1 = numbers[1], n2 = numbers[2], n3 = numbers[3];
    for (int32_t step = 0; step < n1; ++step) {{
        tt_widen4(&scratch[step * 4], &x[step * 4], n0);
    }}
    for (int32_t i = 0; i < n1; ++i) {{
        int32_t acc_0 = {start}, acc_1 = {start}, acc_2 = {start}, acc_3 = {start};
        {call};
        y[i * 4] = END(acc_0, i * 4);
        y[i * 4 + 1] = END(acc_1, i * 4 + 1);
        y[i * 4 + 2] = END(acc_2, i * 4 + 2);
        y[i * 4 + 3] = END(acc_3, i * 4 + 3);
    }}
}}
"""


@needs_qemu
@pytest.mark.parametrize(
    "level",
    [
        *("-O0", "-Og", "-O1", "-O2", "-O3", "-Os", "-O2 -ftree-vectorize"),
        *(f"{level} -fno-omit-frame-pointer" for level in ("-O0", "-Og", "-O2", "-Os")),
        "-O2 -ffixed-r9 -DTT_HAS_DSP=0",
    ],
)
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m7", "cortex-m33"])
def test_helpers_compile_where_registers_are_few(core: str, level: str, tmp_path: Path) -> None:
    compiler = shutil.which("arm-none-eabi-gcc")
    assert compiler is not None
    texts = ['#include "tt_dsp_rows.h"\n#include "tt_depthwise.h"\n' + END]
    for index, (call, start) in enumerate((call, start) for call in CALLS.values() for start in BEGINNINGS.values()):
        texts.append(KERNEL.format(name=index, call=call, start=start))
    (tmp_path / "kernels.c").write_text("".join(texts))
    flags = [
        *load_target(core).gcc_flags,
        *COMPILE_FLAGS,
        "-Werror=implicit",
        *level.split(),
        f"-I{data_dir('runtime_c')}",
    ]
    done = subprocess.run(
        [compiler, *flags, "-c", "kernels.c", "-o", "kernels.o"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
