"""examples/boards and the packages that they use: laid out as documented, built as far as tools are here, and run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testing.images.arduino_rules import STRICT, sketch_program
from testing.images.board_image import differences, link, ram_is_in_qemu, run_in_qemu
from testing.images.image import pieces
from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.emit.packages import PackageFacts, package_files
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.report.data import report_json
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.target.model import BoardNames

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "on-your-board.md").read_text()
KINDS = ("cmake", "platformio", "arduino", "zephyr", "esp-idf", "makefile")


def _project(board: str, package: str, **more: object) -> Project:
    """digits, its last layer trained, as examples/boards take it."""
    given = {"update": "head", "verify": "none", "target": board, "package": package, **more}
    made = make_project(CompileOptions(EXAMPLES / "digits" / "digits.onnx", **given))  # type: ignore[arg-type]
    assert isinstance(made, Project)
    return made


def _write(files: Mapping[str, str | bytes], place: Path) -> Path:
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


@pytest.fixture(scope="module")
def project() -> Project:
    return _project("nucleo-f746zg", "arduino")


@pytest.fixture(scope="module")
def arduino(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(project.files, tmp_path_factory.mktemp("arduino") / "digits")


def run(*command: str | Path, cwd: Path, timeout: float = 120) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_package_has_its_sources_in_src_and_nothing_else_there(arduino: Path) -> None:
    assert sorted(path.suffix for path in (arduino / "src").iterdir()).count(".c") == 3
    outside = [path for path in arduino.rglob("*.[ch]") if path.parent.name not in ("src", "verify")]
    assert [path.name for path in outside] == ["hardware.h"]  # of the example
    main = (arduino / "verify" / "Makefile").read_text()
    assert "../src/digits_train.c" in main and "-I../src" in main


def test_a_link_script_is_for_cores_of_arm(project: Project) -> None:
    """ESP-IDF links by its own."""
    other = _project("esp32-s3", "esp-idf").files
    assert "board/link.ld" in project.files and "board/link.ld" not in other
    assert "link.ld" in str(project.files["src/digits_board.h"]) and "link.ld" not in str(other["src/digits_board.h"])


def test_each_system_finds_what_its_documents_ask_for(project: Project) -> None:
    facts = PackageFacts('a "quoted" name', load_target("nucleo-f746zg"))
    made = {kind: package_files(kind, project.bundle, facts) for kind in KINDS}  # type: ignore[arg-type]
    sources = {path for path in made["arduino"] if path.startswith("src/") and path.endswith(".c")}
    assert len(sources) == 3
    properties = dict(line.split("=", 1) for line in made["arduino"]["library.properties"].splitlines())
    required = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url", "architectures"}
    assert required <= set(properties)
    assert properties["includes"] == "digits_train.h"
    assert re.fullmatch(r"\d+\.\d+\.\d+(-dev\d+)?", properties["version"]), "a semantic version"
    manifest = json.loads(made["platformio"]["library.json"])
    assert manifest["name"] == "digits" and manifest["build"]["srcDir"] == "src" and manifest["frameworks"] == "*"
    assert "zephyr/module.yml" in made["zephyr"] and "kconfig: zephyr/Kconfig" in made["zephyr"]["zephyr/module.yml"]
    assert "config TINYTRAIN_DIGITS" in made["zephyr"]["zephyr/Kconfig"]
    assert "idf_component_register(" in made["esp-idf"]["CMakeLists.txt"]
    for kind, path in (("cmake", "CMakeLists.txt"), ("esp-idf", "CMakeLists.txt"), ("makefile", "Makefile")):
        assert all(source in made[kind][path] for source in sources), kind
    assert all(source in made["zephyr"]["zephyr/CMakeLists.txt"] for source in sources)


def test_every_file_of_the_output_may_be_compiled_together(arduino: Path) -> None:
    """What an IDE does with a folder: the check program's files are empty, so that nothing is defined twice."""
    program = arduino / "program.c"
    program.write_text('#include "digits_train.h"\nint main(void) { return digits_state_size() == 0; }\n')
    everything = sorted(str(path.relative_to(arduino)) for path in arduino.rglob("*.c"))
    assert {"verify/main.c", "verify/host.c", "verify/startup.c"} <= set(everything)
    run("gcc", "-Isrc", "-Iverify", *everything, "-o", "all", cwd=arduino)
    twice = subprocess.run(
        ["gcc", "-DTT_CHECK", "-Isrc", "-Iverify", *everything, "-o", "all"],
        cwd=arduino,
        capture_output=True,
        text=True,
    )
    assert twice.returncode != 0  # without the guard it is as it was


