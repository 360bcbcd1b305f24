"""Writes the output folder all or nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tinytrain_compile.errors import CompileError

MARKS = ("report.json", "plan.json", "tt_runtime.h")
"""A folder that holds these files is ours and may be replaced."""


def write_output(folder: Path, files: Mapping[str, str | bytes]) -> str:
    """Write into a temporary folder beside `folder`, then swap; returns the SHA-256 over all files.

    Raises CompileError E0104; then `folder` is as it was.
    """
    check_place(folder)
    aside: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as problem:
        raise _cannot(folder, problem) from problem
    try:
        _fill(fresh, files)
        os.chmod(fresh, 0o755)
        if folder.exists():
            aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent)) / "old"
            os.replace(folder, aside)
        os.replace(fresh, folder)
    except OSError as problem:
        if aside is not None and not folder.exists():
            os.replace(aside, folder)
        raise _cannot(folder, problem) from problem
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if aside is not None:
            shutil.rmtree(aside.parent, ignore_errors=True)
    return digest_of(files)


def check_place(folder: Path, sources: Iterable[Path] = ()) -> None:
    """Raise CompileError E0104 if `folder` may not be replaced: it is no folder, not ours, or holds a file we read."""
    try:
        problem = _objection(folder, sources)
    except OSError as error:
        raise _cannot(folder, error) from error
    if problem:
        raise CompileError("E0104", str(folder), problem, "choose another name with -o")


def _objection(folder: Path, sources: Iterable[Path]) -> str:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        return "is not a folder"
    if not folder.is_dir():
        return ""
    if any(folder.iterdir()) and not all((folder / mark).is_file() for mark in MARKS):
        return "is not empty and not an earlier output"
    inside = [source.name for source in sources if source.resolve().is_relative_to(folder.resolve())]
    return f"holds {inside[0]} and would be replaced" if inside else ""


def _fill(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)


def digest_of(files: Mapping[str, str | bytes]) -> str:
    """SHA-256 over names and contents, in name order."""
    total = hashlib.sha256()
    for path in sorted(files):
        content = files[path]
        data = content.encode() if isinstance(content, str) else content
        total.update(f"{path}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def _cannot(folder: Path, problem: OSError) -> CompileError:
    return CompileError(
        "E0104", str(folder), f"cannot be written ({problem.strerror or problem})", "check the folder and disk"
    )
