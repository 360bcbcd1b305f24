"""The short form of `make bench NAME=learning`: one speaker, the head alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from testing.places import ROOT
from tests.emit.test_generated_c import needs_gcc

pytestmark = needs_gcc
SHORT = "--tasks=keywords", "--updates=head", "--seeds=1", "--development=1", "--passes=2", "--jobs=1"


def printed(keep: Path) -> str:
    command = [sys.executable, "-m", "benchmarks", "learning", *SHORT, f"--keep={keep}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_head_learns_a_speaker_and_what_is_kept_is_not_trained_again(tmp_path: Path) -> None:
    first = printed(tmp_path / "keep")
    rows = {line.split(" | ")[0].strip("| "): line for line in first.splitlines() if line.startswith("| ")}
    cells = [re.findall(r"\| ([0-9.]+) /", rows[name]) for name in ("nothing", "head")]
    assert len(cells[0]) == len(cells[1]) == 4, first
    assert all(float(after) > float(before) for before, after in zip(*cells, strict=True)), first
    written = (tmp_path / "keep").stat().st_mtime_ns
    assert printed(tmp_path / "keep") == first
    assert (tmp_path / "keep").stat().st_mtime_ns == written, "nothing was done again"
