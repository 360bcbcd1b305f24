"""From the text of an option to its value. `where` is the flag, as an error names it."""

from __future__ import annotations

import math
import re

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.runtime_parts import IN_FLASH, MAX_SAMPLES, PARTS, RuntimeParts

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
        raise CompileError("E0101", where, f"{text!r} is not a size above 0", "for example 256KB, 256KiB or 262144")
    return size


def parse_plans(text: str, where: str) -> tuple[int, ...]:
    """Sizes behind commas, in increasing order; CompileError E0101 unless there are two to eight different ones."""
    sizes = sorted({parse_size(part, where) for part in text.split(",")})
    if not 2 <= len(sizes) <= 8:
        raise CompileError("E0101", where, f"{text!r} is not two to eight sizes", "for example 64KB,128KB")
    return tuple(sizes)


def parse_time(text: str, where: str) -> int:
    """Picoseconds of "500ms", "2s" or "1.5 ms"; CompileError E0101 unless it is a positive time."""
    match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(us|ms|s)\s*", text)
    time = round(float(match[1]) * _TIMES[match[2]]) if match else 0
    if time <= 0:
        raise CompileError("E0101", where, f"{text!r} is not a time above 0", "for example 500ms or 2s")
    return time


def parse_memories(texts: tuple[str, ...], where: str) -> dict[str, int]:
    """{"sram2": 1048576} from "sram2=1MB"; CompileError E0101 for anything else, or a name given twice."""
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
        raise CompileError("E0101", where, f"{text!r} is no number from 1e-30 to 1", "for example 1e-8")
    return found


def parse_norm(text: str, where: str) -> float:
    """Parse a number from 1e-18 to 1e18: its square is a float32."""
    found = _number(text)
    if not 1e-18 <= found <= 1e18:
        raise CompileError("E0101", where, f"{text!r} is no number from 1e-18 to 1e18", "for example 1")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse_shapes(texts: tuple[str, ...], where: str) -> dict[str, tuple[int, ...]]:
    """{"x": (1, 3, 32, 32)} from "x=1,3,32,32"."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, dims = text.rpartition("=")
        if not name or not re.fullmatch(r"[0-9]{1,12}(\s*[,x]\s*[0-9]{1,12})*", dims):
            raise CompileError("E0101", where, f"{text!r} is not NAME=1,3,32,32", "give all dimensions as numbers")
        shapes[name] = tuple(int(d) for d in re.split(r"[,x]", dims))
    return shapes


def parse_reports(text: str, where: str) -> tuple[str, ...]:
    """("json", "html") from "json, html"; CompileError E0101 for any other kind."""
    kinds = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = sorted(set(kinds) - set(REPORTS))
    if unknown:
        raise CompileError("E0101", where, f"unknown kind {unknown[0]!r}", f"use {', '.join(REPORTS)}")
    return kinds


def parse_runtime(text: str, where: str) -> RuntimeParts:
    """Parse parts ("replay=100,schedule"); CompileError E0101 for unknown ones and for those named twice."""
    names, numbers = list[str](), dict[str, int]()
    for item in (part.strip() for part in text.split(",") if part.strip()):
        name, sign, count = item.partition("=")
        if name not in PARTS or name in names:
            what = f"{name!r} is named twice" if name in names else f"unknown part {name!r}"
            raise CompileError("E0101", where, what, f"use {', '.join(PARTS)}")
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
