"""Derives the stack use of libgcc helpers and memcpy/memmove/memset from their disassembly.

Run as a script it prints the tables that the files in targets/toolchains hold; a test checks those against the
installed cross tools. The figure of a function is an upper bound: everything that it pushes anywhere, plus the deepest
of its callees; functions that jump into each other count as one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from testing.cores import BUILT
from tinytrain_compile.target.model import Target


@dataclass(frozen=True)
class Rules:
    """How an instruction set is read. names: of the helpers in libgcc. pushed: stack bytes of an instruction.

    calls, jumps: mnemonics with which a function is called, or entered for good. ends: whether nothing follows.
    """

    names: tuple[str, ...]
    pushed: Callable[[str, str], int]
    calls: str
    jumps: str
    ends: Callable[[str, str], bool]


_HEAD = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_LINE = re.compile(r"^\s*[0-9a-f]+:\s+(\S+)\s*([^;@]*)")


def derive(core: Target) -> dict[str, int]:
    """Function -> stack bytes, for the functions that exist in the multilib that the core's flags select."""
    assert core.toolchain is not None
    rules = RULES[core.toolchain.name]
    functions = _disassemble(core.toolchain.prefix, core.gcc_flags, rules.names)
    own = {name: sum(rules.pushed(mnemonic, args) for mnemonic, args in code) for name, code in functions.items()}
    names = list(functions)
    jumps: dict[str, set[str]] = {name: set() for name in names}
    calls: dict[str, set[str]] = {name: set() for name in names}
    for index, (name, code) in enumerate(functions.items()):
        for mnemonic, args in code:
            target = re.search(r"<([^>+]+)(\+0x[0-9a-f]+)?>", args)
            if target is None or target[1] not in functions:
                continue
            if re.fullmatch(rules.calls, mnemonic):
                calls[name].add(target[1])
            elif re.match(rules.jumps, mnemonic) and target[1] != name:
                jumps[name].add(target[1])
        if not code or not rules.ends(*code[-1]):
            jumps[name].update(n for n in names[index + 1 :][:1] if functions[n] is not code)  # falls through
    return {name: _deepest(name, own, jumps, calls, ()) for name in rules.names if name in functions}


def _disassemble(prefix: str, flags: tuple[str, ...], names: tuple[str, ...]) -> dict[str, list[tuple[str, str]]]:
    with tempfile.TemporaryDirectory() as folder:
        cc = [f"{prefix}gcc", "-fno-builtin", *flags]
        link = [*cc, "-nostartfiles", "-Wl,-e,0", "-Wl,--no-gc-sections", "all.c", "-o", "all.elf"]
        source = Path(folder, "all.c")
        source.write_text(_references(names))
        tried = subprocess.run(link, cwd=folder, check=False, capture_output=True, text=True).stderr
        absent = set(re.findall("undefined reference to `(.+)'", tried))
        source.write_text(_references(name for name in names if name not in absent))
        subprocess.run(link, cwd=folder, check=True)
        dump = [f"{prefix}objdump", "-d", "--no-show-raw-insn", "--show-all-symbols", "all.elf"]
        listing = subprocess.run(dump, cwd=folder, check=True, capture_output=True, text=True).stdout
    functions: dict[str, list[tuple[str, str]]] = {}
    aliases: list[str] = []
    current: list[tuple[str, str]] = []
    for line in listing.splitlines():
        head, code = _HEAD.match(line), _LINE.match(line)
        if head and head[1].startswith("$"):
            continue  # a mapping symbol, not a function
        if head:
            if current or not aliases:
                current, aliases = [], []
            functions[head[1]] = current  # symbols at one address share their code
            aliases.append(head[1])
        elif code and not code[1].startswith((".", "nop")):
            current.append((code[1], code[2]))
    return functions


def _references(names: Iterable[str]) -> str:
    return "".join(f"void {name}(void); void (*p_{name})(void) = {name};\n" for name in names)


def _deepest(
    name: str, own: dict[str, int], jumps: dict[str, set[str]], calls: dict[str, set[str]], path: tuple[str, ...]
) -> int:
    cluster, todo = {name}, [name]
    while todo:
        for other in jumps[todo.pop()] - cluster:
            cluster.add(other)
            todo.append(other)
    assert name not in path, f"recursion: {path} -> {name}"
    callees = {callee for member in cluster for callee in calls[member]} - cluster
    below = max((_deepest(callee, own, jumps, calls, (*path, name)) for callee in callees), default=0)
    return sum(own[member] for member in cluster) + below


