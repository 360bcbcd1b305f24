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


@dataclass(frozen=True)
class Row:
    """One entry of a block. Rows of low rank give way first when the block is too long."""

    key: str
    lines: tuple[str, ...]
    rank: int


def row(key: str, pieces: Iterable[str], width: int, joint: str = "   ", most: int = 3, rank: int = 9) -> Row:
    """Pack pieces into at most `most` lines; pieces are never torn, but shortened where one is wider than a line."""
    room = max(width, MIN_WIDTH) - KEY_WIDTH
    lines: list[str] = []
    for piece in pieces:
        piece = shorten(piece, room)
        if lines and cell_len(lines[-1] + joint + piece) <= room:
            lines[-1] += joint + piece
        else:
            lines.append(piece)
    if len(lines) > most:
        lines = [*lines[: most - 1], shorten(lines[most - 1], room - 4) + " ..."]
    return Row(key, tuple(lines), rank)


def sentence(key: str, text: str, width: int, most: int = 2, rank: int = 9) -> Row:
    """Running text, wrapped between words."""
    return row(key, text.split(), width, " ", most, rank)


def wrapped(start: str, text: str, width: int = WIDTH, indent: int | None = None) -> list[str]:
    """A line of a table whose last column is running text: more lines begin below it, or at `indent`."""
    room = max(width, MIN_WIDTH)
    below = " " * min(cell_len(start) if indent is None else indent, room // 2)
    return wrap(start + text, room, subsequent_indent=below, break_on_hyphens=False)  # names have hyphens


def block(rows: Sequence[Row], most: int, width: int = WIDTH) -> list[str]:
    """At most `most` lines: of the least important row the last line goes first."""
    kept = [(entry.key, list(entry.lines), entry.rank) for entry in rows if entry.lines]
    while sum(len(lines) for _, lines, _ in kept) > most:
        victim = min(reversed(kept), key=lambda entry: (entry[2], -len(entry[1])))
        victim[1].pop()
        if victim[1]:
            victim[1][-1] = shorten(victim[1][-1].removesuffix(" ..."), max(width, MIN_WIDTH) - KEY_WIDTH - 4) + " ..."
        kept = [entry for entry in kept if entry[1]]
    return [
        (pad(key if index == 0 else "", KEY_WIDTH) + line).rstrip()
        for key, lines, _ in kept
        for index, line in enumerate(lines)
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
