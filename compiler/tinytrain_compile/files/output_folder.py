"""Writes the files of a run into the output folder, all or none, and touches nothing there that no run wrote.

The folder may hold whatever else the user keeps there, so it is not exchanged as a whole. Files are moved one by one,
under a journal by which a run that is interrupted is undone, by itself or by the next one: docs/adr/0019-output.md.
manifest.json says which files the compiler wrote, and what they held.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tinytrain_compile import __version__
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import JOURNAL, MOST_TEXT_BYTES, NEW, OLD, read_file, wait_for

STAGED = ".tinytrain-new-"
"""Folders in the output folder that become the journal, and that it becomes, until they are removed."""
WRITTEN = "the output is complete"
"""What to say of an interrupt that came when everything was in place."""
STALE_S = 600.0
"""New files that stay so long were left by a run that was killed."""
_HEADER = "_train.h"
"""What a firmware includes: without it nothing is built from the other files."""
_ANOTHER = "choose another folder with -o, or add --force, which overwrites files of these names"


@dataclass(frozen=True)
class Written:
    """What a run has written: paths relative to the folder, and the SHA-256 over all of it."""

    paths: tuple[str, ...]
    digest: str


def write_output(
    folder: Path, files: Mapping[str, str | bytes], inputs: Iterable[Path] = (), force: bool = False
) -> Written:
    """Replace what an earlier run wrote into `folder` by `files`, with a manifest of them.

    inputs: files that this run has read: they stay, if only an earlier run wrote them. force: overwrite files of the
    same names that no run wrote, or that were changed since. Raises CompileError E0104; then `folder` is as it was.
    """
    data = {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}
    data[MANIFEST] = manifest_text(data)
    made = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    exchange = _Exchange(folder, inputs, force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        exchange.stage(data)
        exchange.run()
        sweep(folder)
    except OSError as problem:
        if not exchange.complete:  # network file systems may complain of a rename that they have made
            raise _cannot(folder, problem) from problem
    except KeyboardInterrupt as problem:
        if exchange.complete:
            problem.args = (WRITTEN,)
        raise
    finally:
        exchange.clean()
        for place in made:
            with suppress(OSError):
                place.rmdir()
    return Written(tuple(sorted(data)), digest_of(data))


def check_place(folder: Path, names: Iterable[str] = (), force: bool = False) -> None:
    """Raise CompileError E0104 if a run may not write files of these names into `folder`; see `write_output`."""
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise CompileError("E0104", str(folder), "is not a folder", "choose another name with -o")
        if folder.is_dir():
            _recover(folder)
            _known(folder, {*names, MANIFEST}, force)
    except OSError as error:
        raise _cannot(folder, error) from error


def replace_file(path: Path, content: str | bytes) -> None:
    """Write one file whole or not at all. Errors: OSError."""
    replace_files({path: content})


def replace_files(files: Mapping[Path, str | bytes]) -> None:
    """Write files whole or not at all; all are written before the first is in its place. Errors: OSError."""
    fresh = {path: path.with_name(f".{path.name}-{secrets.token_hex(4)}") for path in files}
    try:
        for path, content in files.items():
            fresh[path].write_bytes(content.encode() if isinstance(content, str) else content)
        for path, made in fresh.items():
            os.replace(made, path)
    finally:
        for made in fresh.values():
            made.unlink(missing_ok=True)


class _Exchange:
    """One exchange of files. Until `complete` it leaves the folder as it was, however it ends."""

    def __init__(self, folder: Path, inputs: Iterable[Path], force: bool) -> None:
        self._folder, self._inputs, self._force = folder, inputs, force
        self._staged = folder / f"{STAGED}{secrets.token_hex(8)}"
        self._journal = folder / JOURNAL
        self._names: tuple[str, ...] = ()
        self.complete = False

    def stage(self, data: Mapping[str, bytes]) -> None:
        """Write everything, which is where a disk may be full, and nothing is in its place yet."""
        self._staged.mkdir()
        (self._staged / OLD).mkdir()
        (self._staged / MANIFEST).write_bytes(manifest_text(data))
        for path, content in data.items():
            place = self._staged / NEW / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        self._names = tuple(data)

    def run(self) -> None:
        """Move files out of their places and into them. The last rename, of the journal, makes it so."""
        moving = False
        try:
            self._begin()
            leaving = self._leaving()
            moving = True
            for path in _leading_first(leaving):
                _move(self._folder / path, self._journal / OLD / path)
            for path in reversed(_leading_first(self._names)):
                _move(self._journal / NEW / path, self._folder / path)
            _prune(self._folder, leaving)
            os.rename(self._journal, self._staged)
            self.complete = True
        except BaseException as problem:
            if not self._staged.exists():
                self._undo(problem)
            elif moving:  # interrupted between the last rename and the line after it
                self.complete = True
            raise

    def clean(self) -> None:
        """Remove the files that are not needed any more; what cannot be removed stays for `sweep`."""
        try:
            shutil.rmtree(self._staged, ignore_errors=True)
        except KeyboardInterrupt as problem:
            shutil.rmtree(self._staged, ignore_errors=True)
            if self.complete:
                problem.args = (WRITTEN,)
            raise

    def _begin(self) -> None:
        """Make the new files the journal: no two runs move files at a time."""
        try:
            os.rename(self._staged, self._journal)
        except OSError:
            if not self._journal.exists():
                raise
            _recover(self._folder)
            os.rename(self._staged, self._journal)

    def _leaving(self) -> list[str]:
        """Return files that have to make place, or that only the earlier run had."""
        known = _known(self._folder, self._names, self._force)
        read = {path.resolve() for path in self._inputs}
        names, leaving = set(self._names), list[str]()
        for path in sorted({*known, *names}):
            place = self._folder / path
            obsolete = path in known and unchanged(place, known[path]) and place.resolve() not in read
            if os.path.lexists(place) and (path in names or obsolete):
                leaving.append(path)
        return leaving

    def _undo(self, problem: BaseException) -> None:
        try:
            _undo(self._folder, self._staged)
        except OSError as other:
            what = f"lies between two outputs ({problem}; then {other})"
            way = "compile again with this -o, which begins by putting the earlier output back"
            raise CompileError("E0104", str(self._folder), what, way) from other


def _known(folder: Path, names: Iterable[str], force: bool) -> dict[str, str]:
    """Read the manifest of an earlier output; E0104 if there is something that files of these names would destroy."""
    try:
        manifest = read_manifest(folder / MANIFEST)
    except ValueError as problem:
        if not force:
            what = f"holds a {MANIFEST} that no run has written ({problem})"
            raise CompileError("E0104", str(folder), what, _ANOTHER) from problem
        manifest = {}
    what = objection(folder, names, manifest or {}, force)
    if what:
        old = (
            ""
            if manifest is not None
            else f" (without {MANIFEST}, as versions up to 0.1.0 left it, all of it is yours)"
        )
        raise CompileError("E0104", str(folder), f"holds {what}{old}", _ANOTHER)
    return manifest or {}


def _recover(folder: Path) -> None:
    """Wait while another run moves files; if it was killed while it did, put back what it had moved."""
    if wait_for(folder / JOURNAL):
        aside = folder / f"{STAGED}{secrets.token_hex(8)}"
        _undo(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _undo(folder: Path, aside: Path) -> None:
    """Put every file back to where it was before the journal, then move the journal aside. May be begun again."""
    journal = folder / JOURNAL
    if not journal.exists():  # another run has undone this one
        return
    new = read_manifest(journal / MANIFEST) or {}
    for path in _leading_first(new):
        placed = os.path.lexists(folder / path) and not os.path.lexists(journal / NEW / path)
        if placed and unchanged(folder / path, new[path]):
            _move(folder / path, journal / NEW / path)
    for path in reversed(_leading_first(_files(journal / OLD))):
        _move(journal / OLD / path, folder / path)
    _prune(folder, new)
    os.rename(journal, aside)


def _leading_first(paths: Iterable[str]) -> list[str]:
    """Sort paths, first the manifest, then the header: no folder has one of them that is not complete."""
    return sorted(paths, key=lambda path: (path != MANIFEST, not path.endswith(_HEADER), path))


def _files(folder: Path) -> Iterator[str]:
    """Yield relative paths of all files and links below a folder."""
    for place, folders, files in os.walk(folder):
        for name in (*files, *(name for name in folders if (Path(place) / name).is_symlink())):
            yield (Path(place) / name).relative_to(folder).as_posix()


def _move(source: Path, target: Path) -> None:
    """Rename, overwriting nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, f"{target.name} came up meanwhile")
    os.rename(source, target)


