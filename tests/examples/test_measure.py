"""examples/boards/measure.c: the program of docs/measure-your-board.md builds, agrees with the desk, sees faults."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from testing.images.arduino_rules import STRICT
from testing.images.board_image import cmake, run_in_qemu
from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target

BOARDS = ROOT / "examples" / "boards"
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"


INT8 = {"quant": "int8", "calib": ROOT / "examples" / "digits" / "data.npz"}


def _source(board: str, verify: str, place: Path, **more: object) -> Path:
    """Return the CMake example with digits as a package for a board."""
    options = {"update": "head", "verify": verify, "target": board, "package": "cmake", **more}
    made = make_project(CompileOptions(DIGITS, **options))  # type: ignore[arg-type]
    assert isinstance(made, Project)
    shutil.copytree(BOARDS, place / "boards")
    for path, content in made.files.items():
        file = place / "boards" / "cmake" / "digits" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place / "boards" / "cmake"


def _crc_on_this_machine(source: Path, build: Path) -> str:
    cmake(source, build, "-DMEASURE=ON", "-DMEASURE_WITH=MEASURE_PRINT")
    said = subprocess.run([build / "learn"], capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search(r"^crc (0x[0-9a-f]{8})$", said, re.MULTILINE)
    losses = re.search(r"^loss ([\d.]+) ([\d.]+)$", said, re.MULTILINE)
    assert found and losses and float(losses[2]) < 0.5 * float(losses[1])
    return found[1]


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize(("board", "more"), [("nucleo-f746zg", {}), ("rpi-pico", INT8)], ids=["M7 float32", "M0+ int8"])
def test_the_board_computes_what_the_desk_does_within_its_stack(
    board: str, more: dict[str, object], tmp_path: Path
) -> None:
    """Exit code 6 of the program is a stack above the static bound, 5 another checkpoint."""
    source, target = _source(board, "qemu", tmp_path, **more), load_target(board)
    assert "#define DIGITS_STACK_BYTES" in (source / "digits" / "src" / "digits_train.h").read_text(encoding="utf-8")
    crc = _crc_on_this_machine(source, tmp_path / "host")
    same = ("-DMEASURE=ON", f"-DMEASURE_WITH=MEASURE_CRC={crc}")
    assert run_in_qemu(source, tmp_path / "qemu", "learn", target, *same) == 0
    other = ("-DMEASURE=ON", f"-DMEASURE_WITH=MEASURE_CRC={int(crc, 16) ^ 1:#x}")
    assert run_in_qemu(source, tmp_path / "other", "learn", target, *other) == 5


@pytest.mark.parametrize(
    "more", [(), ("-DMEASURE_PRINT",), ("-DMEASURE_ENERGY_S=10", "-DMEASURE_CLOCK_HZ=216000000")], ids=len
)
def test_every_form_of_the_program_is_strict_c(more: tuple[str, ...], tmp_path: Path) -> None:
    source = _source("nucleo-f746zg", "none", tmp_path)
    command = ["gcc", "-std=c11", *STRICT, *more, f"-I{source / 'digits' / 'src'}", "-c", BOARDS / "measure.c"]
    done = subprocess.run([*command, "-o", tmp_path / "measure.o"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
