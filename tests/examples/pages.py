"""Runs the commands that a page quotes, through scripts/transcripts.py, which also writes the pages."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from testing.places import ROOT, SHARED


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


transcripts = _load("transcripts")


def check_page(path: str, only: str = "", without: str = "") -> None:
    """Every block of the page is what its command prints now; blocks that need ../shared only where that exists.

    only / without: a text that blocks must have, or must not have, to be run.
    """

    def wanted(block: str) -> bool:
        possible = (SHARED / "models").is_dir() or not any(text in block for text in ("figures.py", "../shared"))
        return possible and only in block and (not without or without not in block)

    with transcripts.sandbox() as folder:
        page = transcripts.refresh(path, folder, wanted)
    assert page.differences() == [], f"{path} is out of date; `make docs` writes it anew"
