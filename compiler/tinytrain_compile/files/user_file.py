"""Files that users name: opened in one place, as regular files of a size that makes sense; TOML read strictly.

A pipe that nobody writes to would hang, a device may have no end. Everything else about a file is for its reader.
A file of an output folder may belong to half of one: while a run moves files there is a journal beside them, and after
a run that was killed while it did (docs/adr/0019-output.md).
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from tinytrain_compile.errors import CompileError
from tinytrain_compile.near import nearest

JOURNAL = ".tinytrain-journal"
"""Folder in the output folder, while files are moved."""
NEW, OLD, LIST = "new", "old", "manifest.json"
"""In it: files that are not in their place yet, those that had to go, and what the new output has."""
PATIENCE_S = 2.0
"""Moving takes milliseconds: a journal that stays so long was left by a run that was killed."""
_DEPTH = 4
"""Folders above a file that may be the output folder: no file of an output is deeper."""


def wait_for(journal: Path) -> bool:
    """Wait while another run moves files. Whether the journal stays: then nobody will take it away but the next run."""
    end = time.monotonic() + PATIENCE_S
    while journal.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return journal.exists()


def unfinished(path: Path) -> str:
    """Say what is wrong with a file that a killed run was about to replace or to write; "" if nothing is."""
    for folder in path.absolute().parents[:_DEPTH]:
        journal = folder / JOURNAL
        if journal.is_dir() and path.absolute().relative_to(folder).as_posix() in _names(journal) and wait_for(journal):
            again = f"compile again with -o {folder.name}, which puts the earlier output back"
            return f"a run was killed while it wrote {folder.name}: {again}"
    return ""


def _names(journal: Path) -> set[str]:
    """Return the paths of all files that a run moves, out of their places or into them."""
    found = {LIST}
    with suppress(OSError, ValueError, KeyError, TypeError):
        found |= set(json.loads((journal / LIST).read_bytes())["sha256"])
    for part in (NEW, OLD):
        for place, _, files in os.walk(journal / part):
            found |= {(Path(place) / name).relative_to(journal / part).as_posix() for name in files}
    return found


MOST_TEXT_BYTES = 64 << 20
"""Of a file of text: targets, schemes, plans."""
MOST_DATA_BYTES = 1 << 30
"""Of anything else: models, weights, samples."""
_LOOKED_AT = 1000
"""Names in a folder that a misspelt one is compared with."""
_PIECE_BYTES = 16 << 20
"""Read at a time: a file that turns out to be too long has taken no more memory than it may, and one piece."""


def open_file(path: Path, most_bytes: int = MOST_DATA_BYTES, pipe: bool = False, moving: bool = False) -> BinaryIO:
    """Open a regular file for reading. OSError, with a reason in `strerror`, for whatever cannot be one.

    pipe: take what has no size too, of which the caller then reads no more than `most_bytes`.
    moving: read a file of an output that is not finished too, as the run does that finishes it.
    """
    try:
        half = "" if moving else unfinished(path)
        if half:
            raise OSError(errno.EBUSY, half)
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise OSError(problem.errno, missing(path)) from problem
    except PermissionError as problem:
        raise OSError(problem.errno, f"no permission to look into {path.parent}") from problem
    except ValueError as problem:  # a zero byte, or what the file system cannot write
        raise OSError(errno.EINVAL, "the path cannot be one") from problem
    if stat.S_ISDIR(state.st_mode):
        raise OSError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(state.st_mode) and not pipe:
        raise OSError(errno.EINVAL, "it is no regular file")
    if state.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MB")
    try:
        return path.open("rb")
    except PermissionError as problem:
        raise OSError(problem.errno, "no permission to read it") from problem


def missing(path: Path) -> str:
    """Say that a file is not there, and which one of the same folder has nearly its name."""
    with suppress(OSError, ValueError):
        if not path.parent.is_dir():
            return f"{path.parent} is a file" if path.parent.is_file() else f"there is no folder {path.parent}"
        near = nearest(path.name, sorted(islice((each.name for each in path.parent.iterdir()), _LOOKED_AT)))
        if near:
            return f"there is no such file; did you mean {path.with_name(near)}?"
    return "there is no such file"


def read_file(path: Path, most_bytes: int = MOST_DATA_BYTES, pipe: bool = False, moving: bool = False) -> bytes:
    """Read all of a file. OSError as `open_file`, and for one that turns out to be longer than `most_bytes`."""
    pieces, size = list[bytes](), 0
    with open_file(path, most_bytes, pipe, moving) as stream:
        while piece := stream.read(_PIECE_BYTES):  # read(most_bytes + 1) would ask for that much memory at once
            pieces.append(piece)
            size += len(piece)
            if size > most_bytes:
                raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MB")
    return b"".join(pieces)


def read_text(
    path: Path, wrong: Callable[[str], CompileError], unreadable: Callable[[str], CompileError] | None = None
) -> str:
    """Read a UTF-8 file. Raises `unreadable` (else `wrong`) of why it cannot be read, or `wrong` of its bytes."""
    try:
        return read_file(path, MOST_TEXT_BYTES).decode("utf-8")
    except OSError as problem:
        raise (unreadable or wrong)(problem.strerror or "cannot be read") from problem
    except UnicodeDecodeError as problem:
        raise wrong("not UTF-8 text") from problem


@dataclass(frozen=True)
class TableKind:
    """A kind of file with tables: the ids of its errors (it cannot be read; it is wrong), what to try, and its kind."""

    unreadable: str
    wrong: str
    hint: str
    what: str

    def error(self, where: str, what: str) -> CompileError:
        """Return the error for a file with a fault."""
        return CompileError(self.wrong, where, what, self.hint)

    def missing(self, where: str, what: str) -> CompileError:
        """Return the error for a file that cannot be read."""
        return CompileError(self.unreadable, where, what, f"give {self.what}")


def read_table(path: Path, where: str, kind: TableKind) -> Table:
    """Read the root table of a file; `where` names it in errors."""
    text = read_text(path, partial(kind.error, where), partial(kind.missing, where))
    return parse_table(text, where, kind)


def parse_table(text: str, where: str, kind: TableKind) -> Table:
    """Read the root table of a TOML text; `where` names it in errors."""
    return Table(parse_document(text, where, kind), "", kind, where)


def parse_document(text: str, where: str, kind: TableKind) -> dict[str, Any]:
    """Read a TOML text into its root table; `where` names it in errors, which say how a usual slip is mended."""
    try:
        return _loaded(text)
    except ValueError as error:
        raise CompileError(
            kind.wrong, where, f"is not TOML ({error})", _mended(text, str(error)) or kind.hint
        ) from error


def _mended(text: str, problem: str) -> str:
    """Say how to write what a problem of tomllib's is about; "" if that is not known."""
    if text.lstrip().startswith("{"):
        return 'it is JSON; write a line for each key: name = "value"'
    place = re.search(r"at line (\d+)", problem)
    line = text.split("\n")[int(place[1]) - 1] if place else text.rstrip("\n").rpartition("\n")[2]
    twice, table = problem.startswith(("Cannot declare", "Cannot overwrite")), re.match(r"\s*\[+([\w-]+)\]", line)
    if twice and table is not None:
        return f"write [[{table[1]}]] in double brackets, each time"
    slip = re.match(r"\s*([\w-]+)\s*([=:])\s*([^#]*[^#\s])", line)
    if slip is None:
        return ""
    key, sign, value = slip.groups()
    if twice:
        return f"give {key} once"
    if sign == ":":
        return f"write = for the colon: {key} = {value}"
    if value in ("True", "False"):
        return f"write {key} = {value.lower()}"
    if value.startswith('"') and "\\" in value:
        return f"write / for \\ in a path: {key} = {value.replace(chr(92), '/')}"
    return f'put quotes around a text: {key} = "{value}"' if re.fullmatch(r"[^\s\"'\[{]+", value) else ""


