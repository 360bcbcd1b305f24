"""The check with tools that are missing, twice, and by a user's own hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from testing.runs import build
from tests.e2e.marks import needs_qemu
from tests.verify import tiny_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.summary import Unverified
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify import run
from tinytrain_compile.verify.build import write_files
from tinytrain_compile.verify.check import verify
from tinytrain_compile.verify.cycles import disassembly
from tinytrain_compile.verify.firmware import verification_files, verification_input
from tinytrain_compile.verify.tools import find_tools

M7 = load_target("cortex-m7")
DATA = tiny_model.samples()


# ---- missing tools --------------------------------------------------------------------------------------------------


def only(tmp_path: Path, *programs: str) -> str:
    """A PATH on which just these programs (and what gcc needs) are found."""
    for name in (*programs, "as", "ld"):
        found = shutil.which(name)
        if found is not None:
            (tmp_path / name).symlink_to(found)
    return str(tmp_path)


def test_without_cross_tools_the_host_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, "gcc"))
    report = verify(tiny_model.bundle(), M7, DATA, tiny_model.reference(DATA, 2), "qemu", steps=2)
    assert (report.mode, report.result) == ("host", "pass")
    missing = (
        "arm-none-eabi-gcc and qemu-system-arm not found "
        "(apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm)"
    )
    assert report.unverified == Unverified(missing, ("on this machine",))
    assert report.message.endswith(f"PASS   {report.unverified.text}")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("host", ""),
        ("esp32-s3", "its Xtensa core gets plain C; no cross compiler and no QEMU machine for it were at hand"),
        ("esp32-c3", "riscv64-unknown-elf-gcc and qemu-system-riscv32 not found (apt-get install "),
        ("ek-ra8m1", "its Cortex-M85 runs the code of a Cortex-M55, "),
        ("cortex-m85", "its file names no QEMU machine; arm-none-eabi-gcc not found (apt-get install "),
    ],
)
def test_a_report_says_that_the_core_itself_was_not_verified(
    target: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, "gcc"))
    report = verify(tiny_model.bundle(), load_target(target), DATA, None, "qemu", steps=1)
    assert (report.mode, report.result) == ("host", "pass")
    assert report.unverified is None if not why else report.unverified is not None
    if report.unverified is not None:
        assert report.unverified.why.startswith(why) and report.unverified.instead == ("on this machine",)


@needs_qemu
@pytest.mark.qemu
def test_the_machine_of_another_core_does_not_verify_a_part() -> None:
    """The Cortex-M85 of the EK-RA8M1 runs the code of an M55: what that one's machine shows is no check of it."""
    board, core = (
        verify(tiny_model.bundle(), load_target(t), DATA, None, "qemu", steps=1) for t in ("ek-ra8m1", "cortex-m55")
    )
    assert board.mode == core.mode == "qemu" and core.unverified is None
    assert board.unverified is not None
    assert board.unverified.instead == ("on this machine", "in QEMU mps3-an547")


@needs_qemu
@pytest.mark.qemu
def test_without_qemu_the_sizes_are_still_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, "gcc", "arm-none-eabi-gcc"))
    report = verify(tiny_model.bundle(), M7, DATA, None, "qemu", steps=1)
    assert report.mode == "host"
    assert report.unverified is not None
    assert report.unverified.why == "qemu-system-arm not found (apt-get install qemu-system-arm)"
    assert report.stack_bytes is not None
    assert report.code_bytes is not None


@needs_qemu
@pytest.mark.qemu
def test_without_a_host_compiler_the_board_is_compared_with_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, "arm-none-eabi-gcc", "qemu-system-arm"))
    report = verify(tiny_model.bundle(), M7, DATA, tiny_model.reference(DATA, 2), "qemu", steps=2)
    assert (report.mode, report.result) == ("qemu", "pass")
    assert report.message.startswith("reference == QEMU mps2-an500   QEMU max |err| ")


def test_without_any_compiler_the_check_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = verify(tiny_model.bundle(), M7, DATA, None, "qemu", steps=2)
    assert (report.mode, report.result) == ("none", "skipped")
    assert "no C compiler found" in report.message


# ---- tools that do not do what they are for -------------------------------------------------------------------------


