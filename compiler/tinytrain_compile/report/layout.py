"""Layout of reports: figures, names and blocks, with a key at the left, pieces that wrap at their joints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.cells import cell_len

NOT_MEASURED = "not measured"
KEY_WIDTH = 11
"""Columns of the keys: the longest one, with a space."""
VALUE_WIDTH = 27
"""Columns of a figure in front of its remark: `182.8 k MAC a step` and most others are shorter."""
MIN_WIDTH = 40
"""Columns below which nothing is wrapped: names and figures would stand alone in a line."""
WIDTH = 80
"""Columns of every block and table at most, however wide the terminal is: logs and documents look the same."""
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


def figure(key: str, value: str, remark: str, width: int) -> Row:
    """Lay out a figure and what it consists of or means: in a second column if that fits, else below it."""
    room = max(width, MIN_WIDTH) - KEY_WIDTH
    both = f"{pad(value, VALUE_WIDTH)}   {remark}" if remark else value
    return Row(key, (both,)) if cell_len(both) <= room else row(key, [value, *([remark] if remark else [])], width)


def command(key: str, words: Sequence[str], width: int) -> Row:
    """Lay out a command for copying: its parts go to further lines as a shell reads them."""
    room, lines = max(width, MIN_WIDTH) - KEY_WIDTH - 2, [words[0]]
    for word in words[1:]:
        if cell_len(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(f"  {word}")
    return Row(key, tuple(lines))


def spread(left: str, right: str, width: int) -> list[str]:
    """Set two texts at both ends of a line; if they are too long for one, the second is below the first."""
    room = max(width, MIN_WIDTH)
    gap = room - cell_len(left) - cell_len(right)
    return [left + " " * gap + right] if gap >= 3 else [*wrapped("", left, width, 2), *wrapped("  ", right, width)]


def fitted(line: str, width: int) -> list[str]:
    """Wrap a line that is wider than the terminal; what is left of it begins below its own indentation.

    A line with a path that has no room anyway stays whole, for copying.
    """
    room, start = max(width, MIN_WIDTH), len(line) - len(line.lstrip())
    below = " " * min(start + 4, room // 2)
    longest = max(map(cell_len, line.split()), default=0)
    if cell_len(line) <= room or longest + cell_len(below) > room:
        return [line]
    return wrap(line, room, subsequent_indent=below, break_on_hyphens=False, break_long_words=False)


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


def table(rows: Sequence[Sequence[str]], width: int, indent: str = "") -> list[str]:
    """Lay out rows, the heading first: the last column is text that wraps below itself, the others are figures.

    Columns are two spaces apart, or one if the table were wider than the terminal.
    """
    wide = [max(cell_len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    gap = "  " if len(indent) + sum(wide) + 2 * len(wide) - 2 <= width else " "
    lines = list[str]()
    for *figures, text in rows:
        cells = [" " * (size - cell_len(cell)) + cell for cell, size in zip(figures, wide, strict=False)]
        start, room = indent + gap.join(cells) + gap, max(width, MIN_WIDTH)
        if cell_len(start + text) > room and cell_len(start) > room // 2:  # else it would be words below one another
            lines += [start, *wrapped(" " * (room // 4), text, width)]
        else:
            lines += wrapped(start, text, width)
    return [line.rstrip() for line in lines]


def blocks(groups: Iterable[Iterable[Row]]) -> list[str]:
    """Return the lines of all groups that have some, with an empty line in front of each."""
    return [line for found in map(block, groups) if found for line in ("", *found)]


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
