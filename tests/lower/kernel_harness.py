"""Compiles kernels for the host as one shared library and runs them on cases, in place where that is declared."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.ops.case import Case
from tinytrain_compile.emit.project import directly_used
from tinytrain_compile.files.resources import data_dir, runtime_headers
from tinytrain_compile.ir.kernels import Kernel, KernelCache, KernelSet
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower import share_kernels
from tinytrain_compile.lower.kernels import KERNELS, SIZE, SPEED, InstructionSet, KernelContext
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops import op_def, run_node
from tinytrain_compile.ops.base import Overlap, alias_of
from tinytrain_compile.ops.int8.loss import LOSSES

C_FLAGS = (
    *("-std=c11", "-Og", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-tree-vectorize"),
    *("-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror"),
)

EXACT = ("Dequantize", "DequantizeError", *LOSSES)
"""Ops with float outputs that equal their reference to the bit however they are compiled."""
KEPT = KernelCache(limit=8192)
"""Kernels that the tests of a process share: many build the same cases."""
GUARD = 64
"""Bytes on both sides of every buffer that a kernel must leave alone."""


@dataclass(frozen=True, eq=False)
class Built:
    """A case, its node and its compiled kernel."""

    case: Case
    node: Node
    kernel: Kernel
    library: ctypes.CDLL
    numbers: tuple[int, ...] = ()
    """What a shared kernel is called with."""
    turns: int = 0
    """How many it takes the first and the last of; 0: none."""


def lowered(node: Node, name: str, context: KernelContext, in_turns: bool = False, kept: KernelCache = KEPT) -> Kernel:
    """Return the kernel of a node; equal nodes are lowered once.

    kept: a cache of its own for a test that changes how kernels are lowered, other than by KERNELS and OPS.
    """
    rules = op_def(node.op), KERNELS.get(node.op)  # tests replace them
    key = node.op, repr(node.attrs), node.inputs, node.outputs, context, in_turns, rules
    return kept.get(key, lambda: lower_node(node, name, context, in_turns)).named(name)


def build(
    cases: Sequence[Case],
    folder: Path,
    fpu: bool,
    flags: Sequence[str] = (),
    small: bool = False,
    float_vectors: bool = False,
    float_pairs: bool = True,
    change: Callable[[str], str] = lambda source: source,
    in_turns: bool = False,
    dsp: bool = False,
    kept: KernelCache = KEPT,
) -> list[Built]:
    """Lower and compile a kernel per case, for a core with an FPU or without.

    small: small kernels, which share functions as those of a project do. change: applied to the kernels' C text.
    in_turns: kernels that can be called for some turns of their longest loop. dsp: the forms of cores with SMLAD, in
    their plain C. kept: see `lowered`.
    """
    nodes = [case.node() for case in cases]
    pairs = float_pairs and fpu and not float_vectors
    isa = InstructionSet(fpu, dsp=dsp, float_vectors=float_vectors, float_pairs=pairs)
    context = KernelContext(isa, SIZE if small else SPEED)
    kernels = [lowered(node, f"k{i}", context, in_turns, kept) for i, node in enumerate(nodes)]
    turns = [kernel.turns for kernel in kernels]
    known = share_kernels(KernelSet(tuple(kernels), {kernel.name: kernel.name for kernel in kernels}), "k")
    functions = {kernel.name: kernel for kernel in known.kernels}
    numbers = [known.tables[known.numbers[k.name]] if k.name in known.numbers else () for k in kernels]
    kernels = [functions[known.calls[kernel.name]] for kernel in kernels]
    text = "".join(f"{kernel.declaration}\n{change(kernel.source)}" for kernel in known.kernels)
    (folder / "kernels.c").write_text(with_headers(text))
    command = [
        "gcc",
        *C_FLAGS,
        *flags,
        "-shared",
        "-fPIC",
        f"-I{data_dir('runtime_c')}",
        "-o",
        "kernels.so",
        "kernels.c",
        "-lm",
    ]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr + text
    library = ctypes.CDLL(str(folder / "kernels.so"))
    rows = zip(cases, nodes, kernels, numbers, turns, strict=True)
    return [Built(case, node, kernel, library, row, count) for case, node, kernel, row, count in rows]


def with_headers(text: str) -> str:
    """The C of kernels behind the headers that it needs."""
    included = ("tt_runtime.h", *directly_used([text], runtime_headers()))
    return "".join(f'#include "{name}"\n' for name in included) + text


def in_groups(ops: Iterable[str], size: int = 6) -> list[Any]:
    """Parameters of a test that takes several ops: what all kernels include is compiled once for a group."""
    named = list(ops)
    groups = [named[first : first + size] for first in range(0, len(named), size)]
    return [pytest.param(group, id=f"{group[0]}..{group[-1]}") for group in groups]


class Memory:
    """A buffer between guards, filled with garbage."""

    def __init__(self, size_bytes: int) -> None:
        self._raw = np.full(size_bytes + 2 * GUARD, 0xA5, np.uint8)
        self.bytes = self._raw[GUARD : GUARD + size_bytes]

    def address(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.bytes.ctypes.data)

    def check(self) -> None:
        """The guards still hold what was written to them."""
        assert (self._raw[:GUARD] == 0xA5).all(), "written before the buffer"
        assert (self._raw[len(self._raw) - GUARD :] == 0xA5).all(), "written behind the buffer"


class Part(Memory):
    """Some of another memory."""

    def __init__(self, whole: Memory, begin: int, size_bytes: int) -> None:
        self._whole = whole
        self.bytes = whole.bytes[begin : begin + size_bytes]

    def check(self) -> None:
        """The guards of the whole."""
        self._whole.check()


def _overlapped(node: Node, overlap: Overlap, above: int) -> tuple[Memory, Memory]:
    """(output, input), which begins so many bytes above it."""
    sizes = node.outputs[overlap.output].size_bytes, node.inputs[overlap.source].size_bytes
    low = min(0, above)
    whole = Memory(max(sizes[0], above + sizes[1]) - low)
    return Part(whole, -low, sizes[0]), Part(whole, above - low, sizes[1])


def run(
    built: Built,
    inplace: tuple[int, int] | None = None,
    over: tuple[Overlap, int] | None = None,
    bounds: Sequence[int] = (),
) -> tuple[np.ndarray, ...]:
    """Outputs of the compiled kernel.

    inplace: (output, input) that share memory. over: a pair of which the input begins so many bytes above the output.
    bounds: of a kernel in turns, where each of its calls begins, and the last ends (default: one call).
    """
    node, definition = built.node, op_def(built.node.op)
    inputs = [Memory(value.size_bytes) for value in node.inputs]
    alias = dict(alias_of(node)) | dict([inplace] if inplace else [])
    placed: dict[int, Memory] = {}
    if over is not None:
        placed[over[0].output], inputs[over[0].source] = _overlapped(node, *over)
    for memory, array in zip(inputs, built.case.float32(), strict=True):
        memory.bytes[:] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    outputs = [
        inputs[alias[i]] if i in alias else placed.get(i) or Memory(v.size_bytes) for i, v in enumerate(node.outputs)
    ]
    arguments = [m.address() for m in inputs]
    arguments += [m.address() for i, m in enumerate(outputs) if i not in dict(alias_of(node))]
    scratch = Memory(max(definition.scratch(node), 4))
    behind = [scratch.address()] if built.kernel.scratch_dtype else []
    if built.numbers:
        behind.append(ctypes.cast((ctypes.c_int32 * len(built.numbers))(*built.numbers), ctypes.c_void_p))
    for piece in pairwise(bounds or (0, built.turns)) if built.turns else [()]:
        getattr(built.library, built.kernel.name)(*arguments, *map(ctypes.c_int32, piece), *behind)
    for memory in (*inputs, *outputs, scratch):
        memory.check()
    _check_inputs_kept(built, inputs, {*alias.values(), *([over[0].source] if over else [])})
    return tuple(_read(memory, v.dtype, v.shape) for memory, v in zip(outputs, node.outputs, strict=True))


def _check_inputs_kept(built: Built, inputs: Sequence[Memory], overwritten: set[int]) -> None:
    for index, (memory, array) in enumerate(zip(inputs, built.case.float32(), strict=True)):
        if index not in overwritten:
            assert memory.bytes.tobytes() == np.ascontiguousarray(array).tobytes(), f"input {index} was overwritten"


def _read(memory: Memory, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "bits":
        return memory.bytes.copy()
    return memory.bytes.view(dtype).reshape(shape).copy()


def expected(built: Built) -> tuple[np.ndarray, ...]:
    """Outputs of the float32 reference."""
    return run_node(built.node, built.case.float32())


def compare(built: Built, got: Sequence[np.ndarray], tolerance: float = 1e-5) -> None:
    """Floats within tolerance * max(1, largest expected); integers, bits and all outputs of EXACT ops exactly."""
    for index, (actual, wanted) in enumerate(zip(got, expected(built), strict=True)):
        where = f"{built.case} output {index}\n{built.kernel.source}"
        if wanted.dtype.kind != "f" or built.node.op in EXACT:
            np.testing.assert_array_equal(actual, wanted, where)
            continue
        limit = tolerance * max(1.0, float(np.abs(wanted).max()))
        assert float(np.abs(actual - wanted).max()) <= limit, where


def inplace_pairs(built: Built) -> list[tuple[int, int]]:
    """The declared (output, input) pairs whose sizes agree here."""
    node = built.node
    pairs = op_def(node.op).inplace
    return [(o, i) for o, i in pairs if node.outputs[o].size_bytes == node.inputs[i].size_bytes]


def mutate(header: str, code: str, mutant: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels be built with a copy of the headers in which one place of one header is another text."""
    headers = data_dir("runtime_c")
    for path in headers.glob("*.h"):
        (folder / path.name).write_text(path.read_text())
    text = (headers / header).read_text()
    assert text.count(code) == 1
    (folder / header).write_text(text.replace(code, mutant))
    monkeypatch.setattr(f"{__name__}.data_dir", lambda _name: folder)
