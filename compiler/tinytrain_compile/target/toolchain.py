"""Toolchains: the programs that build and run code for a device, as targets/toolchains describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.files.user_file import Table, TableKind, parse_table, read_table

FOLDER = "toolchains"
"""In that of the targets."""
_KIND = TableKind("E0102", "E0103", f"compare with the files in targets/{FOLDER}/", "a readable .toml file")


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


def list_toolchains() -> tuple[str, ...]:
    """Names of the toolchains, sorted."""
    return tuple(sorted(path.stem for path in (data_dir("targets") / FOLDER).glob("*.toml")))


@cache
def load_toolchain(name: str) -> Toolchain:
    """A toolchain by a name that list_toolchains has. Errors: E0103 for a file that does not describe one."""
    return _toolchain(read_table(data_dir("targets") / FOLDER / f"{name}.toml", f"{FOLDER}/{name}.toml", _KIND))


def parse_toolchain(text: str, where: str) -> Toolchain:
    """A toolchain from TOML text; `where` names the file in errors."""
    return _toolchain(parse_table(text, where, _KIND))


def _toolchain(root: Table) -> Toolchain:
    compiler, library, emulator = (root.table(key) for key in ("compiler", "library", "emulator"))
    start_up = root.table("start_up")
    prefix, package, library_package = compiler.text("prefix"), compiler.text("package"), library.text("package")
    made = Toolchain(
        name=root.text("name"),
        summary=root.text("summary"),
        prefix=prefix,
        compiler=Program(f"{prefix}gcc", f"{package} {library_package}"),
        objdump=Program(f"{prefix}objdump", compiler.text("objdump_package")),
        compile_flags=compiler.texts("compile_flags"),
        link_flags=compiler.texts("link_flags"),
        cmake_processor=compiler.text("cmake_processor"),
        llvm_triple=compiler.text("llvm_triple"),
        library=library.text("name"),
        double_helpers=_pattern(library, "double_helpers"),
        float_helpers=_pattern(library, "float_helpers"),
        hidden_helpers=_pattern(library, "hidden_helpers"),
        emulator=Program(emulator.text("program"), emulator.text("package")),
        semihosting=emulator.texts("semihosting"),
        port=start_up.text("port"),
        architectures=_architectures(root),
    )
    for table in (compiler, library, emulator, start_up, root):
        table.finish()
    return made


def _architectures(root: Table) -> Mapping[str, Architecture]:
    """All that the file names, each with the table of stack bytes that it shares with others."""
    stacks, found = root.table("library_stack"), root.table("architectures")
    tables = {name: stacks.table(name) for name in stacks.names}
    bytes_of = {name: {function: table.integer(function) for function in table.names} for name, table in tables.items()}
    made: dict[str, Architecture] = {}
    for name in found.names:
        table = found.table(name)
        stack = table.text("library_stack")
        if stack not in bytes_of:
            raise table.error("library_stack", f"names no table of library_stack ({', '.join(bytes_of)})")
        made[name] = Architecture(name, table.integers("attributes"), bytes_of[stack])
        table.finish()
    return made


def _pattern(table: Table, key: str) -> str:
    text = table.text(key)
    try:
        re.compile(text)
    except re.error as error:
        raise table.error(key, f"is not a regular expression ({error})") from error
    return text
