"""What --pareto found, for people and programs: a table, and pareto.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from tinytrain_compile.ir.cost import ParetoPoint
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.layout import bytes_text, grouped

PARETO_CSV = "pareto.csv"
"""The file of the output."""
COLUMNS = ("limit_bytes", "arena_bytes", "gain", "best_gain", "layers", "parameters", "depth", "step_us", "label")


def _points(summary: Summary) -> Sequence[ParetoPoint]:
    assert summary.choice is not None, "--pareto is for --update auto"
    return summary.choice.pareto


def pareto_json(summary: Summary) -> list[dict[str, object]]:
    """Return a row for each arena, by the names of COLUMNS."""
    return [dict(zip(COLUMNS, _cells(point), strict=True)) for point in _points(summary)]


def pareto_csv(points: Sequence[ParetoPoint]) -> str:
    """Return the same as a table with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(point) for point in points)
    return text.getvalue()


def _cells(point: ParetoPoint) -> tuple[int | float | str, ...]:
    gains = round(point.gain, 6), round(point.best_gain, 6)
    counts = point.layers, point.parameters, point.depth
    return point.limit_bytes, point.arena_bytes, *gains, *counts, point.step_ps / 1e6, point.label


def pareto_lines(summary: Summary, width: int) -> list[str]:
    """Return the table for the terminal, with single spaces between columns if two are too many."""
    table = pareto_table(_points(summary))
    return table if max(map(len, table)) <= width else pareto_table(_points(summary), " ")


def pareto_table(points: Sequence[ParetoPoint], gap: str = "  ") -> list[str]:
    """Lay out a table; each line begins with the option that leads to it."""
    head = ("--arena", "used", "gain", "at most", "layers", "deep", "parameters")
    table = [
        (
            str(one.limit_bytes),
            bytes_text(one.arena_bytes),
            f"{one.gain:.1f}",
            "proven" if one.gain >= one.best_gain else f"{one.best_gain:.1f}",
            str(one.layers),
            str(one.depth),
            grouped(one.parameters),
        )
        for one in points
    ]
    wide = [max(len(row[column]) for row in (head, *table)) for column in range(len(head))]
    lines = [gap.join(cell.rjust(size) for cell, size in zip(row, wide, strict=True)) for row in (head, *table)]
    return ["what --update auto trains in other arenas:", *(f"{gap}{line}" for line in lines)]
