"""Strict TOML loader: every key is known, present and of the right type, or the error names it."""

from __future__ import annotations

import re
from pathlib import Path

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.files.user_file import Table, TableKind, parse_table, read_table
from tinytrain_compile.target.boards import CORE_KEY, board_target
from tinytrain_compile.target.model import Core, Features, MemoryBank, QemuBoard, Region, RegisterBits, Target
from tinytrain_compile.target.toolchain import FOLDER as TOOLCHAINS
from tinytrain_compile.target.toolchain import Architecture, Toolchain, list_toolchains, load_toolchain

BOARDS = "boards"
"""The folder of the boards, in that of the targets."""
_KIND = TableKind("E0102", "E0103", "compare with the files in targets/", "a target name or a readable .toml file")


def list_targets() -> tuple[str, ...]:
    """Names of the built-in cores, sorted."""
    return tuple(sorted(path.stem for path in data_dir("targets").glob("*.toml")))


def list_boards() -> tuple[str, ...]:
    """Names of the built-in boards, sorted."""
    return tuple(sorted(path.stem for path in (data_dir("targets") / BOARDS).glob("*.toml")))


def load_target(name_or_path: str) -> Target:
    """A built-in core or board by name, or the file of one by its path (ending in .toml).

    Errors: E0102 for an unknown name or unreadable file, E0103 for a file that is not a target description.
    """
    if name_or_path in list_targets():
        path = data_dir("targets") / f"{name_or_path}.toml"
    elif name_or_path in list_boards():
        path = data_dir("targets") / BOARDS / f"{name_or_path}.toml"
    elif name_or_path.endswith(".toml"):
        path = Path(name_or_path)
    else:
        known = ", ".join((*list_targets(), *list_boards()))
        raise CompileError("E0102", "--target", f"there is no target {name_or_path!r}", f"choose one of: {known}")
    return _target(read_table(path, name_or_path, _KIND))


def parse_target(text: str, where: str) -> Target:
    """A target from TOML text; `where` names the file in errors."""
    return _target(parse_table(text, where, _KIND))


def _target(root: Table) -> Target:
    if not root.has(CORE_KEY):
        return _core_target(root)
    named = root.text(CORE_KEY)
    if named not in list_targets():
        raise root.error(CORE_KEY, f"names no core (one of: {', '.join(list_targets())})")
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
        features=_features(root.table("features")),
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
    """Whether the file is about a device, not about the machine that compiles."""
    return any(root.has(key) for key in ("toolchain", "architecture", "qemu")) or bool(_machine_flags(root))


def _toolchain(root: Table) -> tuple[Toolchain, Architecture]:
    """Who compiles for the core, and the instruction set that it compiles for."""
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


def _features(table: Table) -> Features:
    features = Features(
        dsp=table.boolean("dsp"),
        dual_issue=table.boolean("dual_issue"),
        mve_int=table.boolean("mve_int"),
        mve_float=table.boolean("mve_float"),
        fpu=table.boolean("fpu"),
        fma=table.boolean("fma"),
        gpr=table.integer("gpr"),
        s_regs=table.integer("s_regs"),
    )
    table.finish()
    return features


def _core(table: Table) -> Core:
    names = ("int8_mac_millicycles", "float_mac_millicycles", "element_millicycles", "pj_per_cycle")
    numbers = (table.integer(name) for name in names)
    clock = table.integer("clock_mhz", low=1)
    core = Core(clock, *numbers, pj_source=table.text("pj_source") if table.has("pj_source") else "")
    table.finish()
    return core


def _memory(table: Table) -> MemoryBank:
    bank = MemoryBank(
        table.text("name"),
        table.integer("size_bytes", low=1),
        table.integer("bytes_per_us", low=1),
        table.integer("setup_ns"),
        table.integer("pj_per_byte"),
        table.boolean("writable"),
    )
    table.finish()
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
        registers=tuple(_register(one) for one in table.tables("registers")) if table.has("registers") else (),
    )
    table.finish()
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", board.machine):
        raise table.error("machine", "is not a QEMU machine name")
    return board


def _register(table: Table) -> RegisterBits:
    bits = RegisterBits(table.integer("address"), table.integer("set_bits", low=1), table.text("why"))
    table.finish()
    if not re.fullmatch(r"[A-Za-z0-9 .,:;()_+-]*", bits.why):
        raise table.error("why", "goes into a comment of C: letters, digits, spaces and .,:;()_+- only")
    return bits


def _region(table: Table) -> Region:
    region = Region(table.integer("origin"), table.integer("size_bytes", low=1))
    table.finish()
    return region


def _check_name(target: Target, root: Table) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", target.name):
        raise root.error("name", "must be lower-case letters, digits, '-' and '_'")


def _check(target: Target, root: Table) -> None:
    """Rules that involve more than one key."""
    _check_name(target, root)
    if target.alignment_bytes not in (4, 8, 16, 32):
        raise root.error("alignment_bytes", "must be 4, 8, 16 or 32")
    if len({bank.name for bank in target.memories}) != len(target.memories):
        raise root.error("memories", "names one memory twice")
    if not target.memories[0].writable:
        raise root.error("memories", "must begin with the memory of the arena, which is writable")
    if not re.fullmatch(r"(table|llvm-mca:[a-z0-9.+-]+)?", target.cycle_model):
        raise root.error("cycle_model", 'must be "table" or "llvm-mca:CPU"')
