"""Kernels on the host under AddressSanitizer and UBSan, every operand in a block of its exact size."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from testing.ops.case import Case
from tinytrain_compile.emit.project import directly_used
from tinytrain_compile.files.resources import data_dir, runtime_headers
from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels import InstructionSet, KernelContext
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops import op_def, run_node
from tinytrain_compile.ops.base import alias_of

FLAGS = ("-std=c11", "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-ffp-contract=off")
Make = Callable[[Node, str, KernelContext], tuple[Kernel, int]]
"""(node, name, context) -> its kernel, bytes of scratch"""
SCALAR, VECTORS = KernelContext(), KernelContext(InstructionSet(int_vectors=True))
LARGE_TILES = KernelContext(InstructionSet(dsp=False, gpr=28))
"""Sixteen sums of integers at a time, as on RISC-V."""
HEAD = """#include "tt_config.h"
#undef TT_ALWAYS /* one function for all kernels: without optimisation, copies take GCC seven times as long */
#define TT_ALWAYS __attribute__((unused))
#include "tt_runtime.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
static FILE *data, *results;
static void *operand(size_t bytes, bool filled)
{
    void *const block = malloc(bytes);
    if (block == NULL || (filled && fread(block, 1, bytes, data) != bytes)) {
        exit(3);
    }
    return block;
}
static void alike(const void *got, const void *expected, size_t bytes, int index)
{
    if (memcmp(got, expected, bytes) != 0) {
        fprintf(stderr, "kernel %d differs\\n", index);
        exit(1);
    }
}
static void found(const void *got, size_t bytes)
{
    if (fwrite(got, 1, bytes, results) != bytes) {
        exit(3);
    }
}
"""


def whole(node: Node, name: str, context: KernelContext) -> tuple[Kernel, int]:
    """The kernel that computes all of a node."""
    return lower_node(node, name, context), op_def(node.op).scratch(node)


def run_sanitised(
    cases: Sequence[Case],
    folder: Path,
    change: Callable[[str], str] = lambda source: source,
    context: KernelContext = SCALAR,
    make: Make = whole,
    exact: bool = False,
) -> None:
    """Run all cases in one program; AssertionError with the first error. change: applied to the kernels' C text.

    exact: floats are compared too, with the exact references.
    """
    for index, (case, found) in enumerate(zip(cases, on_host(cases, folder, change, context, make), strict=True)):
        node = case.node()
        for value, got, wanted in zip(node.outputs, found, run_node(node, case.float32(), exact), strict=True):
            assert exact or value.dtype != "float32", "floats are not compared to the byte here"
            assert got == np.ascontiguousarray(wanted).tobytes(), f"kernel {index} differs: {case}"


def on_host(
    cases: Sequence[Case],
    folder: Path,
    change: Callable[[str], str] = lambda source: source,
    context: KernelContext = SCALAR,
    make: Make = whole,
    flags: Sequence[str] = (),
) -> list[list[bytes]]:
    """Return the outputs of all cases, run in one program; AssertionError with the first error of a sanitiser."""
    kernels, calls, data = "", "", bytearray()
    nodes = [case.node() for case in cases]
    for index, (case, node) in enumerate(zip(cases, nodes, strict=True)):
        kernel, scratch_bytes = make(node, f"k{index}", context)
        kernels += f"{kernel.declaration}\n{change(kernel.source)}"
        arrays = [np.ascontiguousarray(array).tobytes() for array in case.float32()]
        data += b"".join(arrays)
        calls += _call(index, [len(a) for a in arrays], node, scratch_bytes if kernel.scratch_dtype else None)
    results = BytesIO(_run(kernels, calls, bytes(data), folder, flags))
    return [[results.read(value.size_bytes) for value in node.outputs] for node in nodes]


def run_alike(cases: Sequence[Case], folder: Path, context: KernelContext, one: Make, other: Make) -> None:
    """Run two kernels of each case, which overwrite no operand; AssertionError unless they give the same bytes."""
    kernels, calls, data = "", "", bytearray()
    for index, case in enumerate(cases):
        node, lines = case.node(), list[str]()
        arrays = [np.ascontiguousarray(array).tobytes() for array in case.float32()]
        data += b"".join(arrays)
        lines += [f"void *i{n} = operand({len(array)}u, true);" for n, array in enumerate(arrays)]
        names = [f"i{n}" for n in range(len(arrays))]
        for prefix, make in (("one", one), ("other", other)):
            kernel, scratch_bytes = make(node, f"{prefix}{index}", context)
            kernels += f"{kernel.declaration}\n{kernel.source}"
            own = [f"{prefix}_{n}" for n in range(len(node.outputs))] + ([prefix] if kernel.scratch_dtype else [])
            sizes = [*(value.size_bytes for value in node.outputs), scratch_bytes]
            lines += [f"void *{n} = operand({size}u, false);" for n, size in zip(own, sizes, strict=False)]
            lines.append(f"{prefix}{index}({', '.join([*names[: len(arrays)], *own])});")
            names += own
        lines += [f"alike(one_{n}, other_{n}, {v.size_bytes}u, {index});" for n, v in enumerate(node.outputs)]
        calls += "{ " + " ".join([*lines, *(f"free({name});" for name in names)]) + " }\n"
    _run(kernels, calls, bytes(data), folder)


def _run(kernels: str, calls: str, data: bytes, folder: Path, flags: Sequence[str] = ()) -> bytes:
    """Build and run a program; return what it found."""
    files = 'data = fopen("data.bin", "rb"); results = fopen("found.bin", "wb");'
    main = f"int main(void) {{ {files} if (!data || !results) {{ return 3; }}\n{calls}return fclose(results); }}\n"
    (folder / "data.bin").write_bytes(data)
    # Not all headers: GCC takes half a second for their unused functions, which it makes before it leaves them out.
    used = "".join(f'#include "{name}"\n' for name in directly_used([kernels], runtime_headers()))
    (folder / "fuzz.c").write_text(HEAD + used + kernels + main)
    command = ["gcc", *FLAGS, *flags, f"-I{data_dir('runtime_c')}", "fuzz.c", "-o", "fuzz", "-lm"]
    for step in (command, ["./fuzz"]):
        finished = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr[:4000]
    return (folder / "found.bin").read_bytes()


def _call(index: int, sizes: Sequence[int], node: Node, scratch_bytes: int | None) -> str:
    """C statements: operands, outputs and scratch in blocks of their own, the kernel, its results."""
    alias = dict(alias_of(node))
    lines = [f"void *i{n} = operand({size}u, true);" for n, size in enumerate(sizes)]
    names = [f"i{alias[n]}" if n in alias else f"o{n}" for n in range(len(node.outputs))]
    own = [n for n in range(len(names)) if n not in alias]
    lines += [f"void *o{n} = operand({node.outputs[n].size_bytes}u, false);" for n in own]
    arguments = [f"i{n}" for n in range(len(sizes))] + [f"o{n}" for n in own]
    if scratch_bytes is not None:
        lines.append(f"void *scratch = operand({scratch_bytes}u, false);")
        arguments.append("scratch")
    lines.append(f"k{index}({', '.join(arguments)});")
    for name, value in zip(names, node.outputs, strict=True):
        lines.append(f"found({name}, {value.size_bytes}u);")
    lines += [f"free({name});" for name in arguments]
    return "{ " + " ".join(lines) + " }\n"
