"""Counts of the work of searches, only for showing progress: no result depends on them.

Searches are deep below the code that shows progress, and call each other, so the listener is a context variable, not an
argument.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Work = Literal["plan", "order", "solver run", "node"]
"""Plans begun, orders made, calls of CP-SAT, and nodes of the searches in Python."""
Listener = Callable[[Work, int], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def add_work(what: Work, number: int = 1) -> None:
    """Report work to the listener, if there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, number)


@contextmanager
def listening(listener: Listener) -> Generator[None]:
    """Report the work of all searches inside to this listener."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
