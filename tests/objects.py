"""Compiles what the compiler has seen before only once in a run of the tests: same command, same text, same object."""

from __future__ import annotations

import hashlib
import importlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

RESULTS = (".o", ".su", ".ci")
"""What GCC writes for a source file: the object, and for a board its frames and its call graph."""


def kept_objects(store: Path) -> pytest.MonkeyPatch:
    """Let verification take objects from `store`, which processes may share, and put new ones there, until undone."""
    build = importlib.import_module("tinytrain_compile.verify.build")  # the package has a function of this name
    patch, compile_now = pytest.MonkeyPatch(), build._compile

    def compile_once(compiler: list[str], source: str, folder: Path) -> Path:
        known = store / _key(compiler, source, folder)
        if not known.is_dir():
            _keep(compile_now(compiler, source, folder), known)
        for result in known.iterdir():
            shutil.copyfile(result, (folder / source).with_suffix(result.suffix))
        return (folder / source).with_suffix(".o")

    patch.setattr(build, "_compile", compile_once)
    return patch


def _keep(made: Path, known: Path) -> None:
    """Copy an object and what lies beside it; if another process was faster, what it made is the same."""
    place = Path(tempfile.mkdtemp(dir=known.parent))
    for result in (made.with_suffix(suffix) for suffix in RESULTS):
        if result.is_file():
            shutil.copyfile(result, place / f"result{result.suffix}")
    try:
        place.rename(known)
    except OSError:
        shutil.rmtree(place)


def _key(compiler: list[str], source: str, folder: Path) -> str:
    """All that decides an object: the command, and the texts of the file and of all that it includes."""
    texts = (f"{path.relative_to(folder)}\n{text}" for path, text in _included(folder / source, folder, set()))
    return hashlib.sha256("\0".join([*compiler, source, *texts]).encode()).hexdigest()


def _included(path: Path, folder: Path, seen: set[Path]) -> Iterator[tuple[Path, str]]:
    """A file of the project and those that it includes, in order; the compiler's own belong to its path."""
    seen.add(path)
    text = path.read_text(encoding="utf-8")
    yield path, text
    for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE):
        for place in (path.parent / name, folder / name, folder / "verify" / name):
            if place.is_file() and place not in seen:
                yield from _included(place, folder, seen)
