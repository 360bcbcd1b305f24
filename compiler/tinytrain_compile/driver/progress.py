"""Progress of a compilation: stages, shares done, and counts of the work of searches."""

from __future__ import annotations

from collections.abc import Callable

from tinytrain_compile.plan.counted import Work
from tinytrain_compile.report.layout import macs_text

Progress = Callable[[str, float], None]
"""(what is being done, share done from 0 to 1). Text up to the first comma names the stage; the rest counts."""


def silent(_what: str, _share: float) -> None:
    """Show no progress."""


class Counting:
    """Progress of a search: shows the stage again with its counts whenever there is more work."""

    def __init__(self, progress: Progress, what: str, share: float) -> None:
        self._progress, self._what, self._share = progress, what, share
        self._counts = dict[Work, int]()

    def __call__(self, what: str, share: float) -> None:
        """Show a new stage; the counts go on."""
        self._what, self._share = what, share
        self._tell()

    def add(self, what: Work, number: int) -> None:
        """Add work to the counts, and show them."""
        self._counts[what] = self._counts.get(what, 0) + number
        self._tell()

    def _tell(self) -> None:
        counts = (f"{macs_text(number)} {what}{'' if number == 1 else 's'}" for what, number in self._counts.items())
        self._progress(", ".join([self._what, *counts]), self._share)
