"""What the examples' run.py have in common: build a firmware with generated C, run it in QEMU and on the host, compare.

Without arm-none-eabi-gcc or qemu-system-arm a firmware runs on the host alone, and that is said.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinytrain_compile.target.loader import load_target
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.firmware import (
    CHECK_FLAG,
    COMPILE_FLAGS,
    HOST_FLAGS,
    WARNING_FLAGS,
    qemu_arguments,
)
from tinytrain_compile.verify.tools import find_tools

TARGET = "cortex-m7"
TIME_LIMIT_S = 600


@dataclass(frozen=True)
class Run:
    """What the firmware printed and the checkpoint that it wrote."""

    text: str
    checkpoint: bytes
    seconds: float


@dataclass(frozen=True, eq=False)
class Firmware:
    """A program of an example: main, with all C of the folder `out`, and the files that it reads (name -> bytes).

    shown: a line that it prints as it is shown, from the line and all that was printed so far.
    """

    main: Path
    out: Path
    files: Mapping[str, bytes]
    shown: Callable[[str, str], str] = lambda line, _so_far: f"  {line}"


def say(text: str = "") -> None:
    print(text, flush=True)


def show(path: Path) -> str:
    """A path as a user would type it from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def compile_model(arguments: list[str]) -> None:
    """tinytrain-compile, verification included; its exit code is this program's where it fails."""
    say(f"running: tinytrain-compile {shlex.join(arguments)}")
    finished = subprocess.run([sys.executable, "-m", "tinytrain_compile", *arguments], check=False)
    if finished.returncode != 0:
        sys.exit(finished.returncode)


def train(firmware: Firmware, build: Path, host_only: bool, name: str = TARGET) -> tuple[Run, Run | None]:
    """(the run to report, the host's run if the first is the board's): the board's where its tools are installed.

    name: of the target.
    """
    target = load_target(name)
    tools = find_tools(target)
    if tools.host_cc is None:
        sys.exit("no C compiler found (apt-get install gcc)")
    host_build = _build_command(tools.host_cc, firmware, None)
    if host_only or tools.cross_cc is None or tools.qemu is None or target.qemu is None:
        say(f"\nQEMU skipped: {'--host' if host_only else tools.missing_for_qemu()}; training on the host instead\n")
        return _run(firmware, host_build, ["./firmware"], build / "host", live=True), None
    say(f"\nmain.c + {show(firmware.out)}/*.c in QEMU ({target.qemu.machine}):\n")
    emulator = [tools.qemu, *qemu_arguments(target), "-kernel", "firmware.elf"]
    with ThreadPoolExecutor() as pool:
        host = pool.submit(_run, firmware, host_build, ["./firmware"], build / "host", live=False)
        board = _run(firmware, _build_command(tools.cross_cc, firmware, target), emulator, build / "qemu", live=True)
        return board, host.result()


def facts(result: Run, host: Run | None, report: Mapping[str, Any], replayed: int = 0) -> list[str]:
    """Lines of the block at the end: memory, flash, whether board and host computed the same, time.

    replayed: past samples that the program has room for, where the compilation does not know that.
    """
    flash = report["flash"]
    lines = [f"memory     {memory_of(report, replayed)}, all of the model's RAM but its stack"]
    code, const = flash["code_bytes"], flash["const_bytes"]
    if code is not None and const is not None:
        lines.append(f"flash      {code + const:,} B (code {code:,} + const {const:,})")
    if host is not None:
        same = (result.text, result.checkpoint) == (host.text, host.checkpoint)
        what = f"every printed number and all {len(host.checkpoint):,} bytes of the trained checkpoint"
        lines.append(f"equal      {'yes' if same else 'NO'}: {what}, QEMU against host")
    return [*lines, f"time       {result.seconds:.1f} s in {'host' if host is None else 'QEMU'}"]


def memory_of(report: Mapping[str, Any], replayed: int) -> str:
    """RAM by the report: the arena, further memories, past samples."""
    places = [(memory["name"], memory["used_bytes"]) for memory in report["memory"]["regions"]]
    replay = report["runtime"]["replay"]
    if replay is not None:
        places.append(("replay", replay["bytes"] or replayed * replay["record_bytes"]))
    return " + ".join(f"{name} {size:,} B" for name, size in places if size)


def check_equal(result: Run, host: Run | None) -> None:
    """Ends the program where the board and the host computed different bytes."""
    if host is not None and (result.text, result.checkpoint) != (host.text, host.checkpoint):
        sys.exit("the board and the host computed different bytes: please report this")


def _build_command(compiler: str, firmware: Firmware, board: Target | None) -> list[str]:
    """The compiler's command line; `board` None builds for the host what the board computes."""
    out = firmware.out
    sources = [str(path) for path in (*sorted(out.glob("*.c")), firmware.main)]
    common = [*COMPILE_FLAGS, *WARNING_FLAGS, CHECK_FLAG, f"-I{out}", f"-I{out / 'verify'}", *sources]
    if board is None:
        tail = [str(out / "verify" / "host.c"), "-no-pie", "-o", "firmware"]
        return [compiler, *HOST_FLAGS, *common, *tail]
    assert board.toolchain is not None
    link = [flag.replace("link.ld", str(out / "verify" / "link.ld")) for flag in board.toolchain.link_flags]
    return [compiler, *board.gcc_flags, *common, str(out / "verify" / "startup.c"), *link, "-o", "firmware.elf"]


def _run(firmware: Firmware, build: list[str], execute: list[str], folder: Path, live: bool) -> Run:
    """Build and run in a fresh folder; `live` shows what the firmware prints while it runs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in firmware.files.items():
        (folder / name).write_bytes(content)
    subprocess.run(build, cwd=folder, check=True, timeout=TIME_LIMIT_S)
    start, lines = time.monotonic(), list[str]()
    with subprocess.Popen(
        execute, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if live:
                say(firmware.shown(line.rstrip(), "".join(lines)).rstrip())
    if process.returncode != 0:
        sys.exit(f"{execute[0]} ended with exit code {process.returncode}: {''.join(lines[-1:])}")
    return Run("".join(lines), (folder / "trained.bin").read_bytes(), time.monotonic() - start)
