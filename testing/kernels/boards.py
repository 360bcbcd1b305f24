"""Runs the kernels of many cases in one image on a board in QEMU: instructions of each, and whether it is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from testing.kernels.runs import PREFIX, KernelRun, count_kernels
from testing.kernels.sanitised import Make
from testing.ops.case import Case
from tinytrain_compile.files.resources import runtime_headers
from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels import KernelContext, kernel_context
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops import op_def, run_node
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.tools import find_tools


@dataclass(frozen=True)
class Measured:
    """One kernel on a board. equal: its outputs are those of the reference, to the byte (float32: see `measure`)."""

    instructions: int
    macs: int
    code_bytes: int
    equal: bool
    cycles: int | None = None


def measure(
    cases: Sequence[Case],
    target_name: str,
    fuse_multiply_add: bool = True,
    make: Make | None = None,
    cycles: bool = False,
    expected: Sequence[Sequence[bytes]] | None = None,
) -> list[Measured]:
    """Lower, build and run all cases; make: other kernels than those of whole nodes;
    cycles: also by the target's model. Without fuse_multiply_add, float32 results are compared with the exact
    reference, if there is one. expected: bytes of every output, to compare with instead. Errors: CompileError E0602."""
    target = load_target(target_name)
    nodes = [case.node() for case in cases]
    context = kernel_context(target.features, fuse_multiply_add)
    kernels = [_kernel(node, f"{PREFIX}_{i}", context, make) for i, node in enumerate(nodes)]
    runs = [
        _run(node, case, *made, exact=not fuse_multiply_add)
        for node, case, made in zip(nodes, cases, kernels, strict=True)
    ]
    if expected is not None:
        runs = [replace(run, expected=tuple(found)) for run, found in zip(runs, expected, strict=True)]
    counts = count_kernels(runs, target, find_tools(target), runtime_headers(), cycles, fuse_multiply_add)
    macs = [op_def(node.op).macs(node) for node in nodes]
    return [Measured(c.instructions, m, c.code_bytes, c.equal, c.cycles) for c, m in zip(counts, macs, strict=True)]


def _kernel(node: Node, name: str, context: KernelContext, make: Make | None) -> tuple[Kernel, int]:
    if make is not None:
        return make(node, name, context)
    return lower_node(node, name, context), op_def(node.op).scratch(node)


def _run(node: Node, case: Case, kernel: Kernel, scratch_bytes: int, exact: bool) -> KernelRun:
    exact = exact and op_def(node.op).exact is not None
    results = zip(run_node(node, case.float32(), exact), node.outputs, strict=True)
    return KernelRun(
        kernel,
        tuple(np.ascontiguousarray(array).tobytes() for array in case.float32()),
        tuple(value.size_bytes for value in node.outputs),
        dict(alias_of(node)),
        scratch_bytes,
        tuple(None if v.dtype == "float32" and not exact else np.ascontiguousarray(a).tobytes() for a, v in results),
    )
