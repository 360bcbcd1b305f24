"""CP-SAT as every search here uses it: one worker, a seed, a limit of counted work."""

from __future__ import annotations

from ortools.sat.python import cp_model

from tinytrain_compile.plan.counted import add_work


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
