"""Which of the runtime's headers a project needs: what its C names, and what these headers include."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_DEFINED = re.compile(
    r"^(?:static inline|TT_SHARED) .*?(tt_\w+)\(|^#\s*define (TT_\w+)"
    r"|^typedef .*?(tt_\w+)(?: __attribute__.*)?;|^} (tt_\w+);",
    re.MULTILINE,
)
_INCLUDED = re.compile(r'^#\s*include "(tt_\w+\.h)"', re.MULTILINE)
FIRST = "tt_runtime.h"
"""Every file includes it, before all others."""
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_NAME = re.compile(r"\b(?:tt|TT)_\w+\b(?!\.h)")


def directly_used(texts: Iterable[str], headers: Mapping[str, str]) -> tuple[str, ...]:
    """Headers that define a function, type or macro that these C texts name, in the order of `headers`.

    FIRST, and what that includes, are not among them.
    """
    used = {name for text in texts for name in _NAME.findall(_COMMENT.sub("", text))}
    first = with_included([FIRST], headers)
    found = (header for header, text in headers.items() if not used.isdisjoint(_defined(text)))
    return tuple(header for header in found if header not in first)


def copied(used: Iterable[str], external: Iterable[str], headers: Mapping[str, str]) -> dict[str, str]:
    """File name -> text of the headers of a project; used: by our C; external: texts of the user's files."""
    included = (name for text in external for name in includes(text))
    return {name: headers[name] for name in with_included([FIRST, *used, *included], headers)}


def includes(text: str) -> list[str]:
    """Headers of the runtime that a C text includes."""
    return _INCLUDED.findall(text)


def with_included(names: Iterable[str], headers: Mapping[str, str]) -> tuple[str, ...]:
    """These headers and all that they include, in the order of `headers`."""
    needed: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in headers and name not in needed:
            needed.add(name)
            todo += includes(headers[name])
    return tuple(header for header in headers if header in needed)


def _defined(header: str) -> set[str]:
    return {name for names in _DEFINED.findall(header) for name in names if name}
