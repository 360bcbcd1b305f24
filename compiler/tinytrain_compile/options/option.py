"""Declaration of an option of the command, and the reader of its text. `where` is the flag, as an error names it.

Each is declared once, at its field of CompileOptions (options/compile_options.py): the command line, its help, what is
an error for float32 and the list in docs/options.md all come from there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.runtime_parts import IN_FLASH, MAX_SAMPLES, PARTS, PURPOSES, RuntimeParts
from tinytrain_compile.near import hint, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Group = Literal["common", "model", "memory", "training", "int8", "verification", "code", "output"]
GROUPS: dict[Group, str] = {
    "common": "Main options",
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
"""Number of the main options of a compilation: those that most builds use."""

_KEY = "option"


@dataclass(frozen=True)
class Option:
    """How an option is typed and explained. Its name, type and default are those of the field.

    flags: as typed, the long one last; () for that of the field's name. metavar: of its value, if the type says too
    little. read: from the text that was typed, or the texts of an option that is `repeated`, to the field's value;
    CompileError E0101, with the flag as its place, or ValueError. check: raises that for a number out of range; limits:
    both ends of an integer.
    int8_only: an error with float32, unless the value is `without`, which asks for what float32 does anyway.
    shown: the default as it is typed, for --help, if it is read from a text; "" if --help says nothing of it.
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
    shown: str = ""

    @property
    def flag(self) -> str:
        """Return the option as messages name it."""
        return self.flags[-1]


def declared(group: Group, default: Any, help_text: str, *flags: str, **more: Any) -> Any:
    """Return a field that the command line sets. default: or `dict`; more: as in Option."""
    metadata = {_KEY: Option(group, help_text, flags, **more)}
    if default is dict:
        return field(default_factory=dict[str, Any], metadata=metadata)
    return field(default=default, metadata=metadata)


def options_in(kind: type[DataclassInstance]) -> dict[str, Option]:
    """Return the options of a dataclass by the names of their fields, but for fields that no command line sets."""
    known = {item.name: item.metadata[_KEY] for item in fields(kind) if _KEY in item.metadata}
    return {
        name: one if one.flags else replace(one, flags=(f"--{name.replace('_', '-')}",)) for name, one in known.items()
    }


def within(low: float, high: float) -> Callable[[float, str], None]:
    """Return a check that a number is between two others."""

    def check(value: float, flag: str) -> None:
        if not low <= value <= high:
            raise CompileError("E0101", flag, f"{value} is out of range", f"use {low:g} to {high:g}")

    return check


def at_least_one(value: int, flag: str) -> None:
    """Check that a count is one."""
    if not 1 <= value <= 1 << 20:
        raise CompileError("E0101", flag, f"{value} is out of range", "use 1 or more")


REPORTS = ("text", "json", "html")

_UNITS = {"": 1, "B": 1} | {
    letter + ending: 1 << bits for letter, bits in (("K", 10), ("M", 20), ("G", 30)) for ending in ("", "B", "IB")
}


_TIMES = {"us": 10**6, "ms": 10**9, "s": 10**12}


def parse_size(text: str, where: str) -> int:
    """Parse a size: "256KB", "256KiB", "1MB" or "262144"; KB is 1024. CompileError E0101 unless it is positive."""
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    size = int(match[1]) * unit if match and unit else 0
    if not 0 < size < 1 << 40:
        what = f"{text!r} is not a size, a whole number above 0"
        raise CompileError("E0101", where, what, _as_size(text, where))
    return size


def _as_size(text: str, where: str) -> str:
    """Say how a size is typed, from a text that was meant as one or several."""
    share = re.fullmatch(r"\s*([0-9]{1,6}[.,][0-9]{1,6})\s*([KMG])(?:B|iB)?\s*", text, re.IGNORECASE)
    if share is not None:
        return f"write {round(float(share[1].replace(',', '.')) * _UNITS[share[2].upper()]) >> 10}KB"
    more = f"; for several arenas: --plans {text}" if where == "--arena" and "," in text else ""
    return f"for example 256KB, 256KiB or 262144{more}"


def meant_kilobytes(limit: int, needed: int) -> str:
    """Ask for KB behind a limit that is less than one, if so many KB would do; "" for others."""
    if not limit < 1 << 10 <= needed <= limit << 10:
        return ""
    return f"{limit} are bytes: did you mean {limit}KB?"


SIZE: Mapping[str, Any] = {"metavar": "SIZE", "read": parse_size}
"""Settings of an option that is a size."""


