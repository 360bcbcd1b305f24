"""Counts of the work of searches, for progress alone: no result depends on them.

Searches are deep below whoever shows progress, and make each other; so the listener is the context's, not an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Work = Literal["plan", "order", "solver run", "node"]
"""Plans that were begun, orders that were made, questions to CP-SAT, and nodes of the searches in Python."""
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
