"""Link the examples with the memory maps of nine boards and compare every byte with the report; build the packages.

For every board with a Cortex-M the CMake example is linked with the board's real memory map, and what the linker's map
says of the model is compared with the report, to the byte; for the F746 also with a plan that lies in two memories, and
with two models. The same programs run on this machine, and in QEMU where its machine of the core has RAM at the board's
addresses; only the flash is moved where that machine has code. Exit code 1 if anything differs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.boards.packages import DIGITS, EXAMPLES, HEAD, copy_example, package, package_rows
from testing.cores import MAIN
from testing.images.board_image import Linked, cmake, differences, link, ram_is_in_qemu, run_in_qemu
from testing.images.image import by_owner
from tinytrain_compile.target.loader import list_boards, load_target
from tinytrain_compile.target.model import Target

TWO = ("--update", "all", "--reserve", "32KB", "--arena", "16KB", "--memory", "dtcm=16KB")
"""All of digits in SRAM1 and DTCM of the F746; the state that is saved is larger, and so is the reserve."""
F746 = "nucleo-f746zg"
LINEAR = EXAMPLES / "linear" / "linear.onnx"


@dataclass(frozen=True)
class Image:
    """A firmware that was linked for a board. command: that made the package; ran: where; wrong: what is not right."""

    title: str
    command: str
    target: Target
    linked: Linked
    ran: str
    wrong: tuple[str, ...]

    @property
    def owners(self) -> Mapping[str, Mapping[str, int]]:
        """Owner -> kind of memory -> bytes."""
        return by_owner(self.linked.map_text, tuple(self.linked.reports))


def image(title: str, board: str, work: Path, flags: tuple[str, ...] = HEAD) -> Image:
    """The CMake example on one board."""
    source = copy_example("cmake", work)
    command, report = package(DIGITS, "cmake", board, source / "digits", *flags)
    return _judged(title, command, source, "learn", load_target(board), {"digits": report})


def two_models(work: Path) -> Image:
    """Two models and a C++ program, for the F746."""
    source = copy_example("two_models", work)
    flags = ("--name", "thermo", "--loss", "mse", "--lr", "0.1")
    command, digits = package(DIGITS, "cmake", F746, source / "digits", *HEAD)
    second, thermo = package(LINEAR, "cmake", F746, source / "thermo", *flags)
    reports = {"digits": digits, "thermo": thermo}
    return _judged("two models in C++", f"{command}; {second}", source, "two_models", load_target(F746), reports)


def _judged(title: str, command: str, source: Path, name: str, target: Target, reports: Mapping[str, Any]) -> Image:
    """Link for the board, run on the host and where QEMU can."""
    assert target.board is not None and target.qemu is not None
    build = source.parent / "build"
    linked = link(source, build / "board", name, dict(reports))
    wrong = list(differences(linked, target.board))
    ended = {"this machine": subprocess.run([str(cmake(source, build / "host") / name)], timeout=120).returncode}
    if ram_is_in_qemu(linked, target):
        ended[f"QEMU {target.qemu.machine}"] = run_in_qemu(source, build / "qemu", name, target)
    wrong += [f"{where}: ended with {code}" for where, code in ended.items() if code]
    return Image(title, command, target, linked, ", ".join(ended), tuple(wrong))


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table."""
    names = tuple(head)
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def board_rows(images: Iterable[Image]) -> Iterator[tuple[str, ...]]:
    """What the model has of flash and RAM, by the linker's map, against the report; where the image ran."""
    for one in images:
        assert one.target.board is not None
        reports, owners = one.linked.reports, one.owners
        flash = sum(owners[name].get("flash", 0) for name in reports)
        room = {memory["name"]: memory["model_bytes"] for memory in reports["digits"]["board"]["memories"]}
        linked = {name: owners["program"].get(f".tt_{name}", 0) for name in room}
        ram = ", ".join(f"{name} {linked[name]:,} of {size:,}" for name, size in room.items() if linked[name])
        equal = "DIFFERS" if one.wrong else "equal"
        yield one.title, f"{flash:,} of {one.target.board.flash_bytes:,}", ram, equal, one.ran


def plain_row(board: str, work: Path) -> tuple[str, ...]:
    """A board that is no Cortex-M: its plain C, on this machine."""
    source = copy_example("cmake", work)
    _, report = package(DIGITS, "cmake", board, source / "digits", *HEAD)
    subprocess.run([str(cmake(source, work / "host") / "learn")], timeout=120, check=True)
    first = report["board"]["memories"][0]
    ram = f"{first['name']} {first['used_bytes']:,} of {first['model_bytes']:,}"
    return board, "not measured", ram, "not linked for it", "this machine"


def owner_rows(images: Iterable[Image]) -> Iterator[tuple[str, ...]]:
    """The rest of each image: bytes of flash and static RAM of the program, the start-up, libc and libgcc."""
    for one in images:
        assert one.target.board is not None
        cells = [one.title]
        for name in ("program", "start-up", "libc"):
            kinds = one.owners.get(name, {})
            ram = sum(size for kind, size in kinds.items() if kind in ("data", "bss"))
            cells.append(f"{kinds.get('flash', 0):,}" + (f" + {ram:,} of RAM" if ram else ""))
        stack = one.target.board.stack
        yield (*cells, f"{stack.stack_bytes:,} of {stack.name}")


def main() -> None:
    """All boards and packages; then what is wrong."""
    with tempfile.TemporaryDirectory(prefix="tinytrain-boards-") as folder:
        work = Path(folder)
        boards = {name: load_target(name).toolchain is MAIN.toolchain for name in list_boards()}
        images = [image(name, name, work / name) for name, is_cortex in boards.items() if is_cortex]
        images += [image(f"{F746}, two memories", F746, work / "memories", TWO), two_models(work / "two")]
        plain = [plain_row(name, work / name) for name, is_cortex in boards.items() if not is_cortex]
        print("commands:", *dict.fromkeys(one.command for one in images), sep="\n    ")
        head = ("image", "flash of the model, of what models have", "RAM of the model, the same", "report", "ran on")
        print("", *markdown(head, [*board_rows(images), *plain]), sep="\n")
        print(
            "",
            *markdown(("image", "the program's flash", "start-up", "libc, libgcc", "stack"), owner_rows(images)),
            sep="\n",
        )
        head = ("package", "command", "files beside src/, verify/", "built", "bytes of code and const")
        print("", *markdown(head, package_rows(work / "packages")), sep="\n")
    wrong = [f"{one.title}: {text}" for one in images for text in one.wrong]
    print("\n" + ("\n".join(wrong) if wrong else "all equal"))
    sys.exit(1 if wrong else 0)
