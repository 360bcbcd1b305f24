"""Texts of the check program: main, start-up, link script, Makefile; and the vectors that it reads."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import cache

import jinja2

from tinytrain_compile.data.samples import in_slots
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import read_text
from tinytrain_compile.ir.records import parts
from tinytrain_compile.ir.stages import Interface, Samples, SourceBundle
from tinytrain_compile.target.model import QemuBoard, Region, Target, Toolchain

GUARD_BYTES = 4096
"""Bytes of guard on each side of the arena; a multiple of every arena alignment."""

MEMORY_ALIGNMENT = 16
"""Alignment in bytes of every memory with its guards (ports/port.h)."""

STACK_EXTRA_BYTES = 16384
"""Bytes of stack for the check program itself, and room to measure an overflow of the target's budget instead of
crashing."""

INPUT_MAGIC = 0x56495454
"""First word of the vectors: the letters TTIV, as in main.c.j2."""

WHOLE_CALLS = 2
"""Calls on samples that come before the same number on features, in a build with features."""

COMPILE_FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-tree-vectorize")
CHECK_FLAG = "-DTT_CHECK"
"""Additional flag for files of the check program, which are empty without it."""
SMALL_FLAG = "-Os"
"""Additional flag for files made for small code."""
EXTERNAL_FLAG = "-w"
"""Additional flag for files of the user, which get no warnings."""
WARNING_FLAGS = (
    *("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wvla", "-Wdouble-promotion", "-pedantic", "-Werror"),
)
HOST_FLAGS = ("-Og", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-fno-pie")
"""Additional flags on a host, which keep a distribution's hardening out of the code. -Og compiles three times as fast
as -O2, which saves more than a run of some steps takes; any level gives the same bytes."""


def model_sources(bundle: SourceBundle) -> tuple[str, ...]:
    """Return the C files of the generated project, without its check program."""
    return tuple(sorted(path for path in bundle.files if path.endswith(".c") and "/" not in path))


def file_flags(bundle: SourceBundle) -> dict[str, tuple[str, ...]]:
    """Return flags of C files that need some besides the common ones."""
    return {**dict.fromkeys(bundle.small, (SMALL_FLAG,)), **dict.fromkeys(bundle.external, (EXTERNAL_FLAG,))}


def verification_files(bundle: SourceBundle, target: Target, place: str = "") -> dict[str, str]:
    """Return path in the output folder -> text of all files with which a user can repeat the check (except vectors).

    place: path of the sources in that folder, "" or ending in a slash.
    """
    more, interface, toolchain = file_flags(bundle), bundle.interface, target.toolchain
    runs = target.qemu is not None and toolchain is not None
    arena = f"{interface.prefix.upper()}_{interface.arena_macro or 'ARENA_BYTES'}"
    further = (f"{interface.prefix.upper()}_MEMORY_{k + 1}_BYTES" for k in range(len(interface.further_bytes)))
    values = {
        "m": interface,
        "p": interface.prefix,
        "P": interface.prefix.upper(),
        "place": place,
        "more_files": more,
        "target": target,
        "toolchain": toolchain,
        "qemu": qemu_arguments(target) if runs else (),
        "guard_bytes": GUARD_BYTES,
        "whole_calls": WHOLE_CALLS,
        "sizes": (arena, *further),
        "more_inputs": () if interface.input_rows else [slot.number for slot in interface.more_inputs],
        # The start, in every memory, of data without meaning between two calls; the memory's end if unknown.
        "transient_offsets": interface.transient_offsets or (interface.arena_bytes, *interface.further_bytes),
        "sources": [path for path in model_sources(bundle) if path not in more],
        "flags": (*COMPILE_FLAGS, *WARNING_FLAGS, CHECK_FLAG, f"-I../{place}".rstrip("/"), "-I."),
        "host_flags": HOST_FLAGS,
    }
    files = {
        "verify/main.c": _templates().get_template("main.c.j2").render(values),
        "verify/port.h": read_text("runtime_c", "ports/port.h"),
        "verify/host.c": read_text("runtime_c", "ports/host.c"),
    }
    if target.qemu is not None and toolchain is not None:
        files["verify/startup.c"] = _start_up(toolchain, target.qemu)
        files["verify/link.ld"] = _link_script(interface, target, target.qemu, toolchain)
    files["verify/Makefile"] = _templates().get_template("Makefile.j2").render(values)
    files["verify/README.md"] = _templates().get_template("README.md.j2").render(values)
    return files


@cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("tinytrain_compile.verify"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["comment"] = _comment
    return made


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace every @NAME@ in a file of runtime_c/ports; KeyError for one without a value."""
    return re.sub(r"@([A-Za-z_]+)@", lambda match: values[match[1]], text)


