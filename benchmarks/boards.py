"""Boards and packages: what is built where, and where every byte lies (`make bench-boards`).

For three boards the CMake example is linked with the board's real memory map, and what the map says of the model is
compared with the report, to the byte. The same program then runs in QEMU on a machine with the same core, its RAM where
the board has it; only the flash is moved where that machine has code. Exit code 1 if anything differs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.image import by_owner, sections
from testing.places import ROOT
from tinytrain_compile.target import Board, Target, load_target
from tinytrain_compile.verify.firmware import qemu_arguments

EXAMPLES = ROOT / "examples"
HEAD = ("--update", "head")
"""What the examples train: the state of it, 10 KB, goes into the RAM that stands for storage."""
BOARDS = ("nucleo-f746zg", "nrf52840-dk", "rpi-pico")
DIGITS, LINEAR = EXAMPLES / "digits" / "digits.onnx", EXAMPLES / "linear" / "linear.onnx"


@dataclass(frozen=True)
class Linked:
    """A firmware: its folder, image and map, and the reports of its models by name."""

    image: Path
    map_text: str
    reports: dict[str, Any]


def package(model: Path, kind: str, board: str, out: Path, *flags: str) -> tuple[str, Any]:
    """Compile a model to a package; the command as a user types it, and its report."""
    shown = [str(model.relative_to(ROOT)), "--target", board, "--package", kind, *flags]
    command = [sys.executable, "-m", "tinytrain_compile", str(model), *shown[1:], "-o", str(out), "--report", "json"]
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return f"tinytrain-compile {' '.join(shown)}", json.loads((out / "report.json").read_text(encoding="utf-8"))


def copy_example(name: str, place: Path) -> Path:
    """An example and the files that all of them use, in a folder of its own."""
    shutil.copytree(EXAMPLES / "boards", place / "boards", dirs_exist_ok=True)
    return place / "boards" / name


def cmake(source: Path, build: Path, *options: str) -> Path:
    """Configure and build; the folder of what was built. The output is shown where that fails."""
    for command in (["cmake", "-S", str(source), "-B", str(build), *options], ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return build


def link(source: Path, build: Path, name: str, reports: dict[str, Any]) -> Linked:
    """Build for the board, with its link script."""
    cmake(source, build, f"-DCMAKE_TOOLCHAIN_FILE={source / 'digits' / 'toolchain.cmake'}")
    return Linked(build / name, (build / f"{name}.map").read_text(), reports)


def run_in_qemu(source: Path, build: Path, name: str, target: Target) -> int:
    """The same program with its flash where QEMU's machine has code; its exit code."""
    assert target.qemu is not None
    script = (source / "digits" / "board" / "link.ld").read_text()
    moved = re.sub(r"FLASH \(rx\) : ORIGIN = \w+", f"FLASH (rx) : ORIGIN = {target.qemu.code.origin:#x}", script)
    build.mkdir(parents=True, exist_ok=True)
    (build / "moved.ld").write_text(moved)
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={source / 'digits' / 'toolchain.cmake'}"
    cmake(source, build, toolchain, "-DIN_QEMU=ON", f"-DDIGITS_LINK_SCRIPT={build / 'moved.ld'}")
    emulator = ["qemu-system-arm", *qemu_arguments(target.qemu), "-kernel", str(build / name)]
    return subprocess.run(emulator, timeout=120).returncode


def differences(linked: Linked, board: Board) -> Iterator[str]:
    """Where the image is not what the reports say."""
    owners = by_owner(linked.map_text, tuple(linked.reports))
    arena = f".tt_{board.memories[0].name}"
    total = sum(report["memory"]["arena_bytes"] for report in linked.reports.values())
    if (linked_arena := owners["program"][arena]) != total:
        yield f"arena: {linked_arena} B are linked, the reports say {total} B"
    for model, report in linked.reports.items():
        flash = report["flash"]["code_bytes"] + report["flash"]["const_bytes"]
        if owners[model]["flash"] != flash:
            yield f"flash of {model}: {owners[model]['flash']} B are linked, the report says {flash} B"
        if statics := {kind: size for kind, size in owners[model].items() if kind != "flash"}:
            yield f"{model} has static RAM: {statics}"
    places = [("flash", board.flash), *((memory.name, memory.region) for memory in board.memories)]
    for section in sections(linked.image):
        inside = [n for n, r in places if r.origin <= section.address and section.address + section.size <= r.end]
        if not inside:
            yield f"{section.name} at {section.address:#010x} lies in no memory of the board"


