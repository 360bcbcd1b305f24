"""The options of Python calls as `help()` shows them, from their declarations (options/compile_options.py)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tinytrain_compile.cli.config import long_name
from tinytrain_compile.cli.python_inputs import ARRAYS
from tinytrain_compile.options.compile_options import OPTIONS, CompileOptions
from tinytrain_compile.options.option import GROUPS, Option

_WIDTH = 100
_NOT_OF_PYTHON = frozenset(("out", "force", "dry_run", "dump_after"))
"""Options of a folder that is written, and of runs without a project."""


def options_help() -> str:
    """Return every option of a compilation: its name in Python, what it may be, its default and what it does."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    hints, defaults = (
        get_type_hints(CompileOptions),
        {item.name: _default(item) for item in fields(CompileOptions) if item.name in OPTIONS},
    )
    for group, title in GROUPS.items():
        chosen = {name: known for name, known in OPTIONS.items() if known.group == group and name not in _NOT_OF_PYTHON}
        if chosen:
            yield f"{title}:"
        for name, known in chosen.items():
            yield f"  {long_name(name).replace('-', '_')}: {_kind(hints[name], name, known)}{defaults[name]}"
            yield from textwrap.wrap(known.help, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _default(item: Any) -> str:
    """Return ` = ` and a field's default; nothing for an object that no text makes."""
    default = item.default_factory() if item.default is MISSING else item.default
    plain = default is None or isinstance(default, (str, int, float, tuple, dict))
    return f" = {default!r}" if plain else ""


def _kind(hint: Any, name: str, known: Option) -> str:
    """Say what an option may be in a call."""
    if name in ARRAYS:
        return "path of an .npz, arrays or batches"
    if known.repeated:
        return f"dict or list of {known.metavar}" if "=" in (known.metavar or "") else f"list of {known.metavar}"
    if known.read is not None and hint is not str:  # a text, or what is typed like it
        return f"{known.metavar} as text, number or list"
    return _typed(hint)


def _typed(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(_typed(part) for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is Literal:
        return " | ".join(repr(each) for each in get_args(hint))
    if hint is Path:
        return "path"
    return str(hint.__name__)
