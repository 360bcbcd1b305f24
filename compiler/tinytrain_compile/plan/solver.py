"""CP-SAT's settings for every search here: one worker, a seed, a limit of counted work."""

from __future__ import annotations

from ortools.sat.python import cp_model

from tinytrain_compile.plan.counted import add_work


def new_solver(seed: int, deterministic_time: float) -> cp_model.CpSolver:
    """Return a solver that gives the same answer in every run, within a limit of deterministic time.

    By default it treats Ctrl-C as the end of a search, and afterwards resets the signal to its default: the next one
    would end the process at once, without cleaning up. So an interrupt waits for the solver.
    """
    add_work("solver run")
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = deterministic_time
    solver.parameters.catch_sigint_signal = False
    return solver