def _loaded(text: str) -> dict[str, Any]:
    """Read TOML into its root table; ValueError for other text, too deep a nesting and too long a number included.

    TOML's integers have 64 bits. Python reads longer ones, which are then no float, and cannot always be printed.
    """
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("too deeply nested") from error
    left: list[Any] = [document]
    while left:
        item = left.pop()
        if isinstance(item, int) and not -(1 << 63) <= item < 1 << 63:
            raise ValueError("a whole number of more than 64 bits")
        if isinstance(item, (dict, list)):
            left += cast("dict[str, Any]", item).values() if isinstance(item, dict) else cast("list[Any]", item)
    return document


_KILO = {"": 1, "k": 1 << 10, "m": 1 << 20}
"""Sizes as people write them in texts."""


def _instead(item: object, kind: type) -> str:
    """Return the number that a value of another type means, as an error says it; "" if that is unknown."""
    if kind is not int or not isinstance(item, (str, float)):
        return ""
    if re.fullmatch(r"0x[0-9a-fA-F]+", str(item)):
        return f": write {item}, without quotes"
    size = re.fullmatch(r"\s*(\d+)\s*([km]?)i?b?\s*", str(item).removesuffix(".0").lower())
    return "" if size is None else f": write {int(size[1]) * _KILO[size[2]]}"


