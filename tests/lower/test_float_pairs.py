"""Float products on pairs give the bytes of those that load one number at a time, on the host and on the cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testing.ops.case import Case
from testing.ops.cases import cases_of
from testing.ops.random_linear import random_products
from tests.e2e.marks import needs_qemu
from tests.lower.kernel_harness import Built, build, compare, run
from tests.lower.on_board import on_board
from tinytrain_compile.lower.kernels import SIZE, InstructionSet, KernelContext, kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.target import load_target

OPS = ("Gemm", "GemmGradInput", "GemmGradWeight", "MatMul", "Conv", "ConvGradInput", "ConvGradWeight")
HOST = ("-DTT_HAS_FMA=1",)


def _cases(op: str) -> list[Case]:
    return [*cases_of(op)[:2], *cases_of(op)[-2:], *random_products(op, 3)]


def _built(op: str, folder: Path, pairs: bool = True) -> list[Built]:
    folder.mkdir(exist_ok=True)
    return build(_cases(op), folder, fpu=True, flags=HOST, float_pairs=pairs)


@pytest.mark.parametrize("op", OPS)
def test_every_sum_keeps_its_order(op: str, tmp_path: Path) -> None:
    paired, single = _built(op, tmp_path / "paired"), _built(op, tmp_path / "single", pairs=False)
    for one, other in zip(paired, single, strict=True):
        for got, expected in zip(run(one), run(other), strict=True):
            assert np.array_equal(got.view(np.uint32), expected.view(np.uint32)), one.kernel.source
        assert "tt_fma_" not in other.kernel.source
    assert any("tt_load_pair(" in item.kernel.source for item in paired)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("target", "turn"), [("cortex-m7", 0), ("cortex-m4", 1), ("cortex-m33", 2)])
def test_the_core_gives_the_bytes_of_the_plain_c(target: str, turn: int, tmp_path: Path) -> None:
    """Every case on one of the cores, in turn: they run the same instructions."""
    built = [item for op in OPS for item in _built(op, tmp_path / op)][turn::3]
    for item, equal in zip(built, on_board(built, target), strict=True):
        assert equal, f"{item.case}\n{item.kernel.source}"


@pytest.mark.parametrize("right", ["tt_fma_00(", "tt_fma_11(", "tt_fma_0(", "tt_fma_1("])
def test_a_wrong_half_is_seen(right: str, tmp_path: Path) -> None:
    wrong = right.translate(str.maketrans("01", "10"))
    cases = [*_cases("Gemm"), *_cases("ConvGradWeight")]
    built = build(cases, tmp_path, fpu=True, flags=HOST, change=lambda source: source.replace(right, wrong))
    assert any(right in item.kernel.source for item in built)

    def check() -> None:
        for item in built:
            compare(item, run(item))

    with pytest.raises(AssertionError):
        check()


def test_cores_without_fpu_vectors_and_small_code_have_no_pairs() -> None:
    node = _cases("Gemm")[0].node()
    chosen = [kernel_context(load_target(name).features, True) for name in ("cortex-m0plus", "cortex-m3", "cortex-m55")]
    for context in (*chosen, KernelContext(InstructionSet(float_pairs=True), SIZE)):
        assert "tt_load_pair" not in lower_node(node, "k", context).source
    assert "tt_load_pair" in lower_node(node, "k", kernel_context(load_target("cortex-m7").features, True)).source
