"""Build packages of digits, the way docs/packages.md makes them: rows for the benchmark `boards`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from testing.images.arduino_rules import library_objects, sketch_program
from testing.images.image import sections
from testing.places import ROOT
from tinytrain_compile.target.loader import load_target

EXAMPLES = ROOT / "examples"
DIGITS = EXAMPLES / "digits" / "digits.onnx"
HEAD = ("--update", "head")
"""What the examples train: the state of it, 10 KB, goes into the RAM that stands for storage."""
_WITHOUT_SDK = "**not built** with the SDK (stand-ins for it: tests/examples/test_packages.py)"


def package(model: Path, kind: str, board: str, out: Path, *flags: str) -> tuple[str, Any]:
    """Compile a model to a package; the command as a user types it, and its report."""
    shown = [str(model.relative_to(ROOT)), "--target", board, *flags, "--package", kind]
    command = [sys.executable, "-m", "tinytrain_compile", str(model), *shown[1:], "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(shown)}\n{done.stderr}")
    return f"tinytrain-compile {' '.join(shown)}", json.loads((out / "report.json").read_text(encoding="utf-8"))


def copy_example(name: str, place: Path) -> Path:
    """An example and the files that all of them use, in a folder of its own."""
    shutil.copytree(EXAMPLES / "boards", place / "boards", dirs_exist_ok=True)
    return place / "boards" / name


def package_rows(work: Path) -> Iterator[tuple[str, ...]]:
    """Of every kind: command, files beside src/ and verify/, what was built, bytes of code and constants of that."""
    kinds: dict[str, tuple[str, Callable[[Path, str], tuple[str, str]]]] = {
        "cmake": ("nucleo-f746zg", _by_cmake),
        "makefile": ("nucleo-f746zg", _by_make),
        "arduino": ("rpi-pico", _by_arduinos_rules),
        "platformio": ("nucleo-f746zg", _by_arduinos_rules),
        "zephyr": ("nucleo-f746zg", _not_built),
        "esp-idf": ("esp32-s3", _not_built),
    }
    for kind, (board, build) in kinds.items():
        source = copy_example("makefile", work / kind)
        command, _ = package(DIGITS, kind, board, source / "digits", *HEAD)
        built, size = build(source, board)
        yield f"`{kind}`", f"`{command}`", _own_files(source / "digits"), built, size


def _own_files(library: Path) -> str:
    """What a package has beside its sources and its check program."""
    paths = (path.relative_to(library) for path in library.rglob("*") if path.is_file())
    return ", ".join(f"`{path}`" for path in sorted(paths) if path.parts[0] not in ("src", "verify", "build"))


def _by_cmake(_source: Path, _board: str) -> tuple[str, str]:
    return "the images above", "as above"


def _not_built(_source: Path, _board: str) -> tuple[str, str]:
    return _WITHOUT_SDK, "-"


def _by_make(source: Path, board: str) -> tuple[str, str]:
    """The example for this machine, run; the library for the board."""
    subprocess.run(["make", "-s"], cwd=source, check=True)
    subprocess.run([source / "learn"], check=True, timeout=120)
    library = source / "digits"
    shutil.rmtree(library / "build")
    core, prefix = load_target(board), _prefix(board)
    tools = [f"CC={prefix}gcc", f"AR={prefix}ar", f"MACHINE={' '.join(core.gcc_flags)}"]
    subprocess.run(["make", "-s", "-C", str(library), *tools], check=True)
    objects = (library / "build").glob("*.o")
    return f"by make for this machine, and run; the library by {prefix}gcc", f"{_bytes_of(objects):,}"


def _by_arduinos_rules(source: Path, board: str) -> tuple[str, str]:
    """Sketch and library for this machine, run; the library for the board."""
    place = source / "objects"
    place.mkdir()
    subprocess.run([sketch_program(source / "digits", place)], check=True, timeout=120, capture_output=True)
    compiler = f"{_prefix(board)}gcc"
    objects = library_objects(source / "digits", place, compiler, load_target(board).gcc_flags)
    built = f"by Arduino's rules with gcc and g++ for this machine, and run; the library by {compiler}"
    return built, f"{_bytes_of(objects):,} (`-Os`)"


def _prefix(board: str) -> str:
    """How names of the cross tools begin."""
    toolchain = load_target(board).toolchain
    assert toolchain is not None
    return toolchain.prefix


def _bytes_of(objects: Iterable[Path]) -> int:
    """Code and constants of objects; exception tables, which no C needs, aside."""
    found = [section for path in objects for section in sections(path) if not section.name.startswith(".ARM")]
    assert not any(section.writable for section in found), "a model has no static RAM"
    return sum(section.size for section in found)
