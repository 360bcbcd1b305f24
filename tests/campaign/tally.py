"""Counts results by kind, and says what a campaign found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.campaign.cases import Kind, Result


@dataclass
class Row:
    """Of one kind."""

    cases: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    checked: int = 0
    cpu_s: float = 0.0
    slowest: Result = field(default_factory=lambda: Result("", 0))
    most_mb: float = 0.0
    failures: list[Result] = field(default_factory=list[Result])

    @property
    def accepted(self) -> int:
        """Cases that ended in success."""
        return self.cases - sum(self.refused.values()) - len(self.failures)

    def add(self, result: Result) -> None:
        """One more case."""
        self.cases += 1
        self.checked += result.checked
        self.cpu_s += result.cpu_s
        self.slowest = max(self.slowest, result, key=lambda known: known.cpu_s)
        self.most_mb = max(self.most_mb, result.peak_mb)
        if result.problem:
            self.failures.append(result)
        elif result.error_id:
            self.refused[result.error_id] += 1


def _shape_of(problem: str) -> str:
    """What failures of one cause share."""
    return re.sub(r"'[^']*'|\d+(\.\d+)?(e[+-]?\d+)?", "_", " ".join(problem.split()))[:160]


HEAD = ("kind", "cases", "accepted", "refused", "checks", "CPU s", "max CPU s", "of case", "max MB", "failures")


class Tally:
    """A campaign's results."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self.rows: dict[str, Row] = {}

    @property
    def count(self) -> int:
        """Cases so far."""
        return sum(row.cases for row in self.rows.values())

    def add(self, result: Result) -> None:
        """One more case."""
        self.rows.setdefault(result.kind, Row()).add(result)

    def is_new(self, result: Result) -> bool:
        """Whether no failure before this one (which has been added) looks like it."""
        text = _shape_of(result.problem)
        return sum(_shape_of(failure.problem) == text for failure in self.rows[result.kind].failures) == 1

    def problems(self) -> list[str]:
        """Why the campaign fails; empty if it does not."""
        found: list[str] = []
        for name, row in self.rows.items():
            if row.failures:
                found.append(f"{name}: {len(row.failures)} of {row.cases} cases failed")
            least = self._kinds[name].least_passed
            if row.accepted < least * row.cases:
                found.append(f"{name}: only {row.accepted} of {row.cases} were accepted, {least:.0%} should be")
        return found

    def lines(self) -> list[str]:
        """A table, and below it how often each error came up."""
        cells = [HEAD, *(self._cells(name, row) for name, row in self.rows.items())]
        widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
        table = [
            "  ".join(
                cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in cells
        ]
        counts = [
            f"{name}: " + ", ".join(f"{code} {count:,}" for code, count in sorted(row.refused.items()))
            for name, row in self.rows.items()
            if row.refused
        ]
        return [*table, "", "refused by", *counts, *self._failures()]

    def _failures(self) -> list[str]:
        """How often each failure came up; numbers and names in it do not count."""
        alike: Counter[tuple[str, str]] = Counter()
        for name, row in self.rows.items():
            alike.update((name, _shape_of(failure.problem)) for failure in row.failures)
        lines = [f"{count:6,}  {name}: {text}" for (name, text), count in alike.most_common()]
        return ["", "failures alike", *lines] if lines else []

    def _cells(self, name: str, row: Row) -> tuple[str, ...]:
        numbers = (row.cases, row.accepted, sum(row.refused.values()), row.checked)
        cost = (
            f"{row.cpu_s:.0f}",
            f"{row.slowest.cpu_s:.1f}",
            str(row.slowest.index),
            f"{row.most_mb:.0f}",
            f"{len(row.failures):,}",
        )
        return (name, *(f"{number:,}" for number in numbers), *cost)
