"""Small kernels: those that differ in numbers alone are one function, and give what their references give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lower.kernel_harness import build, compare, run
from tests.ops.cases import cases_of
from tests.ops.random_structure import RANDOM, random_cases
from tinytrain_compile.ir.kernels import Kernel, KernelSet
from tinytrain_compile.lower import share_kernels
from tinytrain_compile.ops import OPS

COMPUTED = sorted(name for name, op in OPS.items() if not (op.view or op.page))


def small(name: str, body: str, fast: bool = False) -> Kernel:
    head = f"void {name}(const int8_t *restrict x, int8_t *restrict y)"
    return Kernel(name, f"/* Op. */\n{head} {{\n    {body}\n}}\n", f"{head};", small=not fast)


def shared(*kernels: Kernel) -> KernelSet:
    return share_kernels(KernelSet(kernels, {kernel.name: kernel.name for kernel in kernels}), "net")


def test_numbers_that_differ_go_into_a_table_and_the_rest_follows_from_them() -> None:
    a = small("net_a_4_small", "y[7 * 3 + 12] = x[4 + 9] + 24;")
    b = small("net_a_6_small", "y[7 * 3 + 18] = x[6 + 11] + 36;")
    found = shared(a, b)
    (function,) = found.kernels
    assert function.name == "net_a_shared"
    assert function.declaration.endswith("int8_t *restrict y, const int32_t *restrict numbers);")
    assert (
        "    const int32_t n0 = numbers[0];\n    y[7 * 3 + (n0 * 3)] = x[n0 + (n0 + 5)] + (n0 * 6);\n"
        in function.source
    )
    assert found.calls == {"net_a_4_small": "net_a_shared", "net_a_6_small": "net_a_shared"}
    assert [found.tables[found.numbers[name]] for name in ("net_a_4_small", "net_a_6_small")] == [(4,), (6,)]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("y[0] = x[1];", "y[0] = -x[1];"),
        ("y[0] = x[7 / 2];", "y[0] = x[7 / 3];"),
        ("y[0] = x[7 % 2];", "y[0] = x[7 % 3];"),
        ("y[0] = (int8_t)(x[0] >> 2);", "y[0] = (int8_t)(x[0] >> 3);"),
        ("y[0] = f(0.5f);", "y[0] = f(0.25f);"),
        ("y[0] = acc_1;", "y[0] = acc_2;"),
    ],
)
def test_other_words_divisors_shifts_and_floats_are_not_shared(left: str, right: str) -> None:
    kernels = small("net_a_small", left), small("net_b_small", right)
    assert shared(*kernels) == KernelSet(kernels, {"net_a_small": "net_a_small", "net_b_small": "net_b_small"})


def test_kernels_for_speed_stay_as_they_are() -> None:
    kernels = small("net_a", "y[0] = x[1];", fast=True), small("net_b", "y[0] = x[2];", fast=True)
    assert shared(*kernels).kernels == kernels


@pytest.mark.parametrize("op", COMPUTED)
def test_small_kernel_equals_reference(op: str, tmp_path: Path) -> None:
    for built in build(cases_of(op)[:8], tmp_path, fpu=True, small=True):
        compare(built, run(built))


@pytest.mark.parametrize("op", ["QConv", "QConvGradInput", "QConvUpdate", "QConvSum", "Conv", "ConvGradInput"])
def test_small_kernels_on_random_shapes(op: str, tmp_path: Path) -> None:
    made = build(random_cases(op, 24), tmp_path, fpu=op.startswith("Q"), small=True)
    assert op in RANDOM
    assert sum(bool(built.numbers) for built in made) > 4, "some share a function"
    for built in made:
        compare(built, run(built))
