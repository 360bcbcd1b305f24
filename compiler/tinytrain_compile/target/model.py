"""The target description as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Features:
    """What kernels may use: instruction sets, and how many registers a tile can spread over."""

    dsp: bool
    dual_issue: bool
    """Two instructions may go at once, so that what waits for the one before it costs more than its instruction."""
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
    first memory are part of these figures. pj_source: who has measured or published pj_per_cycle, or that nobody has.
    """

    clock_mhz: int
    int8_mac_millicycles: int
    float_mac_millicycles: int
    element_millicycles: int
    pj_per_cycle: int
    pj_source: str


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
class RegisterBits:
    """Bits that the check program sets in a register of the machine before it begins, and why."""

    address: int
    set_bits: int
    why: str


@dataclass(frozen=True)
class QemuBoard:
    """The QEMU machine that runs the check, and where its image goes.

    code holds instructions and constants, data the stack, arena and statics, extra what only the check needs.
    vectors is where the core fetches its first stack pointer; None when that is the start of code. registers: what
    makes the machine as strict as the core, if it has another one.
    """

    machine: str
    code: Region
    data: Region
    extra: Region
    vectors: Region | None = None
    registers: tuple[RegisterBits, ...] = ()


@dataclass(frozen=True)
class Architecture:
    """An instruction set that a toolchain compiles for, under the name that GCC's -march has for it.

    attributes: values of Tag_CPU_arch that its objects may have; empty: not checked. library_stack: stack bytes of the
    library functions that generated code may call.
    """

    name: str
    attributes: tuple[int, ...]
    library_stack: Mapping[str, int]


@dataclass(frozen=True)
class Program:
    """An external program and the Debian packages that have it."""

    name: str
    packages: str


@dataclass(frozen=True)
class Toolchain:
    """Compiler, C library, emulator and start-up code of one family of cores.

    compile_flags belong to every compilation, before those of the core. double_helpers, float_helpers and
    hidden_helpers are regular expressions for the start of a library function's name: what computes in double, what
    computes floats without an FPU, and what the call graph does not show. semihosting: options of the emulator. port:
    the folder in runtime_c/ports.
    """

    name: str
    summary: str
    prefix: str
    compiler: Program
    objdump: Program
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    cmake_processor: str
    llvm_triple: str
    library: str
    double_helpers: str
    float_helpers: str
    hidden_helpers: str
    emulator: Program
    semihosting: tuple[str, ...]
    port: str
    architectures: Mapping[str, Architecture]


@dataclass(frozen=True)
class BoardMemory:
    """A RAM of a board as its manual has it. stack_bytes, reserve_bytes: of it, that the model may not have.

    retained: its content outlives the part's standby. dma: DMA controllers reach it. cached: the core's data cache lies
    in front of it.
    """

    name: str
    region: Region
    retained: bool
    dma: bool
    cached: bool
    stack_bytes: int = 0
    reserve_bytes: int = 0

    @property
    def model_bytes(self) -> int:
        """What is left for models."""
        return self.region.size_bytes - self.stack_bytes - self.reserve_bytes


@dataclass(frozen=True)
class Board:
    """A board that people have: where its memories are. The first memory holds the arena.

    flash: what an application may have of it, behind a boot stage. flash_reserve_bytes: of that, for what is not the
    model. sources: of all that. unverified: why less is known than of others, or "".
    """

    part: str
    flash: Region
    flash_reserve_bytes: int
    memories: tuple[BoardMemory, ...]
    sources: tuple[str, ...]
    unverified: str = ""

    @property
    def stack(self) -> BoardMemory:
        """The memory that holds the stack."""
        return next(memory for memory in self.memories if memory.stack_bytes)

    @property
    def reserve(self) -> BoardMemory:
        """The memory that holds everything of the firmware that is not the model's: statics, heap, RTOS."""
        return next(memory for memory in self.memories if memory.reserve_bytes)

    @property
    def flash_bytes(self) -> int:
        """What models may have of the flash."""
        return self.flash.size_bytes - self.flash_reserve_bytes


@dataclass(frozen=True)
class Target:
    """One core: toolchain, flags, alignment of the arena, stack budget, features, costs, memories, QEMU's machine.

    Without a toolchain it is compiled by this machine's compiler, and gcc_flags is empty; with one, gcc_flags has its
    flags too. qemu is None if no machine runs the code: it is built and measured, not run.
    Of a board: name and memories are the board's (what it leaves to models), the rest is that of the core `base`,
    QEMU's machine too.
    """

    name: str
    summary: str
    gcc_flags: tuple[str, ...]
    alignment_bytes: int
    stack_budget_bytes: int
    features: Features
    core: Core
    memories: tuple[MemoryBank, ...]
    toolchain: Toolchain | None = None
    architecture: Architecture | None = None
    qemu: QemuBoard | None = None
    cycle_model: str = ""
    """How --cycles models it: "table", "llvm-mca:CPU", or "" for no model."""
    base: str = ""
    board: Board | None = None

    @property
    def core_name(self) -> str:
        """The core's own target, by whose name tiles and external kernels know it."""
        return self.base or self.name
