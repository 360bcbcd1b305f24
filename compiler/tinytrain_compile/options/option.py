"""What an option of the command is. Each is declared once, at its field of CompileOptions (options/compile_options.py).

The command line, its help, what is an error for float32 and the list in docs/options.md all come from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tinytrain_compile.errors import CompileError

Group = Literal["common", "model", "memory", "training", "int8", "verification", "code", "output"]
GROUPS: dict[Group, str] = {
    "common": "What everyone needs",
    "model": "Model",
    "memory": "Memory",
    "training": "Training",
    "int8": "int8",
    "verification": "Verification",
    "code": "Code and speed",
    "output": "Output and information",
}
"""Title of each group, in the order of --help."""

COMMON_OPTIONS = 10
"""How many everyone needs."""

_KEY = "option"


@dataclass(frozen=True)
class Option:
    """How an option is typed and explained. Its name, type and default are those of the field.

    flags: as typed, the long one last. metavar: of its value, if the type says too little. read: from the text that was
    typed, or the texts of an option that is `repeated`, to the field's value; CompileError E0101, with the flag as its
    place. check: raises that for a number out of range; limits: both ends of an integer.
    int8_only: an error with float32, unless the value is `without`, which asks for what float32 does anyway.
    """

    group: Group
    help: str
    flags: tuple[str, ...]
    metavar: str | None = None
    read: Callable[[Any, str], Any] | None = None
    repeated: bool = False
    check: Callable[[Any, str], None] | None = None
    limits: tuple[int, int] | None = None
    int8_only: bool = False
    without: str = ""

    @property
    def flag(self) -> str:
        """Return the option as messages name it."""
        return self.flags[-1]


def option(group: Group, help_text: str, *flags: str, **more: Any) -> dict[str, Option]:
    """Metadata for a field of CompileOptions that the command line sets; `more` as in Option."""
    return {_KEY: Option(group, help_text, flags, **more)}


def option_of(metadata: Mapping[Any, Any]) -> Option | None:
    """Return the option of a dataclass field's metadata; None for a field that the command line does not set."""
    return metadata.get(_KEY)


def within(low: float, high: float) -> Callable[[float, str], None]:
    """Return a check that a number is between two others."""

    def check(value: float, flag: str) -> None:
        if not low <= value <= high:
            raise CompileError("E0101", flag, f"{value} is out of range", f"use {low:g} to {high:g}")

    return check


def at_least_one(value: int, flag: str) -> None:
    """Return a check of a count."""
    if not 1 <= value <= 1 << 20:
        raise CompileError("E0101", flag, f"{value} is out of range", "use 1 or more")
