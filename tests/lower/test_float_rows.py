"""Float kernels of a few rows give, call by call, the bytes of the whole map: the same sums in the same order."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.by_row_blocks import by_row_blocks
from testing.kernels.fuzz import ROW_OPS, has_rows
from testing.kernels.sanitised import run_alike, whole
from testing.ops.case import Case, make
from testing.ops.case_stream import float_conv
from testing.ops.cases import GENERATORS, cases_of
from testing.ops.random_linear import random_products
from testing.ops.random_structure import random_cases
from tinytrain_compile.lower.kernels import SIZE, InstructionSet, KernelContext
from tinytrain_compile.lower.kernels.row_blocks import ROW_KERNELS
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.shape import SliceAttrs

CONTEXTS = {
    "no FPU": KernelContext(InstructionSet(fpu=False)),
    "pairs": KernelContext(InstructionSet(float_pairs=True)),
    "vectors": KernelContext(InstructionSet(float_vectors=True)),
    "small": KernelContext(style=SIZE),
}
OTHERS = {*ROW_OPS, "Conv", "MaxPool", "MaxPoolIndex", "AveragePool", "Slice"}
"""Operators that are not of floats, or not element by element."""
SPECIAL = np.asarray([0.0, -0.0, 1e-40, -1e-45, 3e38, -3e38, 1e-20])
"""Zeros of both signs, denormals (which vectors take for 0), and what overflows."""


def layers(count: int) -> list[Case]:
    """Convolutions of every form and pools, a third of their operands' numbers special."""
    made = random_products("Conv", count)
    for index in range(count):
        random = np.random.default_rng([7, index])
        made.append(float_conv(random, (1, *(int(n) for n in random.integers(2, 13, 2)), int(random.integers(1, 9)))))
    pools = [case for op in ("MaxPool", "MaxPoolIndex", "AveragePool") for case in random_cases(op, count)]
    of_bytes = [in_bytes(case) for case in pools if case.op != "AveragePool"]
    return [*(with_special(case, index) for index, case in enumerate([*made, *pools])), *of_bytes]


def slices(count: int) -> list[Case]:
    """Some columns and channels of every row of a map, backwards too."""
    found: list[Case] = []
    for index in range(count):
        random = np.random.default_rng([11, index])
        shape = (1, *(int(n) for n in random.integers(2, 8, 3)))
        sizes = (*shape[:2], *(int(random.integers(1, n + 1)) for n in shape[2:]))
        steps = (1, 1, *(int(random.choice([-1, 1])) for _ in range(2)))
        spare = ((n - size) // 2 for n, size in zip(shape, sizes, strict=True))
        starts = tuple(low + (size - 1) * (step < 0) for low, size, step in zip(spare, sizes, steps, strict=True))
        found.append(make("Slice", (random.standard_normal(shape),), SliceAttrs(starts, steps, sizes), images=(0,)))
    return [*found, *map(in_bytes, found)]


def in_bytes(case: Case) -> Case:
    """The same of an int8 image."""
    (value,), (array,) = case.inputs, case.arrays
    return replace(case, inputs=(replace(value, dtype="int8"),), arrays=((array * 100).astype(np.int8),))


def with_special(case: Case, seed: int) -> Case:
    random = np.random.default_rng([seed, 3])
    arrays = (
        np.where(random.random(a.shape) < 0.3, random.choice(SPECIAL, a.shape), a) if a.dtype == np.float64 else a
        for a in case.arrays
    )
    return replace(case, arrays=tuple(arrays))


def elements() -> list[Case]:
    """What works element by element, on maps; with few channels and columns too."""
    found: list[Case] = []
    for op in ROW_KERNELS:
        for case in cases_of(op)[:1] if op in GENERATORS and op not in OTHERS else ():
            random = np.random.default_rng(len(found))
            shape = (1, *(int(n) for n in random.integers(1, 6, 3)))
            if any(value.dtype == "bits" or value.shape != case.inputs[0].shape for value in case.inputs):
                continue
            if op == "ClipMask":
                shape = (*shape[:3], 8)
            values = tuple(replace(value, shape=shape, layout="NHWC") for value in case.inputs)
            arrays = tuple(random.standard_normal(shape) for _ in values)
            found.append(with_special(replace(case, inputs=values, arrays=arrays), len(found)))
    return found


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(("pairs", 1), ("vectors", 3), ("small", 2)),
        *(pytest.param(name, step, marks=pytest.mark.slow) for name, step in (("no FPU", 3), ("vectors", 1))),
    ],
)
def test_rows_from_a_ring_are_those_of_the_map(name: str, step: int, tmp_path: Path) -> None:
    cases = [case for case in (*layers(8), *slices(8), *elements()) if has_rows(case, CONTEXTS[name])]
    assert len(cases) > 40 and len({case.op for case in cases}) > 20
    run_alike(cases, tmp_path, CONTEXTS[name], partial(by_row_blocks, step=step, ring=True), whole)


def test_means_that_count_padding_have_rows_if_the_table_tells_their_number(tmp_path: Path) -> None:
    """Otherwise neither the kernel nor the planner has a form of rows."""
    context, cases = CONTEXTS["pairs"], random_cases("AveragePool", 60)
    by_rows = [case for case in cases if has_rows(case, context)]
    assert by_rows == [case for case in cases if row_form(case.node()) is not None]
    assert len(by_rows) < len(cases)
    run_alike(by_rows, tmp_path, context, partial(by_row_blocks, step=1, ring=True), whole)


def test_the_planner_knows_of_no_more_rows_than_there_are_kernels() -> None:
    """And of no fewer bytes of scratch than they need."""
    for name in ("pairs", "vectors"):
        for case in (*layers(8), *slices(8), *elements()):
            form = row_form(case.node())
            if form is not None:
                _, scratch_bytes = by_row_blocks(case.node(), "k", CONTEXTS[name], 1)
                assert scratch_bytes <= form.scratch_bytes, case
