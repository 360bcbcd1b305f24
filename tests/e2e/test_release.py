"""`make release-check`: the packages are built, checked and installed as they would be published."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testing.places import ROOT
from tinytrain_compile import __version__


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "release-check", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False
    )


@pytest.mark.slow
def test_the_packages_can_be_published_but_for_what_is_listed(tmp_path: Path) -> None:
    """Needs PyPI: tools and all dependencies are downloaded."""
    done = _make(f"RELEASE={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert f"installed  tinytrain-compile, version {__version__}" in said
    assert any(line.strip().startswith("ARENA") for line in said)
    reasons = [line for line in said if line.startswith("not ready  ")]
    assert ("development version" in reasons[0]) == (".dev" in __version__)
    refused = _make(f"RELEASE={tmp_path}", "ARGS=--publish --no-install")
    assert refused.returncode != 0 and reasons == [line for line in refused.stdout.splitlines() if line in reasons]
