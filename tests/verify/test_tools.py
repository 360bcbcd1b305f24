"""The check with tools that are missing, twice, and by a user's own hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.marks import needs_qemu
from tests.verify import tiny_model
from tinytrain_compile.target import load_target
from tinytrain_compile.verify import (
    build,
    find_tools,
    verification_files,
    verification_input,
    verify,
)
from tinytrain_compile.verify.build import write_files

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
    assert (
        "PASS   QEMU check skipped: arm-none-eabi-gcc and qemu-system-arm not found "
        "(apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm)"
    ) in report.message


@needs_qemu
@pytest.mark.qemu
def test_without_qemu_the_sizes_are_still_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, "gcc", "arm-none-eabi-gcc"))
    report = verify(tiny_model.bundle(), M7, DATA, None, "qemu", steps=1)
    assert report.mode == "host"
    assert report.message == "PASS   QEMU check skipped: qemu-system-arm not found (apt-get install qemu-system-arm)"
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


def test_building_twice_gives_the_same_image(tmp_path: Path) -> None:
    tools = find_tools()
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
