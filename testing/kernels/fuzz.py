"""Integer kernels on random cases against their references, on boards in QEMU; used by tests, and with more cases by
`make bench NAME=fuzz`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from testing.kernels.boards import measure
from testing.kernels.by_row_blocks import by_row_blocks
from testing.kernels.sanitised import SCALAR
from testing.ops.case import Case
from testing.ops.case_qpool import int8_cases
from testing.ops.case_quantised import RANDOM_QUANTISED
from testing.ops.cases import cases_of, forms_where, operator_of
from testing.ops.random_structure import random_cases
from tinytrain_compile.lower.kernels import KernelContext, kernel_context
from tinytrain_compile.lower.kernels.row_blocks import ROW_KERNELS, NoRowsError, row_block_spec
from tinytrain_compile.ops.fused_update import FUSED_UPDATE
from tinytrain_compile.target.loader import load_target


def _in_integers(op: str) -> bool:
    """Tell whether an operator computes in integers and writes them: then its results are compared to the byte."""
    inside = ".ops.int8." in operator_of(op).reference.__module__
    return inside and all(value.dtype != "float32" for value in cases_of(op)[0].node().outputs)


CONVOLUTIONS = tuple(RANDOM_QUANTISED)
"""Operators with random shapes."""
ALONE = forms_where(lambda op: op is not FUSED_UPDATE)
OTHERS = tuple(op for op in ALONE if op not in CONVOLUTIONS and _in_integers(op))
"""Operators with the shapes of their tests, then random ones."""
POOLS = ("MaxPool", "MaxPoolIndex", "MaxPoolGrad")
"""Operators of both formats: here on int8."""
INTEGERS = (*CONVOLUTIONS, *OTHERS)
"""Every operator whose results are integers, but for weight gradients in one kernel with an update (FusedUpdate)."""
ROW_OPS = tuple(op for op in ROW_KERNELS if op in INTEGERS)
"""Those that have kernels of a few rows."""


def fuzz_cases(cases_per_op: int, first: int = 0, ops: Sequence[str] = INTEGERS) -> list[Case]:
    """Cases `first` to `first + cases_per_op` of every operator."""
    wanted = first + cases_per_op
    makers = dict.fromkeys(CONVOLUTIONS, random_cases) | dict.fromkeys(POOLS, int8_cases)
    made = [makers.get(op, cases_of)(op, wanted) for op in ops]
    return [case for cases in made for case in cases[first:]]


def check_on_board(target: str, cases_per_op: int, first: int = 0, ops: Sequence[str] = INTEGERS) -> int:
    """Compare `cases_per_op` cases of every op, from number `first` on; the number of kernels that ran."""
    cases = fuzz_cases(cases_per_op, first, ops)
    for case, found in zip(cases, measure(cases, target), strict=True):
        assert found.equal, f"{target}: {case}"
        assert found.instructions > 0
    return len(cases)


def row_cases(
    cases_per_op: int, first: int = 0, context: KernelContext = SCALAR, ops: Sequence[str] = ROW_OPS
) -> list[Case]:
    """Those of the cases that have a kernel of a few rows."""
    return [
        case for case in fuzz_cases(cases_per_op, first, [op for op in ROW_OPS if op in ops]) if has_rows(case, context)
    ]


def has_rows(case: Case, context: KernelContext) -> bool:
    """Whether there is a kernel of a few rows for it."""
    try:
        row_block_spec(case.node(), context)
    except NoRowsError:
        return False
    return True


def check_rows_on_board(target: str, cases_per_op: int, first: int = 0, ops: Sequence[str] = ROW_OPS) -> int:
    """Compare cases of every op, two rows a call from a ring buffer; the number of kernels that ran."""
    cases = row_cases(cases_per_op, first, kernel_context(load_target(target).features, True), ops)
    if not cases:
        return 0
    for case, found in zip(cases, measure(cases, target, make=partial(by_row_blocks, step=2, ring=True)), strict=True):
        assert found.equal, f"{target}: {case}"
    return len(cases)
