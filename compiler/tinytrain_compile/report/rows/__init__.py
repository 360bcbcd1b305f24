"""Rows of the report that only some builds have: when a build has one, and the module that writes it.

A module is imported when a build has its row and not before. It offers what the row needs, by name: NAME_pieces for
the terminal and report.html, NAME_remarks for sentences below it, NAME_lines for a table, NAME_json for report.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tinytrain_compile.ir.summary import Agreement, BoardUse, LiteRtAgreement, OfferedKernels, Summary

ROWS: Mapping[str, tuple[str, Callable[[Summary], object]]] = {
    "agreement": ("agreement", lambda s: s.fact(Agreement)),
    "board": ("board", lambda s: s.fact(BoardUse)),
    "derivative": ("derivative", lambda s: s.verify.derivative),
    "external": ("external", lambda s: s.fact(OfferedKernels)),
    "float32": ("formats", lambda s: s.train.integer),
    "kernels": ("kernels", lambda s: s.verify.counts),
    "litert": ("litert", lambda s: s.fact(LiteRtAgreement)),
    "low_rank": ("low_rank", lambda s: s.train.low_rank),
    "paging": ("smaller_arena", lambda s: s.plan.paging),
    "pareto": ("pareto", lambda s: s.choice and s.choice.pareto),
    "quant_tensors": ("formats", lambda s: s.train.integer),
    "remat": ("smaller_arena", lambda s: s.plan.remat),
    "streams": ("smaller_arena", lambda s: s.plan.streams),
}
"""Row -> module of this folder, and whether a build has the row. Parts of a project (parts/) bring their own."""


def _ask(name: str, what: str, summary: Summary, *more: int) -> Any:
    module, applies = ROWS.get(name, ("", bool))
    if not (module and applies(summary)):
        return None
    answer = getattr(import_module(f"{__name__}.{module}"), f"{name}_{what}", None)
    return None if answer is None else answer(summary, *more)


def pieces_of(name: str, summary: Summary) -> list[str]:
    """Return the figures of a row; none if the build does not have it."""
    of_parts = [piece for part in summary.parts if part.row == name for piece in part.pieces(summary)]
    return of_parts or _ask(name, "pieces", summary) or []


def remarks_of(name: str, summary: Summary) -> list[str]:
    """Return the sentences below a row; none if the build does not have it."""
    return _ask(name, "remarks", summary) or []


def lines_of(name: str, summary: Summary, width: int) -> list[str]:
    """Return a table for the terminal; none if the build does not have it."""
    return _ask(name, "lines", summary, width) or []


def parts_json(summary: Summary) -> dict[str, Any]:
    """Return the data of all parts of the project, by their rows; those of --runtime have one row together."""
    runtime = [part for part in summary.parts if part.row == "runtime"]
    rows = {part.row: part.json(summary) for part in summary.parts if part.row not in ("", "runtime")}
    data = {part.name: found for part in runtime if (found := part.json(summary)) is not None}
    return {
        "runtime": {"parts": [part.name for part in runtime], "replay": None, **data},
        "features": None,
        "slices": None,
        "inference_only": None,
        "plans": [],
        **rows,
    }


def json_of(name: str, summary: Summary, otherwise: Any = None) -> Any:
    """Return the data of a row for report.json, or `otherwise` if the build does not have it."""
    found = _ask(name, "json", summary)
    return otherwise if found is None else found
