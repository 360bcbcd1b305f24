"""Store of objects in the folder TINYTRAIN_OBJECTS of the environment: no file is compiled twice for a check.

An object is reused only if the compiler, its command line and every text that it reads are the same.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tinytrain_compile.verify.tools import SCRATCH

VARIABLE = "TINYTRAIN_OBJECTS"
_RESULTS = (".o", ".su", ".ci")
"""Suffixes of the files that GCC writes for a source file: the object, and for a board its frames and its call
graph."""


def compile_once(command: list[str], source: str, folder: Path, compile_now: Callable[[], None]) -> None:
    """Put the object of `source`, a path in `folder`, beside it: from the store, or made by `compile_now`."""
    store = os.environ.get(VARIABLE)
    if not store:
        compile_now()
        return
    known = Path(store) / _key(command, source, folder)
    if not known.is_dir():
        compile_now()
        _keep(folder / source, known)
        return
    for kept in known.iterdir():
        shutil.copyfile(kept, (folder / source).with_suffix(kept.suffix))


def _keep(source: Path, known: Path) -> None:
    """Copy the object and the files beside it; if that fails, or another process was faster, nothing is kept."""
    with suppress(OSError):
        known.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=known.parent, prefix="new-") as name:
            place = Path(name) / "kept"
            place.mkdir()
            for made in map(source.with_suffix, _RESULTS):
                if made.is_file():
                    shutil.copyfile(made, place / made.name)
            place.rename(known)


def _key(command: list[str], source: str, folder: Path) -> str:
    """Return a hash of everything that determines an object."""
    parts = [_identity(Path(command[0]).resolve()), *command]
    for path in _included(folder / source, folder, set()):
        parts += [os.path.relpath(path, folder), hashlib.sha256(path.read_bytes()).hexdigest()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _identity(program: Path) -> str:
    """Return a compiler's identity, which changes if it is reinstalled; one that cannot be run gets its own and will
    report its error."""
    try:
        state = program.stat()
    except OSError:
        return f"{program}: none"
    return f"{program}: {state.st_size} bytes of {state.st_mtime_ns}"


def _included(path: Path, folder: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield a file of the project and all files that it may include; headers in angle brackets belong to the
    compiler."""
    seen.add(path)
    yield path
    text = path.read_text(encoding="utf-8", errors="replace")
    names = re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.MULTILINE)
    names += re.findall(r'\.incbin\s*\\?"([^"\\]+)', text)  # data that an assembler reads
    if re.search(r"^\s*#\s*include\s*\w", text, re.MULTILINE):  # the name is a macro: it may be any file
        places = (place for place in sorted(folder.rglob("*")) if SCRATCH not in place.parts)
        names += [str(place) for place in places if place.suffix not in _RESULTS]
    for name in names:
        for place in (path.parent / name, folder / name, folder / "verify" / name):
            if place.is_file() and place not in seen:
                yield from _included(place, folder, seen)
