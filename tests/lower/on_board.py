"""Runs kernels that were compiled for the host on a board in QEMU, all in one image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from testing.kernels.runs import PREFIX, KernelRun, count_kernels
from tests.lower.kernel_harness import Built, run
from tinytrain_compile.files.resources import runtime_headers
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.tools import find_tools


def on_board(built: Sequence[Built], target: str) -> list[bool]:
    """Whether the kernels give the bytes of the host on a core, in QEMU."""
    runs: list[KernelRun] = []
    for index, item in enumerate(built):
        definition = op_def(item.node.op)
        expected = tuple(array.tobytes() for array in run(item))
        inputs = tuple(np.ascontiguousarray(array).tobytes() for array in item.case.float32())
        sizes = tuple(value.size_bytes for value in item.node.outputs)
        scratch = definition.scratch(item.node)
        name, kernel = f"{PREFIX}_{index}", item.kernel
        texts = [text.replace(f" {kernel.name}(", f" {name}(", 1) for text in (kernel.source, kernel.declaration)]
        kernel = replace(kernel, name=name, source=texts[0], declaration=texts[1])
        runs.append(KernelRun(kernel, inputs, sizes, dict(alias_of(item.node)), scratch, expected))
    core = load_target(target)
    return [found.equal for found in count_kernels(runs, core, find_tools(core), runtime_headers())]
