"""Reading of target files and of toolchain files, every entry checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.files.user_file import Table, TableKind, parse_table, read_table
from tinytrain_compile.near import hint, nearest
from tinytrain_compile.target.boards import CORE_KEY, board_target
from tinytrain_compile.target.model import (
    LEAST_BYTES,
    MOST_MHZ,
    Architecture,
    Core,
    Features,
    MemoryBank,
    Program,
    QemuBoard,
    Region,
    RegisterBits,
    Target,
    Toolchain,
)

BOARDS = "boards"
"""The folder of the boards, in that of the targets."""
TOOLCHAINS = "toolchains"
"""The folder of the toolchains, in that of the targets."""
_KIND = TableKind("E0102", "E0103", "compare with the files in targets/", "a target name or a readable .toml file")
_TOOLCHAIN = TableKind("E0102", "E0103", f"compare with the files in targets/{TOOLCHAINS}/", "a readable .toml file")
_Record = TypeVar("_Record")
_SHORTEST_PART = 5
"""Characters of a name that is compared with parts: fewer, such as stm or nrf, name a maker."""


def list_targets() -> tuple[str, ...]:
    """Return the names of the built-in cores, sorted."""
    return tuple(sorted(path.stem for path in data_dir("targets").glob("*.toml")))


def list_boards() -> tuple[str, ...]:
    """Return the names of the built-in boards, sorted."""
    return tuple(sorted(path.stem for path in (data_dir("targets") / BOARDS).glob("*.toml")))


def load_target(name_or_path: str) -> Target:
    """Return a built-in core or board by name, or the file of one by its path (ending in .toml).

    Errors: E0102 for an unknown name or unreadable file, E0103 for a file that is not a target description.
    """
    if name_or_path in list_targets():
        path = data_dir("targets") / f"{name_or_path}.toml"
    elif name_or_path in list_boards():
        path = data_dir("targets") / BOARDS / f"{name_or_path}.toml"
    elif name_or_path.endswith(".toml"):
        path = Path(name_or_path)
    else:
        raise CompileError("E0102", "--target", f"unknown target {name_or_path!r}", _way(name_or_path))
    return _target(read_table(path, name_or_path, _KIND))


def _way(name: str) -> str:
    """Return advice on an unknown target."""
    boards = _boards_with(name)
    if boards:
        return f"choose a board with such a part ({', '.join(boards)}), or the core of yours (--list-targets)"
    listed = "--list-targets lists all cores and boards"
    if re.match(r"(?i)(arm[ -]?)?cortex-?[ar]\d|risc-?v-?64|rv64|avr|x86|esp8266|xtensa", name):
        return f"host makes plain C for any machine, checked on this one; {listed}"
    near = nearest(name, (*list_targets(), *list_boards()))
    cores = ", ".join(list_targets())
    return f"did you mean {near}? ({listed})" if near else f"name the core of your part ({cores}); {listed}"


def _boards_with(part: str) -> list[str]:
    """Return the boards whose part, or an order code of it, has a name that begins like this."""
    plain = re.sub("[^a-z0-9]", "", part.lower())
    if len(plain) < _SHORTEST_PART:
        return []
    parts = {name: board.part.lower() for name in list_boards() if (board := load_target(name).board) is not None}
    return [name for name, its in parts.items() if its.startswith(plain) or plain.startswith(its)]


def parse_target(text: str, where: str) -> Target:
    """Return a target from TOML text; `where` names the file in errors."""
    return _target(parse_table(text, where, _KIND))


def _target(root: Table) -> Target:
    if not root.has(CORE_KEY):
        if not root.has("gcc_flags"):
            named = root.text("core") if root.has("core") else "cortex-m33"
            example = data_dir("targets") / "boards" / "rpi-pico2.toml"
            way = f'a board names its core: {CORE_KEY} = "{named}"; {example} has all keys'
            raise root.error(CORE_KEY, f"is missing: {way}")
        return _core_target(root)
    named = root.text(CORE_KEY)
    if named not in list_targets():
        raise root.error(CORE_KEY, f"names the unknown core {named!r}: {hint(named, list_targets())}")
    target = board_target(root, load_target(named))
    _check_name(target, root)
    return target


def _core_target(root: Table) -> Target:
    toolchain, architecture = _toolchain(root) if _is_cross(root) else (None, None)
    flags = _machine_flags(root)
    target = Target(
        name=root.text("name"),
        summary=root.text("summary"),
        gcc_flags=flags if toolchain is None else (*toolchain.compile_flags, *flags),
        alignment_bytes=root.integer("alignment_bytes", low=1),
        stack_budget_bytes=root.integer("stack_budget_bytes", low=1),
        features=_record(root.table("features"), Features),
        core=_core(root.table("core")),
        memories=tuple(_memory(table) for table in root.tables("memories")),
        toolchain=toolchain,
        architecture=architecture,
        qemu=_board(root.table("qemu")) if root.has("qemu") else None,
        cycle_model=root.text("cycle_model") if root.has("cycle_model") else "",
    )
    root.finish()
    _check(target, root)
    return target


def _is_cross(root: Table) -> bool:
    """Tell whether the file describes a device, not the compiling machine."""
    return any(root.has(key) for key in ("toolchain", "architecture", "qemu")) or bool(_machine_flags(root))


def _toolchain(root: Table) -> tuple[Toolchain, Architecture]:
    """Return the core's toolchain, and the instruction set to compile for."""
    known = list_toolchains()
    if not root.has("toolchain"):
        raise root.error("toolchain", f"is missing: name who compiles for the core, one of {', '.join(known)}")
    named = root.text("toolchain")
    if named not in known:
        raise root.error("toolchain", f"names no file in targets/{TOOLCHAINS} (there: {', '.join(known)})")
    toolchain = load_toolchain(named)
    architectures = toolchain.architectures
    if not root.has("architecture"):
        raise root.error("architecture", f"is missing: name the core's, one of {', '.join(architectures)}")
    architecture = root.text("architecture")
    if architecture not in architectures:
        way = f"take one of {', '.join(architectures)}, or describe it in targets/{TOOLCHAINS}/{named}.toml"
        raise root.error("architecture", f"is {architecture!r}, which {named} does not know: {way}")
    return toolchain, architectures[architecture]


