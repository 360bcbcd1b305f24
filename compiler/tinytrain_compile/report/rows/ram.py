"""RAM of the part that is flashed: what takes it, of how much; and what stands below the error if it is too little."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.ram import PartRam, RamUse
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.layout import WIDTH, priced, wrapped
from tinytrain_compile.report.words import bytes_text, grouped, printable, share


def ram_pieces(summary: Summary) -> list[str]:
    """All of the part's RAM, and every use of it with its memory. Of a core only if there are buffers."""
    ram = summary.ram
    if ram is None or (ram.size_bytes is None and not summary.runtime_buffers):
        return []
    uses = [f"{use.what} {grouped(use.size_bytes)}{_where(use)}" for use in ram.uses if use.size_bytes]
    return [_total(ram), *uses, *_not_counted(summary)]


def _total(ram: PartRam) -> str:
    if ram.size_bytes is None:
        return f"{bytes_text(ram.used_bytes)} and the stack; a core has no RAM size, a board has (--list-targets):"
    return f"{grouped(ram.used_bytes)} of {bytes_text(ram.size_bytes)} ({share(ram.used_bytes, ram.size_bytes)}):"


def _where(use: RamUse) -> str:
    return f" in {use.memory}" if use.memory else ""


def _not_counted(summary: Summary) -> list[str]:
    """What parts need that only the caller can place."""
    parts = summary.runtime
    found = ["replay: samples of your number"] if "replay" in parts.names and not parts.replay_samples else []
    found += ["average: in flash or RAM of yours"] if "average" in parts.names else []
    return [f"not counted: {'; '.join(found)}"] if found else []


def ram_json(summary: Summary) -> dict[str, Any] | None:
    """used_bytes, of all memories; size_bytes: null for a core; uses: what takes it, in which memory of the board."""
    ram = summary.ram
    if ram is None:
        return None
    uses = [{"what": use.what, "size_bytes": use.size_bytes, "memory": use.memory or None} for use in ram.uses]
    return {"used_bytes": ram.used_bytes, "size_bytes": ram.size_bytes, "uses": uses}


def ram_text(summary: Summary, width: int = WIDTH) -> list[str]:
    """What stands below E0405: everything that needs RAM, and ways out with the RAM that they take."""
    ram = summary.ram
    assert ram is not None and ram.size_bytes is not None, "only a board has too little RAM"
    over = ram.used_bytes - ram.size_bytes
    lacking = ", ".join(use.what for use in ram.lacking)
    why = f"over by {bytes_text(over)}" if over > 0 else f"no memory has room for: {lacking or 'the arena beside them'}"
    lines = wrapped(
        "  ", f"needs {bytes_text(ram.used_bytes)}, has {bytes_text(ram.size_bytes)}: {why}", width, indent=4
    )
    column = max(len(bytes_text(use.size_bytes)) for use in ram.uses)
    lines += [
        f"    {bytes_text(use.size_bytes):>{column}}  {printable(use.what)}{_where(use)}"
        for use in ram.uses
        if use.size_bytes
    ]
    if not summary.suggestions:
        return lines
    ways = [(printable(way.options), bytes_text(way.arena_bytes), printable(way.note)) for way in summary.suggestions]
    table = [line for each in priced(ways, width) for line in each]
    return [*lines, "  what would fit, with the RAM that it takes:", *table]
