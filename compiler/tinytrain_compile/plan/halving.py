"""Halving between what is not reached and what is: the one loop of all searches for a smallest budget."""

from __future__ import annotations

from collections.abc import Callable

TOLERANCE = 200
"""A smallest budget is found to one part in this many."""


def halve(
    low: int, high: int, reach: Callable[[int], int | None], least: int = 1, ask_low: bool = False
) -> tuple[int, int]:
    """Return (largest budget that was not reached, smallest height that was), `least` or one part in TOLERANCE apart.

    reach(budget): a height of at most that budget, or None. low is taken as not reached, but with ask_low it is the
    first question. Every further question at least halves the distance, so there are at most 2 + log2(high - low) of
    them whatever the answers are, also where the distance is a few bytes.
    """
    budget = low if ask_low else (low + high) // 2
    while high - low > max(least, 1, high // TOLERANCE):
        found = reach(budget)
        if found is not None and found > budget:
            raise AssertionError(f"{found} was given as an answer below {budget}")
        low, high = (budget, high) if found is None else (low, found)
        budget = (low + high) // 2
    return low, high