def _comment(name: str) -> str:
    """Return a tensor's name, which comes from an untrusted file, made safe for a C comment."""
    return "".join(c if c.isascii() and (c.isalnum() or c in " ._-:") else "_" for c in name)


def _start_up(toolchain: Toolchain, board: QemuBoard) -> str:
    """Return the port's start-up code, which first makes the machine as strict as the core."""
    lines = "".join(
        f"    *(volatile uint32_t *){bits.address:#010x}u |= {bits.set_bits:#010x}u; /* {bits.why} */\n"
        for bits in board.registers
    )
    values = {"REGISTERS": lines, "SEMIHOSTING": read_text("runtime_c", "ports/semihosting.c")}
    return fill(read_text("runtime_c", f"ports/{toolchain.port}/startup.c"), values)


def _link_script(interface: Interface, target: Target, board: QemuBoard, toolchain: Toolchain) -> str:
    vectors = board.vectors
    memory = f"    VECTORS (rx) : ORIGIN = {vectors.origin:#010x}, LENGTH = {vectors.size_bytes}\n" if vectors else ""
    values = {
        "MACHINE": board.machine,
        "VECTORS_MEMORY": memory,
        "VECTORS_ALIAS": "" if vectors else 'REGION_ALIAS("VECTORS", CODE)',
        "STACK_SIZE": str(target.stack_budget_bytes + STACK_EXTRA_BYTES),
        "GUARD_SIZE": str(GUARD_BYTES),
        "ARENA_SIZE": str(interface.arena_bytes),
        "FURTHER_SIZE": str(sum(_object_bytes(size) for size in interface.further_bytes)),
    }
    regions: dict[str, Region] = {"CODE": board.code, "DATA": board.data, "SPARE": board.extra}
    for name, region in regions.items():
        values[f"{name}_ORIGIN"], values[f"{name}_SIZE"] = f"{region.origin:#010x}", str(region.size_bytes)
    return fill(read_text("runtime_c", f"ports/{toolchain.port}/link.ld"), values)


def _object_bytes(size: int) -> int:
    """Return the bytes of a memory with its guards, rounded up as the linker does for the next one."""
    return -(-(size + 2 * GUARD_BYTES) // MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT


def qemu_arguments(target: Target) -> tuple[str, ...]:
    """Return the emulator's options for a target with a machine, without the image."""
    assert target.qemu is not None and target.toolchain is not None, "only a target with a machine runs in QEMU"
    quiet = ("-display", "none", "-monitor", "none", "-serial", "none")
    return ("-M", target.qemu.machine, *quiet, *target.toolchain.semihosting)


def verification_input(
    interface: Interface, samples: Samples, steps: int, batch: int, learning_rate: float | None
) -> bytes:
    """Return the vector file: header, input slot to infer, inputs and labels of every call in steps * batch samples.

    Samples are taken in turn, from the start again when they run out; a call takes a micro-batch.
    """
    count, together = len(samples.x), interface.micro_batch
    held = in_slots(interface, samples)
    arrays = [*parts(held.x), held.y]
    slots = [("x", interface.sample.elements), *((slot.name, slot.elements) for slot in interface.more_inputs)]
    for whole, (name, expected) in zip(arrays, (*slots, ("y", interface.label_elements)), strict=True):
        array = whole.reshape(count, -1)
        if count == 0 or array.shape[1] * together != expected:
            what = f"{name}: {array.shape[1]} elements in a sample, the model takes {expected // together}"
            raise CompileError("E0105", "verification data", what, "give at least one sample of the model's shape")
    rate = 0.0 if learning_rate is None else learning_rate
    calls = sample_indices(interface, samples, steps, batch)
    if not interface.trains:
        head = struct.pack("<IIIIf", INPUT_MAGIC, 0, 0, 0, rate)
        return b"".join([head, *(array[:1].tobytes() for array in arrays[:-1]), samples.checkpoint])
    head = struct.pack("<IIIIf", INPUT_MAGIC, steps, batch, int(learning_rate is not None), rate)
    first = (array[calls[0]].tobytes() for array in arrays[:-1])
    return b"".join([head, *first, *(array[call].tobytes() for call in calls for array in arrays)])


def sample_indices(interface: Interface, samples: Samples, steps: int, batch: int) -> list[list[int]]:
    """Return the indices of the samples of each call: a micro-batch, in turn."""
    count, together = len(samples.x), interface.micro_batch
    return [[i % count for i in range(k, k + together)] for k in range(0, steps * batch, together)]
