"""Which code the nodes got under --code and --flash-budget, in words and for report.json."""

from __future__ import annotations

from typing import Any

from tinytrain_compile.ir.stages import Summary
from tinytrain_compile.report.words import bytes_text, grouped, plural, printable


def code_pieces(summary: Summary) -> list[str]:
    """Pieces of text; none for code that is made for speed without a limit."""
    choice, pieces = summary.code, list[str]()
    if choice.variant != "speed":
        of = (
            f"{len(choice.small_nodes)} of {plural(len(summary.calls), 'node')}" if choice.variant == "mixed" else "all"
        )
        pieces.append(f"small code for {of}")
    if choice.budget_bytes is not None:
        pieces.append(f"budget {bytes_text(choice.budget_bytes)}")
    if choice.copies:
        size = sum(copy.size_bytes for copy in choice.copies)
        names = ", ".join(printable(copy.layer) for copy in choice.copies)
        pieces.append(f"{plural(len(choice.copies), 'frozen weight')} stored twice ({grouped(size)} B): {names}")
    return pieces


def code_json(summary: Summary) -> dict[str, Any]:
    """Keys of `flash`: which code the nodes have (speed, size or mixed), the limit, and what lies there twice."""
    choice = summary.code
    return {
        "budget_bytes": choice.budget_bytes,
        "code": choice.variant,
        "small_nodes": list(choice.small_nodes),
        "turned_weights": [{"layer": copy.layer, "size_bytes": copy.size_bytes} for copy in choice.copies],
    }
