"""Every error: an id, a place, a reason and a way out; its exit code. Its long text is in errors.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXIT_OK, EXIT_INTERNAL, EXIT_INPUT, EXIT_DOES_NOT_FIT, EXIT_UNSUPPORTED, EXIT_VERIFY = range(6)
_EXIT_CODES = {
    "E01": EXIT_INPUT,  # usage and files
    "E02": EXIT_INPUT,  # the model file
    "E03": EXIT_INPUT,  # training set-up
    "E04": EXIT_DOES_NOT_FIT,  # memory
    "E05": EXIT_UNSUPPORTED,
    "E06": EXIT_VERIFY,
    "E09": EXIT_INTERNAL,
}


@dataclass(frozen=True)
class ErrorKind:
    """One documented error: exit code and the long text that --explain prints."""

    exit_code: int
    title: str
    explanation: str


def _read() -> dict[str, ErrorKind]:
    table = tomllib.loads(Path(__file__).with_name("errors.toml").read_text(encoding="utf-8"))
    return {
        code: ErrorKind(_EXIT_CODES[code[:3]], entry["title"], " ".join(entry["text"].split()))
        for code, entry in table.items()
    }


ERRORS = _read()


class CompileError(Exception):
    """An error that the user can do something about. Prints as `error[E0203]: where: what; what to try`."""

    def __init__(self, code: str, where: str, what: str, try_: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(f"error[{code}]: {_line(where)}: {_line(what)}; {_line(try_)}")
        self.code, self.where, self.what = code, _line(where), _line(what)
        self.details = details
        """Further lines for the terminal (the does-not-fit block); never part of the one-line error."""
        self._given = (code, where, what, try_, details)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickles it by its arguments, so that it reaches whoever waits for another process."""
        return type(self), self._given

    @property
    def exit_code(self) -> int:
        """The process exit code of this error."""
        return ERRORS[self.code].exit_code


def _line(text: str) -> str:
    """Make one printable line of a name, whatever is in it: names come from untrusted files."""
    cleaned = "".join(c if c.isprintable() else "?" for c in text)
    return cleaned if len(cleaned) <= 400 else cleaned[:397] + "..."
