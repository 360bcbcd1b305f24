"""What a signal that ends the command does to it, and what it says then."""

from __future__ import annotations

import signal
import sys


class Stopped(KeyboardInterrupt):
    """A signal other than that of Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def interrupted(problem: BaseException) -> int:
    """Say what an interrupt has left behind; the exit code of the signal."""
    said = problem.args[0] if problem.args else "nothing was written"
    print(f"\ninterrupted; {said}", file=sys.stderr)
    return 128 + (problem.number if isinstance(problem, Stopped) else signal.SIGINT)
