"""Boards and packages: what is built where, and where every byte lies (`make bench-boards`).

For three boards the CMake example is linked with the board's real memory map, and what the map says of the model is
compared with the report, to the byte. The same program then runs in QEMU on a machine with the same core, its RAM where
the board has it; only the flash is moved where that machine has code. Exit code 1 if anything differs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testing.board_image import Linked, cmake, differences, link, run_in_qemu
from testing.image import by_owner, sections
from testing.places import ROOT
from tinytrain_compile.target import Target, list_boards, load_target

EXAMPLES = ROOT / "examples"
HEAD = ("--update", "head")
"""What the examples train: the state of it, 10 KB, goes into the RAM that stands for storage."""
BOARDS = ("nucleo-f746zg", "nrf52840-dk", "rpi-pico")
DIGITS, LINEAR = EXAMPLES / "digits" / "digits.onnx", EXAMPLES / "linear" / "linear.onnx"


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


def print_all_boards(work: Path) -> None:
    """What digits, all of it trained, takes of every board; where its C ran."""
    print("\ndigits, all of it trained (--update all), on every board:")
    for name in list_boards():
        _, report = package(DIGITS, "cmake", name, work / "all" / name, "--update", "all")
        board, memory, flash = report["board"], report["memory"], report["flash"]
        size = "not measured" if flash["code_bytes"] is None else f"{flash['code_bytes'] + flash['const_bytes']:,} B"
        first = board["memories"][0]
        arena = f"arena {memory['arena_bytes']:,} of {first['model_bytes']:,} B of {first['name']}"
        print(f"    {name:14} {arena}, flash {size} of {board['flash']['model_bytes']:,} B, {board['checked']}")


def print_packages(work: Path) -> None:
    """Every package: its command and its files outside of src/ and verify/; the Makefile's is built and run."""
    print("\npackages (Arduino's and PlatformIO's rules: tests/examples/test_boards.py; Zephyr, ESP-IDF: not built):")
    for kind in ("cmake", "makefile", "arduino", "platformio", "zephyr", "esp-idf"):
        source = copy_example("makefile", work / kind)
        command, _ = package(DIGITS, kind, BOARDS[0], source / "digits", *HEAD)
        own = ("src", "verify", "board")
        paths = (path.relative_to(source / "digits") for path in (source / "digits").rglob("*") if path.is_file())
        print(f"    {command}: {', '.join(sorted(str(path) for path in paths if path.parts[0] not in own))}")
        if kind == "makefile":
            subprocess.run(["make", "-s"], cwd=source, check=True)
            print(f"        made on this machine, and ended with {subprocess.run([source / 'learn']).returncode}")


def main() -> None:
    """All boards and packages, then images of three boards, then two models in one firmware."""
    with tempfile.TemporaryDirectory(prefix="tinytrain-boards-") as folder:
        print_all_boards(Path(folder))
        print_packages(Path(folder))
        wrong = [text for board in BOARDS for text in measure_board(board, Path(folder))]
        wrong += measure_two_models(Path(folder))
    print("\n" + ("\n".join(wrong) if wrong else "all equal"))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
