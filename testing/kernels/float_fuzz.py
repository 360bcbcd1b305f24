"""Float kernels on random cases, on the host and on boards in QEMU, to the byte; used by tests and `benchmarks fuzz`.

Two rules of rounding. Products and sums rounded apart: all cores, and the host under sanitisers, equal the exact
references. Fused ones: cores with such an instruction equal the same C on the host, which has its own for vectors.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from testing.kernels.boards import measure
from testing.kernels.sanitised import Make, on_host, run_sanitised
from testing.ops.case import Case
from testing.ops.case_pointwise import ELEMENTS
from testing.ops.case_quantised import RANDOM_QUANTISED
from testing.ops.cases import cases_of, forms_where
from testing.ops.random_linear import RANDOM_PRODUCTS, random_products
from testing.ops.random_structure import RANDOM, random_cases
from tinytrain_compile.ir.kernels import Kernel, KernelCache
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels import InstructionSet, KernelContext, kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops import op_def
from tinytrain_compile.target.loader import load_target

FLOATS = (
    *(op for op in RANDOM if op not in RANDOM_QUANTISED),
    *RANDOM_PRODUCTS,
    *ELEMENTS,
    *forms_where(lambda op: op.name.endswith("Update") and ".int8." not in op.reference.__module__),
)
"""Operators with random shapes, and those whose own cases go on."""
CONTEXTS = (KernelContext(InstructionSet(float_pairs=True)), KernelContext(InstructionSet(fpu=False)))
"""Kernels whose bytes are those of the exact references where products are not fused."""


def float_cases(cases_per_op: int, first: int = 0, ops: Sequence[str] = FLOATS) -> list[Case]:
    """Cases `first` to `first + cases_per_op` of every operator."""
    wanted = first + cases_per_op
    makers = dict.fromkeys(RANDOM, random_cases) | dict.fromkeys(RANDOM_PRODUCTS, random_products)
    return [case for op in ops for case in makers.get(op, cases_of)(op, wanted)[first:]]


def kept() -> Make:
    """Return what lowers a whole node, but only once for a context: both rules of rounding have the same text."""
    cache = KernelCache()

    def make(node: Node, name: str, context: KernelContext) -> tuple[Kernel, int]:
        key = node.op, repr(node.attrs), node.inputs, node.outputs, context
        return cache.get(key, lambda: lower_node(node, name, context)).named(name), op_def(node.op).scratch(node)

    return make


def check_floats_on_host(cases_per_op: int, first: int = 0, ops: Sequence[str] = FLOATS) -> int:
    """Compare kernels for cores with and without an FPU with the exact references; the number of kernels that ran."""
    cases = float_cases(cases_per_op, first, ops)
    for context in CONTEXTS:
        with tempfile.TemporaryDirectory() as folder:
            run_sanitised(cases, Path(folder), context=context, exact=True)
    return len(CONTEXTS) * len(cases)


def check_floats_on_board(target: str, cases_per_op: int, first: int = 0, ops: Sequence[str] = FLOATS) -> int:
    """Compare products that are rounded apart with the exact references, and fused ones with the host; how many ran."""
    cases, features = float_cases(cases_per_op, first, ops), load_target(target).features
    make = kept()
    found = [measure(cases, target, fuse_multiply_add=False, make=make)]
    if features.fma:
        with tempfile.TemporaryDirectory() as folder:
            context = kernel_context(features, True)
            expected = on_host(cases, Path(folder), context=context, make=make, flags=("-DTT_HAS_FMA=1",))
        found.append(measure(cases, target, make=make, expected=expected))
    for results in found:
        for case, result in zip(cases, results, strict=True):
            assert result.equal, f"{target}: {case}"
    return len(found) * len(cases)
