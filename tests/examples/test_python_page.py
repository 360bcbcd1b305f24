"""docs/python-api.md: every public name with its signature, and examples that run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tinytrain_compile as tt
from testing.places import ROOT

PAGE = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
CALLED = {"Compiled": "compiled", "Twin": "twin", "Deltas": "deltas"}
"""How the page calls an object of each class."""


def signature(call: Any, own: bool = False) -> str:
    """Return the arguments of a call without types, and without self."""
    found = inspect.signature(call)
    known = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    bare = found.replace(parameters=known[1:] if own else known, return_annotation=inspect.Signature.empty)
    return str(bare).replace("'", '"')


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Return the public names of a class itself, and what they are."""
    return ((name, value) for name, value in vars(kind).items() if not name.startswith("_"))


def test_every_public_name_is_in_the_page() -> None:
    assert [name for name in tt.__all__ if f"tt.{name}" not in PAGE and f"`{name}`" not in PAGE] == []


def test_functions_have_their_signatures() -> None:
    flat = re.sub(r"\s+", " ", PAGE)
    wanted = [f"tt.{name}{signature(getattr(tt, name))}" for name in ("compile", "from_torch", "finetune")]
    assert [one for one in wanted if one not in flat] == []


def test_methods_have_their_signatures() -> None:
    missing: list[str] = []
    for kind, called in CALLED.items():
        for name, value in members(getattr(tt, kind)):
            if inspect.isfunction(value):
                shown = f"{called}.{name}{signature(value, own=True)}"
            elif isinstance(value, classmethod):
                shown = f"tt.{kind}.{name}{signature(getattr(getattr(tt, kind), name))}"
            else:
                shown = f"{called}.{name}"
            missing += [shown] if shown not in PAGE else []
    assert missing == []


def test_the_examples_run_one_after_the_other(tmp_path: Path) -> None:
    """Those with PyTorch and the search, which the page of finetune has too, are marked."""
    program = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    assert program.count("tt.compile(") == 3
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "E0401 3" in done.stdout
    assert (tmp_path / "device.bin").is_file() and (tmp_path / "fleet" / "digits_delta.json").is_file()
