"""Additions of `-v` on the terminal: layers, parameters, reasons of a choice, the judge of the file, and every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.cells import cell_len

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.report.analysis import analyse
from tinytrain_compile.report.choice import reason_lines
from tinytrain_compile.report.layout import WIDTH, grouped, pad, plural, printable, shorten, wrapped
from tinytrain_compile.report.rows import lines_of

GAP = "  "
FREED_CELLS, LEAST_NAME = 40, 16
"""Columns of a buffer's name in a list of several, and of a node's name however wide the other columns are."""


def verbose_lines(summary: Summary, width: int = WIDTH) -> Iterator[str]:
    """Yield the lines that stand between the report's block and the table of steps, then that table."""
    for layer in summary.layers:
        items = asdict(layer).items()
        facts = " ".join(f"{key}={value}" for key, value in items if key not in ("name", "module"))
        yield from wrapped("layer      ", f"{printable(layer.shown)}: {facts}", width)
    for fate in summary.fates:
        kind = "constant" if fate.kind == "other" else "parameter"
        into = f", trained as one with {printable(fate.into)}" if fate.into else ""
        said = f"{printable(fate.name)}: {plural(fate.elements, 'number')}, {printable(fate.why)}{into}"
        yield from wrapped(f"{kind:<11}", said, width)
    yield from lines_of("low_rank", summary, width)
    yield from reason_lines(summary, width)
    file = summary.verify.file
    if file is not None:
        done = f"{plural(file.tensors, 'tensor')} on {plural(file.samples, 'sample')}"
        yield from wrapped(
            "file       ", f"compared with the reference: {done}, {file.seconds:.2f} s of CPU time", width
        )
    yield from step_lines(summary, width)


def step_lines(summary: Summary, width: int = WIDTH) -> list[str]:
    """Return a heading, a line per step of the order, and below it what the step frees. Live bytes: of all memories."""
    analysis = analyse(summary.train, summary.plan)
    freed: dict[int, list[str]] = {}
    for buffer in summary.plan.buffers:
        if buffer.kind in ("tensor", "input"):
            freed.setdefault(buffer.last_step, []).append(buffer.name)
    rows: list[tuple[str, ...]] = [("step", "node", "op", "phase", "live")]
    for step, node in enumerate(summary.plan.order):
        name, op, load = printable(node.name), shown_name(node), grouped(analysis.load[step])
        rows.append((str(step), name, op, analysis.roles[step], load))
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
    """Join columns: numbers to the right, names to the left; nothing behind the last word."""
    cells = [
        text.rjust(width) if column in (0, 4) else pad(shorten(text, width), width)
        for column, (text, width) in enumerate(zip(row, wide, strict=True))
    ]
    return GAP.join(cells).rstrip()
