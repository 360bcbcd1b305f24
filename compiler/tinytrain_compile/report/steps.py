"""The steps of a plan as a table for a terminal (`-v`): what runs, in which phase, how much is live, what it frees."""

from __future__ import annotations

from rich.cells import cell_len

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.analysis import analyse
from tinytrain_compile.report.layout import WIDTH, wrapped
from tinytrain_compile.report.words import grouped, pad, printable, shorten

GAP = "  "
FREED_CELLS, LEAST_NAME = 40, 16


def step_lines(summary: Summary, width: int = WIDTH) -> list[str]:
    """A heading, one line per step of the order, and below it what the step frees. Live bytes: of all memories."""
    analysis = analyse(summary.train, summary.plan)
    freed: dict[int, list[str]] = {}
    for buffer in summary.plan.buffers:
        if buffer.kind in ("tensor", "input"):
            freed.setdefault(buffer.last_step, []).append(buffer.name)
    rows: list[tuple[str, ...]] = [("step", "node", "op", "phase", "live")]
    for step, node in enumerate(summary.plan.order):
        rows.append((str(step), printable(node.name), node.op, analysis.roles[step], grouped(analysis.load[step])))
    wide = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    wide[1] = min(wide[1], max(width - sum(wide) + wide[1] - len(GAP) * (len(wide) - 1), LEAST_NAME))
    lines = [_line(rows[0], wide)]
    for step, row in enumerate(rows[1:]):
        lines += [_line(row, wide), *_freed(freed.get(step, []), len(GAP) + wide[0], width)]
    return lines


def _freed(names: list[str], indent: int, width: int) -> list[str]:
    shown = ", ".join(shorten(printable(name), FREED_CELLS) for name in names)
    return wrapped(f"{' ' * indent}frees ", shown, width) if names else []


def _line(row: tuple[str, ...], wide: list[int]) -> str:
    """Numbers to the right, names to the left; nothing behind the last word."""
    cells = [
        text.rjust(width) if column in (0, 4) else pad(shorten(text, width), width)
        for column, (text, width) in enumerate(zip(row, wide, strict=True))
    ]
    return GAP.join(cells).rstrip()