def standing_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a shell script before a program; in it REAL is that program."""
    place = tmp_path / "bin"
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!/bin/sh\nREAL={shutil.which(name)}\n{script}\n")
    (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("TINYTRAIN_OBJECTS", raising=False)


CROSS, EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
ONLY_C = 'case "$*" in *" -c "*) exec $REAL "$@";; esac'
GARBAGE = 'while [ "$1" != -o ]; do shift; done; echo no object > "$2"; touch "${2%.o}.ci"'
NO_GRAPH = '$REAL "$@" && rm -f *.ci verify/*.ci'
IDLE = [
    ("gcc", "exit 0", "compiling .*: gcc ended without an error, but wrote no .*[.]o"),
    ("gcc", ONLY_C, "linking: gcc ended without an error, but wrote no check"),
    ("gcc", GARBAGE, "no ELF file with symbols"),
    (CROSS, "exit 0", f"compiling .*: {CROSS} ended without an error, but wrote no .*[.]o"),
    (CROSS, NO_GRAPH, f"compiling .*: {CROSS} ended without an error, but wrote no .*[.]ci"),
    (CROSS, ONLY_C, f"linking: {CROSS} ended without an error, but wrote no check.elf"),
    (CROSS, GARBAGE, "no ELF file with symbols"),
    (EMULATOR, "exit 0", f"QEMU check on mps2-an500: {EMULATOR} ended without an error, but wrote no output.bin"),
    (EMULATOR, "touch output.bin", "QEMU check on mps2-an500: the check program's output is incomplete"),
    (EMULATOR, "exec sleep 60", f"{EMULATOR} is still running after 1 s .*check that {EMULATOR} works"),
]


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "script", "said"), IDLE)
def test_a_tool_that_does_nothing_is_named(
    name: str, script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the folder for temporary files (E0110), and not the compiler (E0901)."""
    standing_in(tmp_path, monkeypatch, name, script)
    monkeypatch.setattr(run, "BASE_S", 1)
    mode = "host" if name == "gcc" else "qemu"
    with pytest.raises(CompileError, match=said) as caught:
        verify(tiny_model.bundle(), M7, DATA, None, mode, steps=1, expected_cycles=100)  # type: ignore[arg-type]
    assert caught.value.code == "E0602"


@needs_qemu
@pytest.mark.qemu
def test_a_plugin_that_counts_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standing_in(tmp_path, monkeypatch, EMULATOR, '$REAL "$@"; rm -f counts.txt')
    with pytest.raises(CompileError, match="wrote no counts"):
        verify(tiny_model.bundle(), M7, DATA, None, "qemu", steps=2, count=True)


def test_a_disassembler_that_prints_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert M7.toolchain is not None
    standing_in(tmp_path, monkeypatch, "arm-none-eabi-objdump", "exit 0")
    with pytest.raises(CompileError, match="arm-none-eabi-objdump printed no instruction of check"):
        disassembly(tmp_path / "check.elf", M7.toolchain)


def test_the_time_of_a_run_is_limited_by_its_work() -> None:
    assert run.limit_of(0, False).seconds == 60
    assert run.limit_of(2_000_000_000, False).seconds == 260
    assert run.limit_of(2_000_000_000, True).seconds == 860


def test_building_twice_gives_the_same_image(tmp_path: Path) -> None:
    tools = find_tools(M7)
    if tools.cross_cc is None:
        pytest.skip(tools.missing_for_qemu())
    images = [build(tiny_model.bundle(), M7, "qemu", tools, tmp_path / n).image.read_bytes() for n in ("a", "longer")]
    assert images[0] == images[1]


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["cortex-m7", "cortex-m55"])
def test_a_user_can_repeat_the_check(name: str, tmp_path: Path) -> None:
    """The generated Makefile, as its README says."""
    if shutil.which("make") is None:
        pytest.skip("make not found")
    bundle, target = tiny_model.bundle(accumulates=True), load_target(name)
    write_files(tmp_path, {**bundle.files, **verification_files(bundle, target)})
    vectors = verification_input(bundle.interface, DATA, 3, 2, 0.01)
    (tmp_path / "verify" / "vectors.bin").write_bytes(vectors)
    # `make test` runs this test: the inner make must not take over the outer one's flags and level.
    outer = {key: value for key, value in os.environ.items() if not key.startswith("MAKE") and key != "MFLAGS"}
    made = subprocess.run(
        ["make", "compare"], cwd=tmp_path / "verify", capture_output=True, text=True, check=False, env=outer
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.splitlines()[-1] == "equal"