def table(linked: Linked, target: Target) -> Iterator[str]:
    """Bytes by owner and memory."""
    board = target.board
    assert board is not None
    owners = by_owner(linked.map_text, tuple(linked.reports))
    for name in (*linked.reports, "program", "start-up", "libc"):
        kinds = owners.get(name, {})
        shown = ", ".join(f"{kind.removeprefix('.tt_')} {size:,}" for kind, size in sorted(kinds.items()))
        yield f"    {name:10} {shown or '0'}"
    for memory in board.memories:
        used = sum(s.size for s in sections(linked.image) if memory.region.origin <= s.address < memory.region.end)
        kept = memory.stack_bytes
        yield f"    {memory.name:10} {used:,} B of {memory.region.size_bytes:,} B linked, stack {kept:,} B"


def measure_board(board: str, work: Path) -> list[str]:
    """The CMake example on one board: print, and what is wrong."""
    target = load_target(board)
    assert target.board is not None
    source = copy_example("cmake", work / board)
    command, report = package(DIGITS, "cmake", board, source / "digits", *HEAD)
    print(f"\n{board}: {command}")
    linked = link(source, work / board / "build", "learn", {"digits": report})
    print("\n".join(table(linked, target)))
    wrong = list(differences(linked, target.board))
    code = run_in_qemu(source, work / board / "qemu", "learn", target)
    host = subprocess.run([str(cmake(source, work / board / "host") / "learn")], timeout=120).returncode
    wrong += [f"{where} ended with {got}" for where, got in (("QEMU", code), ("the host", host)) if got]
    flash = report["flash"]["code_bytes"] + report["flash"]["const_bytes"]
    print(
        f"    report     flash {flash:,}, arena {report['memory']['arena_bytes']:,}: {'DIFFERS' if wrong else 'equal'}"
    )
    print(f"    learned    on the host and in QEMU ({target.qemu.machine if target.qemu else '-'})")
    return [f"{board}: {text}" for text in wrong]


def measure_two_models(work: Path) -> list[str]:
    """Two models and a C++ program, for the F746."""
    target = load_target(BOARDS[0])
    assert target.board is not None
    source = copy_example("two_models", work / "two")
    _, digits = package(DIGITS, "cmake", target.name, source / "digits", *HEAD)
    flags = ("--name", "thermo", "--loss", "mse", "--lr", "0.1")
    command, thermo = package(LINEAR, "cmake", target.name, source / "thermo", *flags)
    print(f"\ntwo models in C++: {command}")
    linked = link(source, work / "two" / "build", "two_models", {"digits": digits, "thermo": thermo})
    print("\n".join(table(linked, target)))
    wrong = list(differences(linked, target.board))
    code = run_in_qemu(source, work / "two" / "qemu", "two_models", target)
    host = subprocess.run([str(cmake(source, work / "two" / "host") / "two_models")], timeout=120).returncode
    wrong += [f"{where} ended with {got}" for where, got in (("QEMU", code), ("the host", host)) if got]
    print(f"    learned    both, on the host and in QEMU: {'NO' if wrong else 'yes'}")
    return [f"two models: {text}" for text in wrong]


def main() -> None:
    """All boards, then two models in one firmware."""
    with tempfile.TemporaryDirectory(prefix="tinytrain-boards-") as folder:
        wrong = [text for board in BOARDS for text in measure_board(board, Path(folder))]
        wrong += measure_two_models(Path(folder))
    print("\n" + ("\n".join(wrong) if wrong else "all equal"))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
