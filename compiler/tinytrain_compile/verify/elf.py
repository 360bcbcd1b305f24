"""The functions of an object or an image, by its table of symbols."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from tinytrain_compile.errors import CompileError


@dataclass(frozen=True)
class DefinedFunction:
    """external: whether other objects may call it. address: in its section, or of an image in memory; size in bytes."""

    name: str
    external: bool
    section: int
    address: int
    size_bytes: int


@contextmanager
def open_elf(path: Path) -> Generator[Any]:
    """Open an object or an image that a tool has written. Errors: E0602 if it is no whole ELF file."""
    try:
        with path.open("rb") as stream:
            elf: Any = ELFFile(stream)
            if elf.get_section_by_name(".symtab") is None:
                raise ELFError("it has no table of symbols")
            yield elf
    except (ELFError, ConstructError) as problem:
        what = f"no ELF file with symbols ({problem})"
        raise CompileError("E0602", path.name, what, "check the installed tools, or use --verify none") from problem


def defined_functions(path: Path) -> list[DefinedFunction]:
    """What a file defines, not what it only calls, in the order of its table."""
    with open_elf(path) as elf:
        return [
            DefinedFunction(
                symbol.name,
                symbol["st_info"]["bind"] == "STB_GLOBAL",
                symbol["st_shndx"],
                symbol["st_value"],
                symbol["st_size"],
            )
            for symbol in elf.get_section_by_name(".symtab").iter_symbols()
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF"
        ]
