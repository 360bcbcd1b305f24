"""Targets: what the compiler knows about a core, its board in QEMU, and boards that people have."""

from tinytrain_compile.target.boards import with_reserve
from tinytrain_compile.target.loader import list_boards, list_targets, load_target
from tinytrain_compile.target.model import (
    Architecture,
    Board,
    BoardMemory,
    Core,
    Features,
    MemoryBank,
    QemuBoard,
    Region,
    Target,
    Toolchain,
)

__all__ = [
    "Architecture",
    "Board",
    "BoardMemory",
    "Core",
    "Features",
    "MemoryBank",
    "QemuBoard",
    "Region",
    "Target",
    "Toolchain",
    "list_boards",
    "list_targets",
    "load_target",
    "with_reserve",
]
