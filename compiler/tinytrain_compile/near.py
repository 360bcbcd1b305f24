"""Nearest known names of misspelt ones, and the hints that errors make of them. Used only by errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_ALIKE = 0.65
"""Least ratio of difflib at which two names are a slip of each other: mometum and momentum are 0.93, adam and sgd 0.0.
With less, words of four letters that share two of them would be offered."""
_LISTED = 10
"""Names that an error lists; more would not be read."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like another, "" if none is. Case and punctuation do not count."""
    names = list(dict.fromkeys(known))
    plain = _plain(name)
    if not plain:
        return ""
    same = [each for each in names if _plain(each) == plain]
    begins = [each for each in names if len(plain) > 2 and _plain(each).startswith(plain)]
    alike = {each: difflib.SequenceMatcher(None, plain, _plain(each)).ratio() for each in names}
    best = max(names, key=lambda each: alike[each], default="")
    if same or begins:
        return (same or begins)[0]
    return best if best and alike[best] >= _ALIKE else ""


def hint(name: str, known: Iterable[str], more: str = "") -> str:
    """Return what to do about an unknown name: the nearest known one, and the list of all if it is short.

    more: where all are listed if they are too many for a line.
    """
    names = [each for each in dict.fromkeys(known) if each]
    near = nearest(name, names)
    if len(names) > _LISTED:
        listed, choose = more, f"choose one of {', '.join(names[:_LISTED])}, ..."
        choose = f"{choose} ({more})" if more else choose
    else:
        listed = f"known: {', '.join(names)}" if len(names) > 1 else ""
        choose = f"choose one of {', '.join(names)}" if len(names) > 1 else f"the only one is {''.join(names)}"
    if not near:
        return choose if names else "there are none"
    return f"did you mean {near}?" + (f" ({listed})" if listed else "")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
