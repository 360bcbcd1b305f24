"""What a campaign is made of: kinds of numbered cases, and what became of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.e2e.command import Outcome, run

NEVER = frozenset(("E0601", "E0602", "E0604", "E0605", "E0607", "E0901"))
"""Errors that say that the compiler is wrong, whatever its input is."""

REFUSALS = frozenset(
    ("E0101", "E0113", "E0303", "E0304", "E0306", "E0401", "E0402", "E0403", "E0404", "E0501", "E0502", "E0603")
)
"""What may be said to a sound model and sound options: they do not go together, do not fit, or are not supported."""


COMMAND = "tinytrain-compile"


@dataclass(frozen=True)
class Case:
    """One run of the command, in a folder of its own that holds the files of the case.

    arguments: of the command; sound: a valid input, which must PASS or be refused by one of REFUSALS; never: errors
    that it may not get; check: of the folder after a success, returns how many things it checked, AssertionError with
    what is wrong; run: the command, or whatever else (program: its name) has these arguments.
    """

    arguments: tuple[str, ...]
    sound: bool = False
    never: frozenset[str] = NEVER
    check: Callable[[Path], int] | None = None
    run: Callable[..., Outcome] = run
    program: str = COMMAND

    @property
    def writes(self) -> bool:
        """Whether a success leaves an output."""
        return self.program in (COMMAND, "export") and not {"--dry-run", "--dump-after"} & set(self.arguments)


@dataclass(frozen=True)
class Kind:
    """Cases by number: the same seed and number are the same case in every run.

    make: writes the files of a case into a folder, which is the current one; least_passed: share of the cases that
    must be accepted, so that a campaign of refusals does not pass.
    """

    name: str
    count: int
    make: Callable[[Random, Path], Case]
    least_passed: float = 0.0

    def case(self, seed: int, index: int, folder: Path) -> Case:
        """Case `index`, its files written."""
        return self.make(Random(f"{self.name}:{seed}:{index}"), folder)


@dataclass(frozen=True)
class Result:
    """What became of a case: the error id ("" for success), what it cost, and what is wrong ("" if nothing is)."""

    kind: str
    index: int
    error_id: str = ""
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    checked: int = 0
    problem: str = ""
