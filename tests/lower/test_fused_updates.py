"""An update that makes its gradient itself gives the bytes of the gradient's kernel and the update's, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.ops.case import Case
from testing.ops.cases import cases_of, forms_where, make
from tests.e2e.marks import needs_qemu
from tests.lower.kernel_harness import Built, build, run
from tests.lower.on_board import on_board
from tinytrain_compile.ops import run_node
from tinytrain_compile.ops.fused_update import FUSED_UPDATE, FusedUpdateAttrs, taken_apart

FUSED = forms_where(lambda op: op is FUSED_UPDATE)
FORMS: Mapping[str, Mapping[str, Any]] = {
    "pairs": {"fpu": True},
    "plain": {"fpu": True, "float_pairs": False},
    "vectors": {"fpu": True, "float_vectors": True, "flags": ("-DTT_HAS_FMA=1",)},
    "no FPU": {"fpu": False},
    "small": {"fpu": True, "small": True},
}
"""How kernels are made for the cores that there are, and for --code size."""


def _attrs(case: Case) -> FusedUpdateAttrs:
    assert isinstance(case.attrs, FusedUpdateAttrs)
    return case.attrs


def _gradient(case: Case) -> Case:
    attrs = _attrs(case)
    images = tuple(i for i, value in enumerate(attrs.cut(case.inputs)[1]) if value.layout)
    return make(attrs.gradient, attrs.cut(case.arrays)[1], attrs.of_gradient, images=images)


def _update(case: Case, gradient: np.ndarray) -> Case:
    attrs = _attrs(case)
    before, _, after = attrs.cut(case.arrays)
    return make(attrs.update, (*before, gradient.astype(np.float64), *after), attrs.of_update)


def _parts(case: Case) -> list[Case]:
    """The gradient, the update by a gradient of zeros, and where a pair has them the squares of its rows."""
    gradient = _gradient(case)
    zeros = np.zeros(gradient.node().outputs[0].shape)
    squares = [make("RowSquares", (zeros,))] if _attrs(case).squares else []
    return [gradient, _update(case, zeros), *squares]


def _one_by_one(case: Case, parts: Sequence[Built]) -> tuple[np.ndarray, ...]:
    """What all kernels give; float32 -> float64 -> float32 keeps every gradient as it is."""
    gradient, update, *squares = parts
    found = run(gradient)[0].astype(np.float64)
    results = run(replace(update, case=_update(case, found)))
    return (*results, *(out for item in squares for out in run(replace(item, case=make("RowSquares", (found,))))))


FORMS_OF = [
    *((op, form) for op in FUSED for form in ("pairs", "vectors")),
    *((f"ConvGradWeight{update}", form) for update in ("SgdUpdate", "AdamUpdate") for form in FORMS),
]


@pytest.mark.parametrize(("op", "form"), dict.fromkeys(FORMS_OF))
def test_fused_bytes_are_those_of_both_kernels(op: str, form: str, tmp_path: Path) -> None:
    cases = cases_of(op) if op in ("ConvGradWeightSgdUpdate", "ConvGradWeightAdamUpdate") else cases_of(op)[:3]
    several = [[case, *_parts(case)] for case in cases]
    kernels = iter(build([part for parts in several for part in parts], tmp_path, **FORMS[form]))
    for case, parts in zip(cases, several, strict=True):
        fused, *others = (next(kernels) for _ in parts)
        wanted = _one_by_one(case, others)
        assert [a.tobytes() for a in run(fused)] == [b.tobytes() for b in wanted], str(case)


@pytest.mark.parametrize("op", FUSED)
def test_the_reference_is_both_references(op: str) -> None:
    for case in cases_of(op):
        first, *squares, second = taken_apart(case.node())
        for exact in (False, True):
            before, of_gradient, after = _attrs(case).cut(case.float32())
            parts = (*before, *run_node(first, of_gradient, exact), *after)
            got = run_node(case.node(), case.float32(), exact)
            wanted = list(run_node(second, parts, exact))
            for node in squares:
                wanted += run_node(node, run_node(first, of_gradient, exact), exact)
            assert [a.tobytes() for a in got] == [b.tobytes() for b in wanted]


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("target", "form"), [("cortex-m7", "pairs"), ("cortex-m55", "vectors")])
def test_a_board_gives_the_bytes_of_the_host(target: str, form: str, tmp_path: Path) -> None:
    cases = [case for op in FUSED for case in cases_of(op)[:3]]
    built: list[Built] = build(cases, tmp_path, **{**FORMS[form], "flags": ("-DTT_HAS_FMA=1",)})
    wrong = [str(item.case) for item, equal in zip(built, on_board(built, target), strict=True) if not equal]
    assert wrong == []
