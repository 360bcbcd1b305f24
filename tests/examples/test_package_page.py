"""docs/packages.md: the commands that need no SDK are run as they stand, one after the other, in a fresh copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testing.places import ROOT
from tests.e2e.marks import needs_qemu

PAGE = (ROOT / "docs" / "packages.md").read_text(encoding="utf-8")


def commands(title: str) -> str:
    """The shell blocks of a section."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL))


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize(("title", "made"), [("CMake", "build/learn*"), ("Make", "examples/boards/makefile/learn")])
def test_the_commands_of_the_page_work(title: str, made: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("out"))
    script = commands(title)
    assert script.count("tinytrain-compile") >= 1 and "examples/boards" in script
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert list(tmp_path.glob(made))
