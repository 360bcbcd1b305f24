"""Runs many kernels in one image on a board in QEMU: instructions of each, and whether its results are right."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.ops.case import Case

from tinytrain_compile.ir import Node
from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.stages import Interface, SourceBundle
from tinytrain_compile.lower.kernels import Features
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops import op_def, run_node
from tinytrain_compile.resources import runtime_headers
from tinytrain_compile.target import load_target
from tinytrain_compile.verify import compile_project, find_tools, link_project
from tinytrain_compile.verify.count import functions_of, prepare_count, read_calls
from tinytrain_compile.verify.run import run_image

POOL_BYTES = 2 << 20
"""RAM for the operands of one kernel at a time."""
ALIGNMENT = 16


@dataclass(frozen=True)
class Measured:
    """One kernel on a board. equal: its outputs are those of the reference, to the byte (float32: not compared)."""

    instructions: int
    macs: int
    code_bytes: int
    equal: bool


def measure(cases: Sequence[Case], target_name: str, fuse_multiply_add: bool = True) -> list[Measured]:
    """Lower, build and run all cases. Errors: CompileError E0602."""
    target, tools = load_target(target_name), find_tools()
    nodes = [case.node() for case in cases]
    features = Features(fpu=target.features.fpu, vectors=target.features.mve_int)
    kernels = [lower_node(node, f"bench_{i}", features, fuse_multiply_add) for i, node in enumerate(nodes)]
    data = _Blob()
    calls = [_call(data, node, case, kernel) for node, case, kernel in zip(nodes, cases, kernels, strict=True)]
    interface = Interface("bench", 1, 1, "float", 1, POOL_BYTES, 0, target.alignment_bytes, False, ())
    files = {
        **runtime_headers(),
        "bench_kernels.c": '#include "tt_mve.h"\n#include "tt_qloss.h"\n'
        + "".join(f"{k.declaration}\n{k.source}" for k in kernels),
        "verify/bench.c": _main(calls, kernels),
        "bench_train.h": "",
    }
    with tempfile.TemporaryDirectory(prefix="tinytrain-bench-") as name:
        folder = Path(name)
        (folder / "verify").mkdir()
        (folder / "blob.bin").write_bytes(bytes(data.bytes))
        sources = ("verify/bench.c", "verify/startup.c")
        compiled = compile_project(SourceBundle(files, interface), target, "qemu", tools, folder, sources)
        built = link_project(compiled, target, tools)
        found = functions_of(built.image, compiled.model_objects, "bench")
        functions = [dataclasses.replace(f, kind="a" if f.name.startswith("bench_") else f.kind) for f in found]
        plugin = prepare_count(functions, tools, built.image.parent)
        flags = np.frombuffer(run_image(built, target, tools, b"", extra=plugin), "<u4")
        spent = {call.name: sum(call.instructions.values()) for call in read_calls(built.image.parent, functions)}
    code = {f.name: f.high - f.low for f in functions}
    return [
        Measured(spent[k.name], op_def(node.op).macs(node), code[k.name], bool(flag == 0))
        for k, node, flag in zip(kernels, nodes, flags, strict=True)
    ]


class _Blob:
    """All operands and expected results, one after the other, each aligned."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def add(self, data: bytes) -> int:
        self.bytes += bytes(-len(self.bytes) % ALIGNMENT)
        at = len(self.bytes)
        self.bytes += data
        return at


def _call(blob: _Blob, node: Node, case: Case, kernel: Kernel) -> str:
    """C statements: operands into the pool, the kernel, comparison of what has to be equal."""
    lines: list[str] = []
    places: list[int] = []
    top = 0

    def take(size_bytes: int) -> int:
        nonlocal top
        at, top = top, top + size_bytes + -size_bytes % ALIGNMENT
        assert top <= POOL_BYTES, f"{case}: the pool is too small"
        return at

    for value, array in zip(node.inputs, case.float32(), strict=True):
        at = take(value.size_bytes)
        source = blob.add(np.ascontiguousarray(array).tobytes())
        lines.append(f"memcpy(pool + {at}, blob + {source}, {value.size_bytes});")
        places.append(at)
    alias = dict(op_def(node.op).alias)
    outputs = [places[alias[i]] if i in alias else take(v.size_bytes) for i, v in enumerate(node.outputs)]
    arguments = places + [at for i, at in enumerate(outputs) if i not in alias]
    if kernel.scratch_dtype:
        arguments.append(take(op_def(node.op).scratch(node)))
    lines.append(f"{kernel.name}({', '.join(f'(void *)(pool + {at})' for at in arguments)});")
    for at, expected, value in zip(outputs, run_node(node, case.float32()), node.outputs, strict=True):
        if value.dtype != "float32":
            data = np.ascontiguousarray(expected).tobytes()
            lines.append(f"wrong |= memcmp(pool + {at}, blob + {blob.add(data)}, {len(data)}) != 0;")
    return "\n        ".join(lines)


def _main(calls: Sequence[str], kernels: Sequence[Kernel]) -> str:
    blocks = "".join(
        f"    {{\n        uint32_t wrong = 0;\n        {call}\n        (void)port_write(file, &wrong, 4);\n    }}\n"
        for call in calls
    )
    return f"""#include "port.h"
#include "tt_dsp.h"
{"".join(kernel.declaration for kernel in kernels)}
__asm__(".section .rodata\\n.balign 16\\n.global blob\\nblob: .incbin \\"blob.bin\\"\\n.text\\n");
extern const unsigned char blob[];
static struct {{ unsigned char low[4096], pool[{POOL_BYTES}], high[4096]; }} memory PORT_ARENA_SECTION;
int main(void)
{{
    unsigned char *const pool = memory.pool;
    const int32_t file = port_open_output("output.bin");
{blocks}    port_close(file);
    return 0;
}}
"""