@pytest.mark.parametrize("package", ["arduino", "platformio"])
def test_the_sketch_builds_by_arduinos_rules_and_learns(package: str, project: Project, tmp_path: Path) -> None:
    """src/ recursively, C as C; the .ino as C++ behind Arduino.h."""
    facts = PackageFacts("digits", load_target("nucleo-f746zg"))
    files = package_files(package, project.bundle, facts)  # type: ignore[arg-type]
    library = _write(files, tmp_path / "digits")
    program = sketch_program(library, tmp_path)
    losses = [float(line) for line in run(program, cwd=tmp_path).split()]
    assert len(losses) == 8 and losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("package", ["arduino", "platformio"])
def test_the_package_s_own_sketch_learns(package: str, project: Project, tmp_path: Path) -> None:
    facts = PackageFacts("digits", load_target("nucleo-f746zg"))
    library = _write(package_files(package, project.bundle, facts), tmp_path / "digits")  # type: ignore[arg-type]
    program = sketch_program(library, tmp_path, library / "examples" / "train_digits" / "train_digits.ino")
    printed = run(program, cwd=tmp_path).split()
    assert printed[::2] == ["loss"] * 10 + ["score"] and float(printed[19]) < 0.5 * float(printed[1])


@pytest.mark.parametrize("package", [None, "cmake", "makefile"])
def test_the_output_s_own_program_learns(package: str | None, project: Project, tmp_path: Path) -> None:
    """By the commands that its first lines name."""
    facts, bundle = PackageFacts("digits", load_target("nucleo-f746zg")), project.bundle
    flat = {**bundle.files, **bundle.example(None, BoardNames())}
    place = _write(package_files(package, bundle, facts) if package else flat, tmp_path / "digits")  # type: ignore[arg-type]
    (commands,) = re.findall(r"^ \* On a PC: (.*) \*/$", (place / "example" / "main.c").read_text(), re.MULTILINE)
    losses = [int(number) for number in re.findall(r"^loss (\d+) / 1000$", run("sh", "-ec", commands, cwd=place), re.M)]
    assert len(losses) == 10 and losses[-1] < 0.5 * losses[0]


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="arm-none-eabi-gcc is not installed")
def test_without_an_sdk_the_example_links_once_printf_and_exit_are_replaced(project: Project, tmp_path: Path) -> None:
    """As docs/on-your-board.md says what a project provides: startup.c, board/link.ld, and a hardware.h of its own."""
    facts = PackageFacts("digits", load_target("nucleo-f746zg"))
    place = _write(package_files("cmake", project.bundle, facts), tmp_path)
    assert "`printf` and `exit`" in PAGE
    flags = ["-mcpu=cortex-m7", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16", "-O2", "-Isrc"]
    sources = [*place.glob("src/*.c"), "example/main.c", EXAMPLES / "boards" / "startup.c"]
    command = ["arm-none-eabi-gcc", *flags, *sources, "-T", "board/link.ld", "-nostartfiles", "-o", "firmware"]
    before = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert "undefined reference to `_exit'" in before.stderr
    hardware = place / "example" / "hardware.h"
    text = re.sub(r"printf\(\"%s.*;", "(void)what, (void)number;", hardware.read_text())
    hardware.write_text(re.sub(r"exit\(1\);", "for (;;);", re.sub(r"printf\(.*;|#include <std(io|lib).h>", "", text)))
    run(*command, cwd=place)


@pytest.mark.parametrize("standard", ["gnu11", "c11", "c17"])
def test_sources_and_examples_are_strict_c(standard: str, arduino: Path, tmp_path: Path) -> None:
    shared = EXAMPLES / "boards"
    for source in (*sorted((arduino / "src").glob("*.c")), shared / "learn.c", shared / "main.c"):
        flags = (f"-std={standard}", *STRICT, f"-I{arduino / 'src'}", f"-I{shared}")
        run("gcc", *flags, "-c", source, "-o", "out.o", cwd=tmp_path)


def test_headers_are_strict_cpp(arduino: Path, tmp_path: Path) -> None:
    (tmp_path / "headers.cpp").write_text('#include "digits_train.h"\n#include "digits_board.h"\n')
    run("g++", "-std=c++17", *STRICT, f"-I{arduino / 'src'}", "-c", "headers.cpp", cwd=tmp_path)


def test_the_makefile_example(project: Project, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "boards", tmp_path / "boards")
    place = tmp_path / "boards" / "makefile"
    facts = PackageFacts("digits", load_target("nucleo-f746zg"))
    _write(package_files("makefile", project.bundle, facts), place / "digits")
    run("make", cwd=place)
    run(place / "learn", cwd=place)
    built = (place / "digits" / "build" / "digits_train.o").stat
    first = built().st_mtime_ns
    assert "digits_train.c" not in run("make", cwd=place) and built().st_mtime_ns == first
    run("make", "-C", "digits", "MACHINE=-fno-builtin", cwd=place)
    assert built().st_mtime_ns > first, "objects of other flags are not kept"


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("board", ["nrf52840-dk", "nucleo-f746zg", "rpi-pico"])
def test_an_image_of_a_board_is_what_its_report_says(board: str, tmp_path: Path) -> None:
    """The short form of `make bench NAME=boards`; the F746's plan lies in two memories. Wrong figures are seen."""
    two = {"update": "all", "reserve_bytes": 32 << 10, "arena_bytes": 16 << 10, "memories": {"dtcm": 16 << 10}}
    target, more = load_target(board), two if board == "nucleo-f746zg" else {}
    assert target.board is not None
    made = _project(board, "cmake", verify="qemu", **more)
    shutil.copytree(EXAMPLES / "boards", tmp_path / "boards")
    source = tmp_path / "boards" / "cmake"
    _write(made.files, source / "digits")
    report = report_json(made.summary)
    linked = link(source, tmp_path / "build", "learn", {"digits": report})
    assert list(differences(linked, target.board)) == [] and ram_is_in_qemu(linked, target)
    assert run_in_qemu(source, tmp_path / "qemu", "learn", target) == 0
    assert {piece.output for piece in pieces(linked.map_text) if "libdigits" in piece.file} == {".text"}
    assert f" {_bytes(report):,} of {target.board.flash_bytes:,} | {_ram(report)} | equal |" in PAGE, "bench-boards"
    other = load_target("nrf52840-dk" if board == "rpi-pico" else "rpi-pico").board
    assert other is not None
    assert any("lies in no memory of the board" in text for text in differences(linked, other))
    used = [memory for memory in report["board"]["memories"] if memory["used_bytes"]]
    for memory in used:
        memory["used_bytes"] += 8
    report["flash"]["code_bytes"] += 1
    seen = [text.split(":")[0] for text in differences(linked, target.board)]
    assert seen == [*(memory["name"] for memory in used), "flash of digits"] and len(used) == (2 if more else 1)


def _bytes(report: dict[str, Any]) -> int:
    return report["flash"]["code_bytes"] + report["flash"]["const_bytes"]


def _ram(report: dict[str, Any]) -> str:
    memories = [memory for memory in report["board"]["memories"] if memory["used_bytes"]]
    return ", ".join(f"{one['name']} {one['used_bytes']:,} of {one['model_bytes']:,}" for one in memories)
