"""The target description as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MOST_MHZ, LEAST_BYTES = 10_000, 1024
"""Of a clock and of a memory in a target file: more are Hz or kHz, fewer are KB."""


@dataclass(frozen=True)
class Features:
    """Features for kernels: instruction sets, and the number of registers available for a tile."""

    dsp: bool
    dual_issue: bool
    """True if two instructions may issue at once, so that waiting for the previous one costs extra."""
    mve_int: bool
    mve_float: bool
    fpu: bool
    fma: bool
    gpr: int
    """General-purpose registers that plain code can use (8 on Armv6-M)."""
    s_regs: int
    """Single-precision registers; 0 without FPU."""
    fpv5: bool = False
    """True if the FPU has the larger of two numbers as an instruction (VMAXNM)."""


@dataclass(frozen=True)
class Core:
    """Modelled costs of computing, in thousandths of a cycle; an instruction counts as a cycle.

    There are figures for a multiply-accumulate, by its number format, and for an element that operators without any
    write. They include accesses to the first memory. pj_source: who measured or published pj_per_cycle, or that nobody
    did.
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

    bytes_per_us, pj_per_byte: modelled cost of accesses (1 byte/us = 1 MB/s); setup_ns: of every page move to or from
    it. writable: whether every step may write to it.
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
        """The first address after the region."""
        return self.origin + self.size_bytes


@dataclass(frozen=True)
class RegisterBits:
    """Bits that the check program sets in a register of the machine before it begins, and why."""

    address: int
    set_bits: int
    why: str


@dataclass(frozen=True)
class QemuBoard:
    """The QEMU machine that runs the check, and the regions of its image.

    code holds instructions and constants, data the stack, arena and statics, extra the check's own data. vectors:
    region from which the core fetches its first stack pointer; None if that is the start of code. core: of the machine,
    if it is another one than the target's. registers: settings that make it as strict as the target's.
    """

    machine: str
    code: Region
    data: Region
    extra: Region
    vectors: Region | None = None
    core: str = ""
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
    hidden_helpers are regular expressions for the start of a library function's name: those that compute in double,
    those that compute floats without an FPU, and those missing from the call graph. semihosting: options of the
    emulator. port: the folder in runtime_c/ports.
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
    """A RAM of a board as described in its manual. stack_bytes, reserve_bytes: bytes of it that the model may not use.

    retained: its content survives the part's standby. dma: DMA controllers can access it. cached: the core's data cache
    covers it.
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
        """Bytes left for models."""
        return self.region.size_bytes - self.stack_bytes - self.reserve_bytes


@dataclass(frozen=True)
class BoardNames:
    """Names of a board in build systems; "" if unknown.

    arduino: the architecture of its core. platform: PlatformIO's; platformio: the board's settings there. zephyr: the
    board target of west. esp_idf: the chip.
    """

    arduino: str = ""
    platform: str = ""
    platformio: str = ""
    zephyr: str = ""
    esp_idf: str = ""


@dataclass(frozen=True)
class Board:
    """A real board and its memories. The first memory holds the arena.

    flash: region for an application, after a boot stage. flash_reserve_bytes: bytes of it for everything except the
    model. sources: of these data. unverified: why its code never runs on this part's core, not even in QEMU, or "".
    """

    part: str
    flash: Region
    flash_reserve_bytes: int
    memories: tuple[BoardMemory, ...]
    sources: tuple[str, ...]
    unverified: str = ""
    names: BoardNames = BoardNames()

    @property
    def stack(self) -> BoardMemory:
        """The memory that holds the stack."""
        return next(memory for memory in self.memories if memory.stack_bytes)

    @property
    def reserve(self) -> BoardMemory:
        """The memory that holds the rest of the firmware: statics, heap, RTOS."""
        return next(memory for memory in self.memories if memory.reserve_bytes)

    @property
    def flash_bytes(self) -> int:
        """Bytes of flash that models may use."""
        return self.flash.size_bytes - self.flash_reserve_bytes


@dataclass(frozen=True)
class Target:
    """One core: toolchain, flags, alignment of the arena, stack budget, features, costs, memories, QEMU's machine.

    Without a toolchain this machine's compiler is used, and gcc_flags is empty; with one, gcc_flags has its flags too.
    qemu is None if no machine runs the code: it is built and measured, not run. For a board, name and memories are the
    board's (the bytes left for models); the rest, including QEMU's machine, is the core's (`base`).
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
    """Model of --cycles for it: "table", "llvm-mca:CPU", or "" for none."""
    base: str = ""
    board: Board | None = None

    @property
    def core_name(self) -> str:
        """Name of the core's own target, which tiles and external kernels use."""
        return self.base or self.name

    @property
    def why_unverified(self) -> str:
        """Say why no machine here runs the code on the target's own core, whatever is installed; "" if one does."""
        if self.board is not None and (self.board.unverified or self.toolchain is None):
            return self.board.unverified or f"its file names the core {self.base}, which has no toolchain"
        return "its file names no QEMU machine" if self.toolchain is not None and self.qemu is None else ""
