"""What of a linked image comes from where: the linker's map, and the sections of the ELF file by memory region."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

_WRITE, _ALLOC = 1, 2
_PIECE = re.compile(r"^ (?P<section>\S+)\s+0x(?P<at>[0-9a-f]+)\s+0x(?P<size>[0-9a-f]+)\s+(?P<file>\S.*)$")
_OUTPUT = re.compile(r"^(?P<name>\.[\w.]+)(\s|$)")


@dataclass(frozen=True)
class Section:
    """An output section that has an address. loaded: whether it is in flash too (code, constants, .data)."""

    name: str
    address: int
    size: int
    writable: bool
    loaded: bool


def sections(image: Path) -> list[Section]:
    """Of an ELF file, those that take memory."""
    with image.open("rb") as stream:
        elf: Any = ELFFile(stream)
        return [
            Section(
                section.name,
                section["sh_addr"],
                section["sh_size"],
                bool(section["sh_flags"] & _WRITE),
                section["sh_type"] != "SHT_NOBITS",
            )
            for section in elf.iter_sections()
            if section["sh_flags"] & _ALLOC and section["sh_size"]
        ]


@dataclass(frozen=True)
class Piece:
    """An input section as it was linked: the output section it is in, its bytes and its object."""

    output: str
    section: str
    size: int
    file: str


def pieces(map_text: str) -> Iterator[Piece]:
    """All input sections of a linker map (GNU ld's -Map), with their bytes; what was discarded is not there."""
    text = map_text.partition("Linker script and memory map")[2]
    text = re.sub(r"^( \.?\S+)\n +(?=0x)", r"\1 ", text, flags=re.MULTILINE)  # long names stand alone
    output = ""
    for line in text.splitlines():
        if (head := _OUTPUT.match(line)) is not None:
            output = head["name"]
        elif (found := _PIECE.match(line)) is not None and found["section"] != "*fill*":
            size = int(found["size"], 16)
            if size and not output.startswith((".debug", ".comment", ".ARM.attributes")):
                yield Piece(output, found["section"], size, found["file"])


def owner(file: str, models: tuple[str, ...]) -> str:
    """Whose an object is: a model's, the program's, the start-up's, or of the C library and libgcc."""
    for model in models:
        if f"lib{model}.a(" in file:
            return model
    if "startup.c" in file:
        return "start-up"
    return "program" if ".dir/" in file else "libc"


def by_owner(map_text: str, models: tuple[str, ...]) -> Mapping[str, Counter[str]]:
    """Owner -> bytes by kind: flash (code, constants), data (in both), bss, and each .tt_* section by its name."""
    found: dict[str, Counter[str]] = {}
    for piece in pieces(map_text):
        kind = {".data": "data", ".bss": "bss"}.get(piece.output, "flash")
        kind = piece.output if piece.output.startswith(".tt_") else kind
        found.setdefault(owner(piece.file, models), Counter())[kind] += piece.size
    return found
