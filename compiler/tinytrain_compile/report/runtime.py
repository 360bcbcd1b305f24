"""Which parts of the loop around the step are in the output (--runtime), and what RAM they take beside the arena."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.words import bytes_text, plural


def runtime_pieces(summary: Summary) -> list[str]:
    """A piece for every part."""
    return [_piece(name, summary) for name in summary.runtime.names]


def _piece(name: str, summary: Summary) -> str:
    room = summary.replay
    if name != "replay" or room is None:
        return name
    each = f"{bytes_text(room.record_bytes)} a sample"
    if not room.samples:
        return f"{name} ({each})"
    return f"{name} ({bytes_text(room.size_bytes)} beside the arena: {plural(room.samples, 'sample')}, {each})"


def runtime_json(summary: Summary) -> dict[str, Any]:
    """parts; of a reservoir the bytes of a record, the samples that RAM is reserved for, and that RAM (0: caller's)."""
    room = summary.replay
    if room is None:
        return {"parts": list(summary.runtime.names), "replay": None}
    reservoir = {"record_bytes": room.record_bytes, "samples": room.samples, "bytes": room.size_bytes}
    return {"parts": list(summary.runtime.names), "replay": reservoir}


def replay_bytes(summary: Summary) -> int:
    """RAM beside the arena that a reservoir takes, as far as the compilation knows it."""
    return 0 if summary.replay is None else summary.replay.size_bytes
