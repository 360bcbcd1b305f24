"""Lays out a block of the terminal report: a key at the left, pieces that wrap at their joints behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.cells import cell_len
from rich.text import Text

from tinytrain_compile.report.words import NOT_MEASURED, pad, shorten

KEY_WIDTH = 11
MIN_WIDTH = 60
WIDTH = 80
"""Columns of every block and table, whatever the terminal has: logs and documents look the same."""
LONG_LISTS = "report.json"
"""The file that has every list whole."""


@dataclass(frozen=True)
class Row:
    """One entry of a block; without lines it is not shown."""

    key: str
    lines: tuple[str, ...]


def row(key: str, pieces: Iterable[str], width: int, joint: str = "   ") -> Row:
    """Pack pieces into lines: all of them. A piece wider than a line is wrapped between its words."""
    room = max(width, MIN_WIDTH) - KEY_WIDTH
    lines: list[str] = []
    for piece in pieces:
        if lines and cell_len(lines[-1] + joint + piece) <= room:
            lines[-1] += joint + piece
        elif cell_len(piece) <= room:
            lines.append(piece)
        else:
            lines += _words(piece, room)
    return Row(key, tuple(lines))


def listing(key: str, names: Sequence[str], width: int, most: int = 3, head: str = "") -> Row:
    """Names behind commas in about `most` lines; of a longer list, how many are left out and the file that has them."""
    start = [head] if head else []
    whole = row(key, [*start, *(f"{name}," for name in names[:-1]), *names[-1:]], width, " ")
    if len(whole.lines) <= most:
        return whole
    for shown in range(len(names) - 1, -1, -1):
        more = f"and {len(names) - shown:,} more in {LONG_LISTS}"
        cut = row(key, [*start, *(f"{name}," for name in names[:shown]), more], width, " ")
        if len(cut.lines) <= most or not shown:
            return cut
    return whole


def sentence(key: str, text: str, width: int) -> Row:
    """Running text, wrapped between words."""
    return row(key, text.split(), width, " ")


def _words(text: str, room: int) -> list[str]:
    """Lines of running text; only a word that is wider than a line is shortened."""
    lines: list[str] = []
    for word in text.split(" "):
        word = shorten(word, room)
        if lines and cell_len(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def wrapped(start: str, text: str, width: int = WIDTH, indent: int | None = None) -> list[str]:
    """A line of a table whose last column is running text: more lines begin below it, or at `indent`."""
    room = max(width, MIN_WIDTH)
    below = " " * min(cell_len(start) if indent is None else indent, room // 2)
    return wrap(start + text, room, subsequent_indent=below, break_on_hyphens=False)  # names have hyphens


def priced(ways: Sequence[tuple[str, str, str]], width: int = WIDTH) -> list[list[str]]:
    """A table of ways out, the lines of each: options, price, remark. Options are for copying, so they are never cut:
    long ones have a line of their own."""
    room = max(width, MIN_WIDTH) // 2
    wide = max((cell_len(options) for options, _, _ in ways if cell_len(options) <= room), default=0)
    column = max((len(price) for _, price, _ in ways), default=0)
    table: list[list[str]] = []
    for options, price, note in ways:
        alone = cell_len(options) > room
        lines = wrapped(f"    {pad('' if alone else options, wide)}  -> {price:>{column}}  ", note, width)
        table.append([f"    {options}", *lines] if alone else lines)
    return table


def block(rows: Iterable[Row]) -> list[str]:
    """All rows, the key of each in front of its first line. Nothing gives way to length."""
    return [
        (pad(entry.key if index == 0 else "", KEY_WIDTH) + line).rstrip()
        for entry in rows
        for index, line in enumerate(entry.lines)
    ]


def styled(lines: Iterable[str]) -> Text:
    """The same lines with colour for a terminal (no markup is interpreted: names may contain anything)."""
    text = Text()
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        text.append_text(_styled_line(line))
    return text


def _styled_line(line: str) -> Text:
    text = Text(line)
    key = line[:KEY_WIDTH].strip()
    if line[:1].strip() and line[KEY_WIDTH - 1 : KEY_WIDTH] == " ":
        text.stylize("bold" if key == "ARENA" else "cyan", 0, KEY_WIDTH)
    if key == "verify" or not line[:1].strip():
        for word, style in (("PASS", "bold green"), ("FAIL", "bold red"), ("SKIPPED", "yellow")):
            if line.endswith(word):
                text.stylize(style, len(line) - len(word), len(line))
    text.highlight_words([NOT_MEASURED], "dim")
    text.highlight_words(["OPTIMAL"], "bold green")
    return text
