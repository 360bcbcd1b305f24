"""Deviations from MISRA C:2012 that cppcheck's addon reports in C files: rule and place of each."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

CPPCHECK = shutil.which("cppcheck")
"""The program; scripts/install_tools.sh installs it. None: there is none."""
_FOUND = re.compile(r"^(?P<place>[^:]+:\d+:\d+):misra-c2012-(?P<rule>\d+\.\d+)$", re.MULTILINE)


def version() -> str:
    """Return the version of cppcheck, as in "2.10"."""
    return _run(["--version"], Path.cwd()).split()[-1]


def deviations(folder: Path, sources: Iterable[str]) -> set[tuple[str, str]]:
    """Check C files of a folder; return (rule, place) of each deviation, once."""
    flags = ["--addon=misra", "--std=c11", "--enable=style", "--quiet", "--inline-suppr", "--platform=unix32"]
    said = _run([*flags, "--template={file}:{line}:{column}:{id}", "-I.", *sources], folder)
    return {(found["rule"], found["place"]) for found in _FOUND.finditer(said)}


def rule_order(rule: str) -> tuple[int, ...]:
    """Sort rules by number."""
    return tuple(map(int, rule.split(".")))


def _run(arguments: list[str], folder: Path) -> str:
    assert CPPCHECK is not None, "cppcheck is not installed: scripts/install_tools.sh installs it"
    done = subprocess.run([CPPCHECK, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=3600)
    said = done.stdout + done.stderr
    if done.returncode or "addon" in done.stderr.lower():
        raise RuntimeError(f"cppcheck failed:\n{said}")
    return said
