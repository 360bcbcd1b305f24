"""The functions of an object or an image, by its table of symbols."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile


@dataclass(frozen=True)
class DefinedFunction:
    """external: whether other objects may call it. address: in its section, or of an image in memory; size in bytes."""

    name: str
    external: bool
    section: int
    address: int
    size_bytes: int


def defined_functions(path: Path) -> list[DefinedFunction]:
    """What a file defines, not what it only calls, in the order of its table."""
    with path.open("rb") as stream:
        elf: Any = ELFFile(stream)
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