def _machine_flags(root: Table) -> tuple[str, ...]:
    flags = root.texts("gcc_flags")
    for flag in flags:
        if not re.fullmatch(r"-m[A-Za-z0-9=+._-]+", flag):
            raise root.error("gcc_flags", f"may hold machine flags (-m...) only, not {flag!r}")
    return flags


def _record(table: Table, kind: type[_Record], **least: int) -> _Record:
    """Read a table whose keys are the fields of a dataclass: numbers from `least` on (0), texts and truth values.

    Fields with a default may be missing.
    """
    found: dict[str, object] = {}
    for field in fields(cast(Any, kind)):
        if field.default is not MISSING and not table.has(field.name):
            continue
        if field.type == "int":
            found[field.name] = table.integer(field.name, least.get(field.name, 0))
        else:
            found[field.name] = table.text(field.name) if field.type == "str" else table.boolean(field.name)
    table.finish()
    return kind(**found)


def _core(table: Table) -> Core:
    names = ("int8_mac_millicycles", "float_mac_millicycles", "element_millicycles", "pj_per_cycle")
    numbers = (table.integer(name) for name in names)
    clock = table.integer("clock_mhz", 1, MOST_MHZ)
    core = Core(clock, *numbers, pj_source=table.text("pj_source") if table.has("pj_source") else "")
    table.finish()
    return core


def _memory(table: Table) -> MemoryBank:
    bank = _record(table, MemoryBank, size_bytes=LEAST_BYTES, bytes_per_us=1)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", bank.name):
        raise table.error("name", "must be lower-case letters, digits and underscores")
    return bank


def _board(table: Table) -> QemuBoard:
    board = QemuBoard(
        machine=table.text("machine"),
        code=_region(table.table("code")),
        data=_region(table.table("data")),
        extra=_region(table.table("extra")),
        vectors=_region(table.table("vectors")) if table.has("vectors") else None,
        core=table.text("core") if table.has("core") else "",
        registers=tuple(_register(one) for one in table.tables("registers")) if table.has("registers") else (),
    )
    table.finish()
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", board.machine):
        raise table.error("machine", "is not a QEMU machine name")
    return board


def _register(table: Table) -> RegisterBits:
    bits = _record(table, RegisterBits, set_bits=1)
    if not re.fullmatch(r"[A-Za-z0-9 .,:;()_+-]*", bits.why):
        raise table.error("why", "goes into a comment of C: letters, digits, spaces and .,:;()_+- only")
    return bits


def _region(table: Table) -> Region:
    return _record(table, Region, size_bytes=1)


def _check_name(target: Target, root: Table) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", target.name):
        raise root.error("name", "must be lower-case letters, digits, '-' and '_'")


def _check(target: Target, root: Table) -> None:
    """Check rules that involve more than one key."""
    _check_name(target, root)
    if target.alignment_bytes not in (4, 8, 16, 32):
        raise root.error("alignment_bytes", "must be 4, 8, 16 or 32")
    if len({bank.name for bank in target.memories}) != len(target.memories):
        raise root.error("memories", "names one memory twice")
    if not target.memories[0].writable:
        raise root.error("memories", "must begin with the memory of the arena, which is writable")
    if not re.fullmatch(r"(table|llvm-mca:[a-z0-9.+-]+)?", target.cycle_model):
        raise root.error("cycle_model", 'must be "table" or "llvm-mca:CPU"')


# ---- toolchains ------------------------------------------------------------------------------------------------------
# Toolchains: the programs that build and run code for a device, as described in targets/toolchains.


def list_toolchains() -> tuple[str, ...]:
    """Return the names of the toolchains, sorted."""
    return tuple(sorted(path.stem for path in (data_dir("targets") / TOOLCHAINS).glob("*.toml")))


@cache
def load_toolchain(name: str) -> Toolchain:
    """Return a toolchain by a name from list_toolchains. Errors: E0103 for a file that does not describe one."""
    return _read_toolchain(
        read_table(data_dir("targets") / TOOLCHAINS / f"{name}.toml", f"{TOOLCHAINS}/{name}.toml", _TOOLCHAIN)
    )


def parse_toolchain(text: str, where: str) -> Toolchain:
    """Return a toolchain from TOML text; `where` names the file in errors."""
    return _read_toolchain(parse_table(text, where, _TOOLCHAIN))


def _read_toolchain(root: Table) -> Toolchain:
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
    """Return all architectures of the file, each with its table of stack bytes, which several may share."""
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
