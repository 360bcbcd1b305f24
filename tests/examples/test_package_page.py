"""The commands of docs/packages.md, as they stand there: all but those of SDKs, which are not at hand."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from testing.places import ROOT
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu

PAGE = (ROOT / "docs" / "packages.md").read_text(encoding="utf-8")
SDKS = {"pio": "PlatformIO", "west": "Zephyr", "idf.py": "ESP-IDF"}
SECTIONS = {
    title: [
        line
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
}


def test_every_kind_has_its_commands() -> None:
    made = [line for lines in SECTIONS.values() for line in lines if line.startswith("tinytrain-compile ")]
    kinds = {word for line in made for word in re.findall(r"--package (\S+)", line)}
    assert kinds == {"cmake", "makefile", "arduino", "platformio", "zephyr", "esp-idf"} and len(made) == 8
    left_out = {shlex.split(line)[0]: title for title, lines in SECTIONS.items() for line in lines if _is_of_sdk(line)}
    assert left_out == SDKS


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("title", [title for title, lines in SECTIONS.items() if lines])
def test_commands(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages are not verified here; what is built for this machine runs, as the page says."""
    for name in ("boards", "digits", "linear"):
        shutil.copytree(ROOT / "examples" / name, tmp_path / "examples" / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for line in SECTIONS[title]:
        if line.startswith("tinytrain-compile "):
            arguments = [str(Path(word).expanduser()) for word in shlex.split(line)[1:]]
            run(*arguments, "--verify", "none").check_success()
        elif not _is_of_sdk(line):
            done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    if title == "CMake":
        assert (tmp_path / "build" / "learn").stat().st_size > 30_000
    if title == "Arduino":
        assert (tmp_path / "home" / "Arduino" / "libraries" / "digits" / "library.properties").is_file()


def _is_of_sdk(line: str) -> bool:
    return shlex.split(line)[0] in SDKS
