"""Float kernels on vectors: plain C near the reference, and the core's vectors give the bytes of the plain C."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from testing.ops.case import Case, make, normal
from testing.ops.cases import cases_of, forms_where
from testing.ops.random_linear import RANDOM_PRODUCTS, random_products
from testing.ops.random_structure import RANDOM, random_cases
from tests.e2e.marks import needs_qemu
from tests.lower.kernel_harness import Built, build, compare, inplace_pairs, run
from tests.lower.on_board import on_board
from tests.lower.vector_tables import vectors_from_tables
from tinytrain_compile.lower.kernels import KERNELS, SIZE, InstructionSet, KernelContext
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.ops.fused_update import FUSED_UPDATE

PLANTED = (
    ("Gemm", "tt_store_some_f32x4(&y[", "tt_store_some_f32x4(&y[1 + "),
    ("Conv", "tt_gather_f32x4(&w[", "tt_gather_f32x4(&w[1 + "),
    ("ConvGradWeight", "tt_fma_all_f32x4(acc_x4, ", "tt_fma_all_f32x4(2.0f * acc_x4, "),
    ("Clip", "tt_all_f32x4(", "tt_all_f32x4(1.0f + "),
    ("GeluGrad", "tt_erf_f32x4(", "tt_exp_f32x4("),
    ("Normalize", "_lanes_x4[3]", "_lanes_x4[2]"),
    ("MaxPool", "tt_max_pool_f32x4(&y[0], &x[0]", "tt_max_pool_f32x4(&y[0], &x[1]"),
)
TINY = (
    "Gemm",
    "ConvGradWeight",
    "Mul",
    "Clip",
    "ClipMask",
    "Exp",
    "Tanh",
    "Sigmoid",
    "MaxPool",
    "AveragePool",
    "Normalize",
)
"""Operators whose kernels get denormals too."""
INF = float("inf")
PARTS = 6
"""Tests that share the operators on vectors."""
HOST = ("-DTT_HAS_FMA=1",)
VECTORS = re.compile("_f32x4|8_f32")


def _cases(op: str) -> list[Case]:
    drawn = random_products(op, 5) if op in RANDOM_PRODUCTS else random_cases(op, 3) if op in RANDOM else []
    if op == "ClipMask":  # whole bytes
        drawn = [make(op, (normal(np.random.default_rng(1), (5, 8)),), ClipAttrs(-0.5, high)) for high in (0.5, INF)]
    return [*cases_of(op)[:3], *drawn]


@cache
def _on_vectors() -> list[str]:
    """Operators whose kernels use vectors. Those that are written into one kernel with an update, or with each other,
    have tests of their own (test_fused_updates.py, test_float_rows.py)."""
    context = KernelContext(InstructionSet(float_vectors=True))
    alone = forms_where(lambda op: op.name in KERNELS and op is not FUSED_UPDATE and op.name != "Stream")
    nodes = [case.node() for op in alone for case in _cases(op)[:1] + _cases(op)[-1:]]
    floats = [node for node in nodes if any(value.dtype == "float32" for value in node.inputs)]
    return list(
        dict.fromkeys(shown_name(node) for node in floats if VECTORS.search(lower_node(node, "k", context).source))
    )


def _built(cases: list[Case], folder: Path) -> list[Built]:
    return build(cases, folder, fpu=True, flags=HOST, float_vectors=True)


@needs_qemu
def test_gcc_loads_no_vector_from_a_table_whose_distance_it_misjudges(tmp_path: Path) -> None:
    nodes = [case.node() for op in _on_vectors() for case in _cases(op)[:1]]
    context = KernelContext(InstructionSet(float_vectors=True))
    kernels = [lower_node(node, f"k{i}", context) for i, node in enumerate(nodes)]
    assert vectors_from_tables(kernels, tmp_path) == []


@pytest.mark.parametrize("turn", range(PARTS))
def test_plain_c_is_near_the_reference(turn: int, tmp_path: Path) -> None:
    assert len(_on_vectors()) > 35
    built = _built([case for op in _on_vectors()[turn::PARTS] for case in _cases(op)], tmp_path)
    for item in built:
        compare(item, run(item))
        for pair in inplace_pairs(item):
            compare(item, run(item, pair))


def _tiny(case: Case) -> Case:
    """The same with denormals among its operands and results."""
    scales = np.float32(2) ** np.random.default_rng(7).integers(-149, -60, 64).astype(np.float32)
    arrays = tuple(
        (a * np.resize(scales, a.shape)).astype(np.float32) if a.dtype.kind == "f" else a for a in case.arrays
    )
    return replace(case, arrays=arrays)


@needs_qemu
@pytest.mark.qemu
def test_the_core_gives_the_bytes_of_the_plain_c(tmp_path: Path) -> None:
    """Denormals included, which count as 0 on vectors and nowhere else."""
    cases = [case for op in _on_vectors() for case in _cases(op)]
    cases += [_tiny(case) for op in TINY for case in _cases(op)]
    built = _built(cases, tmp_path)
    for item, equal in zip(built, on_board(built, "cortex-m55"), strict=True):
        assert equal, f"{item.case}\n{item.kernel.source}"


@pytest.mark.parametrize(("op", "code", "planted"), PLANTED)
def test_a_planted_bug_is_seen(op: str, code: str, planted: str, tmp_path: Path) -> None:
    seen: list[bool] = []

    def plant(source: str) -> str:
        seen.append(code in source)
        return source.replace(code, planted)

    def check() -> None:
        for item in build(_cases(op), tmp_path, fpu=True, flags=HOST, float_vectors=True, change=plant):
            compare(item, run(item))

    with pytest.raises(AssertionError):
        check()
    assert any(seen)


def test_kernels_for_other_cores_and_small_code_are_not_on_vectors() -> None:
    node = _cases("Gemm")[0].node()
    integers, floats = InstructionSet(int_vectors=True), InstructionSet(float_vectors=True)
    for context in (KernelContext(), KernelContext(integers), KernelContext(floats, SIZE)):
        assert "x4" not in lower_node(node, "k", context).source
