"""Builds the CMake examples for a board, with its memory map, and compares the image with what the reports say."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.images.image import by_owner, sections
from tinytrain_compile.target.model import Board, Target
from tinytrain_compile.verify.firmware import qemu_arguments


@dataclass(frozen=True)
class Linked:
    """A firmware: its folder, image and map, and the reports of its models by name."""

    image: Path
    map_text: str
    reports: dict[str, Any]


def cmake(source: Path, build: Path, *options: str) -> Path:
    """Configure and build; the folder of what was built. The output is shown where that fails."""
    for command in (["cmake", "-S", str(source), "-B", str(build), *options], ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return build


def link(source: Path, build: Path, name: str, reports: dict[str, Any]) -> Linked:
    """Build for the board, with its link script."""
    cmake(source, build, f"-DCMAKE_TOOLCHAIN_FILE={source / 'digits' / 'toolchain.cmake'}")
    return Linked(build / name, (build / f"{name}.map").read_text(), reports)


def run_in_qemu(source: Path, build: Path, name: str, target: Target, *options: str) -> int:
    """The same program with its flash where QEMU's machine has code; its exit code. `options` are CMake's."""
    assert target.qemu is not None and target.toolchain is not None
    script = (source / "digits" / "board" / "link.ld").read_text()
    moved = re.sub(r"FLASH \(rx\) : ORIGIN = \w+", f"FLASH (rx) : ORIGIN = {target.qemu.code.origin:#x}", script)
    build.mkdir(parents=True, exist_ok=True)
    (build / "moved.ld").write_text(moved)
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={source / 'digits' / 'toolchain.cmake'}"
    cmake(source, build, toolchain, "-DIN_QEMU=ON", f"-DDIGITS_LINK_SCRIPT={build / 'moved.ld'}", *options)
    emulator = [target.toolchain.emulator.name, *qemu_arguments(target), "-kernel", str(build / name)]
    return subprocess.run(emulator, timeout=120).returncode


def ram_is_in_qemu(linked: Linked, target: Target) -> bool:
    """Whether QEMU's machine of the core has RAM where the board's image puts statics, models and the stack."""
    assert target.qemu is not None and target.board is not None
    stack = target.board.stack.region
    used = [(s.address, s.address + s.size) for s in sections(linked.image) if s.writable]
    ram = (target.qemu.data, target.qemu.extra)
    return all(any(r.origin <= low and high <= r.end for r in ram) for low, high in (*used, (stack.origin, stack.end)))


def used_bytes(report: Any, memory: str) -> int:
    """What a model takes of a memory of its board, by its report."""
    return sum(one["used_bytes"] for one in report["board"]["memories"] if one["name"] == memory)


def differences(linked: Linked, board: Board) -> Iterator[str]:
    """Where the image is not what the reports say."""
    owners = by_owner(linked.map_text, tuple(linked.reports))
    for memory in board.memories:
        total = sum(used_bytes(report, memory.name) for report in linked.reports.values())
        if (bytes_there := owners["program"][f".tt_{memory.name}"]) != total:
            yield f"{memory.name}: {bytes_there} B are linked, the reports say {total} B"
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