# ---- instruction sets ------------------------------------------------------------------------------------------------


def _pushed_by_arm(mnemonic: str, args: str) -> int:
    if mnemonic.startswith(("push", "stmdb", "vpush")) and ("sp!" in args or "push" in mnemonic):
        return _register_bytes(args)
    match = re.match(r"sp, (?:sp, )?#(\d+)", args)
    if mnemonic.startswith("sub") and match:
        return int(match[1])
    match = re.search(r"\[sp, #-(\d+)\]!", args)
    return int(match[1]) if match else 0


def _register_bytes(args: str) -> int:
    total = 0
    for part in re.search(r"\{(.*)\}", args)[1].split(","):  # type: ignore[index]
        span = re.match(r"\s*([rds])(\d+)-[rds](\d+)", part)
        count = int(span[3]) - int(span[2]) + 1 if span else 1
        total += count * (8 if part.strip().startswith("d") else 4)
    return total


def _arm_ends(mnemonic: str, args: str) -> bool:
    returns = re.fullmatch(r"b(\.[nw])?|bx|udf", mnemonic) is not None
    return returns or ("pc" in args and mnemonic.startswith(("pop", "ldmia", "ldr", "mov")))


def _pushed_by_riscv(mnemonic: str, args: str) -> int:
    match = re.match(r"sp,sp,-(\d+)", args)
    assert mnemonic != "sub" or not args.startswith("sp,"), "a frame of variable size"
    return int(match[1]) if mnemonic in ("add", "addi") and match else 0


def _riscv_ends(mnemonic: str, _: str) -> bool:
    return mnemonic in ("ret", "j", "jr", "ebreak", "unimp")


_MEMORY = ("memcpy", "memmove", "memset")
_ARM = """
__aeabi_f2iz __aeabi_f2uiz __aeabi_fadd __aeabi_fcmpeq __aeabi_fcmpge __aeabi_fcmpgt __aeabi_fcmple __aeabi_fcmplt
__aeabi_fcmpun __aeabi_fdiv __aeabi_fmul __aeabi_frsub __aeabi_fsub __aeabi_i2f __aeabi_ui2f __aeabi_l2f __aeabi_ul2f
__aeabi_cfcmpeq __aeabi_cfcmple __aeabi_cfrcmple __aeabi_lasr __aeabi_llsl __aeabi_llsr __aeabi_lcmp __aeabi_ulcmp
__aeabi_lmul __aeabi_ldivmod __aeabi_uldivmod __aeabi_idiv __aeabi_idivmod __aeabi_uidiv __aeabi_uidivmod
__gnu_thumb1_case_shi __gnu_thumb1_case_si __gnu_thumb1_case_sqi __gnu_thumb1_case_uhi __gnu_thumb1_case_uqi"""
_RISCV = """
__addsf3 __subsf3 __mulsf3 __divsf3 __eqsf2 __nesf2 __ltsf2 __lesf2 __gtsf2 __gesf2 __unordsf2
__fixsfsi __fixunssfsi __floatsisf __floatunsisf __fixsfdi __fixunssfdi __floatdisf __floatundisf
__ashldi3 __ashrdi3 __lshrdi3 __muldi3 __divdi3 __moddi3 __udivdi3 __umoddi3 __clzsi2 __ctzsi2 __popcountsi2"""
RULES = {
    "arm-none-eabi": Rules((*_MEMORY, *_ARM.split()), _pushed_by_arm, "blx?", "b|cb", _arm_ends),
    "riscv64-unknown-elf": Rules((*_MEMORY, *_RISCV.split()), _pushed_by_riscv, "jalr?", "j|b", _riscv_ends),
}
"""By the name of the toolchain."""


def main() -> None:
    """Print the tables: the worst case over the cores of each architecture."""
    tables: dict[str, dict[str, int]] = {}
    for core in BUILT:
        assert core.toolchain is not None and core.architecture is not None
        if shutil.which(core.toolchain.compiler.name) is None:
            continue
        known = core.toolchain.architectures.values()
        sharing = (each.name for each in known if each.library_stack is core.architecture.library_stack)
        worst = tables.setdefault(", ".join(sharing), {})
        for name, size in derive(core).items():
            worst[name] = max(worst.get(name, 0), size)
    for table, worst in tables.items():
        print(f"\n[{table}]")
        for name in sorted(worst):
            print(f"{name} = {worst[name]}")


if __name__ == "__main__":
    main()