def _prune(folder: Path, paths: Iterable[str]) -> None:
    """Remove the sub-folders of these files that are empty now."""
    inner = {above for path in paths for above in Path(path).parents[:-1]}
    for place in sorted(inner, key=lambda place: -len(place.parts)):
        with suppress(OSError):
            (folder / place).rmdir()


def sweep(folder: Path) -> None:
    """Remove what runs that were killed have left."""
    for place in folder.glob(f"{STAGED}*"):
        with suppress(OSError):
            if not place.is_symlink() and time.time() - place.stat().st_mtime > STALE_S:
                shutil.rmtree(place, ignore_errors=True)


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 over names and contents, in name order."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path}\0{len(files[path])}\0".encode() + files[path])
    return total.hexdigest()


def _cannot(folder: Path, problem: OSError) -> CompileError:
    return CompileError(
        "E0104", str(folder), f"cannot be written ({problem.strerror or problem})", "check the folder and disk"
    )


MANIFEST = "manifest.json"
_DIGEST = re.compile("[0-9a-f]{64}")


def manifest_text(files: Mapping[str, bytes]) -> bytes:
    """Return the manifest of these files (relative path -> content)."""
    known = {path: hashlib.sha256(files[path]).hexdigest() for path in sorted(files)}
    return (json.dumps({"tinytrain_compile": __version__, "sha256": known}, indent=1) + "\n").encode()


def read_manifest(manifest: Path) -> dict[str, str] | None:
    """Read relative path -> SHA-256 of all that a run wrote beside a manifest; None if there is none.

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
    """Tell whether a path is one that a run may write: plain, relative, downwards."""
    parts = PurePosixPath(path).parts
    return "/".join(parts) == path and ".." not in parts and not re.search(r"[\\:\0]", path) and path[:1] not in "/."


def unchanged(place: Path, digest: str) -> bool:
    """Tell whether a regular file holds what a run wrote there."""
    if place.is_symlink() or not place.is_file():
        return False
    total = hashlib.sha256()
    with place.open("rb") as stream:
        while piece := stream.read(1 << 20):
            total.update(piece)
    return total.hexdigest() == digest


def objection(folder: Path, names: Iterable[str], known: Mapping[str, str], force: bool) -> str:
    """Name what a folder holds that forbids a run to write `names` where an earlier one wrote `known`; "" if it may.

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
