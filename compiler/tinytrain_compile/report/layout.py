"""Layout of reports: figures, names and blocks, with a key at the left, pieces that wrap at their joints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.cells import cell_len

NOT_MEASURED = "not measured"
KEY_WIDTH = 11
"""Columns of the keys: the longest one, with a space."""
MIN_WIDTH = 60
"""Columns below which nothing is wrapped: names and figures would stand alone in a line."""
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
    """Lay out names in about `most` lines; a longer list ends with how many are left out, and which file has them."""
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
    """Lay out running text, wrapped between words."""
    return row(key, text.split(), width, " ")


def _words(text: str, room: int) -> list[str]:
    """Break running text into lines; only a word that is wider than a line is shortened."""
    lines: list[str] = []
    for word in text.split(" "):
        word = shorten(word, room)
        if lines and cell_len(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def wrapped(start: str, text: str, width: int = WIDTH, indent: int | None = None) -> list[str]:
    """Wrap a line of a table whose last column is running text: more lines begin below it, or at `indent`."""
    room = max(width, MIN_WIDTH)
    below = " " * min(cell_len(start) if indent is None else indent, room // 2)
    return wrap(start + text, room, subsequent_indent=below, break_on_hyphens=False)  # names have hyphens


def block(rows: Iterable[Row]) -> list[str]:
    """Return all rows as lines, the key of each in front of its first one. Nothing gives way to length."""
    return [
        (pad(entry.key if index == 0 else "", KEY_WIDTH) + line).rstrip()
        for entry in rows
        for index, line in enumerate(entry.lines)
    ]


# ---- figures and names ----------------------------------------------------------------------------------------------


def grouped(number: int) -> str:
    """Group digits by three, in every locale: 1,234,567."""
    return f"{number:,}"


def bytes_text(size_bytes: int | None) -> str:
    """Return a size with its unit; an unknown size is said to be unknown, never shown as 0."""
    return NOT_MEASURED if size_bytes is None else f"{size_bytes:,} B"


def share(part: int, whole: int) -> str:
    """Return a percentage with one decimal; of nothing it is 0.0%."""
    return f"{100.0 * part / whole if whole else 0.0:.1f}%"


def macs_text(macs: int) -> str:
    """Shorten a number of multiply-accumulates: 940, 23.4 k, 4.9 M, 1.2 G."""
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if macs >= limit:
            return f"{macs / (1000 if unit == 'k' else limit):.1f} {unit}"
    return grouped(macs)


def plural(count: int, noun: str) -> str:
    """Count something: `1 layer`, `3 layers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str) -> str:
    """Escape control characters, line ends and direction marks: names come from untrusted files."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shorten(text: str, cells: int, dots: str = "...") -> str:
    """Cut a text to at most `cells` terminal columns: the middle gives way, because names differ at their ends."""
    if cell_len(text) <= cells:
        return text
    room = max(cells - cell_len(dots), 2)
    tail = _prefix(text[::-1], room // 2)[::-1]
    return _prefix(text, room - cell_len(tail)) + dots + tail


def _prefix(text: str, cells: int) -> str:
    used = 0
    for index, char in enumerate(text):
        used += cell_len(char)
        if used > cells:
            return text[:index]
    return text


def pad(text: str, cells: int) -> str:
    """Add spaces behind the text, up to `cells` terminal columns."""
    return text + " " * max(cells - cell_len(text), 0)
