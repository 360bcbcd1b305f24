"""The short form of `make bench NAME=convergence`: int8 learns like float32, and broken arithmetic is seen to break."""

from __future__ import annotations

import subprocess
import sys

from testing.places import ROOT


def test_int8_learns_and_its_controls_fail() -> None:
    command = [sys.executable, "-m", "benchmarks", "convergence", "--short"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("fails as it must") == 2 and "met" in done.stdout, done.stdout
