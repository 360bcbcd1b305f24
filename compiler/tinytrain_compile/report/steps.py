"""The steps of a plan as a table for a terminal (`-v`): what runs, in which phase, how much is live, what it frees."""

from __future__ import annotations

from rich.cells import cell_len

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.analysis import analyse
from tinytrain_compile.report.words import grouped, pad, printable, shorten

NAME_CELLS, FREED_CELLS, FREED_NAMES = 44, 40, 3


def step_lines(summary: Summary) -> list[str]:
    """A heading and one line per step of the order. Live bytes are those of all memories together."""
    analysis = analyse(summary.train, summary.plan)
    freed: dict[int, list[str]] = {}
    for buffer in summary.plan.buffers:
        if buffer.kind in ("tensor", "input"):
            freed.setdefault(buffer.last_step, []).append(buffer.name)
    heads = ("step", "node", "op", "phase", "live", "frees")
    rows: list[tuple[str, ...]] = [heads]
    for step, node in enumerate(summary.plan.order):
        name = shorten(printable(node.name), NAME_CELLS)
        figures = (analysis.roles[step], grouped(analysis.load[step]), _names(freed.get(step, [])))
        rows.append((str(step), name, node.op, *figures))
    wide = [max(cell_len(row[column]) for row in rows) for column in range(len(heads))]
    return [_line(row, wide) for row in rows]


def _names(names: list[str]) -> str:
    shown = ", ".join(shorten(printable(name), FREED_CELLS) for name in names[:FREED_NAMES])
    more = len(names) - FREED_NAMES
    return f"{shown}, {more} more" if more > 0 else shown


def _line(row: tuple[str, ...], wide: list[int]) -> str:
    """Numbers to the right, names to the left; nothing behind the last word."""
    cells = [
        text.rjust(width) if column in (0, 4) else pad(text, width)
        for column, (text, width) in enumerate(zip(row, wide, strict=True))
    ]
    return "  ".join(cells).rstrip()
