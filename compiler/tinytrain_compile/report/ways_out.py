"""Blocks below an error: why training does not fit (E0401), is too slow (E0402) or has too little RAM (E0405), and
what would help, each way with its price."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from tinytrain_compile.ir.buffers import PartRam
from tinytrain_compile.ir.cost import PlanChoice
from tinytrain_compile.ir.summary import BoardUse, Suggestion, Summary
from tinytrain_compile.report.analysis import Analysis, analyse
from tinytrain_compile.report.choice import cost_parts, milliseconds
from tinytrain_compile.report.flash_and_ram import where_text
from tinytrain_compile.report.layout import MIN_WIDTH, WIDTH, bytes_text, pad, plural, printable, shorten, wrapped
from tinytrain_compile.report.text import fit_verdict, peak_text

LARGEST_SHOWN = 6
"""Buffers at the peak that a block names: they are what a reader can do something about."""


def does_not_fit_text(summary: Summary, width: int = WIDTH) -> list[str]:
    """Return what stands below E0401: the gap, what is proven, the peak, and ways out with their price."""
    plan, analysis = summary.plan, analyse(summary.train, summary.plan)
    limit = summary.arena_limit_bytes
    asked = (
        "" if limit is None else f", the arena is {bytes_text(limit)}: over by {bytes_text(plan.arena_bytes - limit)}"
    )
    what = "training" if summary.train.reads_state_of is None else "inference"
    lines = [f"  {what} needs {bytes_text(plan.arena_bytes)}{asked}"]
    if limit is not None:
        verdict = f"lower bound {bytes_text(plan.lower_bound_bytes)}: {fit_verdict(plan, limit)}"
        lines += wrapped("  ", verdict, width, indent=4)
    lines += [f"  peak at step {plan.peak_step} of {len(plan.order)}: {peak_text(analysis)}"]
    lines += ["  live there, largest first:", *_largest(analysis, width)]
    lines += attempt_lines(summary.choice, limit, width)
    return [*(shorten(line, max(width, MIN_WIDTH)) for line in lines), *_suggested(summary, width)]


def too_slow_text(summary: Summary) -> list[str]:
    """Return what stands below E0402: where the time goes, what was tried, and ways out."""
    choice = summary.choice
    if choice is None or choice.limit_ps is None:
        return []
    over = milliseconds(choice.cost.ps - choice.limit_ps)
    found = f"smallest modelled step time found: {milliseconds(choice.cost.ps)} ({cost_parts(choice)}): over by {over}"
    lines = wrapped("  ", found, indent=4)
    lines += ["  a model from the target file, not a measurement"]
    lines += attempt_lines(choice, summary.arena_limit_bytes)
    lines += ["  what would do, priced by planning it:"]
    wide = max((len(way.options) for way in summary.suggestions), default=0)
    for way in summary.suggestions:
        lines += wrapped(f"    {pad(way.options, wide)}  -> ", f"{bytes_text(way.arena_bytes)}, {way.note}")
    return lines


def ram_text(summary: Summary, width: int = WIDTH) -> list[str]:
    """Return what stands below E0405: everything that needs RAM, and ways out with the RAM that they take."""
    ram = summary.fact(PartRam)
    assert ram is not None and ram.size_bytes is not None, "only a board has too little RAM"
    over = ram.used_bytes - ram.size_bytes
    lacking = ", ".join(use.what for use in ram.lacking)
    why = f"over by {bytes_text(over)}" if over > 0 else f"no memory has room for: {lacking or 'the arena beside them'}"
    lines = wrapped(
        "  ", f"needs {bytes_text(ram.used_bytes)}, has {bytes_text(ram.size_bytes)}: {why}", width, indent=4
    )
    column = max(len(bytes_text(use.size_bytes)) for use in ram.uses)
    lines += [
        f"    {bytes_text(use.size_bytes):>{column}}  {printable(use.what)}{where_text(use)}"
        for use in ram.uses
        if use.size_bytes
    ]
    if not summary.suggestions:
        return lines
    ways = [(printable(way.options), bytes_text(way.arena_bytes), printable(way.note)) for way in summary.suggestions]
    table = [line for each in _priced(ways, width) for line in each]
    return [*lines, "  what would fit, with the RAM that it takes:", *table]


def attempt_lines(choice: PlanChoice | None, limit_bytes: int | None, width: int = WIDTH) -> list[str]:
    """Return what was tried as a table: how many bytes each way takes, and its price."""
    tried = () if choice is None else choice.attempts
    if not tried:
        return []
    wide = max(len(printable(attempt.how)) for attempt in tried)
    sizes = ["nothing found" if one.arena_bytes is None else bytes_text(one.arena_bytes) for one in tried]
    column = max(map(len, sizes))
    timed = any(" ms" in attempt.note for attempt in tried)
    lines = [f"  tried, in this order{', times by the target file (a model)' if timed else ''}:"]
    for attempt, size in zip(tried, sizes, strict=True):
        over = limit_bytes is not None and (attempt.arena_bytes is None or attempt.arena_bytes > limit_bytes)
        notes = ", ".join(n for n in (printable(attempt.note), "too large" if over else "fits the arena") if n)
        lines += wrapped(f"    {pad(printable(attempt.how), wide)}  -> {size:>{column}}  ", notes, width)
    return lines


def _largest(analysis: Analysis, width: int) -> list[str]:
    """Return a table of the largest buffers at the peak: bytes, name, why it is alive."""
    live = analysis.live(analysis.plan.peak_step)
    shown, rest = live[:LARGEST_SHOWN], live[LARGEST_SHOWN:]
    sizes = [bytes_text(item.buffer.size_bytes) for item in shown]
    others = sum(item.buffer.size_bytes for item in rest)
    column = max(len(text) for text in (*sizes, bytes_text(others)))
    names = [shorten(printable(item.tenant.names[0]), max(width, MIN_WIDTH) // 2 - column) for item in shown]
    wide = max((cell_len(name) for name in names), default=0)
    lines: list[str] = []
    for size, name, item in zip(sizes, names, shown, strict=True):
        lines += wrapped(f"    {size:>{column}}  {pad(name, wide)}  ", printable(item.reason), width)
    return [*lines, f"    {bytes_text(others):>{column}}  in {plural(len(rest), 'smaller buffer')}"] if rest else lines


def _suggested(summary: Summary, width: int) -> list[str]:
    """Lay out options, price and remark in columns; the arena that the plan needs is always one way out."""
    ways: Sequence[Suggestion] = summary.suggestions
    needed, on = summary.plan.arena_bytes, summary.fact(BoardUse)
    there = on is None or needed <= on.board.memories[0].model_bytes
    if there and not any(way.sets_arena for way in ways):
        ways = (*ways, Suggestion(f"--arena {needed}", needed, "fits as it is", sets_arena=True))
    if not ways:
        return ["  a larger board has room for it: --list-targets"]
    fitting = [way for way in ways if _fits(way, summary.arena_limit_bytes)]
    rest = [way for way in ways if way not in fitting]
    rows = [(printable(w.options), bytes_text(w.arena_bytes), printable(w.note)) for w in (*fitting, *rest)]
    table = _priced(rows, width)  # one table, so that both parts have its columns
    first, last = (
        [line for lines in part for line in lines] for part in (table[: len(fitting)], table[len(fitting) :])
    )
    return ["  what would fit:", *first, *(["  not enough alone:", *last] if rest else [])]


def _fits(way: Suggestion, limit_bytes: int | None) -> bool:
    """Tell whether a way out fits: under the arena that was asked for, or because it names a larger one."""
    return limit_bytes is None or way.arena_bytes <= limit_bytes or way.sets_arena


def _priced(ways: Sequence[tuple[str, str, str]], width: int = WIDTH) -> list[list[str]]:
    """Return the lines of each way out: options, price, remark.

    Options are for copying, so they are never cut: long ones have a line of their own.
    """
    room = max(width, MIN_WIDTH) // 2
    wide = max((cell_len(options) for options, _, _ in ways if cell_len(options) <= room), default=0)
    column = max((len(price) for _, price, _ in ways), default=0)
    table: list[list[str]] = []
    for options, price, note in ways:
        alone = cell_len(options) > room
        lines = wrapped(f"    {pad('' if alone else options, wide)}  -> {price:>{column}}  ", note, width)
        table.append([f"    {options}", *lines] if alone else lines)
    return table
