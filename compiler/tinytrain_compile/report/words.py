"""How figures and names are written, the same in every report: grouped digits, units, one printable line per name."""

from __future__ import annotations

from rich.cells import cell_len

NOT_MEASURED = "not measured"


def grouped(number: int) -> str:
    """Digits in groups of three, in every locale: 1,234,567."""
    return f"{number:,}"


def bytes_text(size_bytes: int | None) -> str:
    """A size with its unit; an unknown size is said to be unknown, never shown as 0."""
    return NOT_MEASURED if size_bytes is None else f"{size_bytes:,} B"


def share(part: int, whole: int) -> str:
    """A percentage with one decimal; of nothing it is 0.0%."""
    return f"{100.0 * part / whole if whole else 0.0:.1f}%"


def macs_text(macs: int) -> str:
    """Multiply-accumulates, short: 940, 23.4 k, 4.9 M, 1.2 G."""
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if macs >= limit:
            return f"{macs / (1000 if unit == 'k' else limit):.1f} {unit}"
    return grouped(macs)


def plural(count: int, noun: str) -> str:
    """`1 layer`, `3 layers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(text: str) -> str:
    """Names come from untrusted files: control characters, line ends and direction marks are written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shorten(text: str, cells: int, dots: str = "...") -> str:
    """At most `cells` terminal columns: the middle gives way, because names differ at their ends."""
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
    """Spaces behind the text up to `cells` terminal columns."""
    return text + " " * max(cells - cell_len(text), 0)
