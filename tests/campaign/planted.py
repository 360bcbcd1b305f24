"""Commands that do what none should: a campaign must notice each."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.cases import Case
from tests.campaign.judge import OUT
from tests.e2e.command import Outcome

LINE = "error[E0101]: --lr: it is wrong; use another\n"


def _said(text: str = LINE, code: int = 2, out: str = "") -> Outcome:
    return Outcome(code, out, text)


def _signal(*_: str) -> Outcome:
    os.kill(os.getpid(), signal.SIGSEGV)
    return _said()


def _wait(*_: str) -> Outcome:
    time.sleep(1000)
    return _said()


def _compute(*_: str) -> Outcome:
    while True:
        pass


def _memory(*_: str) -> Outcome:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE  # four times cheaper than touching each page
    with mmap.mmap(-1, 2200 << 20, flags=flags):
        return _said()


def _escape(*_: str) -> Outcome:
    raise ValueError("nobody caught this")


def _print(*_: str) -> Outcome:
    os.write(sys.stderr.fileno(), b"a library speaks\n")
    return _said()


def _warn(*_: str) -> Outcome:
    warnings.warn("overflow", RuntimeWarning, stacklevel=1)
    return _said()


def _write(*_: str) -> Outcome:
    Path(OUT).mkdir()
    return _said()


def _lose(*_: str) -> Outcome:
    Path("input").unlink()
    return _said()


def _change(*_: str) -> Outcome:
    Path("input").write_text("changed")
    return _said()


def _leave(*_: str) -> Outcome:
    tempfile.mkdtemp()
    return _said()


FAULTS: dict[str, tuple[Callable[..., Outcome], str]] = {
    "signal": (_signal, "the process ended with signal SIGSEGV"),
    "waits": (_wait, "waited for more than"),
    "computes": (_compute, "took more than 8 CPU s"),
    "memory": (_memory, "took 2"),
    "escape": (_escape, "ValueError left the command: nobody caught this"),
    "noise": (_print, "printed by a library: a library speaks"),
    "warning": (_warn, "printed by a library"),
    "output": (_write, "an output was written"),
    "lost input": (_lose, "these files came, went or changed: ['input']"),
    "changed input": (_change, "these files came, went or changed: ['input']"),
    "temporary": (_leave, "left in the folder for temporary files"),
    "internal": (lambda *_: _said("error[E0901]: internal: x; report\n", 1), "error[E0901]"),
    "difference": (lambda *_: _said("error[E0601]: verify: x; report\n", 5), "error[E0601]"),
    "unknown": (lambda *_: _said("error[E0999]: x: y; z\n"), "without a known error"),
    "no line": (lambda *_: _said("Killed\n", 137), "exit code 137 without a known error"),
    "wrong code": (lambda *_: _said(code=1), "in: error[E0101]"),
    "two lines": (lambda *_: _said(LINE + "and more\n"), "in: error[E0101]"),
    "chatty": (lambda *_: _said("note\n", 0), "success, and on stderr"),
    "not passed": (lambda *_: _said("", 0, "SKIPPED"), "success without PASS"),
    "not written": (lambda *_: _said("", 0, "PASS"), "no output was written"),
}
"""Fault -> (command, how a campaign must call it)."""


COMMANDS = {name: command for name, (command, _) in FAULTS.items()} | {
    "refused": lambda *_: _said(),
    "invalid": lambda *_: _said("error[E0212]: node: shapes; change\n"),
}


NAMES = tuple(COMMANDS)


@dataclass(frozen=True)
class Planted:
    """A kind whose case n is fault n."""

    name: str = "planted"
    least_passed: float = 0.0

    def case(self, seed: int, index: int, folder: Path) -> Case:
        """A planted fault."""
        (folder / "input").write_text("as it was")
        return Case((), sound=NAMES[index] in ("not passed", "refused"), run=COMMANDS[NAMES[index]])


KINDS = {"planted": Planted()}
