"""Where the command begins: signals are understood before anything that takes time to import."""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType

from tinytrain_compile.cli.process import Stopped, interrupted

_CYCLES = (100_000, 50, 1000)
"""Thresholds of gc: a compilation makes many objects that stay, and few cycles. By default, looking for these takes a
thirteenth of its time (digits in float32, --verify none: 2.44 s, 2.26 s with these)."""
_ENDING = ("SIGTERM", "SIGHUP")
"""Those that end a process without a word, if it has them: here they end it as Ctrl-C does, cleaning up."""


def main() -> None:
    """Run the command in a process of its own."""
    gc.set_threshold(*_CYCLES)
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
