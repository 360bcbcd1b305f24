"""Progress of a compilation: stages, shares done, and counts of what a search has done so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tinytrain_compile.report.layout import macs_text

if TYPE_CHECKING:
    from tinytrain_compile.plan.solver import Work

Progress = Callable[[str, float], None]
"""(what is being done, share done from 0 to 1). Text up to the first comma names the stage; the rest counts."""


def silent(_what: str, _share: float) -> None:
    """Say nothing of the progress."""


class Counting:
    """Progress of a search: adds the counts to the text, and tells them again whenever there is more."""

    def __init__(self, progress: Progress, what: str, share: float) -> None:
        self._progress, self._what, self._share = progress, what, share
        self._counts: dict[Work, int] = {}

    def __call__(self, what: str, share: float) -> None:
        """Tell what is being done now; the counts go on."""
        self._what, self._share = what, share
        self._tell()

    def add(self, what: Work, number: int) -> None:
        """Count, and tell."""
        self._counts[what] = self._counts.get(what, 0) + number
        self._tell()

    def _tell(self) -> None:
        counts = (f"{macs_text(number)} {what}{'' if number == 1 else 's'}" for what, number in self._counts.items())
        self._progress(", ".join([self._what, *counts]), self._share)
