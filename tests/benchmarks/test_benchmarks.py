"""The entry point of the benchmarks, the targets of make, and what pages and docstrings say of both."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from testing.derivative_faults import faults, with_fault
from testing.places import ROOT

FOLDER = ROOT / "benchmarks"
TEXTS = sorted(
    path
    for folder in ("docs", "tests", "testing", "scripts", "benchmarks", "examples", "compiler", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".toml", "") and path.is_file() and not {"out", "build"} & set(path.parts)
)
TEXTS += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
MOST_TARGETS = 15
"""Lines that `make help` may print: a screen."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def listed() -> dict[str, str]:
    """Name -> its line, as the entry point prints them."""
    done = run()
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("  ")]
    return {row[0]: row[1] for row in rows}


def imported(path: Path) -> set[str]:
    """Modules of benchmarks/ that a module imports, wherever in it."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
            found.add(node.module or "")
    return found


def test_every_benchmark_is_listed_with_a_line_of_its_own() -> None:
    found = listed()
    assert {"zoo", "bars", "streams", "auto", "learning", "power-cuts", "derivative"} <= set(found)
    assert "auto-cases" not in found and "record" not in found, "others share these"
    assert all(len(line) > 20 for line in found.values()) and len(set(found.values())) == len(found)


def test_a_benchmark_gets_its_own_arguments() -> None:
    done = run("kernels/bars")
    assert done.returncode == 1 and "no benchmark is called kernels/bars" in done.stderr
    done = run("bars", "--help")
    assert done.returncode == 0 and "--only" in done.stdout and "benchmarks bars" in done.stdout


def test_texts_name_benchmarks_and_targets_that_exist() -> None:
    known, makefile = listed(), (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    wrong = list[str]()
    for path in TEXTS:
        text = path.read_text(encoding="utf-8", errors="replace")
        names = re.findall(r"make bench NAME=([a-z][a-z0-9-]*)", text)
        names += re.findall(r"python -m benchmarks ([a-z][a-z0-9-]*)", text)
        names += [f"benchmarks.{name}" for name in re.findall(r"python -m benchmarks\.([a-z]\w*)", text)]
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in names if name not in known]
        named = re.findall(r"`make ([a-z][a-z0-9-]*)[ `]", text)
        wrong += [f"{path.relative_to(ROOT)}: make {name}" for name in named if name not in targets]
    assert not wrong


def test_make_help_fits_a_screen() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert 10 <= len(done.stdout.splitlines()) <= MOST_TARGETS


def test_no_benchmarks_import_each_other_in_a_circle() -> None:
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FOLDER.rglob("*.py")}
    left = {name: imported(path) & set(modules) for name, path in modules.items()}
    while ready := [name for name, needs in left.items() if not needs & set(left)]:
        for name in ready:
            del left[name]
    assert not left


def test_every_fault_of_the_derivative_check_can_be_planted() -> None:
    """A text that was rewritten would end the table of faults in its middle, hours later."""
    assert len(faults()) >= 78
    for fault in faults():
        path = ROOT / "compiler" / "tinytrain_compile" / fault["file"]
        assert with_fault(fault, path.read_text(encoding="utf-8"))
