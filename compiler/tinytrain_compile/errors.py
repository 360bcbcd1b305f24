"""Errors with an id, a place, a reason and a way out."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.error_kinds import (
    ERRORS,
    EXIT_DOES_NOT_FIT,
    EXIT_INPUT,
    EXIT_INTERNAL,
    EXIT_OK,
    EXIT_UNSUPPORTED,
    EXIT_VERIFY,
    ErrorKind,
)

__all__ = [
    "ERRORS",
    "EXIT_DOES_NOT_FIT",
    "EXIT_INPUT",
    "EXIT_INTERNAL",
    "EXIT_OK",
    "EXIT_UNSUPPORTED",
    "EXIT_VERIFY",
    "CompileError",
    "ErrorKind",
]


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
