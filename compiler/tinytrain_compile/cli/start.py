"""Where the command begins: signals are understood before anything that takes time to import."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from tinytrain_compile.cli.process import Stopped, interrupted

_ENDING = ("SIGTERM", "SIGHUP")
"""Those that end a process without a word, if it has them: here they end it as Ctrl-C does, cleaning up."""


def main() -> None:
    """Run the command in a process of its own."""
    try:
        _listen()
        from tinytrain_compile.cli.command import main as run

        run()
    except KeyboardInterrupt as problem:
        sys.exit(interrupted(problem))


def _listen() -> None:
    for name in _ENDING:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one, and so it stays
            signal.signal(number, _stop)


def _stop(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # the first does, and its cleaning up is not interrupted by another
    raise Stopped(number)
