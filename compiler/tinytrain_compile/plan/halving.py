"""Bisection between an unreachable and a reachable budget: the one loop of all searches for a smallest budget."""

from __future__ import annotations

from collections.abc import Callable

TOLERANCE = 200
"""Relative precision of a smallest budget: one part in this many."""


def halve(
    low: int, high: int, reach: Callable[[int], int | None], least: int = 1, ask_low: bool = False
) -> tuple[int, int]:
    """Return (largest budget that was not reached, smallest height that was), `least` or one part in TOLERANCE apart.

    reach(budget): a height of at most that budget, or None. low counts as not reached, unless ask_low makes it the
    first question. Every further question at least halves the distance. So there are at most 2 + log2(high - low) of
    them whatever the answers, even if the distance is a few bytes.
    """
    budget = low if ask_low else (low + high) // 2
    while high - low > max(least, 1, high // TOLERANCE):
        found = reach(budget)
        if found is not None and found > budget:
            raise AssertionError(f"{found} was given as an answer below {budget}")
        low, high = (budget, high) if found is None else (low, found)
        budget = (low + high) // 2
    return low, high
