"""The target description as frozen data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Features:
    """What kernels may use: instruction sets, and how many registers a tile can spread over."""

    dsp: bool
    mve_int: bool
    mve_float: bool
    fpu: bool
    fma: bool
    gpr: int
    """General-purpose registers that plain code reaches (8 on Armv6-M)."""
    s_regs: int
    """Single-precision registers; 0 without FPU."""


@dataclass(frozen=True)
class Core:
    """What computing costs, a model: a thousandth of a cycle is the unit of work, an instruction counts as a cycle.

    Of a multiply-accumulate by its number format, and of an element that operators without any write; accesses to the
    first memory are part of these figures.
    """

    clock_mhz: int
    int8_mac_millicycles: int
    float_mac_millicycles: int
    element_millicycles: int
    pj_per_cycle: int


@dataclass(frozen=True)
class MemoryBank:
    """A memory of the board; the first one holds the arena, the others are used if --memory names them.

    bytes_per_us, pj_per_byte: what accesses cost, a model (1 byte/us = 1 MB/s); setup_ns: of every page move to or from
    it. writable: in every step.
    """

    name: str
    size_bytes: int
    bytes_per_us: int
    setup_ns: int
    pj_per_byte: int
    writable: bool


@dataclass(frozen=True)
class Region:
    """A range of addresses."""

    origin: int
    size_bytes: int

    @property
    def end(self) -> int:
        """The first address behind the region."""
        return self.origin + self.size_bytes


@dataclass(frozen=True)
class QemuBoard:
    """The QEMU machine that runs the check, and where its image goes.

    code holds instructions and constants, data the stack, arena and statics, extra what only the check needs.
    vectors is where the core fetches its first stack pointer; None when that is the start of code.
    """

    machine: str
    code: Region
    data: Region
    extra: Region
    vectors: Region | None = None


@dataclass(frozen=True)
class Target:
    """One core: features, compiler flags, alignment of the arena, stack budget, core, memories, board (None: host)."""

    name: str
    summary: str
    gcc_flags: tuple[str, ...]
    alignment_bytes: int
    stack_budget_bytes: int
    features: Features
    core: Core
    memories: tuple[MemoryBank, ...]
    qemu: QemuBoard | None = None
    cycle_model: str = ""
    """How --cycles models it: "table", "llvm-mca:CPU", or "" for no model."""
