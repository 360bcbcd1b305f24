"""Contents of generated objects and images: functions, symbols, sections, attributes (docs/contract.md, 5)."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.firmware import model_sources

# ---- functions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DefinedFunction:
    """A function of a file. external: whether other objects may call it. address: in its section, or for an image in
    memory."""

    name: str
    external: bool
    section: int
    address: int
    size_bytes: int


@contextmanager
def open_elf(path: Path) -> Generator[Any]:
    """Open an object or an image that a tool has written. Errors: E0602 if it is not a complete ELF file."""
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
    """Return the functions that a file defines (not those it only calls), in the order of its table."""
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


# ---- symbols and sections --------------------------------------------------------------------------------------------

_HOST_LIBRARY = frozenset({"memcpy", "memmove", "memset", "_GLOBAL_OFFSET_TABLE_"})
_HINT = "please report this with the model"
_FLAGS_HINT = "make gcc_flags and architecture of the target file agree"


@dataclass(frozen=True)
class ObjectInfo:
    """One object file. Sizes in bytes; writable: names of sections that would take static RAM."""

    name: str
    undefined: frozenset[str]
    external: frozenset[str]
    writable: tuple[str, ...]
    code_bytes: int
    const_bytes: int
    cpu_architecture: int | None


def read_object(path: Path) -> ObjectInfo:
    """Return symbols, section sizes and Tag_CPU_arch of an ELF object."""
    with open_elf(path) as elf:
        undefined, external = set[str](), set[str]()
        writable: list[str] = []
        for symbol in elf.get_section_by_name(".symtab").iter_symbols():
            if symbol["st_info"]["bind"] == "STB_LOCAL" or not symbol.name:
                continue
            (undefined if symbol["st_shndx"] == "SHN_UNDEF" else external).add(symbol.name)
            if symbol["st_shndx"] == "SHN_COMMON":
                writable.append(symbol.name)
        code_bytes = const_bytes = 0
        for section in elf.iter_sections():
            flags, size = section["sh_flags"], section["sh_size"]
            if not flags & SH_FLAGS.SHF_ALLOC or size == 0:
                continue
            if flags & SH_FLAGS.SHF_WRITE:
                writable.append(_owner(elf, section))
            elif flags & SH_FLAGS.SHF_EXECINSTR:
                code_bytes += size
            elif section.name.startswith(".rodata"):
                const_bytes += size
        info = frozenset(undefined), frozenset(external), tuple(writable), code_bytes, const_bytes
        return ObjectInfo(path.name, *info, _cpu_architecture(elf))


def _owner(elf: Any, section: Any) -> str:
    """Return a variable in a writable section, for the error message; the section's name if it has no symbol."""
    index = elf.get_section_index(section.name)
    for symbol in elf.get_section_by_name(".symtab").iter_symbols():
        if symbol["st_shndx"] == index and symbol["st_info"]["type"] == "STT_OBJECT":
            return f"{symbol.name} in {section.name}"
    return str(section.name)


def _cpu_architecture(elf: Any) -> int | None:
    section = elf.get_section_by_name(".ARM.attributes")
    if section is None:
        return None
    for vendor in section.iter_subsections():
        for part in vendor.iter_subsubsections():
            for attribute in part.iter_attributes("TAG_CPU_ARCH"):
                return int(attribute.value)
    return None


def check_symbols(
    objects: Sequence[ObjectInfo], prefix: str, target: Target, on_target: bool, external: Sequence[str] = ()
) -> None:
    """Raise E0601 for the first breach: static RAM, a foreign symbol, a name without prefix, double, wrong core.

    external: C files whose names need no prefix.
    """
    free = {Path(path).with_suffix(".o").name for path in external}
    defined = {name for item in objects for name in item.external}
    for item in objects:
        if item.writable:
            raise _error(item, f"static RAM is used by {item.writable[0]}")
        for name in sorted(item.external):
            if item.name not in free and not name.startswith(f"{prefix}_"):
                raise _error(item, f"external symbol {name} lacks the prefix {prefix}_")
        for name in sorted(item.undefined - defined):
            _check_undefined(item, name, target, on_target)
        if on_target:
            _check_architecture(item, target)


def _check_architecture(item: ObjectInfo, target: Target) -> None:
    known = target.architecture
    if known is not None and known.attributes and item.cpu_architecture not in known.attributes:
        what = f"not code for {known.name} (Tag_CPU_arch {item.cpu_architecture})"
        raise CompileError("E0601", item.name, what, _FLAGS_HINT)


def _check_undefined(item: ObjectInfo, name: str, target: Target, on_target: bool) -> None:
    toolchain = target.toolchain if on_target else None
    if toolchain is None:
        if name not in _HOST_LIBRARY:
            raise _error(item, f"calls {name}")
        return
    if re.match(toolchain.double_helpers, name):
        raise _error(item, f"computes in double precision ({name})")
    if target.features.fpu and re.match(toolchain.float_helpers, name):
        raise _error(item, f"computes floats in software ({name}) although the target has an FPU")
    if name not in library_table(target):
        raise _error(item, f"calls {name}")


def check_no_double(bundle: SourceBundle) -> None:
    """Raise E0601 if a source names the type double (cores with a double FPU show no library call for it)."""
    for path in model_sources(bundle):
        code = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', " ", bundle.files[path], flags=re.DOTALL)
        if re.search(r"\bdouble\b", code):
            raise CompileError("E0601", path, "uses the type double", _HINT)


def hidden_callees(objects: Iterable[ObjectInfo], target: Target) -> tuple[str, ...]:
    """Return library helpers that GCC's call graph leaves out: jump tables of Armv6-M, for instance."""
    assert target.toolchain is not None, "GCC's call graph is read for a target's build only"
    hidden = re.compile(target.toolchain.hidden_helpers)
    return tuple(sorted({name for item in objects for name in item.undefined if hidden.match(name)}))


def _error(item: ObjectInfo, what: str) -> CompileError:
    return CompileError("E0601", item.name, what, _HINT)


def library_table(target: Target) -> Mapping[str, int]:
    """Return library function -> stack bytes on the target's architecture.

    Only functions that generated code may call.
    """
    assert target.architecture is not None, "the libraries of this machine have no table"
    return target.architecture.library_stack
