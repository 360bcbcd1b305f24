"""Decisions of rematerialisation, judged by a rule of their own."""

from __future__ import annotations

from tinytrain_compile.plan.remat.problem import Decision, Problem


def is_valid(problem: Problem, decision: Decision) -> bool:
    """Tell whether every stage is after the first run and before what the second one reads is overwritten."""
    return all(
        storage in problem.again
        and problem.birth[storage] + 1 < stage <= min(problem.again[storage].latest, len(problem.operations) - 1)
        for storage, stage in decision.items()
    )
