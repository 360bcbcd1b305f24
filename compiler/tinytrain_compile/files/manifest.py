"""manifest.json: which files of an output folder this compiler wrote, and what they held."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tinytrain_compile import __version__
from tinytrain_compile.files.user_file import MOST_TEXT_BYTES, read_file

MANIFEST = "manifest.json"
_DIGEST = re.compile("[0-9a-f]{64}")


def manifest_text(files: Mapping[str, bytes]) -> bytes:
    """The manifest of these files (relative path -> content)."""
    known = {path: hashlib.sha256(files[path]).hexdigest() for path in sorted(files)}
    return (json.dumps({"tinytrain_compile": __version__, "sha256": known}, indent=1) + "\n").encode()


def read_manifest(manifest: Path) -> dict[str, str] | None:
    """Relative path -> SHA-256 of all that a run wrote beside a manifest; None if there is none.

    Raises ValueError for one that no run can have written, OSError for one that cannot be read.
    """
    if not os.path.lexists(manifest):
        return None
    try:
        content: Any = json.loads(read_file(manifest, MOST_TEXT_BYTES, moving=True))
        known = {str(path): str(digest) for path, digest in content["sha256"].items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ValueError("another structure") from problem
    for path, digest in known.items():
        if not _inside(path) or not _DIGEST.fullmatch(digest):
            raise ValueError(f"no such file is written: {path}")
    return known


def _inside(path: str) -> bool:
    """Whether a path is one that a run may write: plain, relative, downwards."""
    parts = PurePosixPath(path).parts
    return "/".join(parts) == path and ".." not in parts and not re.search(r"[\\:\0]", path) and path[:1] not in "/."


def own_file(folder: Path, path: str) -> Path | None:
    """A file of an earlier output, if it is there and is what was written; OSError if that cannot be said."""
    try:
        known = read_manifest(folder / MANIFEST) or {}
    except ValueError:
        return None
    return folder / path if path in known and unchanged(folder / path, known[path]) else None


def unchanged(place: Path, digest: str) -> bool:
    """Whether a regular file holds what a run wrote there."""
    if place.is_symlink() or not place.is_file():
        return False
    total = hashlib.sha256()
    with place.open("rb") as stream:
        while piece := stream.read(1 << 20):
            total.update(piece)
    return total.hexdigest() == digest


def objection(folder: Path, names: Iterable[str], known: Mapping[str, str], force: bool) -> str:
    """What a folder holds that does not let a run write `names` where an earlier one wrote `known`; "" if it may.

    Under `force` whatever is a file may be overwritten by one of its name; a folder never is.
    """
    wanted = set(names)
    for path in sorted(wanted | set(known)):
        place = folder / path
        for above in place.parents:
            if above == folder:
                break
            if os.path.lexists(above) and (above.is_symlink() or not above.is_dir()):
                return f"{above.name}, which is no folder"
        if place.is_dir() and not place.is_symlink():
            if path in wanted:
                return f"a folder {path}"
        elif os.path.lexists(place) and not force:
            if path not in known and path != MANIFEST:
                return f"{path}, which no earlier run has written"
            if path in known and not unchanged(place, known[path]):
                return f"{path}, which was changed after it was written"
    return ""
