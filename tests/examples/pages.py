"""Runs the commands that a page quotes, through scripts/transcripts.py, which also writes the pages."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from testing.places import ROOT, SHARED

TABLE = "<!-- output: python scripts/figures.py -->\n"
"""What is above README's table."""


def _load(name: str) -> ModuleType:
    """A module of scripts/, which is no package: a user runs its files."""
    path = ROOT / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"scripts_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


sys.path.append(str(ROOT / "scripts"))  # what they import from each other
transcripts, figures = _load("transcripts"), _load("figures")


def check_page(path: str, only: str = "", without: tuple[str, ...] = ()) -> None:
    """Every block of the page is what its command prints now; blocks that need ../shared only where that exists.

    only / without: a text that blocks must have, and those that they must not have, to be run.
    """

    def wanted(block: str) -> bool:
        possible = (SHARED / "models").is_dir() or "../shared" not in block
        return possible and only in block and not any(text in block for text in without)

    with transcripts.sandbox() as folder:
        page = transcripts.refresh(path, folder, wanted)
    assert page.differences() == [], f"{path} is out of date; `make docs` writes it anew"


def check_row(name: str, flags: tuple[str, ...], report: dict[str, Any], outcome: str = "") -> None:
    """README's table has the line that scripts/figures.py makes of a report, but for the instructions."""
    rows = (ROOT / "README.md").read_text(encoding="utf-8").partition(TABLE)[2].partition("<!-- /output -->")[0]
    line = figures.line(name, flags, report, outcome)
    assert _uncounted(line) in map(_uncounted, rows.splitlines()), f"{line}: `make docs` writes it anew"


def _uncounted(line: str) -> str:
    cells = transcripts.stable(line).split(" | ")
    return " | ".join(cells[: figures.COUNTED] + cells[figures.COUNTED + 1 :])
