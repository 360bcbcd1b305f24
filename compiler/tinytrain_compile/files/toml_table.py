"""Strict reading of TOML tables: every key is known, present and of the right type, or the error names it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import read_text


@dataclass(frozen=True)
class TableKind:
    """What a file of tables is: the ids of its errors (it cannot be read; it is wrong), what to try, what it is."""

    unreadable: str
    wrong: str
    hint: str
    what: str

    def error(self, where: str, what: str) -> CompileError:
        """The error for a file with a fault."""
        return CompileError(self.wrong, where, what, self.hint)

    def missing(self, where: str, what: str) -> CompileError:
        """The error for a file that cannot be read."""
        return CompileError(self.unreadable, where, what, f"give {self.what}")


def read_table(path: Path, where: str, kind: TableKind) -> Table:
    """The root table of a file; `where` names it in errors."""
    text = read_text(path, partial(kind.error, where), partial(kind.missing, where))
    return parse_table(text, where, kind)


def parse_table(text: str, where: str, kind: TableKind) -> Table:
    """The same from TOML text."""
    try:
        document = load_toml(text)
    except ValueError as error:
        raise kind.error(where, f"not TOML ({error})") from error
    return Table(document, "", kind, where)


def load_toml(text: str) -> dict[str, Any]:
    """TOML -> its root table; ValueError for whatever is none, too deep a nesting and too long a number included.

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


class Table:
    """One TOML table that reports wrong keys by their full name and notices keys that nobody asked for."""

    def __init__(self, items: dict[str, Any], path: str, kind: TableKind, where: str) -> None:
        self._items, self._path, self._kind, self._where = items, path, kind, where
        self._used: set[str] = set()

    def error(self, key: str, what: str) -> CompileError:
        """The complaint about a key."""
        return self._kind.error(self._where, f"key '{self._path}{key}' {what}")

    @property
    def names(self) -> tuple[str, ...]:
        """All keys, for a table whose keys are names that the file chooses."""
        return tuple(self._items)

    def has(self, key: str) -> bool:
        """Whether the table has a key."""
        return key in self._items

    def _take(self, key: str, kind: type, description: str) -> Any:
        self._used.add(key)
        if key not in self._items:
            raise self.error(key, "is missing")
        item = self._items[key]
        if type(item) is not kind:  # a bool is not an integer here
            raise self.error(key, f"must be {description}")
        return item

    def text(self, key: str) -> str:
        """A string."""
        return cast(str, self._take(key, str, "a string"))

    def boolean(self, key: str) -> bool:
        """true or false."""
        return cast(bool, self._take(key, bool, "true or false"))

    def integer(self, key: str, low: int = 0) -> int:
        """An integer from `low` to 2^32 - 1."""
        number = cast(int, self._take(key, int, "an integer"))
        if not low <= number <= 0xFFFFFFFF:
            raise self.error(key, f"must be an integer from {low} to 2^32 - 1")
        return number

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        items = cast("list[Any]", self._take(key, list, "a list of strings"))
        if not all(type(item) is str for item in items):
            raise self.error(key, "must be a list of strings")
        return tuple(items)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers."""
        items = cast("list[Any]", self._take(key, list, "a list of integers"))
        if not all(type(item) is int for item in items):
            raise self.error(key, "must be a list of integers")
        return tuple(items)

    def table(self, key: str) -> Table:
        """A table."""
        return Table(self._take(key, dict, "a table"), f"{self._path}{key}.", self._kind, self._where)

    def tables(self, key: str) -> list[Table]:
        """A list of at least one table."""
        items = cast("list[Any]", self._take(key, list, "a list of tables"))
        if not items or not all(type(item) is dict for item in items):
            raise self.error(key, "must be a list of at least one table")
        return [Table(item, f"{self._path}{key}[{i}].", self._kind, self._where) for i, item in enumerate(items)]

    def finish(self) -> None:
        """Raise on the first key that was not asked for."""
        for key in self._items:
            if key not in self._used:
                raise self.error(key, "is not known")
