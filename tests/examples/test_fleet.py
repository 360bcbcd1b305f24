"""examples/fleet: what its page says of the first rounds, by both ways of averaging."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from testing.places import ROOT
from tests.emit.test_generated_c import needs_gcc

FLEET = ROOT / "examples" / "fleet"
ROUNDS = 1


def lines(*arguments: str) -> list[str]:
    command = [sys.executable, str(FLEET / "run.py"), "--rounds", str(ROUNDS), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@needs_gcc
def test_the_first_rounds_are_those_of_the_page() -> None:
    said, page = lines("--plain"), (FLEET / "README.md").read_text(encoding="utf-8")
    assert said[2].startswith("fleet, round 1")
    for line in said[: 2 + ROUNDS]:
        assert line in page
    assert float(said[2].split()[3]) > float(said[1].split()[2]) + 10, "one exchange is worth more than ten points"
    assert said[-1].startswith("each device, in all: 1 checkpoints of")
    assert said[-2] in page


@needs_gcc
def test_flower_averages_alike() -> None:
    if importlib.util.find_spec("flwr") is None:
        pytest.skip(
            "flwr is not installed (it needs an older rich): `make fleet` runs this in an environment of its own"
        )
    assert lines() == lines("--plain")