class Table:
    """One TOML table that reports wrong keys by their full name and notices keys that nobody asked for."""

    def __init__(self, items: dict[str, Any], path: str, kind: TableKind, where: str) -> None:
        self._items, self._path, self._kind, self._where = items, path, kind, where
        self._used: set[str] = set()

    def error(self, key: str, what: str) -> CompileError:
        """Return the complaint about a key."""
        return self._kind.error(self._where, f"key '{self._path}{key}' {what}")

    @property
    def names(self) -> tuple[str, ...]:
        """All keys, for a table whose keys are names that the file chooses."""
        return tuple(self._items)

    def has(self, key: str) -> bool:
        """Tell whether the table has a key."""
        return key in self._items

    def _take(self, key: str, kind: type, description: str) -> Any:
        self._used.add(key)
        if key not in self._items:
            rest = [each for each in self._items if each not in self._used]
            near = nearest(key, rest) or next((each for each in rest if len(each) > 2 and key.startswith(each)), "")
            raise self.error(key, "is missing" + (f" ({near!r} is there: a slip?)" if near else ""))
        item = self._items[key]
        if type(item) is not kind:  # a bool is not an integer here
            raise self.error(key, f"must be {description}{_instead(item, kind)}")
        return item

    def text(self, key: str) -> str:
        """Take a string."""
        return cast(str, self._take(key, str, "a string"))

    def boolean(self, key: str) -> bool:
        """Take true or false."""
        return cast(bool, self._take(key, bool, "true or false"))

    def integer(self, key: str, low: int = 0, high: int = 0xFFFFFFFF) -> int:
        """Take an integer from `low` to `high`."""
        number = cast(int, self._take(key, int, "an integer"))
        if not low <= number <= high:
            raise self.error(key, f"must be an integer from {low} to {'2^32 - 1' if high == 0xFFFFFFFF else high}")
        return number

    def texts(self, key: str) -> tuple[str, ...]:
        """Take a list of strings."""
        items = cast("list[Any]", self._take(key, list, "a list of strings"))
        if not all(type(item) is str for item in items):
            raise self.error(key, "must be a list of strings")
        return tuple(items)

    def integers(self, key: str) -> tuple[int, ...]:
        """Take a list of integers."""
        items = cast("list[Any]", self._take(key, list, "a list of integers"))
        if not all(type(item) is int for item in items):
            raise self.error(key, "must be a list of integers")
        return tuple(items)

    def table(self, key: str) -> Table:
        """Take a table."""
        return Table(self._take(key, dict, "a table"), f"{self._path}{key}.", self._kind, self._where)

    def tables(self, key: str) -> list[Table]:
        """Take a list of at least one table."""
        items = cast("list[Any]", self._take(key, list, "a list of tables"))
        if not items or not all(type(item) is dict for item in items):
            raise self.error(key, "must be a list of at least one table")
        return [Table(item, f"{self._path}{key}[{i}].", self._kind, self._where) for i, item in enumerate(items)]

    def finish(self) -> None:
        """Raise on the first key that was not asked for."""
        for key in self._items:
            if key not in self._used:
                near = nearest(key, sorted(self._used))
                raise self.error(key, "is not known" + (f": did you mean {near}?" if near else ""))
