"""tt_fmaf, the fused multiply-add of machines without the instruction, against the C library's fmaf."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tinytrain_compile.files.resources import data_dir

PROGRAM = r"""
#define TT_HAS_FMA 1
#include "tt_runtime.h"
#include <math.h>
#include <stdio.h>

static const uint32_t ends[] = {0u, 1u, 0x007fffffu, 0x00800000u, 0x33800000u, 0x3f800000u, 0x3f800001u, 0x4b800000u,
    0x7f7fffffu, 0x7f800000u, 0x7fc00000u};
static uint64_t state = 88172645463325252u;

static uint32_t word(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

/* An end of the numbers, one near the smallest, one of few bits (sums then lie half way), or any pattern. */
static float pick(void)
{
    const uint32_t sign = word() & 0x80000000u;
    switch (word() % 8u) {
    case 0:
        return tt_from_bits(sign | ends[word() % (sizeof ends / sizeof ends[0])]);
    case 1:
        return tt_from_bits(sign | (word() & 0x007fffffu) | (word() % 4u) << 23);
    case 2:
        return tt_from_bits(word());
    default:
        return tt_from_bits(sign | (word() & 0x00400fffu) | (110u + word() % 34u) << 23);
    }
}

int main(void)
{
    long fused = 0;
    for (long i = 0; i < 2000000; i++) {
        const float a = pick(), b = pick(), c = i % 3 == 0 ? -(a * b) : pick();
        const float ours = tt_fmaf(a, b, c), right = fmaf(a, b, c);
        if (tt_bits(ours) != tt_bits(right) && !(isnan(ours) && isnan(right))) {
            printf("%a %a %a: %a, fmaf %a\n", (double)a, (double)b, (double)c, (double)ours, (double)right);
            return 1;
        }
        fused += tt_bits(ours) != tt_bits(a * b + c);
    }
    printf("%d\n", fused > 100000);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_it_is_fmaf_to_the_bit(level: str, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Wdouble-promotion", "-pedantic", "-Werror"]
    command = ["gcc", "-std=c11", level, *strict, f"-I{data_dir('runtime_c')}", "main.c", "-lm", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "1\n", done.stdout