def parse_name(text: str, where: str) -> str:
    """Parse a name that C, build systems and folders accept; CompileError E0101 for any other."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,59}", text):
        what = f"{text!r} is no C name: a letter, then up to 59 letters, digits and underscores"
        raise CompileError("E0101", where, what, "for example gesture_left")
    return text


def parse_plans(text: str, where: str) -> tuple[int, ...]:
    """Parse sizes behind commas into increasing order; CompileError E0101 unless they are two to eight."""
    sizes = sorted({parse_size(part, where) for part in text.split(",")})
    if not 2 <= len(sizes) <= 8:
        raise CompileError("E0101", where, f"{text!r} is not two to eight different sizes", "for example 64KB,128KB")
    return tuple(sizes)


def parse_time(text: str, where: str) -> int:
    """Parse a time ("500ms", "2s", "1.5 ms") into picoseconds; CompileError E0101 unless it is positive."""
    match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(us|ms|s)\s*", text)
    time = round(float(match[1]) * _TIMES[match[2]]) if match else 0
    if time <= 0:
        raise CompileError("E0101", where, f"{text!r} is not a time in us, ms or s", "for example 500ms or 2s")
    return time


def parse_memories(texts: tuple[str, ...], where: str) -> dict[str, int]:
    """Parse "sram2=1MB" into {"sram2": 1048576}; CompileError E0101 for anything else, or a name given twice."""
    memories: dict[str, int] = {}
    for text in texts:
        name, sign, size = text.partition("=")
        if not sign or not name or name in memories:
            what = f"{name!r} is given twice" if name in memories else f"{text!r} is not NAME=SIZE"
            raise CompileError("E0101", where, what, f"for example {where} sram2=1MB")
        memories[name] = parse_size(size, f"{where} {name}")
    return memories


def parse_betas(text: str, where: str) -> tuple[float, float]:
    """Parse two numbers from 0 up to but not 1."""
    parts = [_number(part) for part in text.split(",")]
    if len(parts) != 2 or not all(0.0 <= part < 1.0 for part in parts):
        raise CompileError("E0101", where, f"{text!r} is not B1,B2 with both from 0 up to 1", "for example 0.9,0.999")
    return parts[0], parts[1]


def parse_epsilon(text: str, where: str) -> float:
    """Parse a number from 1e-30 to 1: in float32 it is not 0."""
    found = _number(text)
    if not 1e-30 <= found <= 1.0:
        raise CompileError("E0101", where, f"{text!r} is no number from 1e-30 to 1", _as_number(text, "1e-8"))
    return found


def parse_norm(text: str, where: str) -> float:
    """Parse a number from 1e-18 to 1e18: its square is a float32."""
    found = _number(text)
    if not 1e-18 <= found <= 1e18:
        raise CompileError("E0101", where, f"{text!r} is no number from 1e-18 to 1e18", _as_number(text, "1"))
    return found


def parse_share(text: str, where: str) -> float:
    """Parse a share from 0 to 1, or from 0% to 100%."""
    percent = text.endswith("%")
    found = _number(text.removesuffix("%")) / (100 if percent else 1)
    if not 0 <= found <= 1:
        raise CompileError("E0101", where, f"{text!r} is no share", "write 1% or 0.01")
    return found


def parse_listen(text: str, where: str) -> int | Literal["off", "on", "only"]:
    """Parse whether a model listens: on, off, only, or the axis of its input that is time."""
    if text == "off" or text == "on" or text == "only":
        return text
    if not re.fullmatch(r"-?\d", text):
        raise CompileError("E0101", where, f"{text!r} is no axis", "write on, off, only, or the axis of time: 2")
    return int(text)


def _as_number(text: str, example: str) -> str:
    """Say how a number is typed."""
    comma = re.fullmatch(r"\d+,\d+", text)
    return f"write a decimal point: {text.replace(',', '.')}" if comma else f"for example {example}"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_shapes(texts: tuple[str, ...], where: str) -> dict[str, tuple[int, ...]]:
    """Parse "x=1,3,32,32" into {"x": (1, 3, 32, 32)}."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, dims = text.rpartition("=")
        numbers = re.fullmatch(r"[0-9]{1,12}(\s*[,x]\s*[0-9]{1,12})*", dims)
        if not name or not numbers:
            way = "give all dimensions as numbers" if name else f"write the input's name first: NAME={dims}"
            way = way if name or numbers else f"for example {where} x=1,3,32,32, if x is the input"
            raise CompileError("E0101", where, f"{text!r} is not NAME=1,3,32,32", way)
        shapes[name] = tuple(int(d) for d in re.split(r"[,x]", dims))
    return shapes


def parse_reports(text: str, where: str) -> tuple[str, ...]:
    """Parse "json, html" into ("json", "html"); CompileError E0101 for any other kind."""
    kinds = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = sorted(set(kinds) - set(REPORTS))
    if unknown:
        raise CompileError("E0101", where, f"unknown kind {unknown[0]!r}", hint(unknown[0], REPORTS))
    return kinds


def parse_runtime(text: str, where: str) -> RuntimeParts:
    """Parse parts ("replay=100,schedule"); CompileError E0101 for unknown ones and for those named twice."""
    names, numbers = list[str](), dict[str, int]()
    for item in (part.strip() for part in text.split(",") if part.strip()):
        name, sign, count = item.partition("=")
        if name not in PARTS or name in names:
            all_ = ", ".join(f"{part} ({purpose})" for part, purpose in PURPOSES.items())
            what, way = f"unknown part {name!r}", hint(name, PARTS) if nearest(name, PARTS) else f"choose from {all_}"
            meant = re.fullmatch(r"([a-z]+)[:(]?(\w+)\)?", item)
            if meant is not None and meant[1] in PARTS:
                way = f"write {meant[1]}={meant[2]}"
            if name in names:
                what, way = f"{name!r} is named twice", "name it once"
            raise CompileError("E0101", where, what, way)
        if sign:
            numbers[name] = 0 if item == f"monitor={IN_FLASH}" else _number_of_part(name, count, where)
        names.append(name)
    parts = tuple(name for name in PARTS if name in names)
    return RuntimeParts(parts, numbers.get("replay", 0), numbers.get("average", 0), "monitor" not in numbers)


def _number_of_part(name: str, count: str, where: str) -> int:
    number = int(count) if count.isascii() and count.isdigit() and len(count) < 8 else 0
    counted = {"replay": "samples", "average": "states"}
    if name not in counted or not 1 <= number <= MAX_SAMPLES:
        what = f"{count!r} is no number of {counted[name]}" if name in counted else f"{name} takes no number"
        what += f" (but monitor={IN_FLASH})" if name == "monitor" else ""
        raise CompileError("E0101", where, what, f"for example replay=100, at most {MAX_SAMPLES}")
    return number
