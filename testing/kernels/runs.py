"""Runs many kernels in one image on a board in QEMU: instructions of each, and whether its results are right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.stages import Interface, SourceBundle
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.build import compile_project, link_project
from tinytrain_compile.verify.count import COUNTS, functions_of, prepare_count, read_calls
from tinytrain_compile.verify.cycles import cycle_model, read_blocks
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.tools import Tools, work_folder

POOL_BYTES = 2 << 20
"""RAM for the operands of one kernel at a time."""
ALIGNMENT = 16
_BLOCKS = "blocks.txt"
PREFIX = "bench"
"""Names of kernels to be run begin with it and an underscore."""
INCLUDED = (
    *(
        "tt_clip.h",
        "tt_sign.h",
        "tt_clip_int8.h",
        "tt_exponents.h",
        "tt_qloss.h",
        "tt_dense.h",
        "tt_conv.h",
        "tt_few.h",
        "tt_large_tiles.h",
        "tt_errors.h",
        "tt_depthwise.h",
        "tt_spread.h",
        "tt_dense_momentum.h",
        "tt_dense_update.h",
    ),
    *(
        "tt_dsp_rows.h",
        "tt_float_pairs.h",
        "tt_pool.h",
        "tt_mve_conv.h",
        "tt_mve_float.h",
        "tt_mve_errors.h",
        "tt_mve_taps.h",
        "tt_mve_gradients.h",
        "tt_mve_lines.h",
        "tt_mve_weights.h",
        "tt_mve_pool.h",
    ),
)
"""Headers of the runtime that kernels need between them."""


@dataclass(frozen=True)
class KernelRun:
    """A call of a kernel. outputs: sizes; alias: output -> input that it overwrites; expected: None is not compared."""

    kernel: Kernel
    inputs: tuple[bytes, ...]
    outputs: tuple[int, ...]
    alias: Mapping[int, int]
    scratch_bytes: int
    expected: tuple[bytes | None, ...]

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool that it takes, at most."""
        sizes = (*map(len, self.inputs), *self.outputs, self.scratch_bytes)
        return sum(size + ALIGNMENT for size in sizes)


@dataclass(frozen=True)
class KernelCount:
    """What a run took, the size of its code, and whether every expected output was met to the byte.

    cycles: by the target's model, if they were asked for.
    """

    instructions: int
    code_bytes: int
    equal: bool
    cycles: int | None = None


def count_kernels(
    runs: Sequence[KernelRun],
    target: Target,
    tools: Tools,
    headers: Mapping[str, str],
    cycles: bool = False,
    fuse_multiply_add: bool = True,
) -> list[KernelCount]:
    """Build and run all, in one image; headers: of runtime_c; cycles: also by the target's model. Errors: E0602."""
    data = _Blob()
    calls = [_call(data, run) for run in runs]
    kernels = [run.kernel for run in runs]
    interface = Interface(PREFIX, 1, 1, "float", 1, POOL_BYTES, 0, target.alignment_bytes, False, ())
    files = {
        **headers,
        f"{PREFIX}_kernels.c": ("" if fuse_multiply_add else "#define TT_HAS_FMA 0\n")
        + "".join(f'#include "{name}"\n' for name in INCLUDED)
        + "".join(f"{k.declaration}\n{k.source}" for k in kernels),
        f"verify/{PREFIX}.c": _main(calls, kernels),
        f"{PREFIX}_train.h": "",
    }
    with work_folder() as folder:
        (folder / "verify").mkdir()
        (folder / "blob.bin").write_bytes(bytes(data.bytes))
        sources = (f"verify/{PREFIX}.c", "verify/startup.c")
        compiled = compile_project(SourceBundle(files, interface), target, "qemu", tools, folder, sources)
        built = link_project(compiled, target, tools)
        found = functions_of(built.image, compiled.model_objects, PREFIX)
        functions = [replace(f, kind="a" if f.name.startswith(f"{PREFIX}_") else f.kind) for f in found]
        plugin = prepare_count(functions, tools, built.image.parent, _BLOCKS if cycles else "")
        makes = (COUNTS, _BLOCKS) if cycles else (COUNTS,)
        flags = np.frombuffer(run_image(built, target, tools, b"", extra=plugin, makes=makes), "<u4")
        spent = {call.name: sum(call.instructions.values()) for call in read_calls(built.image.parent, functions)}
        modelled = _cycles(built.image, target, list(spent)) if cycles else {}
    code = {f.name: f.high - f.low for f in functions}
    results = zip((kernel.name for kernel in kernels), flags, strict=True)
    return [KernelCount(spent[name], code[name], bool(flag == 0), modelled.get(name)) for name, flag in results]


def _cycles(image: Path, target: Target, names: Sequence[str]) -> dict[str, int]:
    """Return the cycles of the calls of a run, in order."""
    calls = zip(names, read_blocks(image.parent / _BLOCKS), strict=True)
    found = ((name, cycle_model(target, image, blocks, {}).step) for name, blocks in calls)
    return {name: cycles for name, cycles in found if cycles is not None}


class _Blob:
    """All operands and expected results, one after the other, each aligned; equal ones once."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self._known: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        if data not in self._known:
            self.bytes += bytes(-len(self.bytes) % ALIGNMENT)
            self._known[data] = len(self.bytes)
            self.bytes += data
        return self._known[data]


def _call(blob: _Blob, run: KernelRun) -> str:
    """Return C statements: operands into the pool, the kernel, comparison of what has to be equal."""
    lines: list[str] = []
    places: list[int] = []
    top = 0

    def take(size_bytes: int) -> int:
        nonlocal top
        at, top = top, top + size_bytes + -size_bytes % ALIGNMENT
        if top > POOL_BYTES:
            raise CompileError("E0602", run.kernel.name, "its operands do not fit the board's pool", "a smaller layer")
        return at

    for data in run.inputs:
        at = take(len(data))
        lines.append(f"memcpy(pool + {at}, blob + {blob.add(data)}, {len(data)});")
        places.append(at)
    outputs = [places[run.alias[i]] if i in run.alias else take(size) for i, size in enumerate(run.outputs)]
    arguments = places + [at for i, at in enumerate(outputs) if i not in run.alias]
    if run.kernel.scratch_dtype:
        arguments.append(take(run.scratch_bytes))
    lines.append(f"{run.kernel.name}({', '.join(f'(void *)(pool + {at})' for at in arguments)});")
    for at, expected in zip(outputs, run.expected, strict=True):
        if expected is not None:
            lines.append(f"wrong |= memcmp(pool + {at}, blob + {blob.add(expected)}, {len(expected)}) != 0;")
    return "\n        ".join(lines)


def _main(calls: Iterable[str], kernels: Iterable[Kernel]) -> str:
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
