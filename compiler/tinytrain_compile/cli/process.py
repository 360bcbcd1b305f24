"""Start and end of the process of a command: signals that stop it, and a stdout that nobody reads or that is full."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from tinytrain_compile.errors import CompileError


class Stopped(KeyboardInterrupt):
    """A signal other than that of Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def interrupted(problem: BaseException) -> int:
    """Say what an interrupt has left behind, and return the exit code of the signal."""
    said = problem.args[0] if problem.args else "nothing was written"
    print(f"\ninterrupted; {said}", file=sys.stderr)
    return 128 + (problem.number if isinstance(problem, Stopped) else signal.SIGINT)


class UnreadError(Exception):
    """Nobody reads what is written (`... | head -1`), which is no error of this command."""


class _Output(io.TextIOWrapper):
    """Libraries see no OSError of stdout, which each of them would end the process with in a way of its own."""

    def write(self, s: str, /) -> int:
        with self._failing():
            return super().write(s)

    def flush(self) -> None:
        with self._failing():
            super().flush()

    @contextmanager
    def _failing(self) -> Generator[None]:
        try:
            yield
        except OSError as problem:
            self._give_up()
            if isinstance(problem, BrokenPipeError):
                raise UnreadError from problem
            reason = problem.strerror or "it cannot be written"
            way = "redirect it to where there is room (an output folder is complete by then)"
            raise CompileError("E0111", "standard output", reason, way) from problem

    def _give_up(self) -> None:
        """Send what is still in a buffer nowhere, or the interpreter would complain when it ends."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


@contextmanager
def guarded_output() -> Generator[None]:
    """Let stdout raise UnreadError or CompileError E0111 in place of an OSError; it is flushed at the end."""
    plain = sys.stdout
    for stream in (plain, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not isinstance(plain, io.TextIOWrapper):  # closed, or a tool's own
        yield
        return
    output = _Output(cast(Any, plain).buffer, plain.encoding, "backslashreplace", line_buffering=plain.line_buffering)
    sys.stdout = output
    try:
        yield
        output.flush()
    finally:
        sys.stdout = plain
        with suppress(UnreadError, CompileError):
            output.detach()
