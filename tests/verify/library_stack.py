"""Derives the stack use of libgcc helpers and memcpy/memmove/memset from their disassembly.

Run as a script it prints the table that targets/toolchains/arm-none-eabi.toml holds; a test checks that
table against the installed cross tools. The figure of a function is an upper bound: everything that it pushes
anywhere, plus the deepest of its callees; functions that jump into each other count as one.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

from testing.cores import BUILT
from tinytrain_compile.files.resources import data_dir


def _cores() -> dict[str, tuple[str, ...]]:
    """Name of a table -> flags of the cores that it holds for, by the files in targets/."""
    text = (data_dir("targets") / "toolchains" / "arm-none-eabi.toml").read_text(encoding="utf-8")
    table = {name: one["library_stack"] for name, one in tomllib.loads(text)["architectures"].items()}
    found: dict[str, dict[str, None]] = {}
    for core in BUILT:
        if core.architecture is not None and core.toolchain is not None and core.toolchain.name == "arm-none-eabi":
            found.setdefault(table[core.architecture.name], {})[" ".join(core.gcc_flags)] = None
    return {name: tuple(flags) for name, flags in found.items()}


CORES = _cores()
_NAMES = """memcpy memmove memset
__aeabi_f2iz __aeabi_f2uiz __aeabi_fadd __aeabi_fcmpeq __aeabi_fcmpge __aeabi_fcmpgt __aeabi_fcmple __aeabi_fcmplt
__aeabi_fcmpun __aeabi_fdiv __aeabi_fmul __aeabi_frsub __aeabi_fsub __aeabi_i2f __aeabi_ui2f __aeabi_l2f __aeabi_ul2f
__aeabi_cfcmpeq __aeabi_cfcmple __aeabi_cfrcmple __aeabi_lasr __aeabi_llsl __aeabi_llsr __aeabi_lcmp __aeabi_ulcmp
__aeabi_lmul __aeabi_ldivmod __aeabi_uldivmod __aeabi_idiv __aeabi_idivmod __aeabi_uidiv __aeabi_uidivmod
__gnu_thumb1_case_shi __gnu_thumb1_case_si __gnu_thumb1_case_sqi __gnu_thumb1_case_uhi __gnu_thumb1_case_uqi"""
FUNCTIONS = _NAMES.split()
_HEAD = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_LINE = re.compile(r"^\s*[0-9a-f]+:\s+(\S+)\s*([^;@]*)")
_NO_RETURN = re.compile(r"^(b(\.[nw])?|bx|udf)$")


def derive(flags: str) -> dict[str, int]:
    """Function -> stack bytes, for the functions that exist in the multilib that `flags` select."""
    functions = _disassemble(flags)
    own = {name: sum(_pushed(mnemonic, args) for mnemonic, args in code) for name, code in functions.items()}
    names = list(functions)
    jumps: dict[str, set[str]] = {name: set() for name in names}
    calls: dict[str, set[str]] = {name: set() for name in names}
    for index, (name, code) in enumerate(functions.items()):
        for mnemonic, args in code:
            target = re.search(r"<([^>+]+)(\+0x[0-9a-f]+)?>", args)
            if target is None or target[1] not in functions:
                continue
            if mnemonic in ("bl", "blx"):
                calls[name].add(target[1])
            elif mnemonic.startswith(("b", "cb")) and target[1] != name:
                jumps[name].add(target[1])
        if not code or not _ends(*code[-1]):
            jumps[name].update(n for n in names[index + 1 :][:1] if functions[n] is not code)  # falls through
    return {name: _deepest(name, own, jumps, calls, ()) for name in FUNCTIONS if name in functions}


def _disassemble(flags: str) -> dict[str, list[tuple[str, str]]]:
    with tempfile.TemporaryDirectory() as folder:
        cc = ["arm-none-eabi-gcc", "-fno-builtin", *flags.split()]
        existing = _existing(cc)
        Path(folder, "all.c").write_text(_references(existing))
        subprocess.run([*cc, "-nostartfiles", "-Wl,-e,0", "all.c", "-o", "all.elf"], cwd=folder, check=True)
        dump = ["arm-none-eabi-objdump", "-d", "--no-show-raw-insn", "--show-all-symbols", "all.elf"]
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


def _existing(cc: list[str]) -> list[str]:
    """Those of FUNCTIONS that the multilib has."""
    asks = ("-print-libgcc-file-name", "-print-file-name=libc.a")
    archives = [subprocess.run([*cc, ask], check=True, capture_output=True, text=True).stdout.strip() for ask in asks]
    nm = ["arm-none-eabi-nm", "--defined-only", "--extern-only", "--quiet", "--format=posix", *archives]
    listing = subprocess.run(nm, check=True, capture_output=True, text=True).stdout
    defined = {line.split()[0] for line in listing.splitlines() if line.strip()}
    return [name for name in FUNCTIONS if name in defined]


def _references(names: list[str]) -> str:
    return "".join(f"void {name}(void); void (*p_{name})(void) = {name};\n" for name in names)


def _pushed(mnemonic: str, args: str) -> int:
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


def _ends(mnemonic: str, args: str) -> bool:
    return bool(_NO_RETURN.match(mnemonic)) or ("pc" in args and mnemonic.startswith(("pop", "ldmia", "ldr", "mov")))


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


def main() -> None:
    """Print the table: the worst case over the cores of each architecture."""
    for architecture, cores in CORES.items():
        worst: dict[str, int] = {}
        for flags in cores:
            for name, size in derive(flags).items():
                worst[name] = max(worst.get(name, 0), size)
        print(f"\n[{architecture}]")
        for name in sorted(worst):
            print(f"{name} = {worst[name]}")


if __name__ == "__main__":
    main()
