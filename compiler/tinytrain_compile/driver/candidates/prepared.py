"""`--flash-budget`: frozen weights that lie in flash as kernels multiply them, in what code and constants leave of it.

What is left is measured: the plan's code is compiled. The plan is then made anew, since kernels that widen nothing need
less scratch; a smaller arena may come of it, never a larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.code.generate import Generator, Report
from tinytrain_compile.plan.prepared import choose_prepared, with_prepared

ROUNDS = 3
"""Choices whose code is compiled, at most: one that takes more than was thought gets less flash the next time."""


def with_prepared_weights(planner: Planner, candidate: Candidate, report: Report) -> Candidate:
    """Return the candidate with prepared weights, or itself where the budget has no room for any.

    Not with --code size, whose budget is for code alone; not where a step takes several samples, whose inference has
    kernels of its own; not on vectors, which read int8. Then copies of weights may still follow (`generate.py`).
    """
    o = planner.options
    if o.flash_budget_bytes is None or not _possible(planner, candidate):
        return candidate
    free = o.flash_budget_bytes - _flash_bytes(planner, candidate, report)
    for _ in range(ROUNDS):
        names = choose_prepared(candidate.train.graph, candidate.plan, free) if free > 0 else ()
        found = _planned(planner, candidate, names) if names else candidate
        if found is candidate or found.plan.arena_bytes > candidate.plan.arena_bytes:
            return candidate
        over = _flash_bytes(planner, found, report) - o.flash_budget_bytes
        if over <= 0:
            return found
        free -= over
    return candidate


def _possible(planner: Planner, candidate: Candidate) -> bool:
    o = planner.options
    other = o.code == "size" or o.inference_only or o.lock is not None
    return candidate.train.integer and candidate.one is None and not (other or planner.target.features.mve_int)


def _flash_bytes(planner: Planner, candidate: Candidate, report: Report) -> int:
    """Return bytes of code for speed, and of constants."""
    generator = Generator(candidate, planner.emitted_options(candidate), planner.target, report)
    return generator.code(generator.whole(False)).sizes.total_bytes


def _planned(planner: Planner, candidate: Candidate, names: Sequence[str]) -> Candidate:
    """Return the candidate with the weights of these nodes prepared, planned with the same means."""
    train = planner.train(candidate.update)
    train = replace(train, graph=with_prepared(train.graph, names))
    found = planner.planned(candidate.update, train)
    choice = replace(candidate.choice, cost=found.choice.cost)
    return replace(candidate, train=found.train, plan=found.plan, choice=choice)
