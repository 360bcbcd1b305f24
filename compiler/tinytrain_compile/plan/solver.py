"""Counted work of searches: what progress shows of it, and CP-SAT as every search here uses it.

No result depends on what progress shows. Searches are deep below whoever shows it, and make each other; so the listener
is the context's, not an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from ortools.sat.python import cp_model

Work = Literal["plan", "order", "solver run", "node"]
"""Plans that were begun, orders that were made, questions to CP-SAT, and nodes of the searches in Python."""
Listener = Callable[[Work, int], None]

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def add_work(what: Work, number: int = 1) -> None:
    """Tell the listener, if there is one, that so much more was done."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, number)


@contextmanager
def listening(listener: Listener) -> Generator[None]:
    """Have everything counted that is searched inside."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def new_solver(seed: int, deterministic_time: float) -> cp_model.CpSolver:
    """Return a solver that gives the same answer in every run, after so much deterministic time at most.

    Left to itself it takes Ctrl-C for the end of a search, and when that is over, gives the signal its default back:
    the next one would end the process where it stands, without cleaning up. So an interrupt waits for the solver.
    """
    add_work("solver run")
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = deterministic_time
    solver.parameters.catch_sigint_signal = False
    return solver
