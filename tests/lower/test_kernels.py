"""Kernels with integers, compiled for the host, against their reference: apart, and in place where that is declared.

Those of floats: test_exact.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from testing.ops.cases import Case, cases_of, forms_where, operator_of
from testing.ops.random_structure import RANDOM, random_cases
from tests.lower.kernel_harness import build, compare, in_groups, inplace_pairs, run
from tests.lower.test_exact import FLOAT_OPS
from tinytrain_compile.lower.kernels import KERNELS, InstructionSet, KernelContext
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.lower.streams.functions import TABLE

COMPUTED = forms_where(lambda op: not (op.view or op.page))
INTEGERS = [form for form in COMPUTED if form not in FLOAT_OPS]

FEWER = ("QConvMomentum", "QConvSignMomentum", "QConvSignMomentumFine", "QConvUpdateFine")
"""They sum up as QConvUpdate, QConvMomentumFine and QConvSum do: a third of the geometries shows how they end."""


def _check(cases: list[Case], folder: Path, fpu: bool) -> None:
    for built in build(cases, folder, fpu):
        compare(built, run(built))
        for pair in inplace_pairs(built):
            compare(built, run(built, pair))


@pytest.mark.parametrize("ops", in_groups(INTEGERS))
def test_kernel_equals_reference(ops: Sequence[str], tmp_path: Path) -> None:
    _check([case for op in ops for case in cases_of(op)[:: 3 if op in FEWER else 1]], tmp_path, fpu=True)


@pytest.mark.parametrize("ops", in_groups(INTEGERS, 12))
def test_kernel_for_a_core_without_fpu(ops: Sequence[str], tmp_path: Path) -> None:
    _check([case for op in ops for case in cases_of(op)[:3]], tmp_path, fpu=False)


@pytest.mark.parametrize("op", sorted(RANDOM))
def test_kernel_on_random_shapes(op: str, tmp_path: Path) -> None:
    _check(random_cases(op, 24), tmp_path, fpu=True)


def test_every_op_has_a_kernel() -> None:
    assert {operator_of(form).name for form in COMPUTED} == {*KERNELS, "Stream"}  # which is made of kernels of rows


@pytest.mark.parametrize("op", COMPUTED)
def test_kernels_are_plain_c(op: str) -> None:
    for case in cases_of(op)[:2]:
        source = lower_node(case.node(), "k", KernelContext(InstructionSet(float_pairs=True))).source
        assert not re.search(r"TVM|double|alloc|\bexpf\b|\blogf\b|\bsqrtf\b", source), source
        source = source.replace(f"int32_t {TABLE}[", "")  # a few numbers of the function that calls kernels of rows
        assert not re.search(r"\w+ \w+\[\d+\];", source), f"an array on the stack:\n{source}"
