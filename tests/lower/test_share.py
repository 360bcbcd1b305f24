"""Small kernels: those that differ in numbers alone are one function, and give what their references give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testing.ops import case_quantised as quantised
from testing.ops.cases import Case, cases_of, forms_where
from testing.ops.random_structure import RANDOM, random_cases
from tests.lower.kernel_harness import build, compare, in_groups, run
from tinytrain_compile.ir.kernels import Kernel, KernelSet
from tinytrain_compile.lower import share_kernels
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP

COMPUTED = forms_where(lambda op: not (op.view or op.page))


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


@pytest.mark.parametrize("ops", in_groups(COMPUTED))
def test_small_kernel_equals_reference(ops: Sequence[str], tmp_path: Path) -> None:
    for built in build([case for op in ops for case in cases_of(op)[:8]], tmp_path, fpu=True, small=True):
        compare(built, run(built))


@pytest.mark.parametrize("op", ["QConv", "QConvGradInput", "QConvUpdate", "QConvSum"])
def test_small_kernels_on_random_shapes(op: str, tmp_path: Path) -> None:
    assert op in RANDOM
    for built in build(random_cases(op, 24), tmp_path, fpu=True, small=True):
        compare(built, run(built))


def layers(make: Callable[..., Case], depthwise: bool) -> list[Case]:
    """Layers of one kind that differ in size, channels and zero points."""
    rng, found = np.random.default_rng(3), list[Case]()
    for size, channels, out in ((8, 16, 24), (12, 24, 32), (16, 32, 16)):
        kernel = 3 if depthwise else 1
        attrs = ConvAttrs((kernel, kernel), (1, 1), ((kernel - 1) // 2,) * 4, groups=channels if depthwise else 1)
        found.append(make(rng, ((1, size, size, channels), channels if depthwise else out, attrs), 0))
    return found


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("op", ["qconv", "qconv_grad_input", "qconv_update"])
def test_layers_of_one_kind_share_a_function(op: str, depthwise: bool, tmp_path: Path) -> None:
    makers: dict[str, Callable[..., Case]] = {
        "qconv": quantised.qconv,
        "qconv_grad_input": lambda *of: quantised.qconv_grad_input(*of, NO_CLAMP),
        "qconv_update": quantised.qconv_update,
    }
    made = build(layers(makers[op], depthwise), tmp_path, fpu=True, small=True)
    assert len({built.kernel.name for built in made}) < len(made)
    assert sum(bool(built.numbers) for built in made) >= 2
    for built in made:
        compare(built, run(built))
    one = next(built for built in made if built.numbers)
    wrong = replace(one, numbers=tuple(max(n // 2, 1) for n in one.numbers))
    assert any((a != b).any() for a, b in zip(run(wrong), run(one), strict=True)), "numbers matter"
